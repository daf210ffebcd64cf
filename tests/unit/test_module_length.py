"""No module and no function of the package is longer than a reader can keep in mind."""

from __future__ import annotations

import ast
from pathlib import Path
from statistics import median

from tests.sources import parsed, statements

SOURCE = Path(__file__).parents[2] / "src/sapwood"
LIMIT = 500
LONGER = {
    "storage/database.py": 851,
}
"""The modules that are still longer, each with its length as its limit: they can only shrink."""
LONGEST_FUNCTION = 100
MEDIAN_FUNCTION = 7


def test_no_module_is_longer_than_its_limit() -> None:
    too_long = {name: f"{lines} lines" for name, lines in lengths().items() if lines > LONGER.get(name, LIMIT)}

    assert not too_long, "Split these modules along the sentences of their docstrings."


def test_modules_that_fit_the_limit_are_not_listed() -> None:
    known = lengths()

    assert [name for name in LONGER if known.get(name, 0) <= LIMIT] == []


def test_functions_are_short() -> None:
    functions = {
        f"{path.relative_to(SOURCE)}:{node.lineno}": (node.end_lineno or 0) - node.lineno + 1
        for path in SOURCE.rglob("*.py")
        for node in statements(parsed(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert {name: lines for name, lines in functions.items() if lines > LONGEST_FUNCTION} == {}
    assert median(functions.values()) <= MEDIAN_FUNCTION


def lengths() -> dict[str, int]:
    return {path.relative_to(SOURCE).as_posix(): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
