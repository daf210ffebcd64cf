"""Keeps a long conversation short for the model: what is old becomes a summary, what is new stays as it is.

Clients see all of it still. The cut falls between turns, so that no tool call loses its
result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

CHARACTERS_PER_TOKEN = 4
KEPT = 0.5
"""Which part of what is allowed stays as it is."""
SUMMARISE = (
    "Summarise the conversation so far for your own later use: what the user wants, what was found out and decided, "
    "names, numbers and open questions. Write no greeting and no comment."
)
BEFORE = "What was said before, in short:\n\n"


def size_of(message: ModelMessage) -> int:
    """Return about how many tokens a message has."""
    return sum(len(_text_of(part)) for part in message.parts) // CHARACTERS_PER_TOKEN + 4


def _text_of(part: object) -> str:
    for name in ("content", "args"):
        value = getattr(part, name, None)
        if value is not None:
            return value if isinstance(value, str) else str(value)
    return ""


def cut_of(history: Sequence[ModelMessage], allowed: int) -> int:
    """Return how many messages are to be summarised; 0: none."""
    sizes = [size_of(message) for message in history]
    if sum(sizes) <= allowed:
        return 0
    left, cut = 0, 0
    for at in range(len(history) - 1, 0, -1):
        left += sizes[at]
        if left > allowed * KEPT and cut:
            break
        if begins_turn(history[at]):
            cut = at
        if left > allowed:
            break
    return cut


def begins_turn(message: ModelMessage) -> bool:
    """Return whether a message is what a user said, and not what a tool returned."""
    return message.kind == "request" and all(part.part_kind == "user-prompt" for part in message.parts)
