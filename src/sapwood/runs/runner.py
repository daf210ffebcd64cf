"""Gives runs to sub-agents, and stops and forgets them.

A run has its row before its sub-agent wakes, and a fiber that follows it.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import msgspec

from sapwood import tracing
from sapwood.address import PathSegment
from sapwood.capabilities.agenda import Agenda
from sapwood.capabilities.children import Children
from sapwood.capabilities.family import Family
from sapwood.capabilities.steps import Work
from sapwood.errors import Aborted, InvalidArguments, NotCopyable, Refused, TimedOut, Unavailable, UsageError
from sapwood.kernel.actor import Actor
from sapwood.kernel.classes import AgentClass, known
from sapwood.kernel.context import current, until
from sapwood.kernel.copying import json_to_copy, to_json
from sapwood.kernel.tree import Tree
from sapwood.runs.allowance import Allowance, Refusal
from sapwood.runs.clients import RunClients
from sapwood.runs.contract import CANCELLED, doing, reason_below
from sapwood.runs.following import Following
from sapwood.runs.inputs import full_input
from sapwood.runs.outcomes import Cleared, Outcomes
from sapwood.runs.registry import HARD, REFUSED, Row, Run, shown
from sapwood.runs.remote_sessions import DELETED, DESTROYED, RemoteSessions
from sapwood.runs.served import Served
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


@dataclass(frozen=True, slots=True)
class Detached:
    """The options of a run whose caller does not wait for it: see `Agent.start_run`."""

    on_finish: Callable[[Run], object] | None = None
    """The method of the caller that is called with the `Run` when it has ended or is interrupted."""
    notify: bool = False
    """Whether the result is posted to the conversation of the caller."""
    max_duration: timedelta | None = timedelta(hours=24)
    """Time after which it is interrupted. `None` means no limit."""
    idle_timeout: timedelta | None = timedelta(hours=1)
    """Time without progress after which it is interrupted, once there was some. `None` means no limit."""


@dataclass(slots=True)
class Wish:
    """All that is asked of one run."""

    id: str | None = None
    tool_call: str | None = None
    order: int | None = None
    """What tells it from other runs of the same tool call."""
    place: int = 0
    timeout: float | None = None
    detached: Detached | None = None
    on_disconnect: str = "cancel"
    display: Any = None
    work: str | None = None
    child: str | None = None
    """The name of the persistent sub-agent that executes it. `None` means a sub-agent of its own."""
    client_tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The tools of a client that it may use."""


@dataclass(slots=True)
class ToolCall:
    """The tool call that the code belongs to that runs now."""

    actor: Actor
    id: str
    work: str
    runs: int = 0
    """How many runs it has given so far."""


tool_call: ContextVar[ToolCall | None] = ContextVar("sapwood_tool_call", default=None)


