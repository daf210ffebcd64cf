"""What the clients of an agent receive about the runs it has started: first the past, then what follows.

Runs are replayed to a new client one after the other, as fast as it reads. New events of a run
that was replayed already are sent at once; those of other runs come with their replay. No
event is lost or sent twice.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from asyncio import Future
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from sapwood.address import PathSegment
from sapwood.errors import StoredDataError, Unavailable, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.outbox import Outbox
from sapwood.kernel.actors.sockets import RESTARTING, Absent, Socket
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.kernel.trees.deletion import child_stem
from sapwood.kernel.trees.tree import tree_of
from sapwood.runs.execution.access_gates import Gates, Shut, request_of
from sapwood.runs.tables import executed_runs_table
from sapwood.runs.tables.runs_table import RUNS, RunRow, RunsTable, types_of
from sapwood.storage.database import Database
from sapwood.wire import runs as wire

log = logging.getLogger(__name__)


class RunClients:
    """The clients of one agent, as far as its runs go."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._registry = RunsTable(actor.database, actor.host.clock)
        self._to_come: dict[Socket, set[str]] = {}
        """The runs that a new client has not been told of yet; it will be told of them as they are then."""
        self._guarded: dict[str, bool] = {}
        """Whether a client has to pass a gate to go to the sub-agent that does a run."""

    def of(self, run: str) -> list[Socket]:
        """Return the clients that are told at once of what happens in a run."""
        sockets = self._actor.host.sockets.of(self._actor.address)
        told = [socket for socket in sockets if socket.is_protocol and run not in self._to_come.get(socket, ())]
        return list(self._admitted(told, run)) if told and self._is_guarded(run) else told

    def _admitted(self, sockets: Iterable[Socket], run: str) -> Iterator[Socket]:
        """Yield the clients for which the gates to the sub-agent that does a run have opened."""
        for socket in sockets:
            if isinstance(socket, Absent):
                socket.require_reconnect()  # its user is not known here
            elif run in socket.runs:
                yield socket

    def _is_guarded(self, run: str) -> bool:
        """Return whether a client has to pass a gate to go to the sub-agent that does a run."""
        if run not in self._guarded:
            row = self._registry.get(run)
            self._guarded[run] = row is not None and self._has_gate(row)
        return self._guarded[run]

    def _has_gate(self, row: RunRow) -> bool:
        tree = tree_of(self._actor)
        if self._actor.kind.overrides("on_before_sub_agent"):
            return True
        with suppress(UsageError):  # its class is no longer known, and has no gate
            return tree.kind_of(row.type, self._actor.kind).overrides("on_before_connect")
        return False

    def tell(self, row: RunRow) -> None:
        """Tell that a run has started, or how it has ended."""
        if row.is_open and self._is_guarded(row.id):
            self._ask_gate(row)
            return
        outbox, frame = self._actor.of(Outbox), started(row) if row.is_open else ended(row)
        for socket in self.of(row.id):
            outbox.put(socket, frame)

    def greet(self, socket: Socket) -> None:
        """Tell a new client of all runs, in the order they were given."""
        if not (self._actor.database.exists and self._actor.database.has(RUNS)):
            return
        runs = [row.id for row in self._registry.all()]
        if runs:
            self._begin_replay(socket, runs)

    def _begin_replay(self, socket: Socket, runs: list[str], *, wakes: bool = False) -> None:
        self._to_come.setdefault(socket, set()).update(runs)
        _, replayed = self._actor.handle("replay runs", self._replay, socket, runs, wakes)
        replayed.add_done_callback(functools.partial(self._replayed, socket))

    def _ask_gate(self, row: RunRow) -> None:
        """A run has started: tell each client of it for which the gates to the sub-agent open."""
        for socket in self._actor.host.sockets.here(self._actor.address):
            if socket.is_protocol:
                self._begin_replay(socket, [row.id], wakes=True)

    async def _is_hidden(self, socket: Socket, run: str, *, wakes: bool) -> bool:
        """Return whether a client may not go to the sub-agent that does a run, or whether that cannot be asked now."""
        row = self._registry.get(run)
        if row is None or run in socket.runs or not self._is_guarded(run):
            return False
        gates = Gates(self._actor, request_of(socket), "connect", "/", wakes=wakes)
        try:
            if not await gates.pass_to((PathSegment(row.type, row.name),)):
                return True
        except Shut:
            return True
        socket.runs.add(run)
        return False

    def _replayed(self, socket: Socket, replayed: Future[None]) -> None:
        error = None if replayed.cancelled() else replayed.exception()
        if error is not None:
            if not isinstance(error, Unavailable):
                log.error("cannot send all runs to a client address=%s", self._actor.address, exc_info=error)
            socket.close(RESTARTING, "The agent restarts")  # it lacks something, and has to come again

    async def _replay(self, socket: Socket, runs: list[str], wakes: bool) -> None:
        try:
            for run in runs:
                if (room := socket.writer.room()) is not None:
                    await room
                if not await self._is_hidden(socket, run, wakes=wakes):
                    await self._replay_one(socket, run)
                await asyncio.sleep(0)  # others have their turn: there may be many runs
                if not socket.is_open:
                    return
        finally:
            if (left := self._to_come.get(socket)) is not None:
                left.difference_update(runs)
                if not left:
                    del self._to_come[socket]

    async def _replay_one(self, socket: Socket, run: str) -> None:
        """Tell all there is of a run, at a moment when all of it is kept."""
        gate, outbox = self._actor.host.gate, self._actor.of(Outbox)
        while True:
            database = self.database_of(run)  # again each time: the sub-agent may wake or go to sleep during the wait
            # What follows leaves through the outbox of the sub-agent, and must not overtake this: it leaves at once.
            waiting = self._actor.to_leave() or outbox.until_empty()
            waiting = waiting or (gate.wait(database) if database is not None else None)
            if waiting is None:
                break
            await waiting
        to_come, row = self._to_come.get(socket), self._registry.get(run)
        if to_come is None:  # it has left since
            return
        to_come.discard(run)
        if row is None:
            return
        outbox.put(socket, started(row, replay=True))
        frames, following = self._readable(row, database)
        for frame in frames:
            outbox.put(socket, frame)
        if row.status == "interrupted":  # it may have said more since it was given up
            row = row._replace(seq=max(row.seq, following))
        if not row.is_open:
            outbox.put(socket, ended(row, replay=True))

    def _readable(self, row: RunRow, database: Database | None) -> tuple[list[str], int]:
        """Return the frames of what a run has said so far, and the next number; none if it cannot be read any more."""
        try:
            return self._said(row, database)
        except Exception:
            self._actor.check_live()
            where = {"address": str(self._actor.address)}
            log.exception("cannot read the chunks of a run run=%s address=%s", row.id, self._actor.address, extra=where)
            return [], 0

    def _said(self, row: RunRow, database: Database | None) -> tuple[list[str], int]:
        """Return the frames of what a run has said so far, and the next number."""
        found = executed_runs_table.find(database, row.id) if database is not None else None
        if database is None or found is None:
            return [], 0
        told = [(one.number + 1, 1, one.text) for one in executed_runs_table.said(database, found, length=row.said)]
        following = told[-1][0] + 1 if told else 1
        for seq, milestone in executed_runs_table.milestones(found):
            told.append((seq, 0, msgspec.json.encode(executed_runs_table.milestone_chunk(milestone))))
        told.sort(key=lambda one: one[:2])  # where they happened; of one number, the chunk is the last
        frames = [wire.chunk(seq, row.id, text, tool_call=row.tool_call, replay=True) for seq, _, text in told]
        return frames, following

    def database_of(self, run: str) -> Database | None:
        """Return the database of the sub-agent that does a run, asleep or awake; None if it is no more."""
        row, tree = self._registry.get(run), tree_of(self._actor)
        child = self._actor.registry.find(self.types_of(row), row.name) if row is not None else None
        if child is None:
            return None
        return tree.database(child_stem(self._actor.stem, child.generation), self._actor.limits)

    def reported(self, run: str) -> tuple[Any, tuple[Any, ...]]:
        """Return how far a run says it is, and which milestones it has reached."""
        database = self.database_of(run)
        try:
            found = executed_runs_table.find(database, run) if database is not None else None
        except (StoredDataError, Unavailable):  # it cannot be read
            found = None
        if found is None:
            return None, ()
        progress = None if found.progress is None else msgspec.json.decode(found.progress)
        return progress, tuple(milestone for _, milestone in executed_runs_table.milestones(found))

    def types_of(self, row: RunRow) -> tuple[str, ...]:
        """Return what the class of the sub-agent that does a run is called, and was: it may have been renamed."""
        tree = tree_of(self._actor)
        return types_of(row.type, tree.kinds)

    def hear(self, socket: Socket, data: str) -> None:
        """Clients say nothing about runs."""

    def closed(self, socket: Socket) -> None:
        """A client has left."""
        self._to_come.pop(socket, None)

    async def request(self, request: Any) -> None:
        """Answer an HTTP request about runs; None if it is about something else."""


def started(row: RunRow, *, replay: bool = False) -> str:
    """Return the frame that says that a run has started."""
    told: dict[str, Any] = {
        "kind": "started",
        "runId": row.id,
        "agentType": row.type,
        "inputPreview": msgspec.json.decode(row.input),
        "order": row.position,
    }
    if row.mode == "persistent":
        told["agentName"] = row.name
    if row.display is not None:
        told["display"] = msgspec.json.decode(row.display)
    return wire.event(0, told, tool_call=row.tool_call, replay=replay)


def ended(row: RunRow, *, replay: bool = False) -> str:
    """Return the frame that says how a run has ended."""
    told: dict[str, Any] = {"runId": row.id}
    if row.status == "completed":
        told |= {"kind": "finished", "summary": row.summary or ""}
    elif row.status == "cancelled":
        told |= {"kind": "aborted"} | ({"reason": row.reason} if row.reason is not None else {})
    elif row.status == "interrupted":
        told |= {"kind": "interrupted", "error": for_clients(row.error or ""), "reason": row.reason}
        told["childStillRunning"] = bool(row.still_running)
    else:
        told |= {"kind": "error", "error": for_clients(row.error or "")}
    return wire.event(row.seq, told, tool_call=row.tool_call, replay=replay)
