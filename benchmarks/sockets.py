"""A WebSocket client that costs next to nothing, so that what is measured is the server."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import Any, TypeVar

PING, CLOSE = 9, 8
GONE = 1006
"""The code of a socket that ended without one."""


class Lost(ConnectionError):
    """The socket closed while somebody waited for a frame."""


class Client(asyncio.Protocol):
    """One open WebSocket: counts the frames that come, and keeps the last one."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._upgraded = False
        self.frames = 0
        self.last = b""
        self.code: int | None = None
        """What the socket was closed with; None: it is open."""
        self._wanted = 0
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.code = self.code or GONE
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(Lost(self.code))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._upgraded:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            if b" 101 " not in self._buffer[:end]:
                raise RuntimeError(bytes(self._buffer[:200]))
            self._upgraded = True
            del self._buffer[: end + 4]
        at = 0
        buffer = self._buffer
        while len(buffer) - at >= 2:
            length, head = buffer[at + 1], 2
            if length == 126:
                length, head = int.from_bytes(buffer[at + 2 : at + 4]), 4
            elif length == 127:
                length, head = int.from_bytes(buffer[at + 2 : at + 10]), 10
            if len(buffer) - at < head + length:
                break
            payload = bytes(buffer[at + head : at + head + length])
            if buffer[at] & 8:
                self._control(buffer[at] & 15, payload)
            else:
                self.heard(payload)
            at += head + length
        del buffer[:at]
        if self._waiter is not None and self.frames >= self._wanted and not self._waiter.done():
            self._waiter.set_result(None)

    def heard(self, payload: bytes) -> None:
        """A frame has come."""
        self.last = payload
        self.frames += 1

    def _control(self, kind: int, payload: bytes) -> None:
        if kind == PING:
            self._write(0x8A, payload)
        elif kind == CLOSE:
            self.code = int.from_bytes(payload[:2]) if payload else GONE
            self._write(0x88, payload[:2])
            self.transport.close()

    def _write(self, first: int, payload: bytes) -> None:
        size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2)
        self.transport.write(bytes([first]) + size + b"\0\0\0\0" + payload)

    def send(self, payload: bytes) -> None:
        if self.code is not None:
            raise Lost(self.code)
        self._write(0x81, payload)

    async def until(self, frames: int) -> None:
        """Return when so many frames have come in all; raises `Lost` if they cannot come any more."""
        while self.frames < frames:
            if self.code is not None:
                raise Lost(self.code)
            self._wanted = frames
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


def handshake(port: int, path: str) -> bytes:
    """Return the request that opens a WebSocket."""
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


C = TypeVar("C", bound=Client)


async def connect(port: int, path: str, frames: int, kind: type[C] = Client) -> C:
    """Return a client that has seen the greeting."""
    _, client = await asyncio.get_running_loop().create_connection(kind, "127.0.0.1", port)
    client.transport.write(handshake(port, path))
    await client.until(frames)
    return client
