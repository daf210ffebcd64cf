"""Text and numbers that a server wrote, before a person, a model, the log or code of ours uses them."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Any, cast

LONGEST_NAME = 64
"""Characters of a tool's name that every provider of models accepts."""
OTHERS = re.compile(r"[^a-zA-Z0-9_-]+")
DIGITS = 8


def cleaned(text: object, most: int) -> str:
    """Return a text without control characters, except line breaks and tabs, and of this length at most."""
    if not isinstance(text, str):
        return ""
    kept = "".join(one for one in text[:most] if one in "\n\t" or unicodedata.category(one) not in ("Cc", "Cf", "Cs"))
    return kept if len(text) <= most else f"{kept} …"


def texts_in(value: object) -> list[str]:
    """Return the texts of a JSON array; nothing if it is none."""
    items = cast("list[Any]", value) if isinstance(value, list) else list[Any]()
    return [one for one in items if isinstance(one, str)]


def seconds_of(milliseconds: object, least: float, most: float, default: float) -> float:
    """Return a time as seconds within limits. An integer may be larger than any float."""
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return default
    return min(max(milliseconds, least * 1000), most * 1000) / 1000


def shown_name(server: str, tool: str, taken: set[str]) -> str:
    """Return the name of a tool for models: that of its server before its own, and no other tool has it."""
    name = OTHERS.sub("_", f"{server}_{tool}")
    if len(name) > LONGEST_NAME or name in taken:
        digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]
        name = f"{name[: LONGEST_NAME - DIGITS - 1]}_{digest}"
    taken.add(name)
    return name
