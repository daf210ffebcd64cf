"""How much is asked of each provider of models, by all agents of a node together.

One limiter stands before each provider: so many requests at once, so many in a minute, and
none while the provider has asked us to wait. Who waits can be seen, and can be cancelled.
Those who wait are served in turn by user, or by tree if the user is unknown.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any

from sapwood.chat.models.fair_queue import FairQueue
from sapwood.clock import Clock, Timer, sleep_until
from sapwood.settings import Settings

MINUTE = 60.0


class Limiter:
    """What stands before one provider. Its keys are served in turn, and within a key first come, first served."""

    def __init__(self, concurrent: int, per_minute: int, clock: Clock) -> None:
        self._concurrent = concurrent
        self._per_minute = per_minute
        self._clock = clock
        self._running = 0
        self._began: deque[float] = deque()
        """When the requests of the last minute began."""
        self._closed_until = 0.0
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._timer: Timer | None = None

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def close_for(self, seconds: float) -> None:
        """Ask nothing for a while: the provider said so."""
        self._closed_until = max(self._closed_until, self._clock.now() + seconds)

    def _due(self) -> float | None:
        """Return when the next request may go; None: when another has ended."""
        now = self._clock.now()
        while self._began and self._began[0] + MINUTE <= now:
            self._began.popleft()
        if self._running >= self._concurrent:
            return None
        due = self._closed_until
        if len(self._began) >= self._per_minute:
            due = max(due, self._began[0] + MINUTE)
        return due

    def _let_through(self) -> None:
        """Let those go who may, each key in turn."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            due, now = self._due(), self._clock.now()
            if due is None:
                return
            if due > now:
                self._timer = self._clock.call_at(due, self._let_through)
                return
            self._running += 1
            self._began.append(now)
            self._waiting.pop().set_result(None)

    @asynccontextmanager
    async def request(
        self, key: Hashable, must_wait: Callable[[float | None], None], stopped: asyncio.Future[None]
    ) -> AsyncGenerator[None, None]:
        """Wait until one request may be sent, or until it is `stopped`: then it must not be sent, and is not counted.

        `key` says for whom it is made: one with many requests does not delay the others.
        `must_wait` is called once if the request has to wait, with the delay, or `None` if the delay is unknown.
        """
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(key, place)
        try:
            if not stopped.done():
                self._let_through()
            if not place.done() and not stopped.done():
                due = self._due()
                must_wait(None if due is None else due - self._clock.now())
                await asyncio.wait({place, stopped}, return_when=asyncio.FIRST_COMPLETED)
            yield
        finally:
            if place.done():
                self._running -= 1
            else:
                self._waiting.remove(key, place)
            self._let_through()

    async def pause(
        self, seconds: float, must_wait: Callable[[float | None], None], stopped: asyncio.Future[None]
    ) -> None:
        """Delay one request, or until it is `stopped`, without delaying others."""
        must_wait(seconds)
        over = asyncio.ensure_future(sleep_until(self._clock, self._clock.now() + seconds))
        try:
            await asyncio.wait({over, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()


class Providers:
    """The limiters of one node, one for each provider and key."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._limiters: dict[tuple[str, str], Limiter] = {}

    def of(self, model: Any) -> Limiter:
        """Return what stands before the provider of a model."""
        key = provider_of(model)
        limiter = self._limiters.get(key)
        if limiter is None:
            limiter = self._limiters[key] = Limiter(
                self._settings.model_requests_at_once, self._settings.model_requests_per_minute, self._clock
            )
        return limiter

    def waiting(self) -> dict[str, int]:
        """Return how many wait for each provider."""
        waiting: Counter[str] = Counter()
        for (name, _), limiter in self._limiters.items():
            waiting[name] += limiter.waiting
        return dict(+waiting)


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
