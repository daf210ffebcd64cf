"""Python source, as tests read it that check all modules."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator


def parsed(text: str) -> ast.Module:
    """Parse without the garbage collector: it would look through the tree several times while it grows."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if was_enabled:
            gc.enable()


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements at any depth, with the handlers and cases that hold some of them. No expressions."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        children = getattr(tree, name, None)
        for child in children if isinstance(children, list) else ():
            yield child
            yield from statements(child)
