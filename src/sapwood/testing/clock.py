"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

BEGINNING = 1_800_000_000.0


class FakeClock:
    """Time that passes only when told to."""

    def __init__(self, now: float = BEGINNING) -> None:
        self._now = now

    def now(self) -> float:
        """Return seconds since the epoch, UTC."""
        return self._now

    async def advance(self, by: timedelta | float) -> None:
        """Let this much time pass, and let whoever is woken by it run."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        if seconds < 0:
            raise ValueError("Time does not go backwards.")
        self._now += seconds
        await asyncio.sleep(0)
