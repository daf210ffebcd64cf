"""Calls that a fork holds: dead letters that are stored again as they were when they are replayed."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from sapwood.kernel.ports.work_id import WorkId


class HeldCall(msgspec.Struct):
    """What a fork keeps of a call that it holds, so that it can be stored again as it was."""

    number: int
    due_at: float | None = None
    dedup_key: str | None = None
    occurrence: int = 0
    failures: int = 0

    @property
    def work(self) -> WorkId:
        """What its steps are stored by."""
        return WorkId.call(self.number, self.occurrence)


_held = msgspec.json.Decoder(HeldCall)


class TakenLetter(NamedTuple):
    """A dead letter that was removed."""

    method: str
    arguments: bytes
    queue: str | None
    retry: str
    schedule: str | None
    created_at: float
    held: str | None

    def held_call(self) -> HeldCall | None:
        """Return the call that a fork holds, or `None` if the call failed."""
        return None if self.held is None else _held.decode(self.held)
