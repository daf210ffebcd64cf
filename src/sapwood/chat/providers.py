"""How much is asked of each provider of models, by all agents of a node together.

One limiter stands before each provider: so many requests at once, so many in a minute, and
none while the provider has asked us to wait. Who waits can be seen, and can be cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sapwood.settings import Settings

MINUTE = 60.0


class Limiter:
    """What stands before one provider."""

    def __init__(self, concurrent: int, per_minute: int, now: Callable[[], float]) -> None:
        self._concurrent = concurrent
        self._per_minute = per_minute
        self._now = now
        self._running = 0
        self._began: deque[float] = deque()
        """When the requests of the last minute began."""
        self._closed_until = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def close_for(self, seconds: float) -> None:
        """Ask nothing for a while: the provider said so."""
        self._closed_until = max(self._closed_until, self._now() + seconds)

    def _wait(self) -> float | None:
        """Return how long the next request has to wait; None: until another has ended."""
        now = self._now()
        while self._began and self._began[0] <= now - MINUTE:
            self._began.popleft()
        if self._running >= self._concurrent:
            return None
        wait = self._closed_until - now
        if len(self._began) >= self._per_minute:
            wait = max(wait, self._began[0] + MINUTE - now)
        return max(wait, 0.0)

    @asynccontextmanager
    async def request(
        self, must_wait: Callable[[float | None], None], stopped: asyncio.Future[None]
    ) -> AsyncGenerator[None, None]:
        """Let one request through when it may go, or when it is `stopped`.

        `must_wait` is told, once, that it has to wait, and how long: None if nobody knows.
        """
        told = False
        while (wait := self._wait()) != 0.0 and not stopped.done():
            if not told:
                must_wait(wait)
                told = True
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await asyncio.wait({turn, stopped}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)
        self._running += 1
        self._began.append(self._now())
        try:
            yield
        finally:
            self._running -= 1
            if self._waiting:
                first = self._waiting.popleft()
                if not first.done():
                    first.set_result(None)


class Providers:
    """The limiters of one node, one for each provider and key."""

    def __init__(self, settings: Settings, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        self._limiters: dict[tuple[str, str], Limiter] = {}

    def of(self, model: Any) -> Limiter:
        """Return what stands before the provider of a model."""
        key = provider_of(model)
        limiter = self._limiters.get(key)
        if limiter is None:
            limiter = self._limiters[key] = Limiter(
                self._settings.model_requests_at_once, self._settings.model_requests_per_minute, self._now
            )
        return limiter

    def waiting(self) -> dict[str, int]:
        """Return how many wait for each provider."""
        return {name: limiter.waiting for (name, _), limiter in self._limiters.items() if limiter.waiting}


def provider_of(model: Any) -> tuple[str, str]:
    """Return who is asked: the provider's name, and which of its keys."""
    if isinstance(model, str):
        return model.partition(":")[0], ""
    inner = getattr(model, "models", None)  # a FallbackModel counts as its first
    if inner:
        return provider_of(inner[0])
    client = getattr(model, "client", None)
    key = str(getattr(client, "api_key", "") or "")
    return str(getattr(model, "system", type(model).__name__)), key
