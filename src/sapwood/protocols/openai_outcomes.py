"""How a response has ended: its tokens, its error, and an output that the turn has not said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sapwood.chat.store.turns import Turn
from sapwood.errors import OverLimit
from sapwood.kernel.marshal.disclosure import for_clients

Json = dict[str, Any]


def adds(value: Any, output: Sequence[Json]) -> bool:
    """Return whether the output of a turn is not what it has said."""
    if isinstance(value, str):
        return bool(value) and all(item["type"] != "message" for item in output)
    return value is not None


def usage_of(turn: Turn[Any], before: Json) -> Json:
    """Return the tokens that a turn has used since something else had been used."""

    def total(name: str) -> int:
        return sum(int(one[name]) for one in turn.usage.values()) - sum(int(one[name]) for one in before.values())

    read, written = total("input_tokens"), total("output_tokens")
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }


def error_of(turn: Turn[Any]) -> Json | None:
    """Return the error of a turn that failed."""
    if turn.status != "failed":
        return None
    code = "rate_limit_exceeded" if turn.reason == OverLimit.code else "server_error"
    return {"code": code, "message": for_clients(turn.error) or "The response failed."}
