"""What a node runs reads no clock and draws no random numbers itself: the linter refuses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFUSED = {
    "import time": "time",
    "from time import monotonic": "time",
    "import random": "random",
    "from random import uniform": "random",
    "from secrets import token_hex": "secrets",
    "from uuid import uuid4": "uuid.uuid4",
    "from os import urandom": "os.urandom",
    "from datetime import datetime; datetime.now(None)": "datetime.datetime.now",
}


def refused(path: str, source: str) -> list[str]:
    """Return what the linter refuses to a module at this path."""
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--quiet", "--select=TID251"]
    command += ["--output-format=concise", f"--stdin-filename={path}", "-"]
    found = subprocess.run(command, input=source, capture_output=True, text=True, cwd=ROOT, check=False)
    assert not found.stderr
    return [line.split("`")[1] for line in found.stdout.splitlines()]


@pytest.mark.parametrize(
    "folder", ["kernel/node", "runtimes/cluster/nats", "capabilities", "runs/dispatch", "chat/turn"]
)
def test_clocks_and_random_numbers_are_refused(folder: str) -> None:
    assert refused(f"src/sapwood/{folder}/new.py", "\n".join(REFUSED)) == list(REFUSED.values())


@pytest.mark.parametrize("path", ["src/sapwood/web/new.py", "tests/unit/new.py", "benchmarks/new.py"])
def test_they_are_not_refused_elsewhere(path: str) -> None:
    assert refused(path, "\n".join(REFUSED)) == []
