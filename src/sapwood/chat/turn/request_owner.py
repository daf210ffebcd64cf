"""For whom a model request is made: who waits fairly beside others for a provider."""

from __future__ import annotations

from typing import NamedTuple

from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.kernel.actors.actor import Actor
from sapwood.runs.tables.runs_table import RunsTable


class RequestOwner(NamedTuple):
    """An authenticated user, or a tree."""

    kind: str
    id: str


class _Caller(NamedTuple):
    """What a turn or run is executed for, at the agent above."""

    user: str | None = None
    run: str | None = None
    """The run that this agent executes itself."""


def owner_of(actor: Actor, row: TurnRow) -> RequestOwner:
    """Return the user of a turn, or of the turn above that it works for. Without a user, it is the tree.

    A run works for the turn that started it, also if that has ended, and the agent above works for another user since.
    """
    caller: _Caller | None = _Caller(row.user, row.run)
    for above in [*actor.lineage()][1:]:
        if caller is None or caller.user is not None:
            break
        caller = _started_by(above, caller.run) if caller.run is not None else _running_in(above)
    if caller is not None and caller.user is not None:
        return RequestOwner("user", caller.user)
    return RequestOwner("tree", str(actor.address.root))


def _started_by(above: Actor, run: str) -> _Caller | None:
    """Return what started a run; `None` if that was neither a turn nor a run."""
    row = RunsTable(above.database, above.host.clock).get(run)
    work = None if row is None else row.work_id
    if work is None or work.kind != "run":
        return None
    record = above.found(ConversationRecord)
    turn = None if record is None else record.turns.get(work.id)
    return _Caller(run=work.id) if turn is None else _Caller(turn.user, turn.run)


def _running_in(above: Actor) -> _Caller:
    """Return the turn that the agent above executes: it has called the agent below, without a run."""
    record = above.found(ConversationRecord)
    turn = None if record is None else record.turns.running()
    return _Caller() if turn is None else _Caller(turn.user, turn.run)
