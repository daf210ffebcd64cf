"""Print the CPU and wall time of tests by file and fixture, and the slowest tests.

Runs `unit`, `conformance` and `docs`, or pytest with the given arguments. `--from FILE` prints the table of an
earlier run with `--timings FILE`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROWS = 25
ALL = ["-q", "-n", "3", "--dist", "worksteal", "--inline-snapshot", "disable", "-m", "not alone"]

Costs = dict[str, tuple[float, float]]


def sum_costs(lines: Iterable[dict[str, object]], kind: str, key: Callable[[str], str] = str) -> Costs:
    """Return CPU and wall time of all lines of a kind, added up by a key that is made of their names."""
    costs: defaultdict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for line in lines:
        if line["kind"] == kind:
            cpu, wall = costs[key(str(line["name"]))]
            costs[key(str(line["name"]))] = cpu + float(str(line["cpu"])), wall + float(str(line["wall"]))
    return costs


def table(title: str, costs: Costs) -> None:
    """Print the rows that cost most CPU time, and the sum of all."""
    print(f"\n{'cpu s':>8}{'wall s':>9}  {title}")
    for name, (cpu, wall) in sorted(costs.items(), key=lambda item: -item[1][0])[:ROWS]:
        print(f"{cpu:>8.1f}{wall:>9.1f}  {name}")
    cpu, wall = (sum(cost[clock] for cost in costs.values()) for clock in (0, 1))
    print(f"{cpu:>8.1f}{wall:>9.1f}  all of {len(costs)}")


def main() -> int:
    arguments, code = sys.argv[1:], 0
    if arguments[:1] == ["--from"]:
        text = Path(arguments[1]).read_text()
    else:
        with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as file:
            ended = subprocess.run(["pytest", *(arguments or ALL), f"--timings={file.name}"], cwd=ROOT, check=False)
            text, code = file.read(), ended.returncode
    lines = [json.loads(line) for line in text.splitlines()]
    table("file", sum_costs(lines, "test", lambda name: name.partition("::")[0]))
    table("fixture", sum_costs(lines, "fixture"))
    table("test", sum_costs(lines, "test"))
    return code


if __name__ == "__main__":
    sys.exit(main())
