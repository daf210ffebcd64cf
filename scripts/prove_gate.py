"""Run the gate again and again, idle and beside CPU hogs, and append each result to a file as one line of JSON.

What the file has for this commit already is not run again, so a run that was stopped can be resumed. The order of the
tests of each `check` is shuffled by a seed of its own, which is printed and written down.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
HOG = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
"""Keeps one core busy until its parent has ended."""


@dataclass(frozen=True)
class Round:
    """A kind of run of the gate, and how often it has to be green."""

    tier: str
    hogs: int
    times: int

    @property
    def name(self) -> str:
        return f"{self.tier} beside {self.hogs} hogs" if self.hogs else f"{self.tier}, idle"


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """Run this many CPU hogs beside the gate."""
    running = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(count)]
    try:
        yield
    finally:
        for hog in running:
            hog.kill()
            hog.wait()


def commit() -> str:
    """Return the commit that is checked out. A changed work tree proves nothing."""
    if subprocess.check_output(["git", "status", "--porcelain"], cwd=ROOT):
        sys.exit("The work tree has changes. Commit them: a result is about a commit.")
    return subprocess.check_output(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, text=True).strip()


def run(round_: Round, log: Path) -> dict[str, Any]:
    """Run the gate once; return its result."""
    seed = str(random.SystemRandom().randrange(10**6)) if round_.tier == "check" else None
    print(f"{round_.name}{f', order seed {seed}' if seed else ''}: see {log}", flush=True)
    command = ["bash", ".ci/run"] if round_.tier == "ci" else [sys.executable, "scripts/gate.py", round_.tier]
    began = time.monotonic()
    with hogs(round_.hogs), log.open("wb") as output:
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **({"SAPWOOD_ORDER_SEED": seed} if seed else {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return {
        "round": round_.name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began),
        "green": ended.returncode == 0,
        **({"seed": seed} if seed else {}),
    }


def results_in(file: Path) -> Iterator[dict[str, Any]]:
    """Return the results in a file, without a last line that was cut off."""
    for line in file.read_text().splitlines() if file.exists() else ():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=ROOT / ".gate/results.jsonl", help="where results are appended")
    parser.add_argument("--check", type=int, default=10, help="runs of `just check`, idle")
    parser.add_argument("--check-hogs", type=int, default=0, help="runs of `just check` beside two CPU hogs")
    parser.add_argument("--ci", type=int, default=2, help="runs of `.ci/run`, idle")
    parser.add_argument("--ci-hogs", type=int, default=1, help="runs of `.ci/run` beside two CPU hogs")
    options = parser.parse_args()
    rounds = [
        Round("check", 0, options.check),
        Round("check", 2, options.check_hogs),
        Round("ci", 0, options.ci),
        Round("ci", 2, options.ci_hogs),
    ]
    file: Path = options.file
    file.parent.mkdir(parents=True, exist_ok=True)
    here = commit()
    known = list(results_in(file))
    done = Counter(result["round"] for result in known if result["commit"] == here)
    red = [result for result in known if result["commit"] == here and not result["green"]]
    for round_ in rounds:
        for number in range(done[round_.name], round_.times):
            log = file.with_name(f"gate-{here}-{round_.name.replace(', ', '-').replace(' ', '-')}-{number}.log")
            result = {"commit": here, **run(round_, log)}
            if commit() != here:
                sys.exit("The commit changed during a run: its result is discarded.")
            with file.open("a") as results:
                print(json.dumps(result), file=results)
            print(json.dumps(result), flush=True)
            if not result["green"]:
                red.append(result)
    print(f"{len(red)} of the runs at {here} failed." if red else f"Every run at {here} was green.")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
