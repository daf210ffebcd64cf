"""How tests and the soak start a run of lives: in a process of its own, which answers with one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]
PATIENCE = 7200.0
TEMPORAL = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
"""The Temporal server, if there is one."""
LIVES = int(os.environ.get("SAPWOOD_LIVES", "40"))


def run_lives(
    level: str,
    lives: int,
    seed: str,
    *,
    of: str = "lives",
    mutant: str | None = None,
    only: str | None = None,
    until: str = "",
) -> dict[str, Any]:
    """Run so many lives, or with a mutant until something like that is found, and return what the runner printed.

    `of`: `lives`, `time_lives`, `chat_lives`, `run_lives`, `team_lives`, `nested_lives`, `worker_lives` or
    `driven_lives`.
    """
    command = [sys.executable, "-m", f"tests.faults.{of}", "--level", level, "--lives", str(lives), "--seed", seed]
    if mutant is not None:
        command += ["--mutant", mutant, "--until", until, "--forget"]
    if only is not None:
        command += ["--only", only]
    ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if not ended.stdout:
        raise AssertionError(ended.stderr)
    return json.loads(ended.stdout)
