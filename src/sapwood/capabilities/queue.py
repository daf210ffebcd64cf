"""What an agent is to do as soon as it can, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from sapwood.capabilities.call_rows import CallRow, CallRows
from sapwood.capabilities.due_work import Agenda
from sapwood.capabilities.stored_method import method_of, pack
from sapwood.capabilities.stored_rows import shown, time_of
from sapwood.errors import InvalidArguments, NoSuchMethod, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.copier import Copier
from sapwood.when import DEFAULT_RETRY, Retry


@dataclass(frozen=True, slots=True)
class QueuedCall:
    """One call that waits in a queue."""

    id: str
    """The id for `self.queues.remove`."""
    method: str
    """The method that will be called."""
    arguments: dict[str, Any]
    """The arguments of the call."""
    queue: str
    """The name of its queue; empty for the default queue."""
    failed: int
    """The number of failed attempts so far."""
    error: str | None
    """The last error message."""
    created_at: datetime
    """When it was queued."""


ANY_SIZE = 2**62
ANYTHING = Copier(Any, "What happened")


class Queue:
    """The queues of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._rows = actor.of(Agenda).calls.rows

    def add(
        self, queue: str, retry: Retry, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> QueuedCall:
        """Store a call, with what else this slice writes."""
        self._actor.check_use()
        method = method_of(self._actor, function, "queue()")
        arguments = pack(self._actor, method, args, kwargs)
        row = self._rows.enqueue(method.name, arguments, queue, retry)
        self._actor.of(Agenda).note(row.due_at)
        return _shown(self._rows, row)

    def call_back(self, queue: str, name: str, argument: str, news: Any) -> None:
        """Store a call of the method that was named to be told of something, however large that is.

        If the class has lost it, or it takes something else by now, the call becomes a dead letter,
        which can be replayed once the class has it again.
        """
        try:
            arguments = self._actor.kind.own(name).signature.pack((news,), {}, ANY_SIZE)
        except (NoSuchMethod, InvalidArguments, UsageError):
            arguments = msgspec.msgpack.encode({argument: msgspec.Raw(ANYTHING.pack(news))})
        row = self._rows.enqueue(name, arguments, queue, DEFAULT_RETRY)
        self._actor.of(Agenda).note(row.due_at)

    def remove(self, id: str, queue: str | None = None) -> bool:
        """Remove a queued call. Returns `False` if it is not queued, or not in this `queue`."""
        self._actor.check_use()
        number = self._rows.ids.number_of(id)
        rows = [] if number is None else self._rows.find("WHERE number = ? AND queue IS NOT NULL", number)
        rows = [row for row in rows if queue in (None, row.queue)]
        if rows:
            agenda = self._actor.of(Agenda)
            agenda.note(self._rows.remove(rows[0]))
            agenda.settle_soon()
        return bool(rows)

    def list(self, queue: str | None, limit: int) -> list[QueuedCall]:
        """Return what waits, first in first."""
        self._actor.check_use()
        where = "queue IS NOT NULL" if queue is None else "queue = ?"
        rows = self._rows.find(f"WHERE {where} ORDER BY number LIMIT ?", *(() if queue is None else (queue,)), limit)
        return [_shown(self._rows, row) for row in rows]


def _shown(rows: CallRows, row: CallRow) -> QueuedCall:
    return QueuedCall(
        id=rows.ids.id_of(row.number),
        method=row.method,
        arguments=shown(row.arguments),
        queue=row.queue or "",
        failed=row.failures,
        error=row.error,
        created_at=time_of(row.created_at),
    )
