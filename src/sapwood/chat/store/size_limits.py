"""Keeps what is stored of a conversation within bounds: how big a message may be, and which are the oldest to go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

LARGEST = 1_800_000
"""Bytes that one stored message may have: clients are sent all of them at once."""
KEPT = 2_000
"""Characters that are kept of what is shortened."""


def fitted(message: dict[str, Any], largest: int = LARGEST) -> dict[str, Any]:
    """Return a message that is not too big: what tools returned is shortened first, then what was said."""
    if _size(message) <= largest:
        return message
    parts: list[dict[str, Any]] = [dict(part) for part in message["parts"]]
    found: list[tuple[bool, int, dict[str, Any], str]] = []
    for part in parts:
        found += [(key == "text", -_size(part[key]), part, key) for key in ("output", "input", "text") if key in part]
    whole = {**message, "parts": parts}
    for _, size, part, key in sorted(found, key=lambda one: one[:2]):
        if -size > KEPT:
            part[key] = _shortened(part[key], -size)
        if _size(whole) <= largest:
            break
    return whole


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def _shortened(value: Any, size: int) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"{text[:KEPT]}… (shortened; it had {size} bytes)"


def over(messages: Sequence[tuple[str, str]], most: int) -> list[str]:
    """Return the ids of the oldest messages, of ids and roles, that have to go: what stays begins with a user's."""
    users = [at for at, (_, role) in enumerate(messages) if role == "user"]
    if len(messages) <= most or not users:
        return []
    first = next((at for at in users if len(messages) - at <= most), users[-1])
    return [id for id, _ in messages[:first]]
