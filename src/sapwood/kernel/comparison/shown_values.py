"""Values of a diff as JSON of a limited size: a row of a table may be as large as its database."""

from __future__ import annotations

from math import isfinite
from typing import Any, cast

MOST_BYTES = 2000
"""Of a text that is shown. A longer one is cut."""
MOST_BLOB_BYTES = 64
MOST_ITEMS = 200
"""Texts, numbers, objects and arrays of one value that are shown."""
DEEPEST = 20


def shown_text(start: bytes, size: int) -> str:
    """Return a text of so many bytes, of which the first are known."""
    if len(start) >= size <= MOST_BYTES:
        return start.decode(errors="replace")
    return f"{start[:MOST_BYTES].decode(errors='ignore')}… ({size} bytes)"


def shown_blob(start: bytes, size: int) -> str:
    """Return bytes as SQL writes them."""
    literal = f"x'{start[:MOST_BLOB_BYTES].hex()}'"
    return literal if size <= MOST_BLOB_BYTES else f"{literal[:-1]}…' ({size} bytes)"


def shown_number(value: float | None) -> float | str | None:
    """Return a number. JSON has no infinite ones."""
    return value if value is None or isfinite(value) else str(value)


def shown_json(value: Any) -> Any:
    """Return a JSON value without what is too much of it."""
    left = [MOST_ITEMS]

    def shortened(value: Any, depth: int) -> Any:
        left[0] -= 1
        if isinstance(value, str):
            encoded = value.encode(errors="replace")
            return shown_text(encoded, len(encoded))
        if isinstance(value, float):
            return shown_number(value)
        if not isinstance(value, dict | list):
            return value
        if depth > DEEPEST:
            return "…"
        if isinstance(value, list):
            items = cast("list[Any]", value)
            shown = [shortened(one, depth + 1) for one in items if left[0] > 0]
            return shown if len(shown) == len(items) else [*shown, f"… ({len(items)} items)"]
        fields = cast("dict[str, Any]", value)
        found = {shown_key(name): shortened(one, depth + 1) for name, one in fields.items() if left[0] > 0}
        return found if len(found) == len(fields) else found | {"…": f"{len(fields)} fields"}

    return shortened(value, 0)


def shown_key(key: str) -> str:
    """Return a key, which may be as long as its owner likes."""
    encoded = key.encode(errors="replace")
    return shown_text(encoded, len(encoded))
