"""Finds the runs that are recorded as running, and wait for a person, themselves or below them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sapwood.address import Address
from sapwood.kernel.trees.tree import Tree


def with_waits(tree: Tree, address: Address, spans: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the spans of an agent: a run is `waiting` if an agent that works for it waits for an answer."""
    return [one | {"status": "waiting"} if _waits(tree, address, one) else one for one in spans]


def _waits(tree: Tree, address: Address, span: dict[str, Any]) -> bool:
    child = span["facts"].get("child")
    if span["kind"] != "run" or span["status"] != "running" or not isinstance(child, str):
        return False
    return tree.questions.has(address.child(span["name"], child))
