"""A parent follows the states of its children: it is notified of each change, or of the last of several.

The notification is a queued call of the child, stored with the new state. It hands
over the state as it is by then, so that many changes in a row are told once. The parent
remembers how far it has been told, in the commit of what its method wrote last.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sapwood.address import PathSegment
from sapwood.capabilities.due_work import Agenda
from sapwood.capabilities.queue import Queue
from sapwood.capabilities.state import State
from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import attributes, known
from sapwood.kernel.marshal.call import current
from sapwood.storage.migrations import Schema
from sapwood.when import DEFAULT_RETRY

MARK = "_sapwood_child_state"
NEWS = Schema("sapwood.capabilities", "news")
CURSORS = Schema("sapwood.capabilities", "child_states")
QUEUE = "sapwood state"

M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, object]])


def on_child_state(cls: type, /) -> Callable[[M], M]:
    """Call this method with a child of that class and its state whenever the state changes.

    Changes are delivered at least once, in order. Of several changes in a row, perhaps only the last is delivered. A
    method without awaits takes effect exactly once for each delivery. If it raises, the call is retried.
    """
    known(cls)

    def mark(method: M) -> M:
        if not inspect.iscoroutinefunction(method) or len(inspect.signature(method).parameters) != 3:
            name = method.__name__
            raise UsageError(f"{name} must be `async def {name}(self, child, state)`.")
        setattr(method, MARK, (*getattr(method, MARK, ()), cls))
        return method

    return mark


@functools.cache
def _followers(parent: type, child: type) -> tuple[str, ...]:
    """Return the methods of a class that follow the states of another."""
    return tuple(
        name
        for name, function in attributes(parent).items()
        if inspect.isfunction(function) and any(issubclass(child, one) for one in getattr(function, MARK, ()))
    )


class ChildStates:
    """The states of one agent's children, and its own for its parent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._db = actor.database

    def changed(self) -> None:
        """The agent's own state was replaced, in this slice: owe it to the parent, if that follows it."""
        parent = self._actor.parent
        if parent is None or not _followers(parent.kind.cls, self._actor.kind.cls):
            return
        self._db.ensure(NEWS)
        self._db.execute(
            "INSERT INTO sapwood_state_news VALUES (1, 1)"
            " ON CONFLICT (singleton) DO UPDATE SET seq = sapwood_state_news.seq + 1"
        )
        calls = self._actor.of(Agenda).calls
        owed = calls.rows.find("WHERE queue = ?", QUEUE)
        if all(calls.is_running(row.number) for row in owed):  # one that waits will tell of this too
            self._actor.of(Queue).add(QUEUE, DEFAULT_RETRY, self._actor.agent._sapwood_tell_state, (), {})

    async def tell(self) -> None:
        """Tell the parent the agent's state, as it is now."""
        parent = self._actor.parent
        if parent is None:
            return
        ((seq,),) = self._db.execute("SELECT seq FROM sapwood_state_news")
        text = self._actor.of(State).text()
        assert text is not None
        await self._actor.leave()
        if not await parent.started(current.get()):
            raise Unavailable(f"{parent.address} is asleep.")
        _, reply = parent.handle("child state", parent.of(ChildStates).hear, self._actor, seq, text)
        await reply

    async def hear(self, child: Actor, seq: int, text: bytes) -> None:
        """Take the state of a child, and have those called that follow it."""
        if seq <= self._heard(child.generation):
            return
        step = PathSegment(child.address.type, child.address.name)
        for name in _followers(self._actor.kind.cls, child.kind.cls):
            await getattr(self._actor.agent, name)(step, child.of(State).read(text))
        self._actor.check_live()
        self._db.ensure(CURSORS)
        self._db.execute(
            "INSERT INTO sapwood_child_states VALUES (?, ?) ON CONFLICT (generation) DO UPDATE SET seq = excluded.seq",
            child.generation,
            seq,
        )

    def forget(self, generation: int) -> None:
        """A child is no more."""
        if self._db.has(CURSORS):
            self._db.execute("DELETE FROM sapwood_child_states WHERE generation = ?", generation)

    def _heard(self, generation: int) -> int:
        """Return the last change of a child's state that was told here."""
        if not (self._db.exists and self._db.has(CURSORS)):
            return 0
        rows = self._db.execute("SELECT seq FROM sapwood_child_states WHERE generation = ?", generation)
        return rows[0][0] if rows else 0
