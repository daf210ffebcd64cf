"""No test of the fast suites waits in real time, unless it is marked `realtime` and says why."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import loops
from tests.sources import parsed

from sapwood.testing.loop import VirtualLoop

TEMPORAL = "drivers.py"
"""Starts Temporal's server, where there is no virtual time."""
MODULES = sorted(
    path for folder in loops.FOLDERS for path in folder.glob("*.py") if path.name not in (TEMPORAL, Path(__file__).name)
)
REAL = {"time.sleep", "asyncio.run", "asyncio.new_event_loop", "asyncio.DefaultEventLoopPolicy"}
"""What makes code wait in real time, or run on a loop that does."""


def real_waits(source: str) -> list[str]:
    """Return what waits in real time in a module of tests, outside of tests marked `realtime`."""
    if not any(name in source for name in (*REAL, "asyncio.Runner")):
        return []  # most modules: they need not be parsed
    tree = parsed(source)
    if any(_is_marked(node.value) for node in tree.body if isinstance(node, ast.Assign) and _is_pytestmark(node)):
        return []
    return [f"line {node.lineno}: {ast.unparse(node)}" for node in _unmarked(tree) if _is_real(node)]


def _is_pytestmark(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def _is_marked(node: ast.AST) -> bool:
    return "pytest.mark.realtime(" in ast.unparse(node)


def _unmarked(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and any(
        _is_marked(decorator) for decorator in node.decorator_list
    ):
        return
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _unmarked(child)


def _is_real(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and _name(node.func) == "asyncio.Runner":
        return not any(keyword.arg == "loop_factory" for keyword in node.keywords)
    return _name(node) in REAL


def _name(node: ast.expr) -> str | None:
    """Return the dotted name of an attribute of a module."""
    is_dotted = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return ast.unparse(node) if is_dotted else None


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_test_waits_in_real_time_without_saying_why(path: Path) -> None:
    assert real_waits(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def test_a():\n    time.sleep(1)", ["line 2: time.sleep"]),
        ("def test_a():\n    call(time.sleep, 1)", ["line 2: time.sleep"]),
        ("def test_a():\n    asyncio.run(play())", ["line 2: asyncio.run"]),
        ("runner = asyncio.Runner()", ["line 1: asyncio.Runner()"]),
        ("runner = asyncio.Runner(loop_factory=loops.factory)", []),
        ("async def test_a():\n    await asyncio.sleep(1)", []),
        ("@pytest.mark.realtime('why')\ndef test_a():\n    time.sleep(1)", []),
        ("@pytest.mark.realtime('why')\ndef test_a(): ...\ndef test_b():\n    time.sleep(1)", ["line 4: time.sleep"]),
        ("pytestmark = [pytest.mark.alone, pytest.mark.realtime('why')]\ndef test_a():\n    time.sleep(1)", []),
        ("pytestmark = pytest.mark.alone\ndef test_a():\n    time.sleep(1)", ["line 3: time.sleep"]),
        ("PROGRAM = 'time.sleep(1)'", []),
    ],
)
def test_real_waits_are_found(source: str, found: list[str]) -> None:
    assert real_waits(source) == found


async def test_a_test_runs_in_virtual_time() -> None:
    assert isinstance(asyncio.get_running_loop(), VirtualLoop)


@pytest.mark.realtime("shows what the mark does")
async def test_a_marked_test_runs_in_real_time() -> None:
    assert not isinstance(asyncio.get_running_loop(), VirtualLoop)
