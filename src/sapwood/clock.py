"""The current time, from a source that a test can replace.

Nothing in sapwood reads the system's clock itself: it is handed a `Clock`, so a
test owns the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

LOOK_AGAIN = 15.0
"""Longest interval in seconds between two reads of the wall clock, which may be set during a wait."""


class Timer(Protocol):
    """Something that will happen, unless it is cancelled."""

    def cancel(self) -> object: ...


class Clock(Protocol):
    """Wall-clock time, for what is stored, shown and waited for."""

    def now(self) -> float:
        """Return seconds since the epoch, UTC."""
        ...

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` on the running loop once it is this late; it may have to look itself whether it is."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        wait = min(max(when - time.time(), 0.0), LOOK_AGAIN)
        return asyncio.get_running_loop().call_later(wait, callback)


async def sleep_until(clock: Clock, when: float) -> None:
    """Return once it is this late."""
    while clock.now() < when:
        reached = asyncio.get_running_loop().create_future()
        timer = clock.call_at(when, lambda reached=reached: reached.done() or reached.set_result(None))
        try:
            await reached
        finally:
            timer.cancel()


def real_time() -> float:
    """Return the seconds of a clock that is never set, also on a loop whose time is virtual."""
    return time.monotonic()


def boot_time() -> float:
    """Return such seconds of a clock that also counts while the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return real_time()


def call_in_real_time(loop: asyncio.AbstractEventLoop, delay: float, callback: Callable[[], object]) -> Timer:
    """Call `callback` after so many real seconds, even on a loop whose time is virtual."""
    call = getattr(loop, "call_in_real_time", loop.call_later)
    return call(delay, callback)


def report_work(loop: asyncio.AbstractEventLoop, is_busy: Callable[[], bool]) -> Callable[[], object]:
    """Let a loop whose time is virtual ask whether threads work that it did not start itself.

    `is_busy` is called on the loop, and must stay true until the loop was told of the result. Call what is returned
    when there is no such work any more. On other loops this does nothing.
    """
    add = getattr(loop, "add_work_source", None)
    return add(is_busy) if add is not None else _do_nothing


@contextmanager
def outside_work(loop: asyncio.AbstractEventLoop) -> Generator[None, None, None]:
    """Report that something outside of the loop works as long as this context lasts."""
    end = report_work(loop, lambda: True)
    try:
        yield
    finally:
        end()


def _do_nothing() -> None:
    pass
