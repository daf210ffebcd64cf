"""Gives runs to sub-agents, and stops and forgets them.

A run has its row before its sub-agent wakes, and a fiber that follows it.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from sapwood import tracing
from sapwood.address import PathSegment
from sapwood.capabilities.children import Children
from sapwood.capabilities.relatives import Family
from sapwood.capabilities.steps import Steps, Work
from sapwood.capabilities.stored_method import method_of, pack
from sapwood.errors import Aborted, InvalidArguments, NotCopyable, Refused, TimedOut, Unavailable, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import AgentClass, known
from sapwood.kernel.marshal.call import current, until
from sapwood.kernel.marshal.copier import json_to_copy, to_json
from sapwood.kernel.ports.work_id import WorkId
from sapwood.kernel.trees.tree import tree_of
from sapwood.randomness import new_id
from sapwood.runs.dispatch.admission import AdmissionRefusal, Allowance
from sapwood.runs.dispatch.results import Outcomes, RunCleared
from sapwood.runs.dispatch.run_monitors import RunMonitors
from sapwood.runs.dispatch.run_request import Detached, RunRequest, tool_call
from sapwood.runs.execution.clients import RunClients
from sapwood.runs.execution.contract import CANCELLED, doing, reason_below
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.execution.run_hooks import class_hooks, run_hooks
from sapwood.runs.remote.remote_sessions import DELETED, DESTROYED, RemoteSessions
from sapwood.runs.tables.inputs import full_input
from sapwood.runs.tables.runs_table import HARD, REFUSED, Run, RunRow, shown
from sapwood.runs.tables.work_column import stored_work
from sapwood.when import is_a

log = logging.getLogger(__name__)

PREFIX = "agent-tool:"
"""What the id of a run begins with that answers a tool call."""
CLEARED = "cleared"
"""Why runs are stopped that are forgotten."""
CALLER_CANCELLED = "caller-cancelled"
"""The reason of a cancelled run that no caller waits for."""
MANY_DETACHED = 50
"""The number of started runs above which a warning is logged: more are probably a mistake."""
UNKNOWN = object()
"""Stands for an input that is not stored."""
ANY_RUN = Run("r", PathSegment("Agent", "a"), "completed", None)


class Runs:
    """The runs that one agent gives."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._outcomes = actor.of(Outcomes)
        self._monitors = actor.of(RunMonitors)
        self._allowance = actor.of(Allowance)
        self.registry = self._outcomes.registry

    async def run(self, cls: type, input: Any, wish: RunRequest) -> Run:
        """Start a run or re-attach to it; return how it ended, or return at once if the caller does not wait."""
        self.place(wish)
        row = self.give(cls, input, wish)
        if wish.detached is not None:
            await self.begun(row.id)
            return self._outcomes.of(row.id)
        try:
            ended = await self.over(row.id)
            if row.is_open and (work := self.work()) is not None:
                work.progressed()
            return self._outcomes.typed(ended)
        except CancelledError:
            if self._actor.dropped is None and wish.on_disconnect == "cancel":
                self._actor.check_live()
                self.cancel(row.id, CALLER_CANCELLED)
            raise

    def place(self, wish: RunRequest) -> None:
        """Assign a run to the code that runs now, and find its id; each run has its own position there."""
        asking = tool_call.get()
        if asking is not None and asking.actor is self._actor:
            wish.tool_call, wish.work = asking.id, asking.work
            wish.order = asking.runs if wish.order is None else wish.order
            asking.runs += 1
        elif (part := doing.get()) is not None and part.actor is self._actor:
            wish.work = WorkId.run(part.id)
        elif (work := self.work()) is not None:
            wish.work = work.owner
        wish.place = wish.order or 0
        wish.id = self.id_of(wish)

    def give(self, cls: type, input: Any, wish: RunRequest) -> RunRow:
        """Store a run, in this slice, and start it; a known run continues, or is returned as it ended."""
        self._actor.check_use()
        kind, tree = known(cls), tree_of(self._actor)
        tree.kinds[kind.type] = kind
        text = text_of(input)
        id = self.id_of(wish)
        row = self.registry.get(id)
        if row is not None:
            if row.type not in kind.type_ids:
                raise Refused(f"The run {id!r} exists with class {row.type}, not {kind.type}. Use another run_id.")
            if row.status in HARD:
                return row
            return self._give_again(row, kind, text)
        self._check_wanted(wish)
        refusal = self._allowance.refusal()
        remote = self._remote(kind, id)
        row = self._add(
            id, PathSegment(kind.type, wish.child or id), text, wish, remote=remote, refused=refusal is not None
        )
        if refusal is not None:
            self._outcomes.end(row, "failed", error=str(refusal.error), reason=refusal.error.code)
            return self._outcomes.row(id)
        self._allowance.begun(row)
        if wish.detached is not None and self.registry.count_open() > MANY_DETACHED:
            self._warn_of_many()
        self._monitors.take_input(id, kind, text)
        self._monitors.launch(id)
        return row

    def _remote(self, kind: AgentClass, id: str) -> str | None:
        """Return the URL and session of a run of another server, as they are stored. `None` means a run of our own."""
        url = class_hooks(kind).remote_url(kind)
        if url is None:
            return None
        session = RemoteSessions.of(self._actor).name(self._actor, id, self.registry.times_cleared(id))
        return msgspec.json.encode({"url": url, "session": session}).decode()

    def refusal(self) -> AdmissionRefusal | None:
        """Return why no other run may start now, or `None` if one may."""
        return self._allowance.refusal()

    def withhold(self, cls: type, input: Any, wish: RunRequest, reason: str) -> None:
        """Store a run that is not to begin any more."""
        kind, id = known(cls), self.id_of(wish)
        if self.registry.get(id) is None:
            row = self._add(id, PathSegment(kind.type, id), text_of(input), wish)
            self._outcomes.end(row, "cancelled", reason=reason, cancelled=reason)

    def id_of(self, wish: RunRequest) -> str:
        """Return what a run is called by, asked for or not."""
        if wish.id is not None:
            return wish.id
        id = self._new_id(wish)
        row = self.registry.get(id)
        # Providers may use an id twice: then it is another turn.
        work = None if wish.work is None else stored_work(wish.work)
        return id if row is None or row.work == work else f"{id}@{work}"

    def _new_id(self, wish: RunRequest) -> str:
        """Return the same id whenever the same work reaches the same position again."""
        if wish.tool_call is not None:
            return f"{PREFIX}{wish.tool_call}" + ("" if wish.order is None else f":{wish.order}")
        if (work := self.work()) is not None:
            work.runs += 1
            return f"run-{work.id.kind}-{work.id.id}-{work.runs}"
        return f"run-{new_id(self._actor.host.random, 6)}"

    def work(self) -> Work | None:
        """Return what the code belongs to that runs now, if that is begun again after a crash."""
        call = current.get()
        work = call.work if call is not None and call.actor is self._actor else None
        return work if isinstance(work, Work) else None

    def waits(self) -> None:
        """Note that the code that runs now waits for runs: what ends the process is counted where the work is done."""
        if (work := self.work()) is not None:
            work.progressed()  # each time that it gets here: it may wait through many restarts
            self._actor.of(Steps).note_waiting(work)

    def _check_wanted(self, wish: RunRequest) -> None:
        """Refuse to begin what would have to be stopped at once."""
        if wish.work is not None and wish.detached is None and not self._actor.of(RunExecutor).goes_on(wish.work):
            raise Refused("The turn, run or fiber that starts this run was cancelled.")

    def _add(
        self,
        id: str,
        agent: PathSegment,
        text: bytes,
        wish: RunRequest,
        *,
        remote: str | None = None,
        refused: bool = False,
    ) -> RunRow:
        clock = self._actor.host.clock
        options: dict[str, Any] = {}
        if wish.detached is not None:
            options["detached"] = self._detached(wish.detached)
        if wish.client_tools:
            options["client_tools"] = wish.client_tools
        within = self._within()
        if within is not None:
            options["within"] = within
        if refused:
            options[REFUSED] = True
        row = self.registry.add(
            id,
            agent,
            msgspec.json.decode(text),
            work=None if wish.work is None else stored_work(wish.work),
            tool_call=wish.tool_call,
            position=wish.place,
            display=None if wish.display is None else to_json(wish.display).decode(),
            options=msgspec.json.encode(options).decode(),
            created_by=None if (work := self.work()) is None else str(work.id),
            mode="ephemeral" if wish.child is None else "persistent",
            trace=tracing.text(),
            remote=remote,
            deadline_at=None if wish.timeout is None else clock.now() + wish.timeout,
        )
        self._outcomes.spans.begin(row)
        self._outcomes.tell(row)
        return row

    def _detached(self, chosen: Detached) -> dict[str, Any]:
        """Return how to report a run that no caller waits for, as it is stored; refuse what could not be reported."""
        for name in ("max_duration", "idle_timeout"):
            limit: Any = getattr(chosen, name)
            if limit is not None and not (is_a(limit, timedelta) and limit > timedelta(0)):
                raise UsageError(f"{name} must be a timedelta above zero, or None for no limit, got {limit!r}.")
        called = None
        if chosen.on_finish is not None:
            method = method_of(self._actor, chosen.on_finish, "start_run(on_finish=…)")
            called = [method.name, *msgspec.msgpack.decode(pack(self._actor, method, (ANY_RUN,), {}))]
        if chosen.notify and not run_hooks(self._actor).has_conversation:
            raise UsageError(f"notify=True requires a ChatAgent: {self._actor.kind.cls.__name__} has no conversation.")
        return {
            "on_finish": called,
            "notify": chosen.notify,
            "max_duration": None if chosen.max_duration is None else chosen.max_duration.total_seconds(),
            "idle_timeout": None if chosen.idle_timeout is None else chosen.idle_timeout.total_seconds(),
        }

    def _warn_of_many(self) -> None:
        live = sum(row.detached is not None for row in self.registry.open())
        if live == MANY_DETACHED + 1:
            where = {"address": str(self._actor.address)}
            log.warning("many background runs address=%s count=%d", self._actor.address, live, extra=where)

    def _within(self) -> str | None:
        """Return the run that this agent itself is doing now."""
        return self._actor.of(RunExecutor).worker.current() if self._actor.parent is not None else None

    def _give_again(self, row: RunRow, kind: AgentClass, text: bytes) -> RunRow:
        """Continue a known run: it may not have begun, and was perhaps abandoned."""
        if row.is_open and self._monitors.rests(row.id):
            return row  # it waits for an answer, and so does its caller
        self._monitors.take_input(row.id, kind, text)
        if row.status == "interrupted":
            status = "queued" if self._outcomes.stored(row.id) is None else "running"
            self.registry.set(row.id, status=status, error=None, reason=None, still_running=0, ended_at=None)
            row = self._outcomes.row(row.id)
            self._outcomes.spans.begin_again(row)
        if (followed := self._outcomes.followed.get(row.id)) is None:
            self._monitors.launch_again(row.id)
        else:
            followed.wanted_again(self._actor.host.clock.now())
        return row

    async def over(self, id: str) -> RunRow:
        """Return the row of a run once it is over."""
        self._outcomes.waited_for[id] += 1
        try:
            if self._outcomes.row(id).is_open:
                self.waits()
            while (row := self._outcomes.row(id)).is_open:
                await self._outcomes.changing(id)
                self._actor.check_live()
            return row
        finally:
            self._outcomes.no_longer_waited_for(id)

    def _own(self, run: Run) -> RunRow:
        """Return the row of a run. Another agent may have a run with the same id, and so may a run after a clear."""
        row = self.registry.get(run.id)
        if row is None or shown(row).started_at != run.started_at:
            raise RunCleared(
                f"{self._actor.address} has no run {run.id!r}: it was cleared, or another agent started it."
            )
        return row

    async def result(self, run: Run) -> Run:
        """Return a run once it is over. It does not belong to the code that waits, and continues without it."""
        self._actor.check_use()
        row = self._own(run)
        limit = asyncio.timeout_at(until.get())
        try:
            async with limit:
                await self.over(row.id)
        except TimeoutError:
            if not limit.expired():
                raise
            path = (*self._actor.address.segments, run.agent)
            raise TimedOut(f"The run {run.id!r} did not end before the deadline. It continues.", path=path) from None
        if row.is_open and (work := self.work()) is not None:
            work.progressed()
        return self._outcomes.typed(self._own(run))

    async def full_input(self, run: Run) -> Any:
        """Return the whole input of a run."""
        self._actor.check_use()
        child = self._actor.of(RunClients).database_of(self._own(run).id)
        found = full_input(run.id, self._actor, child, UNKNOWN)
        if found is UNKNOWN:
            raise Refused(
                f"The whole input of the run {run.id!r} is not stored: its sub-agent never started, or was deleted."
            )
        return found

    async def begun(self, id: str) -> None:
        """Return when the sub-agent has taken a run, or never will."""
        while self._outcomes.row(id).status == "queued":
            await self._outcomes.changing(id)
            self._actor.check_live()

    def cancel(self, id: str, reason: str) -> bool:
        """Stop a run, for good; return whether there was one to stop. The first reason counts."""
        self._actor.check_use()
        row = self.registry.get(id)
        if row is None or row.status in HARD:
            return False
        followed = self._outcomes.followed.get(id)
        reason = row.cancelled or (followed and followed.stopped) or reason or CANCELLED
        self.registry.set(id, cancelled=reason)
        if followed is not None:
            followed.cut(reason)
        elif self._monitors.wake(id):
            pass  # it has to learn that it is not wanted
        elif row.status == "interrupted" and not self._outcomes.has_begun(id):
            self._outcomes.end(row, "cancelled", reason=reason, seq=max(row.seq, self._outcomes.next_seq(id)))
        else:
            self._monitors.launch(id)  # it has to learn that it is not wanted, unless it has ended
        return True

    async def cancel_below(self, cls: type, name: str, reason: str) -> None:
        """Cancel the runs of a sub-agent, also those without a waiting caller, and all runs below."""
        child = await self._actor.of(Children).get(cls, name)
        call, reply = child.handle("cancel runs", child.of(Runs).cancel_all, reason)
        try:
            await reply
        except CancelledError:
            child.cancel(call)
            raise

    async def cancel_all(self, reason: str) -> None:
        """Stop all that this agent has others do, and so on down."""
        tree = tree_of(self._actor)
        rows = [*self.registry.open(), *self.registry.last_of_children()]
        for row in rows:
            self.cancel(row.id, reason)
        for type_, name in dict.fromkeys((row.type, row.name) for row in rows):
            await self.cancel_below(tree.kind_of(type_, self._actor.kind).cls, name, reason)

    def adopt(self, id: str, work: WorkId) -> None:
        """Attach a started run to this work, which waits for it from here on."""
        row = self._outcomes.row(id)
        options = {key: value for key, value in row.asked.items() if key != "detached"}
        self.registry.set(id, work=stored_work(work), options=msgspec.json.encode(options).decode())
        if (followed := self._outcomes.followed.get(id)) is not None:
            followed.row = self._outcomes.row(id)

    def cut_work(self, work: WorkId, reason: str) -> None:
        """Stop the runs that are part of this, which stops for this reason, and all below them, in one pass."""
        stored = stored_work(work)
        for followed in list(self._outcomes.followed.values()):
            if followed.row.work == stored and followed.row.detached is None:
                followed.cut(reason_below(reason))

    def abort_child(self, cls: type, name: str, reason: object) -> None:
        """Abort a sub-agent. Its runs that are followed in memory fail there; those that rest end here."""
        self._actor.of(Children).abort(cls, name, reason)
        text = str(Aborted(reason))
        self._stop_remote(known(cls).type_ids, name, text)
        self._lose(cls, name, "cancelled", reason=text)

    async def delete_child(self, cls: type, name: str) -> None:
        """Delete a sub-agent. Its runs that are followed in memory fail there; those that rest end here."""
        if self._actor.of(Children).has(cls, name):
            self._stop_remote(known(cls).type_ids, name, DELETED)
            self._lose(cls, name, "failed", error=f"{self._actor.address.child(known(cls).type, name)} was deleted.")
        await self._actor.of(Children).delete(cls, name)

    async def destroy(self) -> None:
        """Delete this agent and all below it, and stop their runs of other servers."""
        actor, sessions = self._actor, RemoteSessions.of(self._actor)
        actor.check_use()
        if actor.parent is None:
            async with sessions.all_stopped(DESTROYED):
                await actor.of(Family).destroy()
        else:
            sessions.stop(actor.address, DESTROYED, actor.parent)
            await actor.of(Family).destroy()

    def _stop_remote(self, types: Sequence[str], name: str, reason: str) -> None:
        """Stop the runs of other servers that a sub-agent uses, or one below it."""
        for type_ in types:
            RemoteSessions.of(self._actor).stop(self._actor.address.child(type_, name), reason, self._actor)

    def _lose(self, cls: type, name: str, status: str, **news: Any) -> None:
        """Note that the runs are over that rest with a sub-agent."""
        kind, tree = known(cls), tree_of(self._actor)
        for row in self.registry.open():
            if row.type not in kind.type_ids or row.name != name:
                continue
            if self._monitors.rests(row.id):
                self._wake_owner(row)
                self._outcomes.end(row, status, **news)
                self._monitors.wake(row.id)
            # Also if it is still followed: a question may be asked before all agents above rest.
            tree.questions.forget_below(self._actor.address.child(kind.type, name), self._actor)

    def _wake_owner(self, row: RunRow) -> None:
        """Wake the turn that rests because it waits for this run. A run or fiber that waits is in memory."""
        if (work := row.work_id) is not None and work.kind == "run":
            self._actor.of(RunExecutor).worker.wake(work.id)

    def wake_work(self, work: WorkId) -> None:
        """Wake the resting runs that are part of this: they have to learn that they are not wanted."""
        stored = stored_work(work)
        for row in self.registry.open():
            if row.work == stored and row.detached is None:
                self._monitors.wake(row.id)

    def let_go(self, work: WorkId, *, is_done: bool) -> None:
        """Stop, for good, what is part of something that is over; what that has given up, only if it was not done."""
        for row in self.registry.open_in(work) if is_done else self.registry.not_over_in(work):
            if row.detached is None and row.cancelled is None:
                with suppress(Unavailable):  # then its monitor finds out that it is not wanted
                    self.cancel(row.id, CALLER_CANCELLED)
        if is_done:  # also after a restart: a fiber that completed may be gone then
            self.registry.release_interrupted(work)

    async def clear_all(self, status: str | None, older_than: timedelta | None) -> int:
        """Forget the runs of this status that began this long ago; return how many once they are gone."""
        self._actor.check_use()
        before = None if older_than is None else self._actor.host.clock.now() - older_than.total_seconds()
        ids = [
            row.id
            for row in self.registry.all()
            if not row.pinned and status in (None, row.status) and (before is None or row.started_at < before)
        ]
        gone = self.clear(ids)
        if gone:
            await asyncio.shield(asyncio.gather(*gone))
        return len(ids)

    def clear(self, ids: Sequence[str]) -> list[asyncio.Task[None]]:
        """Forget runs, stop those that still run, and delete the sub-agents that executed them, with all their data.

        Those that are pinned stay.
        """
        gone: list[asyncio.Task[None]] = []
        for id in ids:
            row = self.registry.get(id)
            if row is None or row.pinned:
                continue
            types = self._actor.of(RunClients).types_of(row)
            is_last = row.mode == "ephemeral" or len(self.registry.of_child(row.name)) == 1
            if is_last:
                self._stop_remote(types, row.name, CLEARED)  # first: what is written below lands in one commit
            if (followed := self._outcomes.followed.get(id)) is not None:
                followed.cut(CLEARED)
            elif row.is_open:
                self._wake_owner(row)  # what rests with it has to learn that it is no more
            self._monitors.forget(id)
            self._monitors.wake(id)  # else its fiber would sleep for ever
            self.registry.remove([id])
            self._outcomes.spans.end(row._replace(status="cancelled", reason=CLEARED))
            self._outcomes.freed()
            self._outcomes.changed(id)
            if row.remote is not None:
                self.registry.count_cleared(id)
            if not is_last:
                continue  # it has done others, which are known still
            if (task := self._actor.of(Children).bury(types, row.name)) is not None:
                gone.append(task)
        return gone


def text_of(input: Any) -> bytes:
    """Return the input of a run as JSON."""
    try:
        return json_to_copy(input, "The input of a run")
    except NotCopyable as error:
        raise InvalidArguments(str(error)) from None
