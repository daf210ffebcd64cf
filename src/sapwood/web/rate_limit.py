"""A limit on how often each user or remote address may do something in a minute."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

WINDOW = 60.0
MANY_KEYS = 4096
"""Keys above which those whose minute is over are removed."""


class MinuteLimit:
    """Counts by key, in minutes that begin with the first event of the key."""

    def __init__(self, limit: int | None, now: Callable[[], float]) -> None:
        self._limit = limit
        self._now = now
        self._counts: dict[Hashable, tuple[float, int]] = {}
        """When the minute of a key began, and how many events it has."""

    def __len__(self) -> int:
        return len(self._counts)

    def take(self, key: Hashable) -> int:
        """Count an event of a key. Returns 0, or, if the limit is reached, the seconds until it may try again."""
        if self._limit is None:
            return 0
        now = self._now()
        began, count = self._counts.get(key, (now, 0))
        if now - began >= WINDOW:
            began, count = now, 0
        if count >= self._limit:
            return max(1, math.ceil(began + WINDOW - now))
        if key not in self._counts and len(self._counts) >= MANY_KEYS:
            self._counts = {one: kept for one, kept in self._counts.items() if now - kept[0] < WINDOW}
        self._counts[key] = (began, count + 1)
        return 0
