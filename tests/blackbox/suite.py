"""The black-box programs with their full counts, in rounds that can be resumed: `just blackbox`.

    python -m tests.blackbox.suite --only kill-cycles-disk --count 20

Each round has a seed and a data folder of its own, and appends a line of JSON to the results. A round that is in the
results is not played again, unless it found a violation and `--again` is given. Exits with 1 if any round found one.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.blackbox.chat_cuts import chat_cuts
from tests.blackbox.cluster_faults import play as cluster_faults
from tests.blackbox.kill_cycles import kill_cycles
from tests.blackbox.rounds import Outcome, Play, Results, Round
from tests.blackbox.worker_deaths import play as worker_deaths

RESULTS = Path(__file__).parents[2] / ".gate/blackbox.jsonl"


@dataclass(frozen=True)
class Program:
    """A program of the suite."""

    play: Play
    count: int
    """The faults, or turns, of all rounds together."""
    per_round: int

    def rounds(self, count: int | None) -> Iterator[tuple[int, int]]:
        """Yield the seed and the number of faults of each round."""
        left = self.count if count is None else count
        for seed in range(math.ceil(left / self.per_round)):
            yield seed, min(self.per_round, left - seed * self.per_round)


PROGRAMS = {
    "kill-cycles-process": Program(kill_cycles("process"), count=200, per_round=20),
    "kill-cycles-disk": Program(kill_cycles("disk"), count=200, per_round=20),
    "cluster-faults": Program(cluster_faults, count=200, per_round=10),
    "worker-deaths": Program(worker_deaths, count=100, per_round=10),
    "chat-cuts": Program(chat_cuts(kills=False), count=50, per_round=10),
    "chat-kills": Program(chat_cuts(kills=True), count=30, per_round=10),
}


def play_round(name: str, program: Program, seed: int, count: int) -> Round:
    """Play a round in a new folder; keep the folder if it found a violation."""
    folder, began = Path(tempfile.mkdtemp(prefix=f"sapwood-{name}-{seed}-")), time.monotonic()
    try:
        outcome = asyncio.run(program.play(folder, seed, count))
    except Exception:  # noqa: BLE001 - a program that fails is a finding, and the other rounds are played
        outcome = Outcome({}, violations=[traceback.format_exc()])
    if outcome.violations:
        outcome.violations.append(f"the folder is kept: {folder}")
    else:
        shutil.rmtree(folder)
    return Round(name, seed, count, time.monotonic() - began, outcome)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(PROGRAMS), help="play this program only; repeatable")
    parser.add_argument("--count", type=int, help="faults of each program, instead of its full count")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of the results")
    parser.add_argument("--again", action="store_true", help="play rounds again that found a violation")
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    results, failed = Results(options.results), 0
    done = results.done()
    for name in options.only or PROGRAMS:
        for seed, count in PROGRAMS[name].rounds(options.count):
            found = done.get((name, seed, count))
            if found is None or (found and options.again):
                ended = play_round(name, PROGRAMS[name], seed, count)
                results.add(ended)
                print(ended.line(), flush=True)
                found = ended.outcome.violations
            failed += bool(found)
    print(f"{failed} rounds found violations" if failed else "no violation")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
