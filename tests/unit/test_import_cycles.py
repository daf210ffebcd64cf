"""No two modules of the package import each other, at any distance, not even for types only or inside a function."""

from __future__ import annotations

import ast
from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.sources import parsed, statements

SRC = Path(__file__).parents[2] / "src"


def test_modules_do_not_import_each_other() -> None:
    try:
        TopologicalSorter(imports_by_module()).prepare()
    except CycleError as error:
        raise AssertionError(f"These modules import each other: {' -> '.join(error.args[1])}") from None


def imports_by_module() -> dict[str, set[str]]:
    """Return the modules of the package, each with those it imports anywhere in its source."""
    paths = {module_name(path): path for path in (SRC / "sapwood").rglob("*.py")}
    return {name: {one for one in imported(path, paths.keys()) if one != name} for name, path in paths.items()}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path, modules: Collection[str]) -> set[str]:
    found: set[str] = set()
    for node in statements(parsed(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names if name.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module in modules:
            parts = (f"{node.module}.{name.name}" for name in node.names)
            found.update(part if part in modules else node.module for part in parts)
    return found
