"""An event loop with virtual time: its clock jumps to the next timer when nothing is left to run."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import selectors
import socket
import sys
import time
from array import array
from asyncio import Future
from collections.abc import Callable
from concurrent.futures import Executor
from threading import Event
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SIOCOUTQNSD = 0x894B
"""Asks Linux how many bytes of a socket were not sent yet."""
SHORT_TRANSIT, LONG_TRANSIT = 0.001, 0.05
"""Real seconds that bytes may need between two ends in this process: before a short jump, and before a long one."""
Wait = Callable[[float | None], Any]
"""Waits for files, in real time."""
ROUND = 1e-5
"""Virtual seconds that one round of the loop takes: code that polls reaches the timers, too."""
LOOK = 0.005
"""Real seconds between two looks at a condition, while something outside of the loop works and may change it."""
GRACE = 1.0
"""Real seconds to wait for a thread that did not report its work, before a deadlock is reported."""


class Deadlock(RuntimeError):
    """A task waits on a loop with virtual time, and nothing can wake it."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock counts its rounds, and jumps to the next timer when nothing is runnable.

    Sleeping costs no real time on it, and no timeout fires because the machine is busy. The clock
    jumps only if nothing outside of the loop works: no thread of an executor, no socket or pipe whose
    other end may be outside, no subprocess, and no other work that was announced with
    `add_work_source`. While something does, the loop waits for it in real time, and its clock runs
    as real time does. Connections over TCP whose two ends are both of this loop are part of it.

    If nothing is runnable, no timer is set and nothing outside works, it raises `Deadlock`.
    """

    max_jumps = 200_000
    """Jumps in a row after which the loop only serves timers that repeat forever."""

    def __init__(self) -> None:
        self._now = time.monotonic()
        self._selector_of_time = _Selector(self._round)
        self._threads = 0
        self._cancelled_work: list[Event] = []
        """For each thread whose work was cancelled, an event that is set when the thread ends."""
        self._processes: list[asyncio.SubprocessTransport] = []
        self._sources: dict[object, Callable[[], bool]] = {}
        self._idle: list[Future[bool]] = []
        self._conditions: list[_Condition] = []
        self._real_timers: list[_RealTimer] = []
        self._numbers = itertools.count()
        self._jumps = 0
        super().__init__(self._selector_of_time)
        self._clock_resolution = 1e-6  # a clock that jumps far is rounded: its timers must still be reached
        self._selector_of_time.forget_all()  # with what is registered now, other threads wake the loop

    def time(self) -> float:
        return self._now

    # Work outside of the loop

    @property
    def is_outside_busy(self) -> bool:
        """Whether a thread, a socket, a process or an announced source works."""
        if self._threads or self._selector_of_time.is_busy or any(busy() for busy in self._sources.values()):
            return True
        self._processes = [process for process in self._processes if process.get_returncode() is None]
        self._cancelled_work = [over for over in self._cancelled_work if not over.is_set()]
        return bool(self._processes or self._cancelled_work)

    @property
    def has_files(self) -> bool:
        """Whether sockets or pipes are registered whose other ends may be outside of the loop."""
        return self._selector_of_time.reaches_outside

    def add_work_source(self, is_busy: Callable[[], bool]) -> Callable[[], object]:
        """Call `is_busy`, on the loop, to learn whether other threads work. Returns a function that removes the source.

        `is_busy` must return `True` until the loop has the result of the work.
        """
        key = object()
        self._sources[key] = is_busy
        return lambda: self._sources.pop(key, None)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> Future[T]:  # pyright: ignore[reportIncompatibleMethodOverride] - as typeshed has it for the base
        begun, over = Event(), Event()

        def work() -> T:
            begun.set()
            try:
                return func(*args)
            finally:
                over.set()

        def end(future: Future[T]) -> None:
            self._threads -= 1
            if future.cancelled() and begun.is_set():  # the result is not awaited, but the thread still works
                self._cancelled_work.append(over)

        future = super().run_in_executor(executor, work)
        self._threads += 1
        future.add_done_callback(end)
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        self._threads += 1
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            self._threads -= 1

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        return self._add_process(await super().subprocess_exec(*args, **kwargs))

    async def subprocess_shell(self, *args: Any, **kwargs: Any) -> Any:
        return self._add_process(await super().subprocess_shell(*args, **kwargs))

    def _add_process(self, process: tuple[asyncio.SubprocessTransport, Any]) -> Any:
        self._processes.append(process[0])
        return process

    # Waiting

    async def idle(self, patience: float = 3600.0) -> bool:
        """Return when nothing is runnable and nothing outside of the loop works, before the clock jumps.

        Returns `False` if the loop is not idle within `patience` real seconds.
        """
        waiter: Future[bool] = self.create_future()
        self._idle.append(waiter)
        limit = self.call_in_real_time(patience, lambda: waiter.done() or waiter.set_result(False))
        try:
            return await waiter
        finally:
            limit.cancel()

    async def until(self, condition: Callable[[], bool], timeout: float) -> None:
        """Return when the condition holds; it is looked at in every round of the loop. Raises `TimeoutError`.

        The timeout is virtual. If something never stops to run, the clock stands still: then twice as many real
        seconds are the limit.
        """
        waiting = _Condition(condition, self.create_future())
        self._conditions.append(waiting)
        timer = self.call_later(timeout, waiting.give_up)
        limit = self.call_in_real_time(2 * timeout, waiting.give_up)
        try:
            await waiting.future
        finally:
            timer.cancel()
            limit.cancel()
            self._conditions.remove(waiting)

    def call_in_real_time(self, delay: float, callback: Callable[[], object]) -> _RealTimer:
        """Call `callback` after `delay` real seconds. The clock never jumps because of it."""
        timer = _RealTimer(time.monotonic() + delay, next(self._numbers), callback, self._real_timers)
        heapq.heappush(self._real_timers, timer)
        return timer

    # One round of the loop: what its selector does

    def _round(self, timeout: float | None, wait: Wait) -> Any:
        """Return what `select` returns: what happened to files. Nothing else is runnable until the timeout."""
        self._now += ROUND
        left = None if timeout is None else timeout - ROUND
        events = wait(0)
        if events:
            self._jumps = 0
        if self._before_round() or events or (left is not None and left <= 0):
            return events
        return self._pass_time(left, wait)

    def _before_round(self) -> bool:
        """Call the real timers that are due, and look at the conditions. Return whether something became runnable."""
        is_runnable = False
        while self._real_timers and self._real_timers[0].when <= time.monotonic():
            heapq.heappop(self._real_timers).ring()
            is_runnable = True
        for condition in self._conditions:
            is_runnable |= condition.look()
        return is_runnable

    def _pass_time(self, timeout: float | None, wait: Wait) -> Any:
        """Nothing is runnable for this long: wait for what is outside, or jump."""
        if self.is_outside_busy:
            self._jumps = 0
            return self._wait(timeout, wait)
        if self._selector_of_time.has_connections and (events := wait(self._transit_time(timeout))):
            return events
        if self._idle:
            waiters, self._idle = self._idle, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(True)
            return []
        if timeout is None:
            if events := wait(GRACE):
                return events
            raise Deadlock(
                "Deadlock: nothing is runnable, no timer is set, and no thread, socket or process is active. "
                f"{self._pending()}"
            )
        self._jumps += 1
        if self._jumps > self.max_jumps:
            self._jumps = 0
            raise Deadlock(f"Nothing happened except {self.max_jumps} timers in a row. {self._pending()}")
        self._now += timeout + self._clock_resolution  # no timer rings early
        return []

    def _transit_time(self, timeout: float | None) -> float:
        """Return how many real seconds bytes may need from one end of a connection to the other, at most."""
        return LONG_TRANSIT if not self._idle and timeout is not None and timeout > 1 else SHORT_TRANSIT

    def _wait(self, timeout: float | None, wait: Wait) -> Any:
        limits = [timeout] if timeout is not None else []
        began = time.monotonic()
        if self._conditions or self._cancelled_work or self._selector_of_time.has_connections:
            limits.append(LOOK)
        if self._real_timers:
            limits.append(max(self._real_timers[0].when - began, 0.0))
        events = wait(min(limits) if limits else None)
        passed = time.monotonic() - began
        self._now += passed if timeout is None else min(passed, timeout)
        return events

    def _pending(self) -> str:
        lines = [_description(task) for task in asyncio.all_tasks(self) if not task.done()]
        return "\n".join(["Pending tasks:", *sorted(lines)])


async def until(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    """Return when the condition holds. Raises `AssertionError` after `timeout` seconds of the loop's time."""
    loop = asyncio.get_running_loop()
    try:
        if isinstance(loop, VirtualLoop):
            await loop.until(condition, timeout)
            return
        rounds = itertools.count()
        async with asyncio.timeout(timeout):
            while not condition():  # noqa: ASYNC110 - nothing tells that it holds
                await asyncio.sleep(0 if next(rounds) < 1000 else 0.0005)
    except TimeoutError:
        raise AssertionError(f"The condition was not true within {timeout:g} seconds.") from None


