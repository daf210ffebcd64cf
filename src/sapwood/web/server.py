"""uvicorn's WebSockets, which write many frames at once, and end when the other side does not want them to.

Before the server stops they are drained: what a client said so far is answered, and only then it is told to come
again. Messages that arrive after that are not started, and the client is told that too.

A transport writes each frame separately, which costs more than making it. Where there are
many, most of that is saved by writing them together.

A transport closes once it has written what waits. To a client that never reads it never
has: the connection would stay, with what waits for it, after all tasks here have given it up.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from asyncio import AbstractEventLoop, BaseTransport, Task, TimerHandle, Transport
from collections.abc import Callable, Iterable
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from sapwood.web.asgi_types import DRAIN, FRAME_LIMIT
from sapwood.web.frame_budget import FrameBudget
from sapwood.web.large_frames import LargeFrames

LOOK = 0.005
RESET = struct.pack("ii", 1, 0)
"""Closing it drops what waits in the kernel too, and the other side is told that it was cut off."""


GATHERED = 32 * 1024
"""Bytes that are written at once, however soon more may follow."""


class BatchedTransport:
    """A transport that writes together what it is given in one turn of the loop, but for the first: that goes at once.

    All that is written to the connection passes through here, so it stays in order.
    """

    __slots__ = ("_bytes", "_loop", "_parts", "_turn", "_under")

    def __init__(self, under: Transport, loop: AbstractEventLoop) -> None:
        self._under = under
        self._loop = loop
        self._parts: list[bytes] = []
        self._bytes = 0
        self._turn = False
        """Whether something was written in this turn of the loop."""

    def write(self, data: bytes) -> None:
        if not self._turn:
            self._turn = True
            self._loop.call_soon(self._end_turn)
            self._under.write(data)
            return
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes >= GATHERED:
            self._flush()

    def _end_turn(self) -> None:
        self._turn = False
        self._flush()

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts, self._bytes = self._parts, [], 0
            self._under.write(b"".join(parts))

    def close(self) -> None:
        self._flush()
        self._under.close()

    def abort(self) -> None:
        self._parts.clear()
        self._under.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._under, name)


class WebSockets(WebSocketsSansIOProtocol):
    """One connection; for `uvicorn.Config(ws=…)`."""

    linger = 5.0
    """Seconds that a closing connection has to write what waits."""
    on_closing: Callable[[], None] | None = None
    """Called when the app is done with the connection, and only the client's close frame is missing."""
    on_lost: Callable[[], None] | None = None
    """Called once the connection is lost."""
    _large: LargeFrames | None = None
    """The large frames of this socket; `None`: it may not send any."""
    _end: TimerHandle | None = None
    _is_ending = False
    _may_drain = False
    _is_drained = False

    def __init__(self, *args: Any, budget: FrameBudget | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._budget = budget

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = cast("Transport", BatchedTransport(cast("Transport", transport), self.loop))

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            extensions = cast("dict[str, Any]", self.scope)["extensions"]
            extensions[DRAIN] = self._drains
            extensions[FRAME_LIMIT] = self.allow_large

    def _drains(self) -> None:
        self._may_drain = True

    def allow_large(self, size: int) -> None:
        """Let frames of the client have so many bytes, as far as the budget of the process allows."""
        ordinary = self.config.ws_max_size
        if self._budget is None or size <= ordinary or self._large is not None:
            return
        self._large = LargeFrames(self._budget, ordinary, size, self.loop, self._resume, self._cut)
        self.conn.max_message_size = size

    def _resume(self) -> None:
        if not self.read_paused:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._large is None:
            return
        came = len(self.conn.reader.buffer) + sum(map(len, self.frames))
        if not self._large.came(came):
            self.transport.pause_reading()

    async def receive(self) -> Any:
        if self._large is not None:
            self._large.asked()
        message: Any = await super().receive()
        if self._large is not None:
            self._large.delivered(len(message.get("text") or message.get("bytes") or b""))
        return message

    def drain(self) -> bool:
        """Hear nothing more from the client, and have the app close when it has answered; False: it cannot."""
        if not self._may_drain or self.close_sent or self.transport.is_closing():
            return False
        self._is_drained = True
        self.queue.put_nowait(cast(Any, {"type": DRAIN}))
        return True

    def send_receive_event_to_app(self) -> None:
        if self._large is not None:
            self._large.complete()
        if self._is_drained:
            self.frames = []  # read, so that the connection ends well, and not begun with
        else:
            super().send_receive_event_to_app()

    def on_task_complete(self, task: Task[None]) -> None:
        super().on_task_complete(task)
        if self._large is not None:
            self._large.end()
        self._end_soon()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._end_soon()

    def shutdown(self) -> None:
        self._is_ending = True
        super().shutdown()
        self._end_soon()

    def send_500_response(self) -> None:
        if not self._is_ending or self.initial_response or self.handshake_complete:
            super().send_500_response()
            return
        # Nothing is wrong: it came while the server stops, and may come again.
        response = self.conn.reject(503, "Service Unavailable")
        response.headers["retry-after"] = "1"
        self.conn.send_response(response)
        self.transport.write(b"".join(self.conn.data_to_send()))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._end is not None:
            self._end.cancel()
        if self._large is not None:
            self._large.lost()
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)

    def _end_soon(self) -> None:
        if self.disconnected or self._end is not None:
            return
        # A client that was told has some time of uvicorn's to say that it heard.
        polite = self.close_timeout if self.close_timer is not None else 0.0
        self._end = self.loop.call_later(polite + self.linger, self._cut)
        if self.on_closing is not None:
            self.on_closing()

    def close_waiting(self) -> None:
        """Make room for another connection: this one is closed but for the client, who does not say so."""
        self._cut()

    def _cut(self) -> None:
        reset(self.transport)


def reset(transport: Transport) -> None:
    """End a connection at once: what waits in the kernel is dropped, and the client sees a reset."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    transport.abort()


async def drain(connections: Iterable[object], patience: float) -> None:
    """Return when the clients of these were told to come again and are gone, or after so many seconds."""
    left = {one for one in connections if isinstance(one, WebSockets) and one.drain()}
    end = asyncio.get_running_loop().time() + patience
    while left and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(LOOK)
        left = {one for one in left if not one.disconnected}
