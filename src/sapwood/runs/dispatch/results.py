"""The status of the runs that an agent has started: each end is recorded once, in one slice, and sent to all clients.

The sub-agent's own record of its run decides. It is read here whether the sub-agent is awake
or asleep.
"""

from __future__ import annotations

import logging
from asyncio import Future
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec

from sapwood.address import PathSegment
from sapwood.capabilities.queue import Queue
from sapwood.errors import InvalidResult, Refused, StoredDataError, Unavailable, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import AgentClass, resolve
from sapwood.kernel.marshal.disclosure import as_stored
from sapwood.kernel.marshal.exceptions import describe, mistake
from sapwood.kernel.ports.work_id import WorkId
from sapwood.kernel.trees.tree import tree_of
from sapwood.runs.dispatch.monitored_run import MonitoredRun
from sapwood.runs.dispatch.subscription import ended, started
from sapwood.runs.events.events import ears_of, tell
from sapwood.runs.execution.clients import RunClients
from sapwood.runs.execution.contract import RunState
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.execution.run_hooks import class_hooks, run_hooks
from sapwood.runs.tables import executed_runs_table
from sapwood.runs.tables.disk_usage import held
from sapwood.runs.tables.run_spans import RunSpans
from sapwood.runs.tables.runs_table import TERMINATED, Run, RunRow, RunsTable, shown
from sapwood.runs.tables.work_column import stored_work

log = logging.getLogger(__name__)

TOLD_GIVEN_UP, TOLD_OVER = 1, 2
FINISHED = "_sapwood_run_finished"
"""The method that calls the hook `on_run_finish`. It has the type of the run, whatever the hook's annotation is."""


class RunCleared(Refused):
    """A run is no more."""


