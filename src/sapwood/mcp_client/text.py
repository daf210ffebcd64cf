"""Text and numbers that a server wrote, before a person, a model, the log or code of ours uses them."""

from __future__ import annotations

import hashlib
import re
from typing import Any, cast

LONGEST_NAME = 64
"""Characters of a tool's name that every provider of models accepts."""
OTHERS = re.compile(r"[^a-zA-Z0-9_-]+")
DIGITS = 8
UNWANTED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for line breaks and tabs
    r"\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064"
    r"\u2066-\u206f\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f"  # characters that format
    r"\ud800-\udfff]+"  # halves of characters
)
"""What no text of a server may have. A text may have millions of characters, so it is not looked at one by one."""


def cleaned(text: object, most: int) -> str:
    """Return a text without control characters, except line breaks and tabs, and of this length at most."""
    if not isinstance(text, str):
        return ""
    kept = UNWANTED.sub("", text[:most])
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


def line_of(text: object, most: int) -> str:
    """Return a text on one line, so that it cannot look like another line of a log."""
    return " ".join(cleaned(text, most).split())


def shown_name(server: str, tool: str, taken: set[str]) -> str:
    """Return the name of a tool for models: that of its server before its own, and no other tool has it."""
    name = OTHERS.sub("_", f"{server}_{tool}")
    if len(name) > LONGEST_NAME or name in taken:
        digest = hashlib.sha256(tool.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]
        name = f"{name[: LONGEST_NAME - DIGITS - 1]}_{digest}"
    taken.add(name)
    return name
