"""A worker's line to its supervisor: it says that it lives, and hears when to end."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future
from collections.abc import Callable
from multiprocessing.connection import Connection

from sapwood.errors import Unavailable
from sapwood.runtimes.workers.worker_messages import (
    ALIVE,
    ALL_SERVE,
    DRAINED,
    END,
    GO,
    HAND_OVER,
    PREPARED,
    READY,
    SETTLE,
    SETTLED,
    UPGRADE,
)

BEAT = 1.0
"""Seconds between two signs of life."""


class SupervisorLine:
    """One worker's end of it."""

    def __init__(
        self,
        connection: Connection,
        orphaned: Callable[[], None],
        settle: Callable[[], object] = lambda: None,
        hand_over: Callable[[], object] = lambda: None,
    ) -> None:
        self._connection = connection
        self._orphaned = orphaned
        """Called when the supervisor is gone."""
        self._settle = settle
        """Called when this worker has to say when it runs no slow call."""
        self._hand_over = hand_over
        """Called when this worker has to hand everything to a successor."""
        self._loop = asyncio.get_running_loop()
        self._end: Future[None] = self._loop.create_future()
        self._go: Future[None] = self._loop.create_future()
        self._all_serve: Future[None] = self._loop.create_future()
        self._upgrade: Future[bytes] | None = None
        self._loop.add_reader(connection.fileno(), self._hear)
        self._beating = self._loop.call_later(BEAT, self._beat)

    def ready(self) -> None:
        """Say that requests are taken."""
        self._say(READY)

    async def until_released(self) -> None:
        """Say that this worker is prepared, and return when the one before it runs nothing any more."""
        self._say(PREPARED)
        await self._go

    async def until_all_serve(self) -> None:
        """Return when all workers serve, after an upgrade."""
        await asyncio.shield(self._all_serve)

    async def upgrade(self) -> bytes:
        """Have the server replaced by a new one; return what the supervisor answers when that is prepared, or fails."""
        if self._upgrade is None or self._upgrade.done():
            self._upgrade = self._loop.create_future()
            self._say(UPGRADE)
        return await asyncio.shield(self._upgrade)

    def settled(self) -> None:
        """Say that this worker runs no slow call."""
        self._say(SETTLED)

    async def drained(self, seconds: float) -> None:
        """Say that no client is left here, and return when none is left anywhere: others may still ask this one."""
        self._say(DRAINED)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._end, seconds)

    def close(self) -> None:
        self._beating.cancel()
        self._loop.remove_reader(self._connection.fileno())

    def _beat(self) -> None:
        self._say(ALIVE)
        self._beating = self._loop.call_later(BEAT, self._beat)

    def _say(self, what: bytes) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone; that is heard too
            self._connection.send_bytes(what)

    def _hear(self) -> None:
        try:
            said = self._connection.recv_bytes()
        except (EOFError, OSError):
            self._loop.remove_reader(self._connection.fileno())
            said = END
            if not self._go.done():
                self._go.set_exception(Unavailable("The supervisor is gone."))
                self._go.exception()  # it may be that nothing waits for it
            self._orphaned()
        if said == END and not self._end.done():
            self._end.set_result(None)
        elif said == GO and not self._go.done():
            self._go.set_result(None)
        elif said == ALL_SERVE and not self._all_serve.done():
            self._all_serve.set_result(None)
        elif said == SETTLE:
            self._settle()
        elif said == HAND_OVER:
            self._hand_over()
        elif said.startswith(UPGRADE) and self._upgrade is not None and not self._upgrade.done():
            self._upgrade.set_result(said.removeprefix(UPGRADE))
