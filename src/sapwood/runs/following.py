"""Follows each run to its end: wakes its sub-agent, has it begin, and waits for what comes of it.

A run is followed by a fiber. Begun again after a crash, it asks the sub-agent how the run
stands and goes on from there. A run that was given up is followed on; if it ends later after
all, that counts.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError, Future
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sapwood import tracing
from sapwood.capabilities.agenda import Agenda
from sapwood.capabilities.children import Children
from sapwood.capabilities.steps import Work
from sapwood.errors import NotFound, Unavailable
from sapwood.kernel.actor import Actor
from sapwood.kernel.classes import AgentClass
from sapwood.kernel.context import current
from sapwood.kernel.crossing import describe
from sapwood.kernel.tree import Tree
from sapwood.runs.clients import RunClients
from sapwood.runs.contract import RunState
from sapwood.runs.followed import Followed
from sapwood.runs.inputs import PendingInputs
from sapwood.runs.outcomes import Cleared, Outcomes
from sapwood.runs.pacing import is_again
from sapwood.runs.patience import Patience
from sapwood.runs.registry import HARD, Row, shown
from sapwood.runs.served import FOLLOW, Served, following

log = logging.getLogger(__name__)

GIVEN_AGAIN = 5.0
"""Seconds to wait, after a crash, for the caller to start the run again: only the caller has the whole input."""
PARTS = 10
"""Parts in which a cancelled run is waited for: where a thousand stop at once and the loop is late, each part takes
longer."""
MOST_BACK_OFF = 5.0


class Following:
    """Follows the runs that one agent gives."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._agent: Any = actor.agent
        self._cancel_timeout = actor.host.timings.run_cancel_timeout
        self._outcomes = actor.of(Outcomes)
        self._patience = actor.of(Patience)
        self._inputs = actor.of(PendingInputs).by_run
        """What runs were given whose sub-agents have not taken it yet."""
        self._kinds: dict[str, AgentClass] = {}
        """The classes that runs were given to in this life: others may have the same type id."""
        self._arrived: dict[str, Future[None]] = {}

    def take_input(self, id: str, kind: AgentClass, text: bytes) -> None:
        """Keep whom a run is for, and what it was given until its sub-agent takes it."""
        self._kinds[id], self._inputs[id] = kind, text
        if (arrived := self._arrived.pop(id, None)) is not None and not arrived.done():
            arrived.set_result(None)

    def forget(self, id: str) -> None:
        """A run is no more."""
        for what in (self._outcomes.followed, self._inputs, self._kinds):
            what.pop(id, None)

    def launch(self, id: str) -> None:
        """Have a run followed, by a fiber of its own."""
        self._actor.of(Agenda).fibers.launch(following(id), self._agent._sapwood_follow_run, (id,), {})

    def launch_again(self, id: str) -> None:
        """Follow a run that is not followed now, because it rests or was abandoned."""
        if not self.wake(id):
            self.launch(id)

    def rests(self, id: str) -> bool:
        """Return whether a run is not followed in memory because it waits for an answer."""
        return self._actor.of(Agenda).fibers.is_asleep(following(id), FOLLOW)

    def wake(self, id: str) -> bool:
        """Have a run followed again that rests; return whether it did."""
        return self._actor.of(Agenda).fibers.wake(following(id), FOLLOW)

    def all_wait(self, work: str) -> bool:
        """Return whether this waits for runs, all of which wait for answers."""
        rows = [row for row in self._outcomes.registry.open() if self._outcomes.is_awaited(row, work)]
        return bool(rows) and all(self.waits(row.id) for row in rows)

    def waits(self, id: str) -> bool:
        """Return whether a run, or a run below it, waits for an answer."""
        followed = self._outcomes.followed.get(id)
        if followed is None:
            return self.rests(id)
        child = followed.child
        if child is None or child.dropped is not None:
            return False
        return child.of(Served).worker.waits(id)

    async def follow(self, id: str) -> None:
        """Follow a run to its end, as a fiber."""
        row = self._outcomes.registry.get(id)
        if id in self._outcomes.followed or row is None or row.status in HARD:
            return
        call = current.get()
        rested = call is not None and isinstance(call.work, Work) and call.work.resumed
        followed = self._outcomes.followed[id] = Followed(
            row,
            stop=self._actor.host.loop.create_future(),
            since=self._actor.host.clock.now(),
            again=is_again(self._actor) or (row.status != "queued" and not rested),
            rested=rested,
            given_up=row.status == "interrupted",
        )
        if is_again(self._actor):
            address = str(self._actor.address)
            log.info(
                "waiting again for a run address=%s run=%s type=%s", address, id, row.type, extra={"address": address}
            )
        try:
            if row.status == "queued" and not followed.again and not rested:
                await self._actor.tell(self._agent.on_run_start, self._outcomes.listed(row))
            name, links = f"run {row.type}", [row.trace] if followed.again or rested or row.detached else []
            with tracing.span(
                name,
                links=links,
                sapwood__run__id=id,
                sapwood__address=str(self._actor.address.child(row.type, row.name)),
                gen_ai__tool__call__id=row.tool_call,
            ) as span:
                await self._follow_to_end(followed)
                run = shown(self._outcomes.row(id))
                span.set(sapwood__run__status=run.status)
                if not run.ok:
                    span.fail(run.error or run.reason or run.status)
        except Cleared:
            pass
        finally:
            if self._is_followed(followed):
                self.forget(id)
            self._outcomes.changed(id)

    def _is_followed(self, followed: Followed) -> bool:
        """Return whether a run was not cleared away meanwhile; its id may belong to another one by now."""
        return self._outcomes.followed.get(followed.row.id) is followed

    def _check_followed(self, followed: Followed) -> None:
        if not self._is_followed(followed):
            raise Cleared(f"The run {followed.row.id!r} was cleared before it ended.")

    async def _follow_to_end(self, followed: Followed) -> None:
        failed = 0
        while True:
            try:
                if not await self._begin(followed):
                    return
                state = await self._result(followed)
                await self._wake_work(followed)
                self._check_followed(followed)
                self._outcomes.end_as(followed, state)
            except Cleared:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it is how the run ended
                self._actor.check_live()
                await self._wake_work(followed)
                self._check_followed(followed)
                if isinstance(error, Unavailable):
                    failed += 1
                    await self._retry_later(followed, error, min(0.05 * 2 ** min(failed, 10), MOST_BACK_OFF))
                    continue
                self._outcomes.end_by(followed, error)
            return

    async def _retry_later(self, followed: Followed, error: Unavailable, wait: float) -> None:
        """Wait a while until a sub-agent is tried again that could not be reached; give it up after too long."""
        now = self._actor.host.clock.now()
        if followed.trouble is None:
            followed.troubled_since = now
        followed.trouble = str(error) or describe(error)
        if followed.child is not None and followed.child.dropped is not None:
            followed.child = None  # it went to sleep, or was aborted: nothing can be read by way of it
        if not followed.given_up and now - followed.troubled_since >= self._actor.host.settings.run_idle_timeout:
            with suppress(Unavailable):  # then the next time
                self._patience.give_up(followed)
        # One that is to stop already is tried again in its time, too.
        news = {followed.nudged()} if followed.stopped is not None else {followed.stop, followed.nudged()}
        await asyncio.wait(news, timeout=wait, return_when=asyncio.FIRST_COMPLETED)

    async def _begin(self, followed: Followed) -> bool:
        """Have the sub-agent begin, if it has not; return whether there is anything to follow."""
        row, actor = followed.row, self._actor
        if not self._is_wanted(row.id) and self._outcomes.stored(row.id) is None:
            return await self._not_begun(followed)
        self._check_not_deleted(self._outcomes.row(row.id))
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
                self._outcomes.give_up(
                    followed, "not-started", "The run had not started when the process ended.", still_running=False
                )
                return False
            await _called(child, "start_run", served.start, row.id, text, tracing.text())
            actor.check_live()
        if not self._is_wanted(row.id):
            followed.cut(self._why_not(row.id))
        if self._outcomes.row(row.id).status == "queued":
            self._outcomes.registry.set(row.id, status="running")
        self._inputs.pop(row.id, None)
        self._outcomes.changed(row.id)
        return True

    def _check_not_deleted(self, row: Row) -> None:
        """Raise `NotFound` if the sub-agent of a run was deleted, and the process ended before that was noted."""
        types = self._actor.of(RunClients).types_of(row)
        if row.status == "running" and not self._actor.registry.has(types, row.name):
            address = self._actor.address.child(row.type, row.name)
            raise NotFound(f"{address} was deleted.", path=address.segments)

    async def _awake(self, followed: Followed) -> Actor | None:
        """Return the sub-agent, started; None if the run is to stop before it is."""
        row, tree = followed.row, self._actor.home
        assert isinstance(tree, Tree)
        kind = self._kinds.get(row.id) or tree.kind_of(row.type, self._actor.kind)
        getting = asyncio.ensure_future(self._actor.of(Children).get(kind.cls, row.name))
        try:
            if not self._is_wanted(row.id) and followed.stopped is None:
                # It was stopped before the process ended. It ends by itself once it starts, if that does not take long.
                await asyncio.wait(
                    {getting, followed.stop}, timeout=self._cancel_timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if not getting.done() and followed.stopped is None:
                    followed.stop.set_result(self._why_not(row.id))
            await self._patience.while_not_due(followed, getting)
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
        await self._wake_work(followed)
        self._check_followed(followed)
        row = self._outcomes.row(followed.row.id)
        if (state := self._outcomes.stored_end(row.id)) is not None:
            self._outcomes.end_as(followed, state)  # it had ended when the process did, and that counts
        elif followed.timed_out:
            self._outcomes.end_timed_out(followed)
        else:
            self._outcomes.end(row, "cancelled", reason=followed.stopped or self._why_not(row.id))
        return False

    async def _given_again(self, followed: Followed) -> bytes | None:
        """After a crash, wait for whoever gave a run: only they know the whole input."""
        id = followed.row.id
        arrived = self._arrived[id] = self._actor.host.loop.create_future()
        await self._patience.until(self._actor.host.clock.now() + GIVEN_AGAIN, arrived, followed.stop)
        self._arrived.pop(id, None)
        return self._inputs.get(id)

    def _is_wanted(self, id: str) -> bool:
        row = self._outcomes.registry.get(id)
        return row is not None and row.is_wanted_by(self._agent)

    def _why_not(self, id: str) -> str:
        return self._outcomes.row(id).why_unwanted_by(self._agent)

    async def _result(self, followed: Followed) -> RunState:
        """Return how a run ended, once it has; what takes too long is stopped, or given up and followed on."""
        child, id = followed.child, followed.row.id
        assert child is not None
        served = child.of(Served)
        if not served.worker.rests(id):
            await self._wake_work(followed)
        served.when_resting[id] = followed.look_again
        call, reply = child.handle("follow run", served.result, id)
        try:
            await self._patience.while_not_due(followed, reply)
            if not reply.done():
                await self._stopping(followed, reply)
            return await reply
        except BaseException:
            reply.cancel()  # nobody waits for it
            child.cancel(call)
            raise
        finally:
            served.when_resting.pop(id, None)

    async def _wake_work(self, followed: Followed) -> None:
        """Have what waits for a run go on, if it came to rest with it."""
        work, served = followed.row.work, self._actor.of(Served)
        if work is None or not (followed.again or followed.rested):
            return
        self._actor.check_live()
        if served.worker.rests(work):
            served.worker.wake(work)

    async def _stopping(self, followed: Followed, reply: Future[RunState]) -> None:
        """Give a sub-agent a while to stop by itself; then abort it."""
        tree, child = self._actor.home, followed.child
        assert child is not None
        assert isinstance(tree, Tree)
        child.of(Served).cut(followed.row.id, followed.stopped or "")  # it may have begun after it was to stop
        for _ in range(PARTS):
            if not reply.done():
                await asyncio.wait({reply}, timeout=self._cancel_timeout / PARTS)
        if not reply.done():
            tree.abort(child.address, followed.stopped)
            # What it has begun it has to end, once it wakes and finds that nobody wants it; and it may be opened again.
            tree.forget_aborts(child.address)


async def _called(child: Actor, name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call something in a sub-agent; whoever is cancelled meanwhile cancels it."""
    call, reply = child.handle(name, function, *args)
    try:
        return await reply
    except CancelledError:
        child.cancel(call)
        raise
