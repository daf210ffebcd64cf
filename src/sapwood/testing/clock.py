"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

BEGINNING = 1_800_000_000.0


class FakeClock:
    """A clock that stands still until the test moves it."""

    def __init__(self, now: float = BEGINNING) -> None:
        self._now = now
        self._timers: list[_Timer] = []
        self._numbers = itertools.count()
        self.settled: Callable[[], Awaitable[None]] | None = None
        """Awaited after every step: returns when all that was woken has run."""

    def now(self) -> float:
        """Return seconds since the epoch, UTC."""
        return self._now

    def time(self) -> datetime:
        """Return the time as a datetime, in UTC."""
        return datetime.fromtimestamp(self._now, UTC)

    def call_at(self, when: float, callback: Callable[[], object]) -> _Timer:
        """Call `callback` when the clock reaches this time."""
        timer = _Timer(when, next(self._numbers), callback)
        if when <= self._now:
            asyncio.get_running_loop().call_soon(timer.ring)
        else:
            heapq.heappush(self._timers, timer)
        return timer

    async def advance(self, by: timedelta | float) -> None:
        """Move the clock forward, and run everything that becomes due, in order and each at its time."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if seconds < 0:
            raise ValueError("The clock can only advance. To set it back, use jump().")
        end = self._now + seconds
        await self._let_run()
        while self._timers and self._timers[0].when <= end:
            timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                self._now = max(self._now, timer.when)
                timer.ring()
                await self._let_run()
        self._now = end
        await self._let_run()

    def jump(self, to: datetime | float) -> None:
        """Set the clock forward or back, as an operator or a time server does. Timers do not run because of it."""
        self._now = to.timestamp() if isinstance(to, datetime) else to

    async def _let_run(self) -> None:
        await asyncio.sleep(0)
        if self.settled is not None:
            await self.settled()


class _Timer:
    __slots__ = ("callback", "number", "when")

    def __init__(self, when: float, number: int, callback: Callable[[], object]) -> None:
        self.when = when
        self.number = number
        self.callback: Callable[[], object] | None = callback

    def __lt__(self, other: _Timer) -> bool:
        return (self.when, self.number) < (other.when, other.number)

    def ring(self) -> None:
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        self.callback = None