class Runs:
    """The runs that one agent gives."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._agent: Any = actor.agent
        self._outcomes = actor.of(Outcomes)
        self._following = actor.of(Following)
        self._allowance = actor.of(Allowance)
        self.registry = self._outcomes.registry

    async def run(self, cls: type, input: Any, wish: Wish) -> Run:
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

    def place(self, wish: Wish) -> None:
        """Have a run belong to the code that runs now, and find its id; each has a place of its own there."""
        asking = tool_call.get()
        if asking is not None and asking.actor is self._actor:
            wish.tool_call, wish.work = asking.id, asking.work
            wish.order = asking.runs if wish.order is None else wish.order
            asking.runs += 1
        elif (part := doing.get()) is not None and part[0] is self._actor:
            wish.work = part[1]
        elif (work := self.work()) is not None:
            wish.work = work.owner
        wish.place = wish.order or 0
        wish.id = self.id_of(wish)

    def give(self, cls: type, input: Any, wish: Wish) -> Row:
        """Store a run, in this slice, and have it begin; one that is known goes on, or is what it became."""
        self._actor.check_use()
        kind, tree = known(cls), self._actor.home
        assert isinstance(tree, Tree)
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
        self._following.take_input(id, kind, text)
        self._following.launch(id)
        return row

    def _remote(self, kind: AgentClass, id: str) -> str | None:
        """Return the URL and session of a run of another server, as they are stored. `None` means a run of our own."""
        url = cast("Any", kind.cls)._remote_url()
        if url is None:
            return None
        session = RemoteSessions.of(self._actor).name(self._actor, id, self.registry.times_cleared(id))
        return msgspec.json.encode({"url": url, "session": session}).decode()

    def refusal(self) -> Refusal | None:
        """Return why no other run may start now, or `None` if one may."""
        return self._allowance.refusal()

    def withhold(self, cls: type, input: Any, wish: Wish, reason: str) -> None:
        """Store a run that is not to begin any more."""
        kind, id = known(cls), self.id_of(wish)
        if self.registry.get(id) is None:
            row = self._add(id, PathSegment(kind.type, id), text_of(input), wish)
            self._outcomes.end(row, "cancelled", reason=reason, cancelled=reason)

    def id_of(self, wish: Wish) -> str:
        """Return what a run is called by, asked for or not."""
        if wish.id is not None:
            return wish.id
        id = self._new_id(wish)
        row = self.registry.get(id)
        # Providers may use an id twice: then it is another turn.
        return id if row is None or row.work == wish.work else f"{id}@{wish.work}"

    def _new_id(self, wish: Wish) -> str:
        """Return the same id whenever the same work comes by the same place again."""
        if wish.tool_call is not None:
            return f"{PREFIX}{wish.tool_call}" + ("" if wish.order is None else f":{wish.order}")
        if (work := self.work()) is not None:
            work.runs += 1
            return f"run-{work.id.replace(' ', '-')}-{work.runs}"
        return f"run-{uuid4().hex[:12]}"

    def work(self) -> Work | None:
        """Return what the code belongs to that runs now, if that is begun again after a crash."""
        call = current.get()
        work = call.work if call is not None and call.actor is self._actor else None
        return work if isinstance(work, Work) else None

    def _check_wanted(self, wish: Wish) -> None:
        """Refuse to begin what would have to be stopped at once."""
        if wish.work is not None and wish.detached is None and not self._agent._wants(wish.work):
            raise Refused("The turn, run or fiber that starts this run was cancelled.")

    def _add(
        self, id: str, agent: PathSegment, text: bytes, wish: Wish, *, remote: str | None = None, refused: bool = False
    ) -> Row:
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
            work=wish.work,
            tool_call=wish.tool_call,
            position=wish.place,
            display=None if wish.display is None else to_json(wish.display).decode(),
            options=msgspec.json.encode(options).decode(),
            created_by=None if (work := self.work()) is None else work.id,
            mode="ephemeral" if wish.child is None else "persistent",
            trace=tracing.text(),
            remote=remote,
            deadline_at=None if wish.timeout is None else clock.now() + wish.timeout,
        )
        self._outcomes.tell(row)
        return row

    def _detached(self, chosen: Detached) -> dict[str, Any]:
        """Return how to tell of a run that nobody waits for, as it is stored; refuse what could not be told later."""
        for name in ("max_duration", "idle_timeout"):
            limit: Any = getattr(chosen, name)
            if limit is not None and not (is_a(limit, timedelta) and limit > timedelta(0)):
                raise UsageError(f"{name} must be a timedelta above zero, or None for no limit, got {limit!r}.")
        called = None
        if chosen.on_finish is not None:
            calls = self._actor.of(Agenda).calls
            method = calls.method_of(chosen.on_finish, "start_run(on_finish=…)")
            called = [method.name, *msgspec.msgpack.decode(calls.pack(method, (ANY_RUN,), {}))]
        if chosen.notify and not self._agent._has_conversation:
            raise UsageError(f"notify=True requires a ChatAgent: {type(self._agent).__name__} has no conversation.")
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
        return self._actor.of(Served).worker.current() if self._actor.parent is not None else None

    def _give_again(self, row: Row, kind: AgentClass, text: bytes) -> Row:
        """Go on with a run that is known: it may not have begun, and was perhaps given up."""
        if row.is_open and self._following.rests(row.id):
            return row  # it waits for somebody, and so does whoever gave it
        self._following.take_input(row.id, kind, text)
        if row.status == "interrupted":
            status = "queued" if self._outcomes.stored(row.id) is None else "running"
            self.registry.set(row.id, status=status, error=None, reason=None, still_running=0, ended_at=None)
            row = self._outcomes.row(row.id)
        if (followed := self._outcomes.followed.get(row.id)) is None:
            self._following.launch_again(row.id)
        else:
            followed.wanted_again(self._actor.host.clock.now())
        return row

    async def over(self, id: str) -> Row:
        """Return the row of a run once it is over."""
        self._outcomes.waited_for[id] += 1
        try:
            while (row := self._outcomes.row(id)).is_open:
                await self._outcomes.changing(id)
                self._actor.check_live()
            return row
        finally:
            self._outcomes.no_longer_waited_for(id)

    def _own(self, run: Run) -> Row:
        """Return the row of a run. Another agent may have a run with the same id, and so may a run after a clear."""
        row = self.registry.get(run.id)
        if row is None or shown(row).started_at != run.started_at:
            raise Cleared(f"{self._actor.address} has no run {run.id!r}: it was cleared, or another agent started it.")
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
        elif self._following.wake(id):
            pass  # it has to learn that it is not wanted
        elif row.status == "interrupted" and not self._outcomes.has_begun(id):
            self._outcomes.end(row, "cancelled", reason=reason, seq=max(row.seq, self._outcomes.next_seq(id)))
        else:
            self._following.launch(id)  # it has to learn that it is not wanted, unless it has ended
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
        tree = self._actor.home
        assert isinstance(tree, Tree)
        rows = [*self.registry.open(), *self.registry.last_of_children()]
        for row in rows:
            self.cancel(row.id, reason)
        for type_, name in dict.fromkeys((row.type, row.name) for row in rows):
            await self.cancel_below(tree.kind_of(type_, self._actor.kind).cls, name, reason)

    def adopt(self, id: str, work: str) -> None:
        """Attach a started run to this work, which waits for it from here on."""
        row = self._outcomes.row(id)
        options = {key: value for key, value in row.asked.items() if key != "detached"}
        self.registry.set(id, work=work, options=msgspec.json.encode(options).decode())
        if (followed := self._outcomes.followed.get(id)) is not None:
            followed.row = self._outcomes.row(id)

    def cut_work(self, work: str, reason: str) -> None:
        """Stop the runs that are part of this, which stops for this reason, and all below them, in one pass."""
        for followed in list(self._outcomes.followed.values()):
            if followed.row.work == work and followed.row.detached is None:
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
        kind, tree = known(cls), self._actor.home
        assert isinstance(tree, Tree)
        for row in self.registry.open():
            if row.type not in kind.type_ids or row.name != name:
                continue
            if self._following.rests(row.id):
                if row.work is not None:
                    self._actor.of(Served).worker.wake(row.work)
                self._outcomes.end(row, status, **news)
                self._following.wake(row.id)
            # Also if it is still followed: a question may be asked before everybody above rests.
            tree.questions.forget_below(self._actor.address.child(kind.type, name), self._actor)

    def wake_work(self, work: str) -> None:
        """Have the runs go on that are part of this and rest: they have to learn that they are not wanted."""
        for row in self.registry.open():
            if row.work == work and row.detached is None:
                self._following.wake(row.id)

    def let_go(self, work: str, *, is_done: bool) -> None:
        """Stop, for good, what is part of something that is over; what that has given up, only if it was not done."""
        for row in self.registry.open_in(work) if is_done else self.registry.not_over_in(work):
            if row.detached is None and row.cancelled is None:
                with suppress(Unavailable):  # then whoever follows it learns by itself that it is not wanted
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
        """Forget runs, stop those that go on, and delete the sub-agents that did them, with all they know.

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
            elif row.is_open and row.work is not None:
                self._actor.of(Served).worker.wake(row.work)  # what rests with it has to learn that it is no more
            self._following.forget(id)
            self._following.wake(id)  # else its fiber would sleep for ever
            self.registry.remove([id])
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
