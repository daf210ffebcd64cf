"""Functions that survive a crash: each has a row before it runs, which records its progress.

An unfinished fiber without a running task was interrupted. `on_fiber_recovered` is called;
then, if its function is a method of the agent, the method is called again with the same
arguments. It skips the steps it had completed and finds what it had stored.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from asyncio import CancelledError, Future
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from sapwood import tracing
from sapwood.capabilities.calls import StoredCalls
from sapwood.capabilities.fiber_rows import NO_ARGUMENTS, OVER, Fiber, FiberRows, Row
from sapwood.capabilities.steps import Steps, Work
from sapwood.errors import (
    FiberFailed,
    GaveUp,
    InvalidArguments,
    NoSuchMethod,
    SapwoodError,
    SignatureChanged,
    UsageError,
)
from sapwood.kernel.actor import CANCELLED_INSIDE, THE_END, Actor
from sapwood.kernel.classes import Method
from sapwood.kernel.context import Call, current
from sapwood.kernel.copying import Copier
from sapwood.kernel.crossing import describe, mistake
from sapwood.when import is_a

log = logging.getLogger(__name__)

AT_ONCE = 100
"""How many fibers of one agent are recovered before other agents get a turn."""
MOST_RECOVERIES = 100
"""How often a fiber is recovered without any progress; hours, with the waits in between."""
MOST_DEATHS = 5
"""How often the process may die during a recovery before the fiber is given up."""
LONGEST_BACK_OFF = 300.0
PARKED_AFTER = 60.0
"""Seconds of sleep for which a fiber is not kept in memory."""
ANYTHING = Copier(Any, "The checkpoint")
OWNER = "sapwood fiber "
"""What runs say they are part of that a fiber gives: this, and its number."""


class Suspended(BaseException):
    """Unwinds a fiber that sleeps long, so that it is begun again when it is time.

    Not an Exception: user code that says ``except Exception`` must not swallow it. Nothing
    but the fiber's own runner catches it.
    """

    def __init__(self, until: float) -> None:
        super().__init__(until)
        self.until = until


class Fibers:
    """The fibers of one agent."""

    def __init__(
        self,
        actor: Actor,
        calls: StoredCalls,
        *,
        changed: Callable[[float | None], None],
    ) -> None:
        self._actor = actor
        self._db = actor.database
        self._calls = calls
        self._rows = FiberRows(actor.database, actor.host.clock, calls)
        self._changed = changed
        """Told when one begins, with the time, and when one ends, with when it is due again."""
        self._alive: dict[int, Call] = {}
        """What runs in this life, by its number."""
        self._stopped: dict[int, tuple[str, bytes | None]] = {}
        """What `run` is to make of those that were cancelled or resolved while it ran them: status and result."""
        self._waiting: dict[int, list[Future[None]]] = {}
        self._woken: set[int] = set()
        """What is not to sleep when it is about to: what it waits for has come."""

    async def run(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a function as a fiber, within the call that runs now."""
        self._actor.check_use()
        method = self._method_of(function)
        packed = self._calls.pack(method, args, kwargs) if method is not None else None
        row = self._rows.add(name, None, None if method is None else method.name, packed)
        call = Call(self._actor, f"fiber {name}", current.get())
        call.work = self._work(row, parks=False)
        self._alive[row.number] = call
        task = asyncio.current_task()
        assert task is not None
        self._actor.calls[call] = task
        self._changed(row.due_at)
        token = current.set(call)
        try:
            await self._actor.leave()
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
            self._actor.check_live()
            self._remove(row, is_done=True)
            return value
        except THE_END:
            raise
        except CancelledError:
            if self._actor.dropped is not None:
                raise
            self._remove(row, is_done=False)
            stopped = self._stopped.pop(row.number, None)
            if stopped is None or task.uncancel():
                raise
            return _became(name, *stopped)
        except BaseException:
            if self._actor.dropped is None:
                self._remove(row, is_done=False)
            raise
        finally:
            current.reset(token)
            if self._stopped.pop(row.number, None) is not None:
                task.uncancel()  # it ended otherwise meanwhile
            self._ended(row.number, call, None)

    def start(
        self,
        key: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Fiber:
        """Start a method as a fiber of its own; return the one there is if one was started under this key."""
        self._actor.check_use()
        if not is_a(key, str) or not key:
            raise UsageError(f"start_fiber({key!r}, …): the key must be a non-empty string.")
        method = self._calls.method_of(function, "start_fiber()")
        found = self._rows.named(key)
        if found is not None:
            return self._rows.shown(found)
        return self._rows.shown(self._set_off(key, key, method, self._calls.pack(method, args, kwargs)))

    def launch(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Start a method as an internal fiber, whose row is deleted when it ends."""
        self._actor.check_use()
        method = self._calls.method_of(function, "launch()")
        self._set_off(name, None, method, self._calls.pack(method, args, kwargs))

    def _set_off(self, name: str, key: str | None, method: Method, arguments: bytes) -> Row:
        row = self._rows.add(name, key, method.name, arguments)
        self._begin(row, self._go)
        self._changed(row.due_at)
        return row

    def _method_of(self, function: Callable[..., Any]) -> Method | None:
        own = getattr(function, "__self__", None) is self._actor.agent
        return self._calls.method_of(function, "fibers.run()") if own else None

    def _work(self, row: Row, *, parks: bool) -> Work:
        number, told = row.number, False

        def progressed() -> None:
            nonlocal told
            if not told:
                told = True
                self._progressed(number)

        def park(until: float) -> Suspended | None:
            long = until - self._actor.host.clock.now() > PARKED_AFTER
            call = self._alive.get(number)
            # A task that the fiber made cannot end it: others may be at work beside it.
            own = call is not None and self._actor.calls.get(call) is asyncio.current_task()
            return Suspended(until) if parks and long and own else None

        return Work(f"fiber {number}", fiber=number, owner=self._owner(row), progressed=progressed, park=park)

    def _owner(self, row: Row) -> str | None:
        """Return what the runs are part of that a fiber gives; the framework's own give none that are theirs."""
        is_begun_again = row.method is not None and not hasattr(self._actor.kind.base, row.method)
        return f"{OWNER}{row.number}" if is_begun_again else None

    def _progressed(self, number: int) -> None:
        """A fiber got further: the next recovery of it is the first again, and comes at once."""
        now = self._actor.host.clock.now()
        if self._rows.progressed(number, now):
            self._changed(now)

    def _begin(self, row: Row, going: Callable[[Row, Call], Coroutine[Any, Any, None]]) -> None:
        call = Call(self._actor, f"fiber {row.name}", None)
        call.work = self._work(row, parks=True)
        call.trace = tracing.context_of(row.trace)
        call.deadline = None
        self._alive[row.number] = call
        task = self._actor.spawn(call, going(row, call))
        # A task cancelled before its first step never reaches its own end.
        task.add_done_callback(lambda _: self._ended(row.number, call, None))

    def _ended(self, number: int, call: Call, again: float | None) -> None:
        """Nobody runs this fiber any more; it is due again then."""
        self._actor.finished(call)
        if self._alive.get(number) is call:
            del self._alive[number]
            self._stopped.pop(number, None)
            self._woken.discard(number)
            self._tell(number)
            self._changed(again)

    async def _go(self, row: Row, call: Call) -> None:
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
            is_its_own = self._alive.get(row.number) is call
            # An agent that is being deleted begins nothing.
            if stored is not None and stored.status == "running" and is_its_own and not self._actor.detached:
                again = await self._go_on(stored)
        except CancelledError:
            raise
        except SapwoodError:
            if not self._actor.detached:
                log.exception("cannot end a fiber address=%s fiber=%s", self._actor.address, row.name)
                self._actor.host.alarms.look_again(self._actor.address.root)
        finally:
            self._ended(row.number, call, again)

    async def _go_on(self, row: Row) -> float | None:
        """Call the method of a fiber; return when it has to be begun again."""
        actor = self._actor
        try:
            method = actor.kind.own(row.method or "")
            args, kwargs = method.signature.unpack(row.arguments or NO_ARGUMENTS)
        except (NoSuchMethod, InvalidArguments, UsageError) as error:
            changed = SignatureChanged(f"The stored call no longer matches the program: {error}")
            self._tell_failed(row, changed)
            self._end(row, "failed", error=changed)
            return None
        try:
            value = method.function(actor.agent, *args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
            actor.check_live()
            for check in actor.after_call:
                check()
            self._end(row, "completed", result=method.signature.result.pack(value))
        except Suspended as suspended:
            if self._over(row.number):
                self._forget_steps(row.number)
                return None
            until = actor.host.clock.now() if row.number in self._woken else suspended.until
            self._rows.sleep(row.number, until)
            return until
        except CancelledError:
            if actor.dropped is not None:
                raise
            if self._over(row.number):
                self._forget_steps(row.number)
                raise
            self._end(row, "failed", error=RuntimeError(CANCELLED_INSIDE))
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
            self._end(row, "failed", error=error)
        return None

    def first_due(self) -> float | None:
        """Return when the first fiber has to be looked after, those that run now included."""
        return self._rows.first_due()

    def begin_due(self, now: float) -> float | None:
        """Recover what was interrupted and resume what slept; return when there is more."""
        if not self._rows.exist:
            return None
        most = AT_ONCE + len(self._alive)
        rows = self._rows.due(now, most)
        for row in rows:
            if row.number not in self._alive:
                self._begin(row, self._go if row.status == "waiting" else self._recover)
        return now if len(rows) == most else self._rows.first_due(now)

    def is_asleep(self, name: str, method: str) -> bool:
        """Return whether a fiber of this name, launched with this method, sleeps on."""
        return bool(self._asleep(name, method))

    def _asleep(self, name: str, method: str) -> list[Row]:
        rows = self._rows.asleep(name, method)
        return [row for row in rows if row.number not in self._alive]  # one that goes on says so a little later

    def wake(self, name: str, method: str) -> bool:
        """Resume a fiber that sleeps, whenever it was due. Returns `False` if there is none."""
        rows = self._asleep(name, method)
        for row in rows:
            self._wake(row)
        return bool(rows)

    def wake_number(self, number: int) -> None:
        """Resume a fiber that sleeps; one that is about to sleep does not."""
        row = self._rows.get(number)
        if number in self._alive:
            self._woken.add(number)
        elif row is not None and row.status == "waiting":
            self._wake(row)

    def _wake(self, row: Row) -> None:
        now = self._actor.host.clock.now()
        self._rows.wake(row.number, now)
        if self._actor.ready:  # if not, it is woken by the alarm that this sets
            self._begin(row, self._go)
        self._changed(now)

    async def _recover(self, row: Row, call: Call) -> None:
        call.enter()
        again: float | None = None
        goes_on = False
        try:
            again = self._count_recovery(row)
            if again is not None:
                await self._actor.leave()
                goes_on = not self._actor.detached and await self._told(row, call)
        except CancelledError:
            raise
        except SapwoodError:
            if not self._actor.detached:
                log.exception("cannot recover a fiber address=%s fiber=%s", self._actor.address, row.name)
                self._actor.host.alarms.look_again(self._actor.address.root)
        finally:
            if not goes_on:
                self._ended(row.number, call, again)
        if goes_on:
            await self._go(row, call)

    def _count_recovery(self, row: Row) -> float | None:
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
            self._end(row, "failed", error=given_up)
            return None
        wait = min(2.0**row.recoveries, LONGEST_BACK_OFF)
        due = self._actor.host.clock.now() + random.uniform(wait / 2, wait)
        # If the process was ended in good order, it did not die of this.
        self._rows.recovers(row.number, due, died=self._crashed())
        return due

    def _crashed(self) -> bool:
        return self._actor.host.crashed_before(self._actor.address.root) is not None

    async def _told(self, row: Row, call: Call) -> bool:
        """Tell the agent that a fiber was interrupted; return whether its method is to be called again."""
        actor = self._actor
        fiber = self._rows.shown(row._replace(recoveries=row.recoveries + 1))
        limit = asyncio.timeout(actor.host.settings.recovery_timeout)
        # The steps of the hook are its own, and nothing it does is progress of the fiber.
        call.work = Work(f"recovery {row.number}", fiber=row.number, owner=self._owner(row))
        try:
            async with limit:
                await actor.agent.on_fiber_recovered(fiber)
        except THE_END:
            raise
        except BaseException as error:
            if isinstance(error, CancelledError) and (actor.dropped is not None or self._over(row.number)):
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
        call.work = self._work(row, parks=True)
        actor.check_live()
        stored = self._rows.get(row.number)
        if stored is None or stored.status in OVER:
            return False
        if stored.method is None:
            self._end(stored, "interrupted")
            return False
        return True

    def _end(self, row: Row, status: str, *, result: bytes | None = None, error: BaseException | None = None) -> None:
        """A fiber is over, in this slice, unless it was before: what became of it first counts."""
        if row.key is None:
            self._remove(row, is_done=status == "completed")
            if error is not None and row.method is not None:
                arguments = msgspec.msgpack.decode(row.arguments or NO_ARGUMENTS)
                self._actor.agent._gave_up(row.method, arguments, str(error))
            return
        ended = self._rows.end(row.number, status, result, None if error is None else describe(error))
        if status != "failed" or not ended:  # one that failed may be resumed, and must not do again what it has done
            self._forget_steps(row.number)
            self._let_go(row, is_done=status == "completed")
        else:
            self._actor.agent._close_questions(f"fiber {row.number}")

    def _let_go(self, row: Row, *, is_done: bool) -> None:
        """A fiber is over, in this slice: what it has others do stops with it."""
        if (owner := self._owner(row)) is not None:
            self._actor.agent._let_go(owner, is_done=is_done)

    def goes_on(self, owner: str) -> bool:
        """Return whether a fiber is not over, or may be resumed."""
        row = self._rows.get(int(owner.removeprefix(OWNER)))
        return row is not None and (row.status not in OVER or row.status == "failed")

    def _tell_failed(self, row: Row, error: BaseException) -> None:
        log.error(
            "fiber failed fiber=%s address=%s: %s",
            row.name,
            self._actor.address,
            error,
            extra={"address": str(self._actor.address), "fiber": row.name},
        )

    def _forget_steps(self, number: int) -> None:
        steps = self._actor.of(Steps)
        steps.forget(f"fiber {number}")
        steps.forget(f"recovery {number}")

    def _remove(self, row: Row, *, is_done: bool) -> None:
        self._forget_steps(row.number)
        self._rows.remove(row.number)
        self._let_go(row, is_done=is_done)

    def is_open(self, number: int) -> bool:
        """Return whether a fiber is not over."""
        return self._rows.is_open(number)

    def is_under_way(self, name: str, method: str) -> bool:
        """Return whether a fiber of this name, that calls this method, is not over."""
        return self._rows.is_under_way(name, method)

    async def checkpoint(self, value: object) -> None:
        """Keep where the fiber is that runs now; kept when this returns."""
        self._actor.check_use()
        work, number = self._current("checkpoint()")
        packed = ANYTHING.pack(value)
        self._rows.checkpoint(number, packed)
        work.progressed()
        await self._actor.leave()

    def current(self) -> Fiber:
        """Return the fiber that runs now."""
        self._actor.check_use()
        row = self._rows.get(self._current("self.fiber")[1])
        if row is None:
            raise UsageError("This fiber was deleted while it was running.")
        return self._rows.shown(row)

    def _current(self, what: str) -> tuple[Work, int]:
        call = current.get()
        if (
            call is not None
            and call.actor is self._actor
            and isinstance(call.work, Work)
            and call.work.fiber is not None
        ):
            return call.work, call.work.fiber
        raise UsageError(f"{what} must be called in a fiber. Start one with start_fiber() or fibers.run().")

    def get(self, fiber: str) -> Fiber | None:
        """Return a fiber by its key or its id."""
        self._actor.check_use()
        row = self._rows.named(fiber)
        return None if row is None else self._rows.shown(row)

    def list(self, status: str | None, limit: int) -> list[Fiber]:
        """Return fibers, oldest first."""
        self._actor.check_use()
        return [self._rows.shown(row) for row in self._rows.all(status, limit)]

    def cancel(self, fiber: str) -> bool:
        """Cancel a fiber that is not over; return whether there was one."""
        return self._settle(fiber, "cancelled", None, FiberFailed("The fiber was cancelled."))

    def resolve(self, fiber: str, result: object) -> bool:
        """Have a fiber be completed with this result, whatever it was about to do; return whether there was one."""
        return self._settle(fiber, "completed", ANYTHING.pack(result), None)

    def _settle(self, fiber: str, status: str, result: bytes | None, error: BaseException | None) -> bool:
        self._actor.check_use()
        row = self._rows.named(fiber)
        if row is None or row.status in OVER:
            return False
        self._end(row, status, result=result, error=error)
        call = self._alive.get(row.number)
        if call is None:
            self._tell(row.number)
            self._changed(None)
        elif call is not current.get():
            if row.key is None:
                self._stopped[row.number] = (status, result)
            self._actor.cancel(call)
        return True

    def delete(self, fiber: str | None, status: str | None) -> int:
        """Forget fibers that are over; return how many."""
        self._actor.check_use()
        row = None if fiber is None else self._rows.named(fiber)
        if fiber is not None and row is None:
            return 0
        gone = self._rows.over(None if row is None else row.number, status)
        for one in gone:
            self._remove(one, is_done=one.status != "failed")
        return len(gone)

    def resume(self, fiber: str) -> bool:
        """Have a fiber that failed go on, with its steps and its checkpoint; return whether there was one."""
        self._actor.check_use()
        row = self._rows.named(fiber)
        if row is None or row.status != "failed" or row.number in self._alive:
            return False
        now = self._actor.host.clock.now()
        self._rows.resume(row.number, now)
        self._begin(row, self._go)
        self._changed(now)
        return True

    async def result(self, fiber: str) -> Any:
        """Return what a fiber returned, once it has."""
        self._actor.check_use()
        while True:
            row = self._rows.named(fiber)
            if row is None:
                raise FiberFailed(f"{self._actor.address} has no fiber {fiber!r}.", path=self._actor.address.segments)
            if row.status == "completed":
                return self._result_of(row)
            if row.status in OVER:
                text = f"The fiber {fiber!r} is {row.status}: {row.error or 'it was interrupted'}"
                raise FiberFailed(text, path=self._actor.address.segments)
            ended: Future[None] = self._actor.host.loop.create_future()
            self._waiting.setdefault(row.number, []).append(ended)
            await ended
            self._actor.check_live()

    def _result_of(self, row: Row) -> Any:
        if row.result is None:
            return None
        try:
            return self._actor.kind.own(row.method or "").signature.result.unpack(row.result)
        except (NoSuchMethod, SapwoodError):
            return msgspec.msgpack.decode(row.result)

    def _tell(self, number: int) -> None:
        """Have whoever waits for this fiber look again."""
        for ended in self._waiting.pop(number, ()):
            if not ended.done():
                ended.set_result(None)

    def _over(self, number: int) -> bool:
        row = self._rows.get(number)
        return row is None or row.status in OVER


def _became(name: str, status: str, result: bytes | None) -> Any:
    """Return what a fiber was resolved with, or raise if it was cancelled."""
    if status == "cancelled":
        raise FiberFailed(f"The fiber {name!r} was cancelled.")
    return None if result is None else ANYTHING.unpack(result)
