"""Which agents of a tree have others do something, for limits that hold for all of them together.

An agent is noted at the root before the commit that stores its first run. Who has none under
way any more is forgotten when somebody counts, so the list may be too long but never too short.
"""

from __future__ import annotations

from collections import deque

import msgspec

from sapwood.kernel.actor import Actor
from sapwood.kernel.ports import Gate
from sapwood.kernel.slices import Slices
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

GIVERS = Schema("sapwood.kernel", "givers")


class Givers:
    """The agents of one tree that have given runs."""

    def __init__(self, root: Database, slices: Slices, gate: Gate) -> None:
        self._root = root
        self._slices = slices
        self._gate = gate
        self.last_open: dict[str, int] = {}
        """How many runs of an agent were not over when somebody last looked."""
        self.begun: deque[tuple[float, frozenset[str]]] | None = None
        """When the runs of the last minute began, and whose limits each counts for; None: nobody has looked yet."""

    def note(self, actor: Actor) -> None:
        """Note that an agent has given a run."""
        if any(stem == actor.stem for stem, _ in self.all()):
            return
        self._root.begin()  # first, because no limit refuses it
        self._root.ensure(GIVERS)
        above = msgspec.json.encode([one.stem for one in actor.lineage()]).decode()
        self._root.execute("INSERT INTO sapwood_givers VALUES (?, ?) ON CONFLICT DO NOTHING", actor.stem, above)
        if actor.parent is not None:
            self._slices.commit()
            self._gate.follows(actor.database, self._root)

    def all(self) -> list[tuple[str, frozenset[str]]]:
        """Return the agents that are noted, each with those whose limits its runs count for."""
        if not self._root.has(GIVERS):
            return []
        rows = self._root.execute("SELECT agent, above FROM sapwood_givers")
        return [(stem, frozenset(msgspec.json.decode(above))) for stem, above in rows]

    def forget(self, stem: str) -> None:
        """An agent has no run under way any more."""
        self.last_open.pop(stem, None)
        self._root.execute("DELETE FROM sapwood_givers WHERE agent = ?", stem)
