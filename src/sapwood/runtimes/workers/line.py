"""A worker's line to its supervisor: it says that it lives, and hears when to end."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future
from collections.abc import Callable
from multiprocessing.connection import Connection

from sapwood.runtimes.workers.supervisor import ALIVE, DRAINED, END, READY

BEAT = 1.0
"""Seconds between two signs of life."""


class SupervisorLine:
    """One worker's end of it."""

    def __init__(self, connection: Connection, orphaned: Callable[[], None]) -> None:
        self._connection = connection
        self._orphaned = orphaned
        """Called when the supervisor is gone."""
        self._loop = asyncio.get_running_loop()
        self._end: Future[None] = self._loop.create_future()
        self._loop.add_reader(connection.fileno(), self._hear)
        self._beating = self._loop.call_later(BEAT, self._beat)

    def ready(self) -> None:
        """Say that requests are taken."""
        self._say(READY)

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
            self._orphaned()
        if said == END and not self._end.done():
            self._end.set_result(None)
