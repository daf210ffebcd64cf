"""Run both type checkers: they accept `programs`, and refuse exactly the lines of `wrong` that are marked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = sorted([*HERE.glob("programs/*.py"), HERE / "types_of_programs.py", *HERE.glob("wrong/*.py")])
UNUSED = ("reportUnusedVariable", "reportUnusedImport", "reportUnusedClass")
"""What a wrong program may be: it is only checked, not run."""


class Line(NamedTuple):
    """A line of a file."""

    file: Path
    number: int


def marked() -> dict[Line, str]:
    """Return the lines that have to be refused."""
    return {
        Line(file, number): line.strip()
        for file in FILES
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if line.endswith("# wrong")
    }


def start_pyright() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(HERE)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def start_mypy() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-pretty"]
    command += ["--cache-dir", str(ROOT / ".mypy_cache"), *map(str, FILES)]
    paths = os.pathsep.join(map(str, (ROOT / "src", HERE / "programs", HERE / "wrong")))
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "MYPYPATH": paths})


def errors_of_pyright(run: subprocess.Popen[str]) -> dict[Line, str]:
    output, _ = run.communicate()
    found: dict[Line, str] = {}
    for problem in json.loads(output)["generalDiagnostics"]:
        file = Path(problem["file"])
        is_unused = problem.get("rule") in UNUSED and file.parent.name == "wrong"
        if problem["severity"] == "error" and not is_unused:
            found[Line(file, problem["range"]["start"]["line"] + 1)] = problem["message"]
    return found


def errors_of_mypy(run: subprocess.Popen[str]) -> dict[Line, str]:
    output, _ = run.communicate()
    if run.returncode not in (0, 1):
        raise SystemExit(f"mypy failed: {output}")
    errors = re.findall(r"^(\S+\.py):(\d+): error: (.*)$", output, flags=re.MULTILINE)
    return {Line(ROOT / file, int(number)): message for file, number, message in errors}


def main() -> int:
    pyright, mypy = start_pyright(), start_mypy()
    found = {"pyright": errors_of_pyright(pyright), "mypy": errors_of_mypy(mypy)}
    wrong = marked()
    problems: list[str] = []
    for checker, errors in found.items():
        accepted, refused = sorted(wrong.keys() - errors.keys()), sorted(errors.keys() - wrong.keys())
        problems += [f"{checker} accepts {where(line)}: {wrong[line]}" for line in accepted]
        problems += [f"{checker} refuses {where(line)}: {errors[line]}" for line in refused]
    print(*(problems or [f"Both checkers accept the programs, and refuse {len(wrong)} wrong lines."]), sep="\n")
    return 1 if problems else 0


def where(line: Line) -> str:
    return f"{line.file.relative_to(HERE)}:{line.number}"


if __name__ == "__main__":
    sys.exit(main())
