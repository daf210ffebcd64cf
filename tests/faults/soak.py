"""Kills again and again, both levels side by side, and prints a line of JSON for every thousand lives.

Of each level so many lives that write, as many that wait for the clock, as many that talk, as many whose
agents use agents, and as many of teams. Then those in which Temporal drives the turns: they are long, and fewer.

python -m tests.faults.soak --lives 5000
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.faults.running import run_lives

AT_ONCE = 1000
LEVELS = ("process", "disk")
KINDS = ("lives", "time_lives", "chat_lives", "run_lives", "team_lives")


def soak(level: str, lives: int, seed: str) -> list[dict[str, Any]]:
    """Run the lives of one level, and print as it goes."""
    results: list[dict[str, Any]] = []
    for part in range(0, lives, AT_ONCE):
        for kind in KINDS:
            result = run_lives(level, min(AT_ONCE, lives - part), f"{seed}-{part}", of=kind)
            results.append({"of": kind, **result})
            print(json.dumps(results[-1]), flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lives", type=int, default=5000, help="how many of each level and kind")
    parser.add_argument("--driven-lives", type=int, default=300, help="how many that Temporal drives")
    parser.add_argument("--worker-lives", type=int, default=500, help="how many of workers that share a folder")
    parser.add_argument("--seed", default=str(time.time_ns()))
    options = parser.parse_args()
    with ThreadPoolExecutor(len(LEVELS)) as threads:
        runs = list(threads.map(lambda level: soak(level, options.lives, options.seed), LEVELS))
    driven = run_lives("process", options.driven_lives, options.seed, of="driven_lives") if options.driven_lives else {}
    print(json.dumps({"of": "driven_lives", **driven}), flush=True)
    workers = run_lives("", options.worker_lives, options.seed, of="worker_lives") if options.worker_lives else {}
    print(json.dumps({"of": "worker_lives", **workers}), flush=True)
    for level, results in zip(LEVELS, runs, strict=True):
        total = {name: sum(result[name] for result in results) for name in ("lives", "replies", "seconds")}
        violations = [violation for result in results for violation in result["violations"]]
        print(json.dumps({"level": level, "seed": options.seed, **total, "violations": len(violations)}), flush=True)
    found = driven.get("violations") or workers.get("violations")
    return 1 if found or any(result["violations"] for results in runs for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
