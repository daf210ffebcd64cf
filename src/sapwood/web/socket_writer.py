"""One WebSocket, held open: writes what it is given, in order, and disconnects clients that do not read.

Nearly always the server takes a frame at once, so a frame is handed over without a task
of its own. Only when the server makes us wait does one begin, for as long as there is
something to write.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from inspect import iscoroutine
from typing import Any

from sapwood.kernel.aio import rest_of

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

FULL = 1013
MUCH = 64 * 1024
"""Bytes that may be buffered before senders should wait."""
EACH = 64
"""Bytes that a waiting frame takes beside its own: many small ones are much."""

Item = str | bytes | tuple[int, str] | Message
"""A frame, a close with its code and reason, or a message for the node that holds the socket."""


class SocketWriter:
    """The writing side of one WebSocket."""

    __slots__ = ("_bytes", "_closing", "_limit", "_queue", "_room", "_send", "_task", "gone")

    def __init__(self, send: Send, limit: int) -> None:
        self._send = send
        self._limit = limit
        self._queue: deque[Item] = deque()
        self._bytes = 0
        self._task: Task[None] | None = None
        self._room: Future[None] | None = None
        self._closing = False
        self.gone: Future[int] = asyncio.get_running_loop().create_future()
        """Done when the wire is closed from our side; its result is the close code."""

    def send(self, number: int, frame: str | bytes) -> None:
        if not self._closing:
            self._put(frame)

    def tell(self, word: Message) -> None:
        """Send a message to the node that holds the socket, after what was sent before."""
        if not self._closing:
            self._put(word)

    async def until_written(self) -> None:
        """Return when nothing waits any more."""
        while (task := self._task) is not None:
            await asyncio.wait({task})

    def close(self, code: int, reason: str) -> None:
        if not self._closing:
            self._closing = True
            self._put((code, reason))
            if not self.gone.done():
                self.gone.set_result(code)

    def lost(self) -> None:
        """The other side is gone; nothing can be written any more."""
        self._closing = True
        self._queue.clear()
        self._bytes = 0
        self._make_room()
        if self._task is not None:
            self._task.cancel()

    @property
    def unsent(self) -> int:
        return self._bytes

    def room(self) -> Awaitable[None] | None:
        if self._bytes < MUCH or self._closing:
            return None
        if self._room is None or self._room.done():
            self._room = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._room)

    def _put(self, item: Item) -> None:
        if self._task is None:
            self._try(item)
            return
        self._queue.append(item)
        self._bytes += _weight(item)
        if self._bytes > self._limit:
            # A client that does not read gets nothing more; what waits for it would grow without limit.
            self._queue.clear()
            self._bytes = 0
            self._closing = True
            self._make_room()
            # Should it read on after all, it learns why there is no more.
            self._queue.append((FULL, "Too much is waiting to be read"))
            if not self.gone.done():
                self.gone.set_result(FULL)

    def _try(self, item: Item) -> None:
        given = self._send(_message(item))
        writing: Any = given if iscoroutine(given) else _awaited(given)
        try:
            waits_for = writing.send(None)
        except StopIteration:
            return
        except Exception:  # noqa: BLE001 - the socket is closed; reading it will say so
            self.lost()
            return
        weight = _weight(item)
        self._bytes += weight
        self._task = asyncio.get_running_loop().create_task(self._drain(writing, waits_for, weight))

    async def _drain(self, writing: Any, waits_for: Any, weight: int) -> None:
        try:
            await rest_of(writing, waits_for)
            self._written(weight)
            while self._queue:
                item = self._queue.popleft()
                await self._send(_message(item))
                self._written(_weight(item))
        except Exception:  # noqa: BLE001 - the socket is closed; reading it will say so
            self._queue.clear()
            self._bytes = 0
            self._closing = True
        finally:
            self._task = None
            self._make_room()

    def _written(self, weight: int) -> None:
        self._bytes = max(self._bytes - weight, 0)
        if self._bytes < MUCH // 2:
            self._make_room()

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


def size(data: str | bytes) -> int:
    """Return how many bytes a frame has on the wire."""
    return len(data) if isinstance(data, bytes) or data.isascii() else len(data.encode("utf-8", "replace"))


def _weight(item: Item) -> int:
    return size(item) + EACH if isinstance(item, str | bytes) else 0


def _message(item: Item) -> Message:
    if isinstance(item, tuple):
        return {"type": "websocket.close", "code": item[0], "reason": item[1]}
    if isinstance(item, MutableMapping):
        return item
    return {"type": "websocket.send", "text" if isinstance(item, str) else "bytes": item}


async def _awaited(something: Awaitable[None]) -> None:
    await something
