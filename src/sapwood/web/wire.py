"""One WebSocket, held open: writes what it is given, in order, and gives up on whoever does not read.

Nearly always the server takes a frame at once, so a frame is handed over without a task
of its own. Only when the server makes us wait does one begin, for as long as there is
something to write.
"""

from __future__ import annotations

import asyncio
import types
from asyncio import Future, Task
from collections import deque
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

FULL = 1013
MUCH = 64 * 1024
"""Bytes that may wait before whoever can wait should."""


class Wire:
    """The writing side of one WebSocket."""

    __slots__ = ("_bytes", "_closing", "_limit", "_queue", "_room", "_send", "_task")

    def __init__(self, send: Send, limit: int) -> None:
        self._send = send
        self._limit = limit
        self._queue: deque[Message] = deque()
        self._bytes = 0
        self._task: Task[None] | None = None
        self._room: Future[None] | None = None
        self._closing = False

    def send(self, number: int, frame: str | bytes) -> None:
        if not self._closing:
            self._put({"type": "websocket.send", "text" if isinstance(frame, str) else "bytes": frame}, len(frame))

    def close(self, code: int, reason: str) -> None:
        if not self._closing:
            self._closing = True
            self._put({"type": "websocket.close", "code": code, "reason": reason}, 0)

    def lost(self) -> None:
        """The other side is gone; nothing can be written any more."""
        self._closing = True
        self._queue.clear()
        self._bytes = 0
        self._make_room()
        if self._task is not None:
            self._task.cancel()

    def room(self) -> Awaitable[None] | None:
        if self._bytes < MUCH or self._closing:
            return None
        if self._room is None or self._room.done():
            self._room = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._room)

    def _put(self, message: Message, size: int) -> None:
        if self._task is None:
            self._try(message, size)
            return
        self._queue.append(message)
        self._bytes += size
        if self._bytes > self._limit:
            # Whoever does not read gets nothing more; what waits for it would grow for ever.
            # Should it read again, it learns that it missed something, and comes back.
            self._queue.clear()
            self._queue.append({"type": "websocket.close", "code": FULL, "reason": "The client does not read"})
            self._bytes = 0
            self._closing = True
            self._make_room()

    def _try(self, message: Message, size: int) -> None:
        writing: Any = self._send(message)
        try:
            waits_for = writing.send(None)
        except StopIteration:
            return
        except Exception:  # noqa: BLE001 - the socket is closed; reading it will say so
            self.lost()
            return
        self._bytes += size
        self._task = asyncio.get_running_loop().create_task(self._drain(writing, waits_for, size))

    async def _drain(self, writing: Any, waits_for: Any, size: int) -> None:
        try:
            await _rest_of(writing, waits_for)
            self._written(size)
            while self._queue:
                message = self._queue.popleft()
                await self._send(message)
                self._written(len(message.get("text") or message.get("bytes") or ""))
        except Exception:  # noqa: BLE001 - the socket is closed; reading it will say so
            self._queue.clear()
            self._bytes = 0
            self._closing = True
        finally:
            self._task = None
            self._make_room()

    def _written(self, size: int) -> None:
        self._bytes = max(self._bytes - size, 0)
        if self._bytes < MUCH // 2:
            self._make_room()

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


@types.coroutine
def _rest_of(work: Any, waits_for: Any) -> Generator[Any, Any, None]:
    """Go on with a coroutine that was begun by hand and now waits for something."""
    while True:
        try:
            value = yield waits_for
        except BaseException as error:  # noqa: BLE001 - handed in, whatever it is
            step = work.throw
            value = error
        else:
            step = work.send
        try:
            waits_for = step(value)
        except StopIteration:
            return
