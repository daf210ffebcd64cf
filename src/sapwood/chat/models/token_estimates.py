"""How many tokens a request to a model may take: what is known of the conversation, and what is allowed to be said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from sapwood.chat.store.compaction import CHARACTERS_PER_TOKEN, size_of

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

    from sapwood.chat.models.loop import LoopTurn

OVERHEAD = 50
"""Tokens that a request takes in addition to its messages, about."""
ANSWER = 4096
"""Tokens that an answer may take if no `max_tokens` says how many."""


def read(turn: LoopTurn, history: Sequence[ModelMessage]) -> int:
    """Return how many tokens the model has to read, about: what it last said it read and wrote, and what came since."""
    for at in range(len(history) - 1, -1, -1):
        message = history[at]
        if message.kind == "response" and message.usage.input_tokens:
            known = message.usage.input_tokens + message.usage.output_tokens
            return known + sum(size_of(one) for one in history[at + 1 :])
    told = turn.instructions if isinstance(turn.instructions, str) else ""
    return OVERHEAD + len(told) // CHARACTERS_PER_TOKEN + sum(size_of(one) for one in history)


def written(turn: LoopTurn) -> int:
    """Return how many tokens the model may write."""
    chosen: Sequence[Any] = (
        turn.settings,
        getattr(turn.ready, "model_settings", None),
        getattr(turn.asked, "settings", None),
    )
    for settings in chosen:
        if isinstance(settings, Mapping) and "max_tokens" in settings:
            return cast("int", settings["max_tokens"])
    return ANSWER
