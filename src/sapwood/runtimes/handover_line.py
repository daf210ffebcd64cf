"""The connection between a server and its successor: messages in order, each with the open files that belong to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from typing import Any

import msgspec

INHERITANCE, PREPARED, CONNECTION, RELEASED, SERVING, FAILED = (
    "inheritance",
    "prepared",
    "connection",
    "released",
    "serving",
    "failed",
)
"""The kinds of messages. What the successor is given; that it is prepared; a client's connection; that the old server
runs nothing any more; that the successor serves; why it cannot start."""
HEAD = 4
"""Bytes of the length of a message."""
CHUNK = 64 * 1024
MOST_FILES = 2
SEND_TIMEOUT = 5.0
"""Seconds until a process that reads nothing counts as gone."""


class Message(msgspec.Struct):
    """One message."""

    kind: str
    files: int = 0
    """How many open files came with it."""
    facts: dict[str, Any] = {}


class LineLost(Exception):
    """The other process is gone, or reads nothing."""


class HandoverLine:
    """One end of the connection."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._bytes = bytearray()
        self._files: deque[int] = deque()
        self._is_lost = False

    @classmethod
    def pair(cls) -> tuple[HandoverLine, HandoverLine]:
        """Return both ends of a new connection."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(one), cls(other)

    @property
    def descriptor(self) -> int:
        """The open file of this end, for a process that is given it."""
        return self._socket.fileno()

    @property
    def is_lost(self) -> bool:
        """Whether a message could not be sent: the other process has not been told all."""
        return self._is_lost

    def send(self, kind: str, *files: int, **facts: Any) -> None:
        """Send a message; the other process gets open files of its own. Raises `LineLost` if it is gone."""
        if self._is_lost:
            raise LineLost
        text = msgspec.msgpack.encode(Message(kind, len(files), facts))
        data = len(text).to_bytes(HEAD, "big") + text
        try:
            self._socket.settimeout(SEND_TIMEOUT)
            sent = socket.send_fds(self._socket, [data], files)
            if sent < len(data):  # an empty write would fail if the other process has read all and ended
                self._socket.sendall(data[sent:])
        except OSError as error:
            self._is_lost = True
            raise LineLost from error

    def receive(self, timeout: float | None = None) -> Message:
        """Wait for the next message. Raises `LineLost` if the other process is gone, `TimeoutError` if it is late."""
        while (message := self._next()) is None:
            self._socket.settimeout(timeout)
            self._read()
        return message

    async def received(self) -> Message:
        """Like `receive`, without blocking the loop."""
        loop = asyncio.get_running_loop()
        while (message := self._next()) is None:
            readable = loop.create_future()
            loop.add_reader(self._socket.fileno(), _wake, readable)
            try:
                await readable
            finally:
                loop.remove_reader(self._socket.fileno())
            self._socket.settimeout(None)
            self._read()
        return message

    def received_now(self) -> Message | None:
        """Return the next message if it is here already. Raises `LineLost` if none is, and none can come any more."""
        while (message := self._next()) is None:
            self._socket.settimeout(0.0)
            try:
                self._read()
            except BlockingIOError:
                return None
        return message

    def discard(self) -> None:
        """Forget all that has come and was not received, and close its files."""
        with contextlib.suppress(LineLost):
            while self.received_now() is not None:
                pass
        while self._files:
            os.close(self._files.popleft())

    def take_file(self) -> int:
        """Return the open file that came first of those that were not taken."""
        return self._files.popleft()

    def close(self) -> None:
        self.discard()
        self._socket.close()

    def _next(self) -> Message | None:
        size = int.from_bytes(self._bytes[:HEAD], "big")
        if len(self._bytes) < HEAD + size or len(self._bytes) < HEAD:
            return None
        text = bytes(self._bytes[HEAD : HEAD + size])
        del self._bytes[: HEAD + size]
        return msgspec.msgpack.decode(text, type=Message)

    def _read(self) -> None:
        try:
            data, files, _, _ = socket.recv_fds(self._socket, CHUNK, MOST_FILES)
        except (TimeoutError, BlockingIOError):
            raise
        except OSError as error:
            raise LineLost from error
        if not data:
            raise LineLost
        for file in files:
            os.set_inheritable(file, False)
        self._files.extend(files)
        self._bytes += data


def _wake(readable: asyncio.Future[None]) -> None:
    with contextlib.suppress(asyncio.InvalidStateError):
        readable.set_result(None)
