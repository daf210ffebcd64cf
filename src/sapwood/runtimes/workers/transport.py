"""Exchanges with the other workers of this machine, over Unix sockets.

The socket a worker listens on is created by the supervisor and outlives it. So a
worker that is being restarted is not refused but waited for; nothing is sent before
it has answered the first frame.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sapwood.errors import Unavailable
from sapwood.kernel.ports.transport import Exchange
from sapwood.runtimes.workers.link import Link
from sapwood.runtimes.workers.links import Links
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger(__name__)

HELLO = b"hello"
VERSION = b"sapwood workers 1 "
AGAIN = 0.05


class UnixTransport(Links):
    """Speaks with the other workers, and listens to them."""

    def __init__(self, here: str, sockets: Mapping[str, Path], secret: str, *, timings: Timings = DEFAULTS) -> None:
        super().__init__()
        self._connect_timeout = timings.worker_connect_timeout
        self._here = here
        self._sockets = sockets
        """Where each worker listens."""
        self._hello = VERSION + secret.encode()
        self._server: asyncio.Server | None = None

    async def listen(self, listening: socket.socket) -> None:
        """Answer the other workers from now on."""
        loop = asyncio.get_running_loop()

        def link() -> Link:
            def greeted(message: bytes, exchange: Exchange) -> None:
                if hmac.compare_digest(message, self._hello):
                    made.answers, made.is_greeted = self._answers, True
                    exchange.end()
                else:
                    made.cut()

            made = Link(loop, "Another worker", {HELLO: greeted}, self._incoming.discard)
            self._incoming.add(made)
            return made

        self._server = await loop.create_server(link, sock=listening)

    async def _connect(self, node: str) -> Link:
        try:
            async with asyncio.timeout(self._connect_timeout):
                while True:
                    if (link := await self._try(node)) is not None:
                        return link
                    await asyncio.sleep(AGAIN)
        except TimeoutError:
            raise Unavailable(f"{_shown(node)} does not answer.") from None

    async def _try(self, node: str) -> Link | None:
        loop = asyncio.get_running_loop()
        try:
            _, link = await loop.create_unix_connection(
                lambda: Link(loop, _shown(node), None, lambda _: None), str(self._sockets[node])
            )
        except OSError:
            return None
        try:
            await link.open(HELLO, self._hello, 0).receive()
        except Unavailable:
            return None
        except (CancelledError, TimeoutError):
            link.cut()
            raise
        return link

    async def _end(self, end: Callable[[Link], Any]) -> None:
        if self._server is not None:
            self._server.close()
        await super()._end(end)


def _shown(node: str) -> str:
    return f"Worker {node}"
