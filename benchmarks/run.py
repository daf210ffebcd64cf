"""Measure everything, print a table, and write the pages in the docs that follow from it.

    python benchmarks/run.py            measure, print, write the pages
    python benchmarks/run.py tree.py    the same for one program; the other lines of the last run stay
    python benchmarks/run.py --page     write the pages again from the last run
    python benchmarks/run.py --quick    leave out what takes minutes

The lines of the last run are kept in `last.jsonl` beside this file.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import capacity
from page import page

HERE = Path(__file__).parent
LAST = HERE / "last.jsonl"
PAGE = HERE.parent / "docs/explanation/measured.md"
PROGRAMS = (
    "tree.py",
    "anchor.py",
    "door.py",
    "schedules.py",
    "chat.py",
    "runs.py",
    "teams.py",
    "interrupt.py",
    "fairness.py",
    "records.py",
    "history.py",
    "admin.py",
    "studio.py",
    "temporal.py",
    "costs.py",
    "workers.py",
    "cluster.py",
)
QUICK = {
    "tree.py": ("echo", "increment", "memory", "depth", "watchdog", "imports"),
    "schedules.py": ("--small", "grow", "storm", "restart", "step"),
    "chat.py": ("--small", "token", "reopen"),
    "runs.py": ("--small",),
    "teams.py": ("--small",),
    "interrupt.py": ("--small",),
    "fairness.py": ("--small",),
    "records.py": ("--small",),
    "history.py": ("--small",),
    "admin.py": ("--small",),
    "studio.py": ("--small",),
    "temporal.py": ("--small",),
    "costs.py": (),
    "workers.py": ("call", "overhead"),
    "cluster.py": ("commit", "call"),
}
"""What is measured with `--quick`: all metrics of a program, or these."""

Line = dict[str, Any]


def measure(*, quick: bool, only: Sequence[str]) -> list[Line]:
    lines: list[Line] = [machine()]
    for program in only or (QUICK if quick else PROGRAMS):
        command = [sys.executable, str(HERE / program), *(QUICK[program] if quick else ())]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for text in process.stdout:
                lines.append(json.loads(text))
                print(row(lines[-1]), flush=True)
        if process.returncode:
            raise SystemExit(f"{program} failed")
    return lines


def machine() -> Line:
    """Return on what it was measured; nothing that names the machine itself."""
    return {
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "on": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def row(line: Line) -> str:
    """Return a measured line as a person reads it."""
    ours = f"{line['ours']:>10.4g} {line['unit']:<3}"
    reference = f"{line['reference']:>10.4g} {line['unit']:<3}" if line["reference"] is not None else " " * 14
    ratio = f"{line['ratio']:>7.2f}x" if line["ratio"] is not None else " " * 8
    verdict = "" if line["bar"] == "part" else "ok  " if line["holds"] else "OVER"
    bar = "" if line["bar"] == "part" else line["bar"]
    return f"{line['name']:<72.72} {ours} {reference} {ratio}  {bar:<15} {verdict}"


def main() -> None:
    if "--page" not in sys.argv:
        print(f"{'metric':<72} {'ours':>14} {'reference':>14} {'ratio':>8}  {'bar':<15}")
        only = [argument for argument in sys.argv[1:] if argument in PROGRAMS]
        lines = measure(quick="--quick" in sys.argv, only=only)
        if "--quick" in sys.argv:
            return
        if only:
            new = {line.get("name") for line in lines}
            before = [json.loads(text) for text in LAST.read_text().splitlines()]
            lines = [*lines[:1], *(line for line in before if line.get("name", None) not in {*new, None}), *lines[1:]]
        LAST.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    PAGE.write_text(page([json.loads(text) for text in LAST.read_text().splitlines()]))
    capacity.main([])


if __name__ == "__main__":
    main()
