"""TCP proxies between nodes and NATS servers, which can withhold either direction or cut every connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

CHUNK = 65536


class Proxy:
    """Passes on connections to one port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests = asyncio.Event()
        """Cleared while what clients send is withheld."""
        self.answers = asyncio.Event()
        """Cleared while what the server answers is withheld."""
        self.deliver()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def withhold(self, *, requests: bool = False, answers: bool = False) -> None:
        """Deliver nothing in these directions until `deliver` is called. Nothing is lost."""
        if requests:
            self.requests.clear()
        if answers:
            self.answers.clear()

    def deliver(self) -> None:
        """Deliver everything that was withheld, and everything after it."""
        self.requests.set()
        self.answers.set()

    def cut(self) -> None:
        """Abort every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        writers = {writer, far_writer}
        self._writers |= writers
        pumps = {
            asyncio.create_task(_pump(reader, far_writer, self.requests)),
            asyncio.create_task(_pump(far_reader, writer, self.answers)),
        }
        self._tasks |= pumps
        await asyncio.wait(pumps)
        self._tasks -= pumps
        self._writers -= writers


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            await open.wait()
            writer.write(data)
            await writer.drain()
    writer.close()
