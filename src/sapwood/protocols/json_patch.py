"""The difference of two JSON values as a JSON patch (RFC 6902): `add`, `remove` and `replace` only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast


def patch_of(before: Any, after: Any) -> list[dict[str, Any]]:
    """Return the operations that make one JSON value of another."""
    return list(_changes("", before, after))


def _changes(path: str, before: Any, after: Any) -> Iterator[dict[str, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _changes_of_object(path, cast("dict[str, Any]", before), cast("dict[str, Any]", after))
    elif isinstance(before, list) and isinstance(after, list):
        yield from _changes_of_array(path, cast("list[Any]", before), cast("list[Any]", after))
    elif not _is_same(before, after):
        yield {"op": "replace", "path": path, "value": after}


def _changes_of_object(path: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in before:
        if name not in after:
            yield {"op": "remove", "path": f"{path}/{_token(name)}"}
    for name, value in after.items():
        place = f"{path}/{_token(name)}"
        if name in before:
            yield from _changes(place, before[name], value)
        else:
            yield {"op": "add", "path": place, "value": value}


def _changes_of_array(path: str, before: list[Any], after: list[Any]) -> Iterator[dict[str, Any]]:
    """Compare items by their places: what was inserted in the middle is found at the end of what changed."""
    both = min(len(before), len(after))
    for at in range(both):
        yield from _changes(f"{path}/{at}", before[at], after[at])
    for at in range(len(before) - 1, both - 1, -1):
        yield {"op": "remove", "path": f"{path}/{at}"}
    for value in after[both:]:
        yield {"op": "add", "path": f"{path}/-", "value": value}


def _is_same(before: Any, after: Any) -> bool:
    """Return whether two values that are not both objects or both arrays are the same in JSON."""
    return type(before) is type(after) and before == after


def _token(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
