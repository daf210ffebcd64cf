"""Tells one reader which agents of a tree wait for answers, and which of them no longer do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from sapwood.address import Address, PathSegment
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.trees.tree import tree_of
from sapwood.runs.events.events import Event
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.tables.question import stored_ids
from sapwood.storage.database import Database


class WaitingAgents:
    """The agents with open questions, here and below, as far as one reader was told."""

    def __init__(self, actor: Actor, levels: float, kept: Callable[[Database], Awaitable[object]]) -> None:
        self._actor, self._tree = actor, tree_of(actor)
        self._levels = levels
        self._kept = kept
        """Waits until what a database holds may be told."""
        self._told: dict[tuple[PathSegment, ...], tuple[str, ...]] = {}
        """The ids of the open questions of each agent."""

    async def changes(self) -> AsyncGenerator[Event, None]:
        """Yield what has changed since the last call."""
        top, found = self._actor.address, dict[tuple[PathSegment, ...], tuple[str, ...]]()
        for owner in (top, *(address for address, _ in self._tree.questions.below(top))):
            is_near = len(owner.segments) - len(top.segments) <= self._levels
            if is_near and (ids := await self._asked_by(owner)):
                found[owner.segments] = ids
        now = self._actor.host.clock.now()
        for path in [path for path in self._told if path not in found]:
            del self._told[path]
            yield Event(path, None, None, 0, now, "resumed")
        for path, ids in found.items():
            if self._told.get(path) != ids:
                self._told[path] = ids
                yield Event(path, None, None, 0, now, "waiting", {"questions": list(ids)})

    async def _asked_by(self, owner: Address) -> tuple[str, ...]:
        """Return the ids of the open questions of an agent, asleep or awake, once they are durable."""
        asker = self._tree.actors.get(owner)
        if asker is not None and asker.ready:
            await self._kept(asker.database)
        if asker is not None and asker.ready:  # it may have gone to sleep since
            return tuple(one.id for one in asker.of(RunExecutor).questions())
        return stored_ids(self._tree.questions.of(owner))
