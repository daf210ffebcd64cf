"""Frames on their way out of one agent: in order, and none before what was written before it is kept.

A frame does not end the slice that sends it. It waits for the slice's commit and, where
that takes time, for the disk; frames behind it wait with it.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque

from sapwood.errors import Unavailable
from sapwood.kernel.actor import Actor
from sapwood.kernel.sockets import RESTARTING, Socket


class Outbox:
    """What waits to leave one agent for its clients."""

    __slots__ = ("_actor", "_emptied", "_flushing", "_waiting")

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._waiting: deque[tuple[Socket, str | bytes | tuple[int, str]]] = deque()
        """Frames, and closes with their code and reason."""
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

    def put(self, socket: Socket, frame: str | bytes) -> None:
        """Send a frame as soon as it may leave."""
        if not self._waiting and self._actor.home.slices.open is None and self._is_free():
            socket.send(frame)
            return
        self._waiting.append((socket, frame))
        if not self._flushing:
            self._flushing = True
            self._actor.host.loop.call_soon(self._flush)

    def close(self, socket: Socket, code: int, reason: str) -> None:
        """Close a socket once what was put before has left."""
        if self._waiting:
            self._waiting.append((socket, (code, reason)))
        else:
            socket.close(code, reason)

    def _is_free(self) -> bool:
        """Return whether a frame may leave now; nobody may answer: it is found out when it should leave."""
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
            socket, frame = self._waiting.popleft()
            if isinstance(frame, tuple):
                socket.close(*frame)
            else:
                socket.send(frame)
        self._flushing = bool(self._waiting)
        if self._flushing:
            self._actor.host.loop.call_soon(self._flush)
        else:
            self._is_empty()

    def lose(self) -> None:
        """What was written is lost, and with it the news of it: clients have to reconnect."""
        sockets = self._actor.host.sockets
        concerned = dict.fromkeys([*sockets.of(self._actor.address), *(socket for socket, _ in self._waiting)])
        self._waiting.clear()
        self._flushing = False
        self._is_empty()
        for socket in concerned:
            socket.close(RESTARTING, "The agent restarts")
            sockets.remove(socket)