class Outcomes:
    """What becomes of the runs that one agent gives."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self.registry = RunsTable(actor.database, actor.host.clock)
        self.spans = actor.of(RunSpans)
        self._clients = actor.of(RunClients)
        self.followed: dict[str, MonitoredRun] = {}
        """Those that are followed now."""
        self._has_hook = actor.kind.overrides("on_run_finish")
        self._changing: dict[str, list[Future[None]]] = {}
        self.waited_for: Counter[str] = Counter()
        """By how many those are waited for that must not be taken away before they have seen what became of them."""
        self._kinds: dict[str, AgentClass] = {}
        """The classes that were looked up: a list may have thousands of runs."""
        self.deciding: dict[str, list[Callable[[str], None]]] = {}
        """Who decides by the status of a run what becomes of others: in the slice in which it changes."""

    def of(self, id: str) -> Run[Any]:
        """Return a run as users see it."""
        return self.typed(self.row(id))

    def typed(self, row: RunRow) -> Run[Any]:
        """Return a run whose output has the type that its class declares; `StoredDataError` if it does not fit."""
        try:
            return self._with_output(shown(row), row.output)
        except InvalidResult as error:
            raise StoredDataError(
                f"The output of the run {row.id!r} does not fit {row.type}: {error} The class has changed since. Start "
                "another run, or change the class back."
            ) from error

    def listed(self, row: RunRow) -> Run[Any]:
        """Return the same, with the JSON value where the output does not fit."""
        return self._fitting(shown(row), row.output)

    def reported(self, run: Run[Any]) -> Run[Any]:
        """Return a run whose end was queued as JSON with its output as `listed` has it. Its row may be deleted."""
        return self._fitting(run, None if run.output is None else msgspec.json.encode(run.output).decode())

    def _fitting(self, run: Run[Any], output: str | None) -> Run[Any]:
        try:
            return self._with_output(run, output)
        except InvalidResult:
            return run

    def _with_output(self, run: Run[Any], output: str | None) -> Run[Any]:
        """Return a run with its output as the type that its class declares, if the class is known."""
        if output is None or (kind := self._kind(run.agent.type)) is None:
            return run
        return replace(run, output=class_hooks(kind).read_output(kind, output))

    def _kind(self, type_id: str) -> AgentClass | None:
        """Return the class of a sub-agent. `None` means that it is not known any more."""
        tree = tree_of(self._actor)
        found = tree.kinds.get(type_id) or self._kinds.get(type_id)
        if found is None:
            with suppress(UsageError):
                found = self._kinds[type_id] = resolve(type_id)
        return found

    def row(self, id: str) -> RunRow:
        """Return a run as it is stored."""
        row = self.registry.get(id)
        if row is None:
            raise RunCleared(f"The run {id!r} was cleared before it ended.")
        return row

    def is_awaited(self, row: RunRow, work: WorkId) -> bool:
        """Return whether this turn or run started a run and waits for its result."""
        return row.work == stored_work(work) and (row.detached is None or row.id in self.waited_for)

    def no_longer_waited_for(self, id: str) -> None:
        """Count one waiter of a run less: it has seen the end, or no longer wants it."""
        self.waited_for[id] -= 1
        if not self.waited_for[id]:
            del self.waited_for[id]

    def changing(self, id: str) -> Future[None]:
        """Return what is done when the status of a run changes."""
        waiting: Future[None] = self._actor.host.loop.create_future()
        self._changing.setdefault(id, []).append(waiting)
        return waiting

    def changed(self, id: str) -> None:
        """Wake those who wait for the status of a run to change."""
        for decide in list(self.deciding.get(id, ())):
            decide(id)
        for waiting in self._changing.pop(id, ()):
            if not waiting.done():
                waiting.set_result(None)

    def end(self, row: RunRow, status: str, **news: Any) -> None:
        """Record how a run ended, in this slice, and inform all clients and subscribers."""
        news.setdefault("seq", self.next_seq(row.id))
        news.setdefault("bytes", self._bytes(row.id))
        if not self.registry.end(row.id, status, **news):
            return
        row = self.row(row.id)
        self.spans.end(row)
        self.tell(row)
        self._deliver(row, shown(row))
        self.changed(row.id)
        self.freed()

    def freed(self) -> None:
        """A run has ended or was deleted: waiting runs anywhere in the tree check whether they may start."""
        tree = tree_of(self._actor)
        tree.givers.freed()

    def text_of(self, row: RunRow, error: Exception) -> str:
        """Return the text of an error that ended a run; an internal one is logged with its reference."""
        text, reference = as_stored(error, self._actor.host.random)
        if reference is not None:
            address = str(self._actor.address)
            log.warning(
                "run failed reference=%s address=%s run=%s error=%s",
                reference,
                address,
                row.id,
                describe(error),
                extra={"address": address, "reference": reference},
                exc_info=mistake(error),
            )
        return text

    def give_up(self, followed: MonitoredRun, reason: str, text: str, *, still_running: bool) -> None:
        """Record that no caller waits for a run any more; if it ends later, that end counts."""
        row = self.row(followed.row.id)
        self.end(row, "interrupted", error=text, reason=reason, still_running=int(still_running))
        followed.given_up = True

    def gave_up(self, id: str, error: str) -> None:
        """End a run whose fiber was started again too often without progress."""
        row = self.registry.get(id)
        if row is not None and row.is_open:
            self.end(row, "interrupted", error=error, reason="recovery-failed", still_running=1)

    def tell(self, row: RunRow) -> None:
        """Tell clients, and those who listen, that a run has started, or how it has ended."""
        self._clients.tell(row)
        path = (*self._actor.address.segments, PathSegment(row.type, row.name))
        if ears_of(self._actor, path, is_run=True):
            tell(self._actor, started(path, row) if row.is_open else ended(path, row))

    def _deliver(self, row: RunRow, run: Run) -> None:
        """Queue the calls that report the end of a run, or that it was interrupted: each once, in this slice."""
        queue, detached = self._actor.of(Queue), row.detached
        slot = TOLD_GIVEN_UP if row.status == "interrupted" else TOLD_OVER
        if row.delivered & slot:
            return
        self.registry.set(row.id, delivered=row.delivered | slot)
        if self._has_hook:
            # A separate queue: on_finish does not wait while the hook is retried.
            queue.call_back(f"hook run {row.id}", FINISHED, "run", run)
        if detached is None:
            return
        if detached["on_finish"] is not None:
            name, argument = detached["on_finish"]
            queue.call_back(f"run {row.id}", name, argument, run)
        if detached["notify"] and row.cancelled != TERMINATED:  # the caller that terminates a child knows
            run_hooks(self._actor).post_result(run)

    def remote(self, row: RunRow) -> dict[str, Any] | None:
        """Return where another server does a run, and how many chunks were heard; None if it is done here."""
        if row.remote is None:
            return None
        return {**msgspec.json.decode(row.remote), "seq": self.next_seq(row.id) - 1}

    def stored(self, id: str) -> executed_runs_table.ExecutedRunRow | None:
        """Return what the sub-agent has stored of a run, awake or asleep."""
        database = self._clients.database_of(id)
        return None if database is None else executed_runs_table.find(database, id)

    def has_begun(self, id: str) -> bool:
        """Return whether the sub-agent has accepted a run, as far as is known."""
        try:
            return self.stored(id) is not None
        except (StoredDataError, Unavailable):
            return False

    def stored_end(self, id: str) -> RunState | None:
        """Return how a run has ended in the sub-agent, or `None` if it has not or that is unknown."""
        try:
            found = self.stored(id)
        except (StoredDataError, Unavailable):
            return None
        if found is None or found.length is None:
            return None
        news = {name: getattr(found, name) for name in ("output", "summary", "error", "reason", "usage")}
        return RunState(id=id, status=found.status, waits=False, seq=found.length, **news)

    def _bytes(self, id: str) -> int:
        """Return what the sub-agent of a run holds now, as far as anybody can tell."""
        try:
            database = self._clients.database_of(id)
            return 0 if database is None else held(database)
        except (StoredDataError, Unavailable):
            return 0

    def next_seq(self, id: str) -> int:
        """Return the number after the last known chunk of a run."""
        followed = self.followed.get(id)
        told = (
            followed.child.of(RunExecutor).told.get(id, 0) if followed is not None and followed.child is not None else 0
        )
        try:
            database, found = self._clients.database_of(id), self.stored(id)
            if database is None or found is None:
                return told + 1
            return (
                max(told, executed_runs_table.length(database, found.stream) if found.length is None else found.length)
                + 1
            )
        except (StoredDataError, Unavailable):  # it has to end, also if what it said cannot be read any more
            return told + 1
