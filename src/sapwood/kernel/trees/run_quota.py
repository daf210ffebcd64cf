"""Which agents of a tree have others do something, for limits that hold for all of them together.

An agent is noted at the root before the commit that stores its first run. Who has none under
way any more is forgotten at the next count, so the list may be too long but never too short.
When runs began is noted there too: they may be cleared away, with all who knew of them, before
the minute is over that they count for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.durability.slices import Slices
from sapwood.kernel.ports.durability import Gate
from sapwood.kernel.trees.tree_index import TreeIndex
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

GIVERS = Schema("sapwood.kernel", "givers")
BEGUN = Schema("sapwood.kernel", "begun")
MINUTE = 60.0


class RunQuota(TreeIndex):
    """The agents of one tree that have given runs."""

    def __init__(self, root: Database, slices: Slices, gate: Gate) -> None:
        super().__init__(root, slices, gate)
        self.begun: deque[tuple[float, frozenset[str]]] | None = None
        """Start times of the runs of the last minute, and whose limits they count for. `None` at first."""
        self.waiting: set[Callable[[], None]] = set()
        """Called when a run is over, or no more: another may begin, perhaps."""

    def freed(self) -> None:
        """A run of the tree has finished or was deleted: waiters check again."""
        for look in tuple(self.waiting):
            look()

    def note(self, actor: Actor, begun: Sequence[float]) -> None:
        """Note that an agent has given runs, and when those began that count for a minute."""
        if not begun and any(stem == actor.stem for stem, _ in self.all()):
            return
        self._begin(GIVERS)
        above = msgspec.json.encode([one.stem for one in actor.lineage()]).decode()
        self._root.execute("INSERT INTO sapwood_givers VALUES (?, ?) ON CONFLICT DO NOTHING", actor.stem, above)
        if begun:
            self._root.ensure(BEGUN)
            self._root.execute("DELETE FROM sapwood_begun WHERE at <= ?", begun[-1] - MINUTE)
            for at in begun:
                self._root.execute("INSERT INTO sapwood_begun VALUES (?, ?)", at, above)
        self._commit_before(actor.database)

    def all(self) -> list[tuple[str, frozenset[str]]]:
        """Return the agents that are noted, each with those whose limits its runs count for."""
        if not self._root.has(GIVERS):
            return []
        rows = self._root.execute("SELECT agent, above FROM sapwood_givers")
        return [(stem, frozenset(msgspec.json.decode(above))) for stem, above in rows]

    def of_last_minute(self, now: float) -> deque[tuple[float, frozenset[str]]]:
        """Return when the runs of the last minute began, oldest first, and whose limits each counts for."""
        if self.begun is None:  # those of an earlier life
            rows = (
                self._root.execute("SELECT at, above FROM sapwood_begun ORDER BY at") if self._root.has(BEGUN) else []
            )
            self.begun = deque((at, frozenset(msgspec.json.decode(above))) for at, above in rows)
        while self.begun and self.begun[0][0] + MINUTE <= now:
            self.begun.popleft()
        return self.begun

    def forget(self, stem: str) -> None:
        """An agent has no run under way any more."""
        self._root.execute("DELETE FROM sapwood_givers WHERE agent = ?", stem)
