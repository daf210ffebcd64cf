"""Follows one run to its end: wakes its sub-agent, starts the run there, and waits for its result.

After a crash, the sub-agent is asked how the run stands. A run that was given up is still
followed. If it ends later, that end counts.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError, Future
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from sapwood import tracing
from sapwood.capabilities.children import Children
from sapwood.capabilities.steps import Work
from sapwood.errors import Aborted, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.marshal.call import current
from sapwood.kernel.marshal.exceptions import describe
from sapwood.kernel.trees.tree import tree_of
from sapwood.runs.dispatch.results import RunCleared
from sapwood.runs.dispatch.timed_run import TimedRun, until
from sapwood.runs.execution.contract import RunState, code_of
from sapwood.runs.execution.driver import is_again
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.tables.inputs import PendingInputs
from sapwood.runs.tables.runs_table import RunRow, shown

log = logging.getLogger(__name__)

GIVEN_AGAIN = 5.0
"""Seconds to wait, after a crash, for the caller to start the run again: only the caller has the whole input."""
PARTS = 10
"""Parts in which a cancelled run is waited for: where a thousand stop at once and the loop is late, each part takes
longer."""
MOST_BACK_OFF = 5.0


class RunMonitor(TimedRun):
    """Follows one run of an agent, in the fiber of the run."""

    def __init__(self, actor: Actor, row: RunRow, kinds: Mapping[str, AgentClass], *, rested: bool) -> None:
        super().__init__(actor, row, again=is_again() or (row.status != "queued" and not rested), rested=rested)
        self._kinds = kinds
        """The classes of runs that were started in this life: others may have the same type id."""
        self._inputs = actor.of(PendingInputs).by_run
        """The inputs of runs whose sub-agents have not taken them yet."""
        self._cancel_timeout = actor.host.timings.run_cancel_timeout

    async def follow(self) -> None:
        """Follow the run to its end; raise `RunCleared` if it is cleared before."""
        row = self.row
        if is_again():
            address = str(self._actor.address)
            log.info(
                "waiting again for a run address=%s run=%s type=%s",
                address,
                row.id,
                row.type,
                extra={"address": address},
            )
        if row.status == "queued" and not self.again and not self.rested:
            await self._actor.tell(self._actor.agent.on_run_start, self._outcomes.listed(row))
        name, links = f"run {row.type}", [row.trace] if self.again or self.rested or row.detached else []
        with tracing.span(
            name,
            links=links,
            sapwood__run__id=row.id,
            sapwood__address=str(self._actor.address.child(row.type, row.name)),
            gen_ai__tool__call__id=row.tool_call,
        ) as span:
            await self._follow_to_end()
            run = shown(self._outcomes.row(row.id))
            span.set(sapwood__run__status=run.status)
            if not run.ok:
                span.fail(run.error or run.reason or run.status)

    @property
    def is_followed(self) -> bool:
        """Whether the run was not cleared since. Its id may belong to another run by now."""
        return self._outcomes.followed.get(self.row.id) is self

    def _check_followed(self) -> None:
        if not self.is_followed:
            raise RunCleared(f"The run {self.row.id!r} was cleared before it ended.")

    async def _follow_to_end(self) -> None:
        failed = 0
        while True:
            try:
                if not await self._begin():
                    return
                state = await self._result()
                await self._wake_work()
                self._check_followed()
                self._end_as(state)
            except RunCleared:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it is how the run ended
                self._actor.check_live()
                await self._wake_work()
                self._check_followed()
                if isinstance(error, Unavailable):
                    failed += 1
                    await self._retry_later(error, min(0.05 * 2 ** min(failed, 10), MOST_BACK_OFF))
                    continue
                self._end_by(error)
            return

    async def _retry_later(self, error: Unavailable, wait: float) -> None:
        """Wait a while until a sub-agent is tried again that could not be reached; give it up after too long."""
        now = self._actor.host.clock.now()
        if self.trouble is None:
            self.troubled_since = now
        self.trouble = str(error) or describe(error)
        if self.child is not None and self.child.dropped is not None:
            self.child = None  # it went to sleep, or was aborted: nothing can be read by way of it
        if not self.given_up and now - self.troubled_since >= self._actor.host.settings.run_idle_timeout:
            with suppress(Unavailable):  # then the next time
                self.give_up()
        # One that is to stop already is tried again in its time, too.
        news = {self.nudged()} if self.stopped is not None else {self.stop, self.nudged()}
        await asyncio.wait(news, timeout=wait, return_when=asyncio.FIRST_COMPLETED)

    async def _begin(self) -> bool:
        """Have the sub-agent begin, if it has not; return whether there is anything to follow."""
        row, actor = self.row, self._actor
        if not self._is_wanted() and self._outcomes.stored(row.id) is None:
            return await self._not_begun()
        self.child = None
        child = self.child = await self._awake()
        if child is None:
            return await self._not_begun()
        self.trouble = None
        served = child.of(RunExecutor)
        if served.row(row.id) is None:
            text = self._inputs.get(row.id) or await self._given_again()
            if self.stopped is not None or not self._is_wanted():
                return await self._not_begun()
            if text is None:
                self._outcomes.give_up(
                    self, "not-started", "The run had not started when the process ended.", still_running=False
                )
                return False
            await _called(child, "start_run", served.start, row.id, text, tracing.text())
            actor.check_live()
        if not self._is_wanted():
            self.cut(self._why_not())
        if self._outcomes.row(row.id).status == "queued":
            self._outcomes.registry.set(row.id, status="running")
        self._inputs.pop(row.id, None)
        self._outcomes.changed(row.id)
        call = current.get()
        if call is not None and isinstance(call.work, Work):
            call.work.progressed()  # it only waits from here on: what ends the process is counted at the sub-agent
        return True

    async def _awake(self) -> Actor | None:
        """Return the sub-agent, started; None if the run is to stop before it is."""
        row, tree = self.row, tree_of(self._actor)
        kind = self._kinds.get(row.id) or tree.kind_of(row.type, self._actor.kind)
        is_new = self._outcomes.row(row.id).status != "running"  # one that was deleted since is not made again
        getting = asyncio.ensure_future(self._actor.of(Children).get(kind.cls, row.name, create=is_new))
        try:
            if not self._is_wanted() and self.stopped is None:
                # It was stopped before the process ended. It ends once it starts, if that does not take long.
                await asyncio.wait(
                    {getting, self.stop}, timeout=self._cancel_timeout, return_when=asyncio.FIRST_COMPLETED
                )
                if not getting.done() and self.stopped is None:
                    self.stop.set_result(self._why_not())
            await self.while_not_due(getting)
            if getting.done():
                return getting.result()
        finally:
            getting.cancel()
        address = self._actor.address.child(kind.type, row.name)
        tree.abort(address, self.stopped)
        tree.forget_aborts(address)  # it may be opened again, and what it had begun it ends then
        return None

    async def _not_begun(self) -> bool:
        """Note that a run is over which its sub-agent has never taken, or cannot tell about."""
        await self._wake_work()
        self._check_followed()
        row = self._outcomes.row(self.row.id)
        if (state := self._outcomes.stored_end(row.id)) is not None:
            self._end_as(state)  # it had ended when the process did, and that counts
        elif self.timed_out:
            self._end_timed_out()
        else:
            self._outcomes.end(row, "cancelled", reason=self.stopped or self._why_not())
        return False

    def _end_as(self, state: RunState) -> None:
        """Note how the sub-agent says the run ended."""
        self._actor.check_live()
        row = self._outcomes.row(self.row.id)
        news: dict[str, Any] = {"output": state.output, "summary": state.summary, "usage": state.usage}
        if self.timed_out and state.status == "cancelled":
            self._end_timed_out(seq=state.seq + 1, **news)
            return
        self._outcomes.end(row, state.status, error=state.error, reason=state.reason, seq=state.seq + 1, **news)

    def _end_by(self, error: Exception) -> None:
        """Note that the run ended without its sub-agent saying how."""
        row = self._outcomes.row(self.row.id)
        if isinstance(error, Aborted) and self.timed_out:
            self._end_timed_out()
        elif isinstance(error, Aborted):
            self._outcomes.end(row, "cancelled", reason=str(error))
        else:
            self._outcomes.end(row, "failed", error=self._outcomes.text_of(row, error), reason=code_of(error))

    def _end_timed_out(self, **news: Any) -> None:
        """Note that the run was stopped because its time was over; and why it was, if that is known."""
        row = self._outcomes.row(self.row.id)
        text = f"The run exceeded its timeout: {row.deadline_at and row.deadline_at - row.started_at:g} seconds."
        if self.trouble is not None:
            text = f"{text} {self._outcomes.text_of(row, Unavailable(self.trouble))}"
        self._outcomes.end(row, "failed", error=text, reason="timed-out", **news)

    async def _given_again(self) -> bytes | None:
        """After a crash, wait until the caller starts the run again: only the caller has the whole input."""
        arrived = self.arrived = self._actor.host.loop.create_future()
        await until(self._actor, self._actor.host.clock.now() + GIVEN_AGAIN, arrived, self.stop)
        self.arrived = None
        return self._inputs.get(self.row.id)

    def _is_wanted(self) -> bool:
        row = self._outcomes.registry.get(self.row.id)
        return row is not None and row.is_wanted_by(self._actor.of(RunExecutor))

    def _why_not(self) -> str:
        return self._outcomes.row(self.row.id).why_unwanted_by(self._actor.of(RunExecutor))

    async def _result(self) -> RunState:
        """Return how a run ended, once it has; what takes too long is stopped, or given up and followed on."""
        child, id = self.child, self.row.id
        assert child is not None
        served = child.of(RunExecutor)
        if not served.worker.rests(id):
            await self._wake_work()
        served.when_resting[id] = self.look_again
        call, reply = child.handle("follow run", served.result, id)
        try:
            await self.while_not_due(reply)
            if not reply.done():
                await self._stopping(reply)
            return await reply
        except BaseException:
            reply.cancel()  # no caller waits for it
            child.cancel(call)
            raise
        finally:
            served.when_resting.pop(id, None)

    async def _wake_work(self) -> None:
        """Wake the work that waits for a run, if it came to rest with it."""
        work, served = self.row.work_id, self._actor.of(RunExecutor)
        if work is None or work.kind != "run" or not (self.again or self.rested):
            return
        self._actor.check_live()
        if served.worker.rests(work.id):
            served.worker.wake(work.id)

    async def _stopping(self, reply: Future[RunState]) -> None:
        """Give a sub-agent a while to stop on its own; then abort it."""
        tree, child = tree_of(self._actor), self.child
        assert child is not None
        child.of(RunExecutor).cut(self.row.id, self.stopped or "")  # it may have begun after it was to stop
        for _ in range(PARTS):
            if not reply.done():
                await asyncio.wait({reply}, timeout=self._cancel_timeout / PARTS)
        if not reply.done():
            tree.abort(child.address, self.stopped)
            # It has to end what it began, once it wakes and finds that it is not wanted; and it may be opened again.
            tree.forget_aborts(child.address)


async def _called(child: Actor, name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call something in a sub-agent; if the caller is cancelled, the call is cancelled too."""
    call, reply = child.handle(name, function, *args)
    try:
        return await reply
    except CancelledError:
        child.cancel(call)
        raise
