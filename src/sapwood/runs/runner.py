"""Gives runs to sub-agents, follows each to its end, and stops them.

A run has its row before its sub-agent wakes, and a fiber that follows it: begun again
after a crash, it asks the sub-agent how the run stands and goes on from there. Nobody
waits for a sub-agent that is silent for too long after a crash; if it ends later after
all, that counts.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError, Future
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec

from sapwood import tracing
from sapwood.address import Step
from sapwood.capabilities.agenda import Agenda
from sapwood.capabilities.children import Children
from sapwood.capabilities.queue import Lane, Queue
from sapwood.capabilities.steps import Work
from sapwood.clock import Timer
from sapwood.errors import (
    Aborted,
    InvalidArguments,
    Refused,
    StoredDataError,
    Unavailable,
    UsageError,
)
from sapwood.kernel.actor import Actor
from sapwood.kernel.classes import known, resolve
from sapwood.kernel.context import current
from sapwood.kernel.copying import to_json
from sapwood.kernel.crossing import describe
from sapwood.kernel.tree import Tree
from sapwood.runs import kept
from sapwood.runs.clients import RunClients
from sapwood.runs.contract import UNWANTED, RunState, doing
from sapwood.runs.events import ears_of, tell
from sapwood.runs.registry import HARD, Registry, Row, Run, shown
from sapwood.runs.served import Served
from sapwood.runs.stops import stopping
from sapwood.runs.watching import ended, started
from sapwood.when import is_a

log = logging.getLogger(__name__)

PREFIX = "agent-tool:"
"""What the id of a run begins with that answers a tool call."""
GIVEN_AGAIN = 5.0
"""Seconds to wait, after a crash, for whoever gave a run to give it again: only they know the whole input."""
GRACE = 5.0
"""Seconds a sub-agent has to stop a run by itself; then it is aborted."""
PARTS = 10
"""Parts in which that is waited for: where a thousand stop at once and the loop is late, each part takes longer."""
MOST_BACK_OFF = 5.0
TOLD_GIVEN_UP, TOLD_OVER, HOOK_TOLD_GIVEN_UP = 1, 2, 4
MANY_DETACHED = 50
"""How many runs that nobody waits for are more than somebody may have meant to have at once."""
ANY_RUN = Run("r", Step("Agent", "a"), "completed", None)


@dataclass(frozen=True, slots=True)
class Detached:
    """How to hear of a run that nobody waits for."""

    on_finish: Callable[[Run], object] | None = None
    """The method of this agent that is called with the `Run` when it is over, and when it is given up."""
    notify: bool = False
    """Whether it joins the conversation, as something said, when it is over, and when it is given up."""
    budget: timedelta | None = timedelta(hours=24)
    """How long it may take before it is given up; None: any time."""
    silence: timedelta | None = timedelta(hours=1)
    """How long nothing may be heard of it, once something was, before it is given up; None: any time."""


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


@dataclass(slots=True)
class ToolCall:
    """The tool call that the code belongs to that runs now."""

    actor: Actor
    id: str
    work: str
    runs: int = 0
    """How many runs it has given so far."""


tool_call: ContextVar[ToolCall | None] = ContextVar("sapwood_tool_call", default=None)


@dataclass(slots=True)
class Followed:
    """A run that is followed now."""

    row: Row
    """As it was when it began to be followed."""
    stop: Future[str]
    """Done when it is to stop; why."""
    since: float
    """When it began to be followed."""
    again: bool
    """Whether it was followed before the process ended."""
    child: Actor | None = None
    """Who does it, once they are awake."""
    given_up: bool = False
    timed_out: bool = False
    trouble: str | None = None
    """Why the sub-agent could not be reached, when last tried; None: it was."""
    troubled_since: float = 0.0
    """When it could first not be reached."""
    nudge: Future[None] | None = None
    """Done when somebody asks for the run again; what is waited for is looked at anew."""

    @property
    def stopped(self) -> str | None:
        return self.stop.result() if self.stop.done() else None


class Cleared(Refused):
    """A run is no more."""


class Runs:
    """The runs that one agent gives."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._agent: Any = actor.agent
        self.registry = Registry(actor.database, actor.host.clock)
        self._clients = actor.of(RunClients)
        self._inputs: dict[str, bytes] = {}
        """What runs were given whose sub-agents have not taken it yet."""
        self._arrived: dict[str, Future[None]] = {}
        self._followed: dict[str, Followed] = {}
        self._changing: dict[str, list[Future[None]]] = {}

    async def run(self, cls: type, input: Any, wish: Wish) -> Run:
        """Give a run, or re-attach to it; return how it ended, or at once if nobody waits for it."""
        asking = tool_call.get()
        if asking is not None and asking.actor is self._actor:
            wish.tool_call, wish.work = asking.id, asking.work
            wish.order = asking.runs if wish.order is None else wish.order
            asking.runs += 1
        elif (part := doing.get()) is not None and part[0] is self._actor:
            wish.work = part[1]
        wish.place = wish.order or 0
        row = self.give(cls, input, wish)
        if wish.detached is not None:
            await self._begun(row.id)
            return self.of(row.id)
        try:
            return await self.over(row.id)
        except CancelledError:
            if self._actor.dropped is None and wish.on_disconnect == "cancel":
                self.cancel(row.id, "caller-cancelled")
            raise

    def give(self, cls: type, input: Any, wish: Wish) -> Row:
        """Store a run, in this slice, and have it begin; one that is known goes on, or is what it became."""
        self._actor.check_use()
        self._actor.of(Agenda).check_free()  # else there would be a row that nobody follows
        kind, tree = known(cls), self._actor.home
        assert isinstance(tree, Tree)
        tree.kinds[kind.type] = kind
        text = _text_of(input)
        id = wish.id or self._new_id(wish)
        row = self.registry.get(id)
        if row is not None and wish.id is None and row.work != wish.work:
            id = f"{id}@{wish.work}"  # another turn: providers may use an id twice
            row = self.registry.get(id)
        if row is not None:
            if row.type not in (kind.type, *kind.aliases):
                raise Refused(f"The run {id!r} is one of {row.type}, not of {kind.type}.")
            if row.status in HARD:
                return row
            return self._give_again(row, text)
        self._check_wanted(wish)
        open_runs = self.registry.count_open()
        row = self._add(id, Step(kind.type, id), text, wish)
        if wish.detached is not None and open_runs >= MANY_DETACHED:
            self._warn_of_many()
        most = self._agent.max_runs
        if most is not None and open_runs >= most:
            self._end(row, "error", error=f"{open_runs} runs are under way, and max_runs = {most} allows no more.")
            return self._row(id)
        self._inputs[id] = text
        self._follow(id)
        return row

    def _new_id(self, wish: Wish) -> str:
        """Return the same id whenever the same work comes by the same place again."""
        if wish.tool_call is not None:
            return f"{PREFIX}{wish.tool_call}" + ("" if wish.order is None else f":{wish.order}")
        call = current.get()
        work = call.work if call is not None and call.actor is self._actor else None
        if isinstance(work, Work):
            work.runs += 1
            return f"run-{work.id.replace(' ', '-')}-{work.runs}"
        return f"run-{uuid4().hex[:12]}"

    def _check_wanted(self, wish: Wish) -> None:
        """Refuse to begin what would have to be stopped at once."""
        if wish.work is not None and wish.detached is None and not self._agent._wants(wish.work):
            raise Refused("What this run would be part of was cancelled.")

    def _add(self, id: str, agent: Step, text: bytes, wish: Wish) -> Row:
        clock = self._actor.host.clock
        options: dict[str, Any] = {}
        if wish.detached is not None:
            options["detached"] = self._detached(wish.detached)
        within = self._within()
        if within is not None:
            options["within"] = within
        row = self.registry.add(
            id,
            agent,
            msgspec.json.decode(text),
            work=wish.work,
            tool_call=wish.tool_call,
            place=wish.place,
            display=None if wish.display is None else to_json(wish.display).decode(),
            options=msgspec.json.encode(options).decode(),
            trace=tracing.text(),
            deadline_at=None if wish.timeout is None else clock.now() + wish.timeout,
        )
        self._clients.tell(row)
        self._tell(row)
        return row

    def _detached(self, chosen: Detached) -> dict[str, Any]:
        """Return how to tell of a run that nobody waits for, as it is stored; refuse what could not be told later."""
        if not is_a(chosen, Detached):
            raise UsageError(f"run_agent(detached={chosen!r}): it takes Detached(…).")
        called = None
        if chosen.on_finish is not None:
            calls = self._actor.of(Agenda).calls
            method = calls.method_of(chosen.on_finish, "Detached(on_finish=…)")
            called = [method.name, *msgspec.msgpack.decode(calls.pack(method, (ANY_RUN,), {}))]
        if chosen.notify and not self._agent._has_conversation:
            raise UsageError(f"{type(self._agent).__name__} has no conversation that a run could join.")
        return {
            "on_finish": called,
            "notify": chosen.notify,
            "budget": None if chosen.budget is None else chosen.budget.total_seconds(),
            "silence": None if chosen.silence is None else chosen.silence.total_seconds(),
        }

    def _warn_of_many(self) -> None:
        live = sum(row.detached is not None for row in self.registry.open())
        if live == MANY_DETACHED + 1:
            where = {"address": str(self._actor.address)}
            log.warning("%s has %d detached runs under way", self._actor.address, live, extra=where)

    def _within(self) -> str | None:
        """Return the run that this agent itself is doing now."""
        return self._actor.of(Served).worker.current() if self._actor.parent is not None else None

    def _give_again(self, row: Row, text: bytes) -> Row:
        """Go on with a run that is known: it may not have begun, and was perhaps given up."""
        self._inputs[row.id] = text
        if (arrived := self._arrived.pop(row.id, None)) is not None and not arrived.done():
            arrived.set_result(None)
        if row.status == "interrupted":
            status = "starting" if self._stored(row.id) is None else "running"
            self.registry.set(row.id, status=status, error=None, reason=None, still_running=0, ended_at=None)
            row = self._row(row.id)
        if (followed := self._followed.get(row.id)) is None:
            self._follow(row.id)
        elif followed.given_up:
            followed.given_up, followed.since = False, self._actor.host.clock.now()
            if followed.nudge is not None and not followed.nudge.done():
                followed.nudge.set_result(None)
        return row

    def _follow(self, id: str) -> None:
        self._actor.of(Agenda).fibers.launch(f"run {id}", self._agent.follow_run, (id,), {})

    def of(self, id: str) -> Run:
        """Return a run as users see it."""
        return shown(self._row(id))

    def _row(self, id: str) -> Row:
        row = self.registry.get(id)
        if row is None:
            raise Cleared(f"The run {id!r} was cleared away.")
        return row

    async def over(self, id: str) -> Run:
        """Return a run once it is over."""
        while self._row(id).is_open:
            await self.changing(id)
            self._actor.check_live()
        return self.of(id)

    async def _begun(self, id: str) -> None:
        """Return when the sub-agent has taken a run, or never will."""
        while self._row(id).status == "starting":
            await self.changing(id)
            self._actor.check_live()

    def changing(self, id: str) -> Future[None]:
        """Return what is done when the status of a run changes."""
        waiting: Future[None] = self._actor.host.loop.create_future()
        self._changing.setdefault(id, []).append(waiting)
        return waiting

    def _changed(self, id: str) -> None:
        for waiting in self._changing.pop(id, ()):
            if not waiting.done():
                waiting.set_result(None)

    async def follow(self, id: str) -> None:
        """Follow a run to its end, as a fiber."""
        row = self.registry.get(id)
        if id in self._followed or row is None:
            return
        if row.status in HARD:
            if self._is_again():  # the process ended before it was told
                await self._actor.tell(self._agent.on_run_finish, shown(row))
            return
        followed = self._followed[id] = Followed(
            row,
            stop=self._actor.host.loop.create_future(),
            since=self._actor.host.clock.now(),
            again=row.status != "starting" or self._is_again(),
            given_up=row.status == "interrupted",
        )
        if self._is_again():
            address = str(self._actor.address)
            log.info("%s waits again for the run %s of %s", address, id, row.type, extra={"address": address})
        try:
            if followed.given_up and not row.delivered & HOOK_TOLD_GIVEN_UP:  # the process ended before it was told
                await self._hook_given_up(row.id)
            if row.status == "starting" and not followed.again:
                await self._actor.tell(self._agent.on_run_start, shown(row))
            name, links = f"run {row.type}", [row.trace] if followed.again or row.detached else []
            with tracing.span(
                name,
                links=links,
                sapwood__run__id=id,
                sapwood__address=str(self._actor.address.child(row.type, row.name)),
                gen_ai__tool__call__id=row.tool_call,
            ) as span:
                await self._follow_to_end(followed)
                run = self.of(id)
                span.set(sapwood__run__status=run.status)
                if not run.ok:
                    span.fail(run.error or run.reason or run.status)
        except Cleared:
            pass
        finally:
            if self._is_followed(followed):
                del self._followed[id]
                self._inputs.pop(id, None)
            self._changed(id)

    def _is_followed(self, followed: Followed) -> bool:
        """Return whether a run was not cleared away meanwhile; its id may belong to another one by now."""
        return self._followed.get(followed.row.id) is followed

    def _check_followed(self, followed: Followed) -> None:
        if not self._is_followed(followed):
            raise Cleared(f"The run {followed.row.id!r} was cleared away.")

    def _is_again(self) -> bool:
        """Return whether the fiber that runs now was interrupted before."""
        return self._actor.of(Agenda).fibers.current().recoveries > 0

    async def _follow_to_end(self, followed: Followed) -> None:
        id, failed = followed.row.id, 0
        while True:
            try:
                if not await self._begin(followed):
                    return
                state = await self._result(followed)
                self._check_followed(followed)
                self._end_as(followed, state)
            except (CancelledError, Cleared):
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it is how the run ended
                self._actor.check_live()
                self._check_followed(followed)
                if isinstance(error, Unavailable):
                    failed += 1
                    await self._retry_later(followed, error, min(0.05 * 2**failed, MOST_BACK_OFF))
                    continue
                self._end_by(followed, error)
            break
        await self._actor.tell(self._agent.on_run_finish, self.of(id))

    async def _retry_later(self, followed: Followed, error: Unavailable, wait: float) -> None:
        """Wait a while until a sub-agent is tried again that could not be reached; give it up after too long."""
        now = self._actor.host.clock.now()
        if followed.trouble is None:
            followed.troubled_since = now
        followed.trouble = str(error) or describe(error)
        if followed.child is not None and followed.child.dropped is not None:
            followed.child = None  # it went to sleep, or was aborted: nothing can be read by way of it
        if not followed.given_up and now - followed.troubled_since >= self._actor.host.settings.run_silence:
            with suppress(Unavailable):  # then the next time
                await self._tell_given_up(followed)
        await asyncio.wait({followed.stop, self._nudge(followed)}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)

    def _nudge(self, followed: Followed) -> Future[None]:
        if followed.nudge is None or followed.nudge.done():
            followed.nudge = self._actor.host.loop.create_future()
        return followed.nudge

    def _end_by(self, followed: Followed, error: Exception) -> None:
        """Note that a run ended without its sub-agent saying how."""
        row = self._row(followed.row.id)
        if isinstance(error, Aborted) and followed.timed_out:
            self._end_timed_out(row)
        elif isinstance(error, Aborted):
            self._end(row, "aborted", reason=str(error))
        else:
            self._end(row, "error", error=str(error) or describe(error))

    async def _begin(self, followed: Followed) -> bool:
        """Have the sub-agent begin, if it has not; return whether there is anything to follow."""
        row, actor = followed.row, self._actor
        if not self._is_wanted(row.id) and self._stored(row.id) is None:
            return await self._not_begun(followed)
        followed.child = None
        child = followed.child = await self._awake(followed)
        if child is None:
            return await self._not_begun(followed)
        followed.trouble = None
        served = child.of(Served)
        if served.row(row.id) is None:
            text = self._inputs.get(row.id) or await self._given_again(followed)
            if followed.stopped is not None or not self._is_wanted(row.id):
                return await self._not_begun(followed)
            if text is None:
                self._give_up(followed, "not-started", "It had not begun when the process ended.", still_running=False)
                await self._actor.tell(self._agent.on_run_finish, self.of(row.id))
                return False
            await _called(child, "start_run", served.start, row.id, text, tracing.text())
            actor.check_live()
        if not self._is_wanted(row.id):
            self.cut(row.id, self._row(row.id).cancelled or UNWANTED)
        if self._row(row.id).status == "starting":
            self.registry.set(row.id, status="running")
        self._inputs.pop(row.id, None)
        self._changed(row.id)
        return True

    async def _awake(self, followed: Followed) -> Actor | None:
        """Return the sub-agent, started; None if the run is to stop before it is."""
        row, tree = followed.row, self._actor.home
        assert isinstance(tree, Tree)
        kind = tree.kinds.get(row.type) or resolve(row.type)
        getting = asyncio.ensure_future(self._actor.of(Children).get(kind.cls, row.name))
        try:
            if not self._is_wanted(row.id) and followed.stopped is None:
                # It was stopped before the process ended. It ends by itself once it starts, if that does not take long.
                await asyncio.wait({getting, followed.stop}, timeout=GRACE, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done() and followed.stopped is None:
                    followed.stop.set_result(self._row(row.id).cancelled or UNWANTED)
            await self._while_not_due(followed, getting)
            if getting.done():
                return getting.result()
        finally:
            getting.cancel()
        address = self._actor.address.child(kind.type, row.name)
        tree.abort(address, followed.stopped)
        tree.forget_aborts(address)  # it may be opened again, and what it had begun it ends then
        return None

    async def _not_begun(self, followed: Followed) -> bool:
        """Note that a run is over which its sub-agent has never taken, or cannot tell about."""
        row = self._row(followed.row.id)
        if (state := self._stored_end(row.id)) is not None:
            self._end_as(followed, state)  # it had ended when the process did, and that counts
        elif followed.timed_out:
            self._end_timed_out(row)
        else:
            self._end(row, "aborted", reason=followed.stopped or row.cancelled or UNWANTED)
        await self._actor.tell(self._agent.on_run_finish, self.of(row.id))
        return False

    async def _given_again(self, followed: Followed) -> bytes | None:
        """After a crash, wait for whoever gave a run: only they know the whole input."""
        id = followed.row.id
        arrived = self._arrived[id] = self._actor.host.loop.create_future()
        await self._until(self._actor.host.clock.now() + GIVEN_AGAIN, arrived, followed.stop)
        self._arrived.pop(id, None)
        return self._inputs.get(id)

    def _is_wanted(self, id: str) -> bool:
        row = self.registry.get(id)
        return row is not None and row.is_wanted_by(self._agent)

    async def _result(self, followed: Followed) -> RunState:
        """Return how a run ended, once it has; what takes too long is stopped, or given up and followed on."""
        child, id = followed.child, followed.row.id
        assert child is not None
        call, reply = child.handle("follow run", child.of(Served).result, id)
        try:
            await self._while_not_due(followed, reply)
            if not reply.done():
                await self._stopping(followed, reply)
            return await reply
        except BaseException:
            child.cancel(call)
            raise

    async def _while_not_due(self, followed: Followed, reply: Future[Any]) -> None:
        """Return when this is done, or the run is to stop; what takes too long is stopped, or given up and goes on."""
        while not reply.done() and followed.stopped is None:
            due = self._due(followed)
            await self._until(due, reply, followed.stop, self._nudge(followed))
            if not reply.done() and due is not None and self._actor.host.clock.now() >= due:
                await self._is_due(followed)

    async def _stopping(self, followed: Followed, reply: Future[RunState]) -> None:
        """Give a sub-agent a while to stop by itself; then abort it."""
        tree, child = self._actor.home, followed.child
        assert child is not None
        assert isinstance(tree, Tree)
        child.of(Served).cut(followed.row.id, followed.stopped or "")  # it may have begun after it was to stop
        for _ in range(PARTS):
            if not reply.done():
                await asyncio.wait({reply}, timeout=GRACE / PARTS)
        if not reply.done():
            tree.abort(child.address, followed.stopped)
            # What it has begun it has to end, once it wakes and finds that nobody wants it; and it may be opened again.
            tree.forget_aborts(child.address)

    def _due(self, followed: Followed) -> float | None:
        """Return when a run takes too long, as far as is known now."""
        row, detached = followed.row, followed.row.detached
        dues: list[float | None] = [row.deadline_at]
        if not followed.given_up:
            heard = self._last_heard(followed)
            if detached is not None:
                dues.append(self._budget_ends(followed))
                if detached["silence"] is not None:
                    # Nothing yet: if something is heard in between, it is not too late to count from there.
                    dues.append((self._actor.host.clock.now() if heard is None else heard) + detached["silence"])
            elif followed.again:
                dues.append(max(heard or 0, followed.since) + self._actor.host.settings.run_silence)
        return min((due for due in dues if due is not None), default=None)

    def _budget_ends(self, followed: Followed) -> float | None:
        budget = (followed.row.detached or {}).get("budget")
        return None if budget is None else followed.row.started_at + budget

    def _is_over_budget(self, followed: Followed) -> bool:
        ends = self._budget_ends(followed)
        return ends is not None and self._actor.host.clock.now() >= ends

    def _last_heard(self, followed: Followed) -> float | None:
        child, id = followed.child, followed.row.id
        if child is None or child.dropped is not None:
            return None
        served = child.of(Served)
        heard = served.last_heard.get(id)
        # Of what it said before the process ended, nobody knows when that was.
        return followed.since if heard is None and followed.again and served.has_spoken(id) else heard

    async def _is_due(self, followed: Followed) -> None:
        """Stop a run whose time is over; give up one that is silent."""
        now, row = self._actor.host.clock.now(), followed.row
        if row.deadline_at is not None and now >= row.deadline_at:
            followed.timed_out = True
            self.cut(row.id, "timed-out")
            return
        due = self._due(followed)
        if due is None or now < due:
            return  # something was heard meanwhile
        served = None if followed.child is None else followed.child.of(Served)
        if served is not None and served.worker.waits(row.id) and not self._is_over_budget(followed):
            followed.since = now  # it waits for a person, and that may take any time
            served.last_heard.pop(row.id, None)
            return
        await self._tell_given_up(followed)

    async def _tell_given_up(self, followed: Followed) -> None:
        reason, text = "no-progress", "Nothing was heard of it for too long."
        if self._is_over_budget(followed):
            reason, text = "budget-exceeded", "It took too long."
        elif followed.child is None and followed.trouble is not None:
            reason, text = "inspect-failed", followed.trouble
        elif followed.child is None:
            reason, text = "inspect-timeout", "Its sub-agent does not start."
        self._give_up(followed, reason, text, still_running=True)
        await self._hook_given_up(followed.row.id)

    async def _hook_given_up(self, id: str) -> None:
        """Tell the agent that a run was given up. Noted, since it is followed on, perhaps in another life."""
        await self._actor.tell(self._agent.on_run_finish, self.of(id))
        self.registry.set(id, delivered=self._row(id).delivered | HOOK_TOLD_GIVEN_UP)

    async def _until(self, due: float | None, *futures: Future[Any]) -> None:
        """Return when one of these is done, or it is this late."""
        timer: Timer | None = None
        late: Future[None] = self._actor.host.loop.create_future()
        if due is not None:
            timer = self._actor.host.clock.call_at(due, lambda: late.done() or late.set_result(None))
        try:
            await asyncio.wait({late, *futures}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if timer is not None:
                timer.cancel()

    def _end_as(self, followed: Followed, state: RunState) -> None:
        """Note how the sub-agent says a run ended."""
        self._actor.check_live()
        row = self._row(followed.row.id)
        news: dict[str, Any] = {"output": state.output, "summary": state.summary, "usage": state.usage}
        if followed.timed_out and state.status == "aborted":
            self._end_timed_out(row, seq=state.seq + 1, **news)
            return
        reason = state.reason if state.status == "aborted" else None
        self._end(row, state.status, error=state.error, reason=reason, seq=state.seq + 1, **news)

    def _end_timed_out(self, row: Row, **news: Any) -> None:
        text = f"It took longer than it may: {row.deadline_at and row.deadline_at - row.started_at:g} seconds."
        self._end(row, "error", error=text, reason="timed-out", **news)

    def _give_up(self, followed: Followed, reason: str, text: str, *, still_running: bool) -> None:
        row = self._row(followed.row.id)
        self._end(row, "interrupted", error=text, reason=reason, still_running=int(still_running))
        followed.given_up = True

    def _end(self, row: Row, status: str, **news: Any) -> None:
        """Note, in this slice, how a run ended, and tell everybody."""
        if row.detached is not None:
            self._actor.of(Agenda).check_free()  # before anything is written: nobody would be called back
        news.setdefault("seq", self._next_seq(row.id))
        if not self.registry.end(row.id, status, **news):
            return
        row = self._row(row.id)
        self._clients.tell(row)
        run = shown(row)
        self._tell(row)
        self._deliver(row, run)
        self._changed(row.id)

    def _stored(self, id: str) -> kept.Row | None:
        """Return what the sub-agent has stored of a run, awake or asleep."""
        database = self._clients.database_of(id)
        return None if database is None else kept.find(database, id)

    def _stored_end(self, id: str) -> RunState | None:
        """Return how a run has ended in the sub-agent; None if it has not, or nobody can tell."""
        try:
            found = self._stored(id)
        except (StoredDataError, Unavailable):
            return None
        if found is None or found.length is None:
            return None
        news = {name: getattr(found, name) for name in ("output", "summary", "error", "reason", "usage")}
        return RunState(id=id, status=found.status, waits=False, seq=found.length, **news)

    def _next_seq(self, id: str) -> int:
        """Return the number that follows all that a run has said, as far as anybody still knows."""
        followed = self._followed.get(id)
        told = followed.child.of(Served).told.get(id, 0) if followed is not None and followed.child is not None else 0
        try:
            database, found = self._clients.database_of(id), self._stored(id)
            if database is None or found is None:
                return told + 1
            return max(told, kept.length(database, found.stream) if found.length is None else found.length) + 1
        except (StoredDataError, Unavailable):  # it has to end, also if what it said cannot be read any more
            return told + 1

    def _deliver(self, row: Row, run: Run) -> None:
        """Have the agent called that a run nobody waits for is over, or given up: each once."""
        detached = row.detached
        slot = TOLD_GIVEN_UP if row.status == "interrupted" else TOLD_OVER
        if detached is None or row.delivered & slot:
            return
        self.registry.set(row.id, delivered=row.delivered | slot)
        if detached["on_finish"] is not None:
            name, argument = detached["on_finish"]
            self._actor.of(Queue).call_back(Lane(f"run {row.id}"), name, argument, run)
        if detached["notify"]:
            self._agent._notified(run)

    def _tell(self, row: Row) -> None:
        """Tell those who listen that a run has started, or how it has ended."""
        path = (*self._actor.address.steps, Step(row.type, row.name))
        if ears_of(self._actor, path):
            tell(self._actor, started(path, row) if row.is_open else ended(path, row))

    def gave_up(self, id: str, error: str) -> None:
        """Nobody follows a run any more: its fiber was begun again too often, and got nowhere."""
        row = self.registry.get(id)
        if row is not None and row.is_open:
            self._end(row, "interrupted", error=error, reason="recovery-failed", still_running=1)

    def cancel(self, id: str, reason: str) -> bool:
        """Stop a run, for good; return whether there was one to stop."""
        self._actor.check_use()
        row = self.registry.get(id)
        if row is None or row.status in HARD:
            return False
        self.registry.set(id, cancelled=reason)
        if id in self._followed:
            self.cut(id, reason)
        elif row.status == "interrupted":
            self._end(row, "aborted", reason=reason, seq=max(row.seq, self._next_seq(id)))
        else:
            self._follow(id)  # it has to learn that it is not wanted
        return True

    def cut(self, id: str, reason: str) -> None:
        """Stop a run and all below it, at once; what has to be written of it follows."""
        followed = self._followed.get(id)
        if followed is None or followed.stopped is not None:
            return
        followed.stop.set_result(reason)
        if followed.child is not None and followed.child.dropped is None:
            with stopping(self._actor):
                followed.child.of(Served).cut(id, reason)

    def cut_work(self, work: str, reason: str) -> None:
        """Stop the runs that are part of this, and all below them, in one pass."""
        for id, followed in list(self._followed.items()):
            if followed.row.work == work and followed.row.detached is None:
                self.cut(id, reason)

    async def clear_all(self, status: str | None, older_than: timedelta | None) -> int:
        """Forget the runs of this status that began this long ago; return how many once they are gone."""
        self._actor.check_use()
        before = None if older_than is None else self._actor.host.clock.now() - older_than.total_seconds()
        ids = [
            row.id
            for row in self.registry.all()
            if status in (None, row.status) and (before is None or row.started_at < before)
        ]
        gone = self.clear(ids)
        if gone:
            await asyncio.shield(asyncio.gather(*gone))
        return len(ids)

    def clear(self, ids: Sequence[str]) -> list[asyncio.Task[None]]:
        """Forget runs, stop those that go on, and delete the sub-agents that did them, with all they know."""
        gone: list[asyncio.Task[None]] = []
        for id in ids:
            row = self.registry.get(id)
            if row is None:
                continue
            self.cut(id, "cleared")
            self._followed.pop(id, None)
            self._inputs.pop(id, None)
            self.registry.remove([id])
            self._changed(id)
            if (task := self._actor.of(Children).bury(self._clients.types_of(row), row.name)) is not None:
                gone.append(task)
        return gone


async def _called(child: Actor, name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call something in a sub-agent; whoever is cancelled meanwhile cancels it."""
    call, reply = child.handle(name, function, *args)
    try:
        return await reply
    except CancelledError:
        child.cancel(call)
        raise


def _text_of(input: Any) -> bytes:
    try:
        return to_json(input)
    except TypeError as error:
        raise InvalidArguments(f"The input of a run has to fit into JSON: {error}") from None
