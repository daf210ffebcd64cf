"""Executes fibers: each in its own task, from its first call or after an interruption, to its end.

An unfinished fiber without a running task was interrupted. `on_fiber_recovered` is called;
then, if its function is a method of the agent, the method is called again with the same
arguments. It skips the steps it had completed and finds what it had stored.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from asyncio import CancelledError, Future
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from sapwood import tracing
from sapwood.capabilities.fiber_rows import NO_ARGUMENTS, OVER, FiberRow, FiberRows
from sapwood.capabilities.redaction import Redaction
from sapwood.capabilities.spans import Spans, code_of
from sapwood.capabilities.steps import Steps, Work
from sapwood.capabilities.stored_method import load
from sapwood.errors import GaveUp, SapwoodError, SignatureChanged
from sapwood.kernel.actors.actor import CANCELLED_INSIDE, THE_END, Actor
from sapwood.kernel.marshal.call import Call
from sapwood.kernel.marshal.exceptions import describe, mistake
from sapwood.kernel.ports.work_id import WorkId

log = logging.getLogger(__name__)

MOST_RECOVERIES = 100
"""How often a fiber is recovered without any progress; hours, with the waits in between."""
MOST_DEATHS = 5
"""How often the process may die during a recovery before the fiber is given up."""
LONGEST_BACK_OFF = 300.0
PARKED_AFTER = 60.0
"""Seconds of sleep for which a fiber is not kept in memory."""


class Suspended(BaseException):
    """Unwinds a fiber that sleeps long, so that it is begun again when it is time.

    Not an Exception: user code that says ``except Exception`` must not swallow it. Nothing
    but the fiber's own runner catches it.
    """

    def __init__(self, until: float) -> None:
        super().__init__(until)
        self.until = until


class FiberExecutor:
    """Executes the fibers of one agent."""

    def __init__(self, actor: Actor, rows: FiberRows, changed: Callable[[float | None], None]) -> None:
        self._actor = actor
        self._rows = rows
        self._changed = changed
        """Told when one begins, with the time, and when one ends, with when it is due again."""
        self.calls: dict[int, Call] = {}
        """The calls that execute fibers now, by the number of the fiber."""
        self._spans = actor.of(Spans)
        self._redaction = actor.host.shared(Redaction)
        self.outcomes: dict[int, tuple[str, bytes | None]] = {}
        """Status and result of fibers that were cancelled or resolved while `Fibers.run` executed them."""
        self._waiting: dict[int, list[Future[None]]] = {}
        self._awake: set[int] = set()
        """Fibers that are not to sleep when they are about to: what they wait for has come."""

    def work(self, row: FiberRow, *, parks: bool) -> Work:
        """Return what the steps and runs of a fiber belong to. With `parks`, a long sleep unloads the fiber."""
        number = row.number

        def progressed() -> None:
            if work.recovered:
                work.recovered = False
                self._progressed(number)

        def park(until: float) -> Suspended | None:
            long = until - self._actor.host.clock.now() > PARKED_AFTER
            call = self.calls.get(number)
            # A task that the fiber made cannot end it: others may be at work beside it.
            own = call is not None and self._actor.calls.get(call) is asyncio.current_task()
            return Suspended(until) if parks and long and own else None

        work = Work(
            WorkId.fiber(number),
            row.created_at,
            fiber=number,
            method=row.method,
            owner=self._owner(row),
            recovered=row.recoveries > 0,
            progressed=progressed,
            park=park,
        )
        return work

    def _owner(self, row: FiberRow) -> WorkId | None:
        """Return what the runs are part of that a fiber gives; the framework's own give none that are theirs."""
        is_begun_again = row.method is not None and not hasattr(self._actor.kind.base, row.method)
        return WorkId.fiber(row.number) if is_begun_again else None

    def _progressed(self, number: int) -> None:
        """A fiber got further: the next recovery of it is the first again, and comes at once."""
        now = self._actor.host.clock.now()
        if self._rows.progressed(number, now):
            self._changed(now)

    def begin(self, row: FiberRow) -> None:
        """Execute a fiber in its own task."""
        self._spawn(row, self._execute)

    def recover(self, row: FiberRow) -> None:
        """Execute a fiber that was interrupted, after the agent's hook, in its own task."""
        self._spawn(row, self._recover)

    def _spawn(self, row: FiberRow, execute: Callable[[FiberRow, Call], Coroutine[Any, Any, None]]) -> None:
        call = Call(self._actor, f"fiber {row.name}", None)
        call.work = self.work(row, parks=True)
        call.trace = tracing.context_of(row.trace)
        call.deadline = None
        self.calls[row.number] = call
        task = self._actor.spawn(call, execute(row, call))
        # A task cancelled before its first step never reaches its own end.
        task.add_done_callback(lambda _: self.leave(row.number, call, None))

    def leave(self, number: int, call: Call, again: float | None) -> None:
        """A fiber is not executed any more; `again` is when it is due, if it is."""
        self._actor.finished(call)
        if self.calls.get(number) is call:
            del self.calls[number]
            self.outcomes.pop(number, None)
            self._awake.discard(number)
            self.wake_waiters(number)
            self._changed(again)

    async def _execute(self, row: FiberRow, call: Call) -> None:
        """Run a fiber to its end."""
        call.enter()
        again: float | None = None
        try:
            if row.status == "waiting":
                if isinstance(call.work, Work):
                    call.work.resumed = True
                self._rows.slept(row.number)
            await self._actor.leave()
            stored = self._rows.get(row.number)
            # What was written in a slice may have been undone, and its number given to another one.
            is_its_own = self.calls.get(row.number) is call
            # An agent that is being deleted begins nothing.
            if stored is not None and stored.status == "running" and is_its_own and not self._actor.detached:
                again = await self._call_method(stored)
        except CancelledError:
            raise
        except SapwoodError as error:
            if not self._actor.detached:
                self._report("cannot end a fiber address=%s fiber=%s", row, error)
                self._actor.host.alarms.look_again(self._actor.address.root)
        finally:
            self.leave(row.number, call, again)

    async def _call_method(self, row: FiberRow) -> float | None:
        """Call the method of a fiber; return when it has to be begun again."""
        actor = self._actor
        try:
            method, function = load(actor, row.method or "", row.arguments or NO_ARGUMENTS)
        except SignatureChanged as error:
            self._log_failure(row, error)
            self.end(row, "failed", error=error)
            return None
        self.record_begin(row)
        try:
            value = function()
            if inspect.isawaitable(value):
                value = await value
            actor.check_live()
            for check in actor.after_call:
                check()
            self.end(row, "completed", result=method.signature.result.pack(value))
        except Suspended as suspended:
            if self._is_over(row.number):
                self._forget_steps(row.number)
                return None
            until = actor.host.clock.now() if row.number in self._awake else suspended.until
            self._rows.sleep(row.number, until)
            for span in self._spans.open(str(WorkId.fiber(row.number)), "fiber"):
                self._spans.change(span.number, status="waiting")
            return until
        except CancelledError:
            if actor.dropped is not None:
                raise
            if self._is_over(row.number):
                self._forget_steps(row.number)
                raise
            self.end(row, "failed", error=RuntimeError(CANCELLED_INSIDE))
        except THE_END:
            raise
        except BaseException as error:
            actor.check_live()
            log.warning(
                "fiber failed fiber=%s address=%s: %s",
                row.name,
                actor.address,
                describe(error),
                extra={"address": str(actor.address), "fiber": row.name},
                exc_info=mistake(error),
            )
            actor.last_error = describe(error)
            self.end(row, "failed", error=error)
        return None

    async def _recover(self, row: FiberRow, call: Call) -> None:
        call.enter()
        again: float | None = None
        goes_on = False
        try:
            again = self._count_recovery(row)
            if again is not None:
                await self._actor.leave()
                goes_on = not self._actor.detached and await self._call_hook(row, call)
        except CancelledError:
            raise
        except SapwoodError as error:
            if not self._actor.detached:
                self._report("cannot recover a fiber address=%s fiber=%s", row, error)
                self._actor.host.alarms.look_again(self._actor.address.root)
        finally:
            if not goes_on:
                self.leave(row.number, call, again)
        if goes_on:
            await self._execute(row, call)

    def _report(self, text: str, row: FiberRow, error: BaseException) -> None:
        where = self._actor.address
        failures = self._actor.host.failures
        failures.report(log, logging.ERROR, text, where, row.name, error=error, about=where, traceback=error)

    def _count_recovery(self, row: FiberRow) -> float | None:
        """Note that a fiber is being recovered, and when to try again if that ends the process; None: given up."""
        deaths = row.recoveries - row.failures
        if row.recoveries >= MOST_RECOVERIES or deaths >= MOST_DEATHS:
            what = f"the process ended {deaths} times" if deaths >= MOST_DEATHS else f"last error: {row.error}"
            given_up = GaveUp(f"The fiber was recovered {row.recoveries} times without progress; {what}.")
            log.error(
                "fiber failed, no more recoveries fiber=%s address=%s: %s",
                row.name,
                self._actor.address,
                given_up,
                extra={"address": str(self._actor.address), "fiber": row.name},
            )
            self.end(row, "failed", error=given_up)
            return None
        wait = min(2.0**row.recoveries, LONGEST_BACK_OFF)
        due = self._actor.host.clock.now() + self._actor.host.random.uniform(wait / 2, wait)
        # If the process shut down normally, it did not die of this.
        self._rows.recovers(row.number, due, died=self._crashed())
        return due

    def _crashed(self) -> bool:
        return self._actor.host.crashed_before(self._actor.address.root) is not None

    async def _call_hook(self, row: FiberRow, call: Call) -> bool:
        """Tell the agent that a fiber was interrupted; return whether its method is to be called again."""
        actor, row = self._actor, row._replace(recoveries=row.recoveries + 1)
        fiber = self._rows.shown(row)
        limit = asyncio.timeout(actor.host.settings.recovery_timeout)
        # The steps of the hook are its own, and nothing it does is progress of the fiber.
        id, owner = WorkId.recovery(row.number), self._owner(row)
        call.work = Work(id, row.created_at, fiber=row.number, method=row.method, owner=owner, recovered=True)
        try:
            async with limit:
                await actor.agent.on_fiber_recovered(fiber)
        except THE_END:
            raise
        except BaseException as error:
            if isinstance(error, CancelledError) and (actor.dropped is not None or self._is_over(row.number)):
                raise
            actor.check_live()
            text = "on_fiber_recovered exceeded recovery_timeout" if limit.expired() else describe(error)
            log.warning(
                "on_fiber_recovered failed, will retry address=%s fiber=%s: %s",
                actor.address,
                row.name,
                text,
                extra={"address": str(actor.address), "fiber": row.name},
                exc_info=mistake(error),
            )
            actor.last_error = text
            self._rows.failed(row.number, text)
            return False
        call.work = self.work(row, parks=True)
        actor.check_live()
        stored = self._rows.get(row.number)
        if stored is None or stored.status in OVER:
            return False
        if stored.method is None:
            self.end(stored, "interrupted")
            return False
        return True

    def end(
        self, row: FiberRow, status: str, *, result: bytes | None = None, error: BaseException | None = None
    ) -> None:
        """A fiber is over, in this slice, unless it was before: what became of it first counts."""
        self.record_end(row.number, status, error)
        if row.key is None:
            self.remove(row, is_done=status == "completed")
            if error is not None and row.method is not None:
                arguments = msgspec.msgpack.decode(row.arguments or NO_ARGUMENTS)
                self._actor.hooks.fiber_failed(row.method, arguments, str(error))
            return
        ended = self._rows.end(row.number, status, result, None if error is None else describe(error))
        if status != "failed" or not ended:  # one that failed may be resumed, and must not do again what it has done
            self._forget_steps(row.number)
            self._let_go(row, is_done=status == "completed")
        else:
            self._actor.hooks.close_questions(WorkId.fiber(row.number))

    def record_begin(self, row: FiberRow) -> None:
        """Record that a fiber of the user's runs: for the first time, again after a crash, or after it slept."""
        work = str(WorkId.fiber(row.number))
        if row.method is not None and hasattr(self._actor.kind.base, row.method):
            return  # turns and runs have spans of their own
        if found := self._spans.open(work, "fiber"):
            self._spans.change(found[0].number, status="running")
        else:
            name, key = self._redaction.apply("name", row.name), row.key and self._redaction.apply("name", row.key)
            # Progress resets the recoveries of a fiber, and not the number of its attempts.
            before = self._spans.attempts(work, "fiber", name) if row.recoveries else 0
            self._spans.begin("fiber", work, name, attempt=1 + before, method=row.method, fiber=key)

    def record_end(self, number: int, status: str, error: BaseException | None = None) -> None:
        """Record that a fiber is over, unless that is recorded already."""
        for span in self._spans.open(str(WorkId.fiber(number)), "fiber"):
            self._spans.end(span.number, status, error=None if error is None else code_of(error))

    def _let_go(self, row: FiberRow, *, is_done: bool) -> None:
        """A fiber is over, in this slice: what it has others do stops with it."""
        if (owner := self._owner(row)) is not None:
            self._actor.hooks.fiber_ended(owner, is_done=is_done)

    def _log_failure(self, row: FiberRow, error: BaseException) -> None:
        log.error(
            "fiber failed fiber=%s address=%s: %s",
            row.name,
            self._actor.address,
            error,
            extra={"address": str(self._actor.address), "fiber": row.name},
        )

    def _forget_steps(self, number: int) -> None:
        steps = self._actor.of(Steps)
        steps.forget(WorkId.fiber(number))
        steps.forget(WorkId.recovery(number))

    def remove(self, row: FiberRow, *, is_done: bool) -> None:
        """Delete a fiber with its steps."""
        self.record_end(row.number, "completed" if is_done else "failed")
        self._forget_steps(row.number)
        self._rows.remove(row.number)
        self._let_go(row, is_done=is_done)

    def wake_waiters(self, number: int) -> None:
        """Let the callers that wait for this fiber read its row again."""
        for ended in self._waiting.pop(number, ()):
            if not ended.done():
                ended.set_result(None)

    def _is_over(self, number: int) -> bool:
        row = self._rows.get(number)
        return row is None or row.status in OVER

    def stay_awake(self, number: int) -> None:
        """Let a fiber that is executed now not sleep when it is about to."""
        self._awake.add(number)

    async def wait(self, number: int) -> None:
        """Wait until a fiber is not executed any more, or has ended."""
        ended: Future[None] = self._actor.host.loop.create_future()
        self._waiting.setdefault(number, []).append(ended)
        await ended
