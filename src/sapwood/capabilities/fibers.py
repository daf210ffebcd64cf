"""Functions that survive a crash: each has a row before it runs, which records its progress."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import CancelledError
from collections.abc import Callable
from typing import Any

import msgspec

from sapwood.capabilities.fiber_executor import FiberExecutor
from sapwood.capabilities.fiber_rows import OVER, Fiber, FiberRow, FiberRows
from sapwood.capabilities.steps import Work
from sapwood.capabilities.stored_method import method_of, pack
from sapwood.capabilities.stored_rows import RowIds
from sapwood.errors import FiberFailed, NoSuchMethod, SapwoodError, UsageError
from sapwood.kernel.actors.actor import THE_END, Actor
from sapwood.kernel.marshal.agent_class import Method
from sapwood.kernel.marshal.call import Call, current
from sapwood.kernel.marshal.copier import Copier
from sapwood.kernel.ports.work_id import WorkId
from sapwood.when import is_a

AT_ONCE = 100
"""How many fibers of one agent are recovered before other agents get a turn."""
ANYTHING = Copier(Any, "The checkpoint")


class Fibers:
    """The fibers of one agent."""

    def __init__(
        self,
        actor: Actor,
        *,
        changed: Callable[[float | None], None],
    ) -> None:
        self._actor = actor
        self._rows = FiberRows(actor.database, actor.host.clock, RowIds(actor))
        self._changed = changed
        """Told when one begins, with the time, and when one ends, with when it is due again."""
        self._executor = FiberExecutor(actor, self._rows, changed)

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
        packed = pack(self._actor, method, args, kwargs) if method is not None else None
        row = self._rows.add(name, None, None if method is None else method.name, packed)
        call = Call(self._actor, f"fiber {name}", current.get())
        call.work = self._executor.work(row, parks=False)
        self._executor.calls[row.number] = call
        task = asyncio.current_task()
        assert task is not None
        self._actor.calls[call] = task
        self._changed(row.due_at)
        token = current.set(call)
        try:
            await self._actor.leave()
            self._executor.record_begin(row)
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
            self._actor.check_live()
            self._executor.remove(row, is_done=True)
            return value
        except THE_END:
            raise
        except CancelledError:
            if self._actor.dropped is not None:
                raise
            self._executor.remove(row, is_done=False)
            stopped = self._executor.outcomes.pop(row.number, None)
            if stopped is None or task.uncancel():
                raise
            return _became(name, *stopped)
        except BaseException:
            if self._actor.dropped is None:
                self._executor.remove(row, is_done=False)
            raise
        finally:
            current.reset(token)
            if self._executor.outcomes.pop(row.number, None) is not None:
                task.uncancel()  # it has ended otherwise since
            self._executor.leave(row.number, call, None)

    def start(
        self,
        key: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Fiber:
        """Start a method as a new fiber; return the existing one if one was started under this key."""
        self._actor.check_use()
        if not is_a(key, str) or not key:
            raise UsageError(f"start_fiber({key!r}, …): the key must be a non-empty string.")
        method = method_of(self._actor, function, "start_fiber()")
        found = self._rows.named(key)
        if found is not None:
            return self._rows.shown(found)
        return self._rows.shown(self._set_off(key, key, method, pack(self._actor, method, args, kwargs)))

    def launch(self, name: str, method: str, *args: Any) -> int:
        """Start a method of the framework's own as an internal fiber, whose row is deleted when it ends.

        Returns the number of the fiber.
        """
        self._actor.check_use()
        own = self._actor.kind.own(method)
        return self._set_off(name, None, own, pack(self._actor, own, args, {})).number

    def _set_off(self, name: str, key: str | None, method: Method, arguments: bytes) -> FiberRow:
        row = self._rows.add(name, key, method.name, arguments)
        self._executor.begin(row)
        self._changed(row.due_at)
        return row

    def _method_of(self, function: Callable[..., Any]) -> Method | None:
        own = getattr(function, "__self__", None) is self._actor.agent
        return method_of(self._actor, function, "fibers.run()") if own else None

    def first_due(self) -> float | None:
        """Return when the first fiber has to be looked after, those that run now included."""
        return self._rows.first_due()

    def begin_due(self, now: float) -> float | None:
        """Recover what was interrupted and resume what slept; return when there is more."""
        if not self._rows.exist:
            return None
        most = AT_ONCE + len(self._executor.calls)
        rows = self._rows.due(now, most)
        for row in rows:
            if row.number not in self._executor.calls:
                begin = self._executor.begin if row.status == "waiting" else self._executor.recover
                begin(row)
        return now if len(rows) == most else self._rows.first_due(now)

    def is_asleep(self, name: str, method: str) -> bool:
        """Return whether a fiber of this name, launched with this method, sleeps on."""
        return bool(self._asleep(name, method))

    def _asleep(self, name: str, method: str) -> list[FiberRow]:
        rows = self._rows.asleep(name, method)
        # The row of one that has been resumed says so a little later.
        return [row for row in rows if row.number not in self._executor.calls]

    def wake(self, name: str, method: str) -> bool:
        """Resume a fiber that sleeps, whenever it was due. Returns `False` if there is none."""
        rows = self._asleep(name, method)
        for row in rows:
            self._wake(row)
        return bool(rows)

    def wake_number(self, number: int) -> None:
        """Resume a fiber that sleeps; one that is about to sleep does not."""
        row = self._rows.get(number)
        if number in self._executor.calls:
            self._executor.stay_awake(number)
        elif row is not None and row.status == "waiting":
            self._wake(row)

    def recover_now(self, fiber: str) -> bool:
        """Recover an interrupted fiber without its backoff. Returns `False` if it runs, sleeps or has ended."""
        self._actor.check_use()
        row = self._rows.named(fiber)
        if row is None or row.status != "running" or row.number in self._executor.calls:
            return False
        now = self._actor.host.clock.now()
        self._rows.wake(row.number, now)
        self._changed(now)
        return True

    def _wake(self, row: FiberRow) -> None:
        now = self._actor.host.clock.now()
        self._rows.wake(row.number, now)
        if self._actor.ready:  # if not, it is woken by the alarm that this sets
            self._executor.begin(row)
        self._changed(now)

    def goes_on(self, fiber: WorkId) -> bool:
        """Return whether a fiber is not over, or may be resumed."""
        row = self._rows.get(fiber.number)
        return row is not None and (row.status not in OVER or row.may_resume)

    def is_open(self, number: int) -> bool:
        """Return whether a fiber is not over."""
        return self._rows.is_open(number)

    def is_running(self, number: int) -> bool:
        """Return whether a fiber is executed now."""
        return number in self._executor.calls

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
        self._executor.end(row, status, result=result, error=error)
        call = self._executor.calls.get(row.number)
        if call is None:
            self._executor.wake_waiters(row.number)
            self._changed(None)
        elif call is not current.get():
            if row.key is None:
                self._executor.outcomes[row.number] = (status, result)
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
            self._executor.remove(one, is_done=not one.may_resume)
        return len(gone)

    def resume(self, fiber: str) -> bool:
        """Resume a fiber that failed, or is held in a fork, with its steps and its checkpoint.

        Returns `False` if there is none.
        """
        self._actor.check_use()
        row = self._rows.named(fiber)
        if row is None or not row.may_resume or row.number in self._executor.calls:
            return False
        now = self._actor.host.clock.now()
        self._rows.resume(row.number, now)
        self._executor.begin(row)
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
            await self._executor.wait(row.number)
            self._actor.check_live()

    def _result_of(self, row: FiberRow) -> Any:
        if row.result is None:
            return None
        try:
            return self._actor.kind.own(row.method or "").signature.result.unpack(row.result)
        except (NoSuchMethod, SapwoodError):
            return msgspec.msgpack.decode(row.result)


def _became(name: str, status: str, result: bytes | None) -> Any:
    """Return what a fiber was resolved with, or raise if it was cancelled."""
    if status == "cancelled":
        raise FiberFailed(f"The fiber {name!r} was cancelled.")
    return None if result is None else ANYTHING.unpack(result)
