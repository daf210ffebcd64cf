"""Frames on their way out of one agent: in order, and none before what was written before it is kept.

A frame does not end the slice that sends it. It waits for the slice's commit and, where
that takes time, for the disk; frames behind it wait with it.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from typing import Any, NamedTuple, Protocol, TypeVar

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.sockets import RESTARTING, Socket

F = TypeVar("F")
F_contra = TypeVar("F_contra", contravariant=True)


class Sink(Protocol[F_contra]):
    """What takes frames from an agent: the socket of a client, or a reader of events."""

    address: Address

    def send(self, frame: F_contra, /) -> None: ...

    def close(self, code: int, reason: str) -> None: ...


class Close(NamedTuple):
    """Stands among the frames for the end of a sink."""

    code: int
    reason: str


class Outbox:
    """What waits to leave one agent for its clients."""

    __slots__ = ("_actor", "_emptied", "_flushing", "_waiting")

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._waiting: deque[tuple[Sink[Any], Any]] = deque()
        self._flushing = False
        self._emptied: Future[None] | None = None

    def until_empty(self) -> Future[None] | None:
        """Return what is done when everything has left. `None` means nothing waits."""
        if not self._waiting:
            return None
        if self._emptied is None:
            self._emptied = self._actor.host.loop.create_future()
        return self._emptied

    def _is_empty(self) -> None:
        emptied, self._emptied = self._emptied, None
        if emptied is not None and not emptied.done():
            emptied.set_result(None)

    def put(self, sink: Sink[F], frame: F) -> None:
        """Send a frame as soon as it may leave."""
        if not self._waiting and self._actor.home.slices.open is None and self._is_free():
            sink.send(frame)
            return
        self._waiting.append((sink, frame))
        if not self._flushing:
            self._flushing = True
            self._actor.host.loop.call_soon(self._flush)

    def close(self, sink: Sink[Any], code: int, reason: str) -> None:
        """Close a sink once what was put before has left."""
        if self._waiting:
            self._waiting.append((sink, Close(code, reason)))
        else:
            sink.close(code, reason)

    def _is_free(self) -> bool:
        """Return whether a frame may leave now; `False` if the gate is unavailable: the flush handles that error."""
        try:
            return self._durable() is None
        except Unavailable:
            return False

    def _durable(self) -> Future[None] | None:
        return self._actor.host.gate.wait(self._actor.database)

    def _flush(self) -> None:
        # The slice is over: this is a callback of the loop. What it wrote is committed, or lost.
        self._actor.home.slices.commit()
        ready = len(self._waiting)
        try:
            durable = self._durable()
        except Unavailable:
            self.lose()
            return
        if durable is None:
            self._send(ready)
        else:
            durable.add_done_callback(lambda durable: self._kept(durable, ready))

    def _kept(self, durable: Future[None], ready: int) -> None:
        if durable.cancelled() or durable.exception() is not None:
            self.lose()
        else:
            self._send(ready)

    def _send(self, ready: int) -> None:
        for _ in range(min(ready, len(self._waiting))):
            sink, frame = self._waiting.popleft()
            if isinstance(frame, Close):
                sink.close(*frame)
            else:
                sink.send(frame)
        self._flushing = bool(self._waiting)
        if self._flushing:
            self._actor.host.loop.call_soon(self._flush)
        else:
            self._is_empty()

    def lose(self, code: int = RESTARTING, reason: str = "The agent restarts") -> None:
        """What was written is lost, and with it the news of it: the sockets of all clients are closed."""
        sockets = self._actor.host.sockets
        known = sockets.of(self._actor.address)
        concerned: dict[Sink[Any], None] = dict.fromkeys([*known, *(sink for sink, _ in self._waiting)])
        self._waiting.clear()
        self._flushing = False
        self._is_empty()
        for sink in concerned:
            sink.close(code, reason)
            if isinstance(sink, Socket):
                sockets.remove(sink)
