"""Check what a release publishes: build it twice to the same bytes, look into it, and list what it depends on.

`python scripts/check_package.py [FOLDER]` leaves the wheel, the source archive, `sapwood.cdx.json` (a CycloneDX list of
all dependencies of all extras, for Linux) and `SHA256SUMS` in the folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = (
    "sapwood/py.typed",
    "sapwood/__main__.py",
    "sapwood/storage/base.sql",
    "sapwood/studio/page/index.html",
    "sapwood/cli/docs/tutorial/first-agent.md",
    "sapwood/cli/docs/llms.txt",
    "sapwood/cli/templates/lobby/app.py.template",
    "sapwood/cli/examples/chat/page/index.html",
    "sapwood/cli/deploy/oci/Containerfile",
    "sapwood/cli/deploy/oci/.dockerignore",
    "sapwood/cli/deploy/compose/compose.yaml",
    "sapwood/cli/deploy/kubernetes/sapwood.yaml",
    f"sapwood-{PROJECT['version']}.dist-info/licenses/LICENSE",
)
OWN_TESTS = re.compile(r"(?:^|/)(?:tests|benchmarks|scripts)/|(?:^|/)conftest\.py$|__pycache__|node_modules")
SCRATCH = "sapwood-package-"
PLACES = tuple(str(place).encode() for place in (ROOT, sys.prefix, Path(tempfile.gettempdir()) / SCRATCH))
"""Paths of the machine that builds it."""
IGNORED = "W002,W004"
"""The wheel has example projects for `sapwood new`: some of their files are alike, and none is imported from there."""


def environment(seed: int) -> dict[str, str]:
    """Return an environment that differs from that of another build in what must not matter."""
    return {**os.environ, "TZ": ("UTC", "Asia/Tokyo")[seed], "PYTHONHASHSEED": str(seed + 1), "LC_ALL": "C"}


def build(folder: Path, seed: int) -> dict[str, Path]:
    """Build from a copy of what git has; return the files by their names."""
    source, to = folder / f"source-{seed}", folder / f"built-{seed}"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in tracked.split("\0"):
        if name and (ROOT / name).is_file() and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
            (source / name).chmod((ROOT / name).stat().st_mode)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(to), str(source)],
        check=True,
        env=environment(seed),
        stdout=subprocess.DEVNULL,
        umask=(0o022, 0o077)[seed],
    )
    return {path.name: path for path in sorted(to.iterdir())}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def problems(names: Iterable[str]) -> Iterator[str]:
    """Yield what is wrong with the names of the files in a wheel."""
    names = list(names)
    yield from (f"{name} is missing" for name in NEEDED if name not in names)
    yield from (f"{name} does not belong into the wheel" for name in names if OWN_TESTS.search(name))
    known = ("sapwood/", f"sapwood-{PROJECT['version']}.dist-info/")
    yield from (f"{name} is outside of the package" for name in names if not name.startswith(known))


def traces(files: Iterable[tuple[str, bytes]]) -> Iterator[str]:
    """Yield the files that name a path of the machine that built them."""
    for name, content in files:
        yield from (f"{name} names the path {place.decode()}" for place in PLACES if place in content)


def contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a wheel or a source archive."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist())
        return
    with tarfile.open(path) as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                yield member.name.partition("/")[2], file.read()


def run(*command: str | Path) -> None:
    subprocess.run([*map(str, command)], check=True)


def tools(folder: Path) -> Path:
    """Make an environment with what checks a release."""
    run("uv", "venv", "--quiet", folder / "tools")
    lock = ROOT / "requirements/release.txt"
    run("uv", "pip", "sync", "--quiet", "--python", folder / "tools", "--require-hashes", lock)
    return folder / "tools/bin"


def list_dependencies(wheel: Path, folder: Path, tools: Path, to: Path) -> None:
    """Install the wheel with all extras, as the lock file says, and write what is there then."""
    run("uv", "venv", "--quiet", folder / "all")
    extras = ",".join(sorted(PROJECT["optional-dependencies"]))
    lock = ROOT / "requirements/dev.txt"
    run("uv", "pip", "install", "--quiet", "--python", folder / "all", "--constraint", lock, f"{wheel}[{extras}]")
    run(
        tools / "cyclonedx-py",
        "environment",
        "--output-reproducible",
        "--pyproject",
        ROOT / "pyproject.toml",
        "--output-file",
        to,
        folder / "all",
    )
    listed = {one["name"] for one in json.loads(to.read_text())["components"]}
    if missing := {"apsw", "msgspec", "starlette", "pydantic-ai-slim"} - listed:
        raise SystemExit(f"{to.name} lacks {', '.join(sorted(missing))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="where to leave what was built; default: nowhere")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as name:
        folder = Path(name)
        first, second = build(folder, 0), build(folder, 1)
        found = [f"{name} differs between two builds" for name in first if digest(first[name]) != digest(second[name])]
        (wheel,) = [path for path in first.values() if path.suffix == ".whl"]
        found += problems(name for name, _ in contents(wheel))
        for path in first.values():
            found += traces(contents(path))
        if found:
            raise SystemExit("\n".join(found))
        checks = tools(folder)
        run(checks / "twine", "check", "--strict", *first.values())
        run(checks / "check-wheel-contents", "--ignore", IGNORED, wheel)
        listed = folder / "sapwood.cdx.json"
        list_dependencies(wheel, folder, checks, listed)
        sums = folder / "SHA256SUMS"
        published = [*first.values(), listed]
        sums.write_text("".join(f"{digest(path)}  {path.name}\n" for path in published))
        print(sums.read_text(), end="")
        if options.folder is not None:
            options.folder.mkdir(parents=True, exist_ok=True)
            for path in (*published, sums):
                shutil.copy(path, options.folder)


if __name__ == "__main__":
    main()
