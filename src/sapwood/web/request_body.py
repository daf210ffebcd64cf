"""The bodies of requests: how many bytes one request, one sender and all senders may have under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, MutableMapping
from typing import Any

from sapwood.web.asgi_types import Receive, Scope
from sapwood.web.sender import sender_key

BODIES_OF_ONE, BODIES_OF_ALL = 4, 16
"""Bodies of the full size that the requests under way of one sender, and of all, may have together."""
ALL = "all"
TOO_LARGE = 413


class RequestBody:
    """The body of one request, as it is read: it counts for its sender and for all until the response begins."""

    def __init__(self, held: Counter[Hashable], limit: int, scope: Scope, receive: Receive) -> None:
        self._held = held
        self._limit = limit
        self._scope = scope
        self._receive = receive
        self._bytes: Counter[Hashable] = Counter()
        self._is_streamed = False

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the next message; raise if the body is too long, or those of its sender or of all together are."""
        message = await self._receive()
        if not self._is_streamed and (size := len(message.get("body", b""))):
            sender = sender_key(self._scope.get("user"), self._scope)
            for key in (ALL,) if sender is None else (ALL, sender):
                self._bytes[key] += size
                self._held[key] += size
            if self._bytes[ALL] > self._limit:
                raise BodyRefused(TOO_LARGE)
            if sender is not None and self._held[sender] > BODIES_OF_ONE * self._limit:
                raise BodyRefused(429)
            if self._held[ALL] > BODIES_OF_ALL * self._limit:
                raise BodyRefused(503)
        return message

    def stream(self) -> None:
        """Count nothing more: what reads the body has limits of its own, and holds little of it."""
        self._is_streamed = True
        self.release()

    def release(self) -> None:
        """Count it no more."""
        self._held.subtract(self._bytes)
        for key in self._bytes:
            if not self._held[key]:
                del self._held[key]
        self._bytes.clear()


class BodyRefused(Exception):
    """The body of a request is not read any further; its argument is the status."""
