"""The alarm of a tree as an entry of the log."""

from __future__ import annotations

import msgspec


class AlarmLine(msgspec.Struct, array_like=True, frozen=True):
    """What the index of alarms says of a tree."""

    root: str
    due: float | None
    """When it has to be woken."""
    dead: int
    """How many of its agents have dead letters."""


encode_line = msgspec.msgpack.Encoder().encode
_decode_line = msgspec.msgpack.Decoder(AlarmLine).decode


def alarm_line(data: bytes) -> AlarmLine | None:
    """Return a line of the index of alarms, or `None` if it says that there is no alarm any more."""
    return _decode_line(data) if data else None
