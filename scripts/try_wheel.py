"""Do what the README, the tutorial and the templates say, from an empty folder and a built wheel only.

`python scripts/try_wheel.py [--wheel FILE] [--python 3.11 --python 3.13]`. Nothing of the checkout is used but the text
of the pages: their programs are taken from their code blocks.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements/dev.txt"
EXTRAS = "server,chat,auth,sandbox,remote"
BLOCK = re.compile(r"^<!-- include examples/([\w./-]+\.py) -->\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
README_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENDLESS = {"endless.py"}
"""Programs that run until they are killed."""
PATIENCE = 300


class Newcomer:
    """Someone with an empty folder, a Python and the wheel."""

    def __init__(self, folder: Path, python: str, wheel: Path) -> None:
        self.folder = folder
        self.bin = folder / ".venv/bin"
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("PYTHON", "SAPWOOD", "VIRTUAL_"))
            },
            "PATH": f"{self.bin}:/usr/bin:/bin",
        }
        self._uv("venv", "--python", python, str(folder / ".venv"))
        self._uv(
            "pip", "install", "--python", str(self.bin / "python"), "-c", str(LOCK), f"{wheel}[{EXTRAS}]", "pytest"
        )

    def _uv(self, *arguments: str) -> None:
        subprocess.run(["uv", *arguments, "--quiet"], check=True, cwd=self.folder)

    def run(self, *command: str, folder: Path | None = None) -> str:
        """Run a command; return what it prints."""
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=folder or self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout[-4000:]}")
        return done.stdout

    def says(self, words: str, *command: str, folder: Path | None = None) -> None:
        """Run a command that must print these words."""
        if words not in (said := self.run(*command, folder=folder)):
            raise SystemExit(f"{' '.join(command)} did not print {words!r}:\n{said[-4000:]}")

    @contextmanager
    def serving(self, project: Path) -> Iterator[str]:
        """Run `sapwood dev` in a project; yield the URL that it prints."""
        log = project / "dev.log"
        with log.open("w") as output:
            server = subprocess.Popen(
                [str(self.bin / "sapwood"), "dev", "--port", "0"],
                cwd=project,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            yield _url(log, server)
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                raise


def _url(log: Path, server: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and server.poll() is None:
        if found := re.search(r"open (http://\S+)", log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise SystemExit(f"sapwood dev did not start:\n{log.read_text()}")


def try_readme(newcomer: Newcomer) -> None:
    """The smallest program, its test, and the server with the commands that look into it."""
    program, test = README_BLOCK.findall((ROOT / "README.md").read_text())[:2]
    folder = newcomer.folder / "readme"
    folder.mkdir()
    (folder / "inbox.py").write_text(program)
    (folder / "test_inbox.py").write_text(test)
    (folder / "pytest.ini").write_text("[pytest]\nanyio_mode = auto\n")
    newcomer.says("notes in shopping: 1", "python", "inbox.py", folder=folder)
    newcomer.says("notes in shopping: 2", "python", "inbox.py", folder=folder)
    newcomer.says("1 passed", "pytest", "-q", folder=folder)

    newcomer.run("sapwood", "new", "demo")
    demo = newcomer.folder / "demo"
    with newcomer.serving(demo) as url:
        with urllib.request.urlopen(url, timeout=PATIENCE) as page:
            assert b"<html" in page.read().lower()
        newcomer.says("10", "sapwood", "call", "Lobby:main/Counter:shared", "add", "10", folder=demo)
        newcomer.says("10", "sapwood", "state", "Lobby:main/Counter:shared", folder=demo)
        newcomer.says("Lobby:main", "sapwood", "tree", folder=demo)
        newcomer.run("sapwood", "sql", "Lobby:main", "SELECT * FROM sapwood_children", folder=demo)
        newcomer.run("sapwood", "backup", "../demo-backup", folder=demo)
        newcomer.run("sapwood", "doctor", folder=demo)
    newcomer.says("fits app:app", "sapwood", "upgrade-check", "app:app", folder=demo)


def try_tutorial(newcomer: Newcomer) -> None:
    """Every program and every test of the tutorial, as the pages print them."""
    folder = newcomer.folder / "tutorial"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nanyio_mode = auto\n")
    programs: list[str] = []
    for page in sorted((ROOT / "docs/tutorial").glob("*.md")):
        for name, code in BLOCK.findall(page.read_text()):
            (folder / name).write_text(code)
            programs.append(name)
    assert len(programs) > 7, programs
    for name in programs:
        if not name.startswith("test_") and name not in ENDLESS and "__main__" in (folder / name).read_text():
            newcomer.run("python", name, folder=folder)
    newcomer.says(" passed", "pytest", "-q", folder=folder)


def try_templates(newcomer: Newcomer) -> None:
    """Each template becomes a project that passes its own tests; the page of the quickstart opens."""
    names = re.findall(r"^- `([\w-]+)`:", (ROOT / "docs/reference/cli.md").read_text(), re.MULTILINE)
    assert "agents-as-tools" in names, names
    for name in names:
        newcomer.run("sapwood", "new", f"my-{name}", "--template", name)
        newcomer.says(" passed", "python", "-m", "pytest", "-q", folder=newcomer.folder / f"my-{name}")
    with newcomer.serving(newcomer.folder / "my-agents-as-tools") as url:
        urllib.request.urlopen(url, timeout=PATIENCE).close()


def _find(version: str) -> list[str]:
    """Return a Python of this version, or nothing. uv does not search the folder of pyenv."""
    found = subprocess.run(["uv", "python", "find", version], capture_output=True, text=True, check=False)
    if found.returncode == 0:
        return [found.stdout.strip()]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    others = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    if not others:
        print(f"python {version}: not on this machine", flush=True)
    return [str(others[-1])] if others else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, help="default: build one")
    parser.add_argument("--python", action="append", help="a version or a path; repeatable; default: this one")
    parser.add_argument("--if-found", action="append", help="another version, tried if this machine has it; repeatable")
    options = parser.parse_args()
    pythons: list[str] = options.python or [sys.executable]
    pythons += [path for version in options.if_found or () for path in _find(version)]
    with tempfile.TemporaryDirectory(prefix="sapwood-newcomer-") as name:
        wheel: Path | None = options.wheel
        if wheel is None:
            command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", name, str(ROOT)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (wheel,) = Path(name).glob("*.whl")
        for number, python in enumerate(pythons):
            folder = Path(name) / f"empty-{number}"
            folder.mkdir()
            newcomer = Newcomer(folder, python, wheel.resolve())
            for part in (try_readme, try_tutorial, try_templates):
                began = time.monotonic()
                part(newcomer)
                print(f"python {python}: {part.__name__} ok in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
