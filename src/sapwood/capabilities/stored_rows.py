"""Stored rows as users see them: ids that no two agents share, times, and values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.row_ids import row_id

shown: Callable[[bytes], Any] = msgspec.msgpack.Decoder().decode
"""Return stored bytes as plain msgpack values, for display."""


def time_of(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


class RowIds:
    """The ids of one agent's rows."""

    def __init__(self, actor: Actor) -> None:
        self._tag = row_id(0, actor.birthplace, actor.stem).removeprefix("0")

    def id_of(self, number: int) -> str:
        """Return the id of a row."""
        return f"{number}{self._tag}"

    def number_of(self, id: str) -> int | None:
        """Return the row of an id, or `None` if it is not an id of this agent."""
        number, dash, tag = id.partition("-")
        return int(number) if dash + tag == self._tag and number.isdecimal() and len(number) < 19 else None
