"""Exchanges with the other workers of this machine, over Unix sockets.

The socket a worker listens on is made by whoever started it and outlives it. So a
worker that is being restarted is not refused but waited for; nobody is sent anything before
it has answered the first frame.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from asyncio import CancelledError, Task
from collections.abc import Callable, Mapping
from contextvars import Context
from pathlib import Path
from typing import Any

from sapwood.errors import Unavailable
from sapwood.kernel.ports import Answer, Exchange
from sapwood.runtimes.workers.link import Link

log = logging.getLogger(__name__)

HELLO = b"hello"
VERSION = b"sapwood workers 1 "
PATIENCE = 10.0
"""Seconds that a worker which is being restarted is waited for."""
AGAIN = 0.05
LAST_WORDS = 1.0
"""Seconds that the other workers are given to read what was said last."""


class UnixTransport:
    """Speaks with the other workers, and listens to them."""

    def __init__(self, here: str, sockets: Mapping[str, Path], secret: str) -> None:
        self._here = here
        self._sockets = sockets
        """Where each worker listens."""
        self._hello = VERSION + secret.encode()
        self._answers: dict[bytes, Answer] = {}
        """By what they are about, as it stands in a frame."""
        self._links: dict[str, Link] = {}
        self._connecting: dict[str, Task[Link]] = {}
        self._incoming: set[Link] = set()
        self._server: asyncio.Server | None = None
        self._closed = False

    def answer(self, verb: str, answer: Answer) -> None:
        self._answers[verb.encode()] = answer

    @property
    def held_up(self) -> int:
        return sum(link.held_up for link in (*self._links.values(), *self._incoming))

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

    def open_now(self, node: str, verb: str, message: bytes) -> Exchange | None:
        link = self._links.get(node)
        if link is None or link.is_lost or link.room is not None:
            return None
        return link.open(verb.encode(), message, 0)

    async def open(self, node: str, verb: str, message: bytes, *, items: int = 0) -> Exchange:
        link = self._links.get(node)
        if link is not None and (waiting := link.until_room()) is not None:
            await waiting
        if link is None or link.is_lost:
            link = await self._link(node)
        return link.open(verb.encode(), message, items)

    async def _link(self, node: str) -> Link:
        if self._closed:
            raise Unavailable("The app is not running.")
        connecting = self._connecting.get(node)
        if connecting is None:
            # In a context of its own: whoever needs it first is not whoever it is for.
            connecting = asyncio.get_running_loop().create_task(self._connect(node), context=Context())
            self._connecting[node] = connecting
            connecting.add_done_callback(lambda done: self._connected(node, done))
        return await asyncio.shield(connecting)

    def _connected(self, node: str, done: Task[Link]) -> None:
        self._connecting.pop(node, None)
        if not done.cancelled() and done.exception() is None:
            self._links[node] = done.result()

    async def _connect(self, node: str) -> Link:
        try:
            async with asyncio.timeout(PATIENCE):
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

    async def close(self) -> None:
        """Say what is being said, and end all connections."""
        await self._end(Link.close)

    async def die(self) -> None:
        """End all connections as the end of the process does."""
        await self._end(Link.cut)

    async def _end(self, end: Callable[[Link], Any]) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        for connecting in self._connecting.values():
            connecting.cancel()
        links = [*self._links.values(), *self._incoming]
        for link in links:
            end(link)
        self._links.clear()
        until = asyncio.get_running_loop().time() + LAST_WORDS
        while any(not link.is_lost for link in links):
            if asyncio.get_running_loop().time() > until:
                for link in links:
                    link.cut()
            await asyncio.sleep(0.001)


def _shown(node: str) -> str:
    return f"Worker {node}"
