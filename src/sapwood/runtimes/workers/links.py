"""The connections of a node to the others: one to each, made when it is needed, and those that others made."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from asyncio import CancelledError, Task
from collections.abc import Callable
from contextvars import Context
from typing import Any

from sapwood.kernel.ports.placement import NotBegun
from sapwood.kernel.ports.transport import Answer, Exchange
from sapwood.runtimes.workers.link import Link

LAST_WORDS = 1.0
"""Seconds that the others are given to read what was said last."""


class Links(ABC):
    """Opens exchanges with other nodes; how one is reached is left to those who know."""

    def __init__(self) -> None:
        self._answers: dict[bytes, Answer] = {}
        """By what they are about, as it stands in a frame."""
        self._links: dict[str, Link] = {}
        self._connecting: dict[str, Task[Link]] = {}
        self._incoming: set[Link] = set()
        self._closed = False

    @abstractmethod
    async def _connect(self, node: str) -> Link:
        """Reach a node. `Unavailable` if it does not answer for too long."""

    def answer(self, verb: str, answer: Answer) -> None:
        self._answers[verb.encode()] = answer

    @property
    def held_up(self) -> int:
        return sum(link.held_up for link in (*self._links.values(), *self._incoming))

    def open_now(self, node: str, verb: str, message: bytes) -> Exchange | None:
        link = self._links.get(node)
        if link is None or link.is_lost or link.room is not None:
            return None
        return link.open(verb.encode(), message, 0)

    async def open(self, node: str, verb: str, message: bytes, *, items: int = 0) -> Exchange:
        link = self._links.get(node)
        if link is not None and (waiting := link.until_room()) is not None:
            await waiting
        while link is None or link.is_lost:  # also one that was made, and lost before this task continued
            link = await self._link(node)
        return link.open(verb.encode(), message, items)

    async def _link(self, node: str) -> Link:
        if self._closed:
            raise NotBegun("The app is not running.")
        connecting = self._connecting.get(node)
        if connecting is None:
            # In a new context: the connection does not belong to the caller that needs it first.
            connecting = asyncio.get_running_loop().create_task(self._connect(node), context=Context())
            self._connecting[node] = connecting
            connecting.add_done_callback(lambda done: self._connected(node, done))
        try:
            return await asyncio.shield(connecting)
        except CancelledError:
            if connecting.cancelled():
                raise NotBegun("The app is not running.") from None
            raise

    def _connected(self, node: str, done: Task[Link]) -> None:
        self._connecting.pop(node, None)
        if not done.cancelled() and done.exception() is None:
            self._links[node] = done.result()

    async def close(self) -> None:
        """Say what is being said, and end all connections."""
        await self._end(Link.close)

    async def die(self) -> None:
        """End all connections as the end of the process does."""
        await self._end(Link.cut)

    async def _end(self, end: Callable[[Link], Any]) -> None:
        self._closed = True
        for connecting in list(self._connecting.values()):
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
