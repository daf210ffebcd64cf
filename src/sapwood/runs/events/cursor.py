"""How far a reader of events is, in every run of a tree: small enough to travel with each event.

For each agent that has given runs it names the number up to which all of them were told to
the end, and how far the reader is in each of the few after that. Agents are known by the
numbers that their parents gave them, so no name is part of it.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field

import msgspec

from sapwood.address import Address
from sapwood.errors import InvalidArguments
from sapwood.wire import frames

_text = msgspec.json.Encoder().encode

OWN = "="
"""Where the runs are that the agent itself does, beside those that it and others have given."""


@dataclass(slots=True)
class RunPosition:
    """How far a reader is in one run."""

    number: int
    seq: int = 0
    """The number of the next event; 0: not even the start was told."""
    milestones: int = 0
    """How many milestones were told."""
    given_up: int = 0
    """The number that the event had that it was given up, if that was told."""
    over: bool = False

    def told(self) -> list[int]:
        """Return it as it is part of a cursor."""
        if self.over:
            return [-1]
        return [self.seq, self.milestones, self.given_up] if self.milestones or self.given_up else [self.seq]


@dataclass(slots=True)
class Shelf:
    """How far a reader is in the runs of one agent."""

    done: int = 0
    """All runs up to this number were told to their ends."""
    places: dict[int, RunPosition] = field(default_factory=dict[int, RunPosition])

    def place(self, number: int) -> RunPosition:
        if number not in self.places:
            self.places[number] = RunPosition(number)
        return self.places[number]

    def is_done(self, number: int) -> bool:
        """Return whether a run was told to its end."""
        return number <= self.done or (number in self.places and self.places[number].over)

    def shrink(self) -> None:
        """Forget those places below which all was told."""
        for number in sorted(self.places):
            if not self.places[number].over:
                return
            self.done = max(self.done, number)
            del self.places[number]


@dataclass(slots=True)
class TurnPlace:
    """The position of a reader in a turn that belongs to no run."""

    id: str
    seq: int = 0
    over: bool = False


class Cursor:
    """How far one reader is."""

    def __init__(self, address: Address, stem: str) -> None:
        self._of = zlib.crc32(f"{address} {stem}".encode())
        self.shelves: dict[str, Shelf] = {}
        """By the numbers of the agents on the way down."""
        self.turns: dict[str, TurnPlace] = {}

    def shelf(self, key: str) -> Shelf:
        if key not in self.shelves:
            self.shelves[key] = Shelf()
        return self.shelves[key]

    def text(self) -> str:
        """Return it as text that fits into a URL and a header."""
        shelves = {
            key: [shelf.done, {place.number: place.told() for place in shelf.places.values()}]
            for key, shelf in self.shelves.items()
            if shelf.done or shelf.places
        }
        told: list[object] = [self._of, shelves]
        if self.turns:
            told.append({key: [turn.id, turn.seq] for key, turn in self.turns.items() if not turn.over})
        return urlsafe_b64encode(_text(told)).decode().rstrip("=")

    def read(self, text: str) -> None:
        """Continue where another reader was."""
        try:
            found = frames.read_json(urlsafe_b64decode(text + "=" * (-len(text) % 4)), _Stored)
        except (ValueError, msgspec.DecodeError):
            raise InvalidArguments("`after` is not a valid cursor.") from None
        if found.of != self._of:
            raise InvalidArguments("`after` is a cursor of another agent.")
        for key, (done, places) in found.shelves.items():
            shelf = self.shelves[key] = Shelf(done)
            for number, told in places.items():
                if told == [-1]:
                    shelf.places[number] = RunPosition(number, over=True)
                else:
                    seq, milestones, given_up = (*told, 0, 0, 0)[:3]
                    shelf.places[number] = RunPosition(number, seq, milestones, given_up)
        self.turns = {key: TurnPlace(id, seq) for key, (id, seq) in found.turns.items()}


class _Stored(msgspec.Struct, array_like=True):
    of: int
    shelves: dict[str, tuple[int, dict[int, list[int]]]]
    turns: dict[str, tuple[str, int]] = {}
