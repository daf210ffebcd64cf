"""Decides which events belong to one turn of an agent: what it says itself, and what the runs that it started do."""

from __future__ import annotations

from sapwood.address import PathSegment
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.trees.tree import tree_of
from sapwood.runs.events.events import ENDS, Event, Feed
from sapwood.runs.tables.runs_table import RunsTable, types_of


class TurnEvents:
    """The events of one turn."""

    def __init__(self, actor: Actor, turn: str) -> None:
        self._actor = actor
        self._depth = len(actor.address.segments)
        self._runs = RunsTable(actor.database, actor.host.clock)
        self.turn = turn
        self._known: dict[str, bool] = {}
        """Whether a run belongs to the turn."""
        self._current: str | None = None
        """The turn that the agent's own events are about."""

    def runs_before(self) -> int:
        """Return the number of the last run that the agent started before the turn."""
        first = self._runs.find("WHERE work = ? ORDER BY number LIMIT 1", self.turn)
        if first:
            return first[0].number - 1
        last = self._runs.find("ORDER BY number DESC LIMIT 1")
        return last[0].number if last else 0

    def begin(self) -> None:
        """Take the agent's own events for those of the turn, which has begun, until the start of another turn."""
        self._current = self.turn

    def has(self, event: Event) -> bool:
        """Return whether an event belongs to the turn. The events have to be asked about in their order."""
        if len(event.path) == self._depth:
            return event.run_id is None and self._is_own(event)
        if event.run_id is None:
            return self._is_below(event.path)
        if event.run_id not in self._known:
            self._known[event.run_id] = self._belongs(event)
        return self._known[event.run_id]

    def _is_own(self, event: Event) -> bool:
        if event.kind in ("waiting", "resumed"):
            return True
        if event.kind == "started" or event.kind in ENDS:
            self._current = event.body["turn"]
        elif self._current is None and (turn := self._actor.of(Feed).turn) is not None:
            self._current = turn.id
        return self._current == self.turn

    def _belongs(self, event: Event) -> bool:
        """Return whether a run belongs to the turn that was not asked about before."""
        if len(event.path) == self._depth + 1:
            row = self._runs.get(event.run_id or "")
            return row is not None and row.work == self.turn
        if event.parent_run_id in self._known:
            return self._known[event.parent_run_id]
        return self._is_below(event.path)

    def _is_below(self, path: tuple[PathSegment, ...]) -> bool:
        """Return whether an agent works for the turn, by the last run of the sub-agent on the way to it."""
        step = path[self._depth]
        types = types_of(step.type, tree_of(self._actor).kinds)
        places = ", ".join("?" * len(types))
        rows = self._runs.find(
            f"WHERE name = ? AND type IN ({places}) ORDER BY number DESC LIMIT 1",
            step.name,
            *types,
        )
        return bool(rows) and rows[0].work == self.turn
