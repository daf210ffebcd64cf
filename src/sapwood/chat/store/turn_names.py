"""Other ids by which clients know a turn: in some protocols, an answer to a question begins a run with a new id."""

from __future__ import annotations

from typing import NamedTuple

from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

TURN_NAMES = Schema("sapwood.chat", "turn_names")


class TurnName(NamedTuple):
    """The turn that another id stands for, and where in it that id begins."""

    turn: str
    after: str
    """The cursor of the last event before those that belong to the id. Empty: all events belong to it."""


class TurnNames:
    """The other ids of the turns of one agent. Every change belongs to the open slice."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def get(self, id: str) -> TurnName | None:
        """Return what an id stands for; `None` if it is unknown."""
        if not self._db.has(TURN_NAMES):
            return None
        rows = self._db.execute("SELECT turn, after FROM sapwood_turn_names WHERE id = ?", id)
        return TurnName(*rows[0]) if rows else None

    def put(self, id: str, name: TurnName) -> None:
        """Store an id. One that is known keeps its meaning."""
        self._db.ensure(TURN_NAMES)
        self._db.execute("INSERT OR IGNORE INTO sapwood_turn_names VALUES (?, ?, ?)", id, *name)

    def forget(self, id: str) -> None:
        """Delete an id."""
        self._db.execute("DELETE FROM sapwood_turn_names WHERE id = ?", id)

    def forget_gone(self) -> None:
        """Delete the ids of turns that are no longer stored."""
        if self._db.has(TURN_NAMES):
            self._db.execute("DELETE FROM sapwood_turn_names WHERE turn NOT IN (SELECT id FROM sapwood_turns)")
