"""uvicorn's WebSockets, which also end when the other side does not want them to.

A transport closes once it has written what waits. To a client that never reads it never
has: the connection would stay, with what waits for it, after everybody here has given it up.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from asyncio import Task, TimerHandle

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

LINGER = 5.0
"""Seconds that a closing connection has to write what waits."""
RESET = struct.pack("ii", 1, 0)
"""Closing it drops what waits in the kernel too, and the other side is told that it was cut off."""


class WebSockets(WebSocketsSansIOProtocol):
    """One connection; for `uvicorn.Config(ws=…)`."""

    _end: TimerHandle | None = None

    def on_task_complete(self, task: Task[None]) -> None:
        super().on_task_complete(task)
        self._end_soon()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._end_soon()

    def shutdown(self) -> None:
        super().shutdown()
        self._end_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)

    def _end_soon(self) -> None:
        if self.disconnected or self._end is not None:
            return
        # A client that was told has some time of uvicorn's to say that it heard.
        polite = self.close_timeout if self.close_timer is not None else 0.0
        self._end = self.loop.call_later(polite + LINGER, self._cut)

    def _cut(self) -> None:
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.transport.abort()