class _Selector(selectors.DefaultSelector):
    """Asks its loop what to do when there is nothing to do."""

    def __init__(self, do_round: Callable[[float | None, Wait], Any]) -> None:
        super().__init__()
        self._do_round = do_round
        self._files: dict[int, _File] = {}
        self._ends: set[object] = set()
        """The addresses of all sockets that were ever registered."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        file = self._files[key.fd] = _File(key.fd)
        self._ends.add(file.ours)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self._files.pop(key.fd, None)
        return key

    def forget_all(self) -> None:
        """Do not count what is registered."""
        self._files.clear()
        self._ends.clear()

    @property
    def reaches_outside(self) -> bool:
        """Whether an end of something registered is not of this loop."""
        return any(not file.is_inside(self._ends) for file in self._files.values())

    @property
    def is_busy(self) -> bool:
        """Whether something may come from outside, or is still to be sent to the other end here."""
        return any(not file.is_inside(self._ends) or file.unsent for file in self._files.values())

    @property
    def has_connections(self) -> bool:
        return bool(self._files)

    def select(self, timeout: float | None = None) -> Any:
        return self._do_round(timeout, super().select)


class _File:
    """A registered file: for sockets of TCP, the addresses of its two ends."""

    __slots__ = ("_fd", "_listens", "_theirs", "ours")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._listens = False
        self.ours: object = None
        self._theirs: object = None
        try:
            end = socket.socket(fileno=fd)
        except OSError:  # a pipe
            return
        try:
            if end.family in (socket.AF_INET, socket.AF_INET6):
                self.ours = end.getsockname()
                self._listens = bool(end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
                self._theirs = None if self._listens else end.getpeername()
        except OSError:  # not connected yet
            pass
        finally:
            end.detach()

    def is_inside(self, ends: set[object]) -> bool:
        """Whether its other end is of the same loop. Only Linux says what is still on the way there."""
        return sys.platform == "linux" and (self._listens or (self._theirs is not None and self._theirs in ends))

    @property
    def unsent(self) -> bool:
        if self._listens or sys.platform != "linux":
            return False
        import fcntl

        waiting = array("i", [0])
        fcntl.ioctl(self._fd, SIOCOUTQNSD, waiting)
        return waiting[0] > 0


class _Condition:
    __slots__ = ("_condition", "_context", "future")

    def __init__(self, condition: Callable[[], bool], future: Future[None]) -> None:
        self._condition = condition
        self._context = contextvars.copy_context()
        self.future = future

    def look(self) -> bool:
        """Return whether the task that waits for it becomes runnable."""
        if self.future.done():
            return False
        try:
            if not self._context.run(self._condition):
                return False
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self.future.set_exception(error)
        else:
            self.future.set_result(None)
        return True

    def give_up(self) -> None:
        if not self.future.done():
            self.future.set_exception(TimeoutError())


class _RealTimer:
    __slots__ = ("_callback", "_number", "_timers", "when")

    def __init__(self, when: float, number: int, callback: Callable[[], object], timers: list[_RealTimer]) -> None:
        self.when = when
        self._number = number
        self._callback: Callable[[], object] | None = callback
        self._timers = timers
        """The heap that it is in until it rings or is cancelled."""

    def __lt__(self, other: _RealTimer) -> bool:
        return (self.when, self._number) < (other.when, other._number)

    def ring(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        if self._callback is not None:
            self._callback = None
            self._timers.remove(self)
            heapq.heapify(self._timers)


def _description(task: asyncio.Task[Any]) -> str:
    where = "".join(f", {frame.f_code.co_filename}:{frame.f_lineno}" for frame in task.get_stack(limit=1)[-1:])
    return f"  {task.get_name()}: {getattr(task.get_coro(), '__qualname__', task.get_coro())}{where}"
