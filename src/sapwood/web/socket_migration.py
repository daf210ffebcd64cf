"""Sockets that stay open while their agents go from node to node.

The node that accepted a client keeps its socket, and holds it open towards the node that runs the
agent's tree: itself, or another node. What the client says is numbered and kept until it
got to the agent. When the tree goes elsewhere, its node says in its last message what is
known of the socket and how much of what the client said was taken; with that the next one
continues. If a node exits without a last message, it is unknown what is missing: the client is told
to reconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import CancelledError, Future, Task
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.marshal.values import pack
from sapwood.kernel.ports.shards import shard_of
from sapwood.kernel.ports.transport import Exchange
from sapwood.kernel.rpc.remote import Peers
from sapwood.web.asgi_types import DRAIN, Receive, Scope, Send
from sapwood.web.gateway import Gateway
from sapwood.web.proxy import close_again, serve_for, told_of
from sapwood.web.relay_messages import CARRY, MOVED, NEAR, TAKEN, OpenSocket, read_message
from sapwood.web.socket_sessions import LAST_ANSWERS
from sapwood.web.target import UrlTarget

WINDOW = 256 * 1024
"""Bytes that may wait between a client and its agent in one process."""
EACH = 64
AGAIN = 0.05
"""Seconds between two questions who runs an agent that is about to move."""
DRAINING = LAST_ANSWERS + 0.5
"""Seconds that the node of an agent has to close a socket when this node stops."""

_read_kept = msgspec.msgpack.Decoder(OpenSocket).decode


async def hold_open(
    door: Gateway, far: Peers, root: Address, place: UrlTarget, scope: Scope, receive: Receive, send: Send
) -> None:
    """Hold a client's socket, whichever node runs its agent, until either side closes it."""
    await HeldSocket(door, far, root, place, scope, receive, send).hold()


class Unknown:
    """What is known of a socket that its agent never heard of."""


class HeldSocket:
    """One client's socket at the node that accepted it."""

    def __init__(
        self, door: Gateway, far: Peers, root: Address, place: UrlTarget, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._door = door
        self._far = far
        self._root = root
        self._carried = told_of(door, place, scope)
        self._carried.may_move = True
        self._receive = receive
        self._send = send
        self._said: deque[bytes] = deque()
        """What the client said and its agent may not have got."""
        self._taken = 0
        """How much its agent got before that."""
        self._leg: Exchange | None = None
        self._leg_is_there = asyncio.Event()
        self._accepted = False
        self._patience = asyncio.timeout(None)
        self._serving: set[Task[None]] = set()

    async def hold(self) -> None:
        """Carry what both sides say; return when the socket is closed."""
        upwards = asyncio.get_running_loop().create_task(self._upwards())
        try:
            async with self._patience:
                await self._follow()
        except TimeoutError:  # this node stops, and the node that runs the agent cannot say what was answered
            await close_again(self._send, begun=self._accepted)
        except OSError:
            pass  # the client is gone; the node that runs its agent learns of it
        except Unavailable:
            await close_again(self._send, begun=self._accepted)
        finally:
            upwards.cancel()
            await asyncio.wait({upwards, *self._serving})

    async def _follow(self) -> None:
        while True:
            leg = await self._far.follow(self._root, self._open)
            for message in self._said:
                leg.send(message)
            self._leg = leg
            self._leg_is_there.set()
            try:
                kept = await self._downwards(leg)
            finally:
                self._leg = None
                self._leg_is_there.clear()
                leg.drop()
            if kept is None:
                return
            if isinstance(kept, Unknown):  # it is about to move, and its destination may be unknown yet
                await self._far.directory.until_moved(shard_of(self._root), AGAIN)
            # A client that was never told that it is connected is none that anybody knows: it connects there.
            if isinstance(kept, OpenSocket) and self._accepted:
                self._carried.kept = kept
                self._has(kept.taken)

    async def _open(self) -> Exchange:
        """Return an exchange with the node that runs the tree, which has agreed to serve the socket."""
        if self._far.directory.is_here(self._root):
            leg: Exchange = self._near()
        else:
            leg = await self._far.open(CARRY, self._root, pack(self._carried))
        try:
            await leg.receive()
        except CancelledError:
            leg.drop()
            raise
        return leg

    def _near(self) -> Exchange:
        mine, other = pair()
        carried = msgspec.structs.replace(self._carried, scope={**self._carried.scope, NEAR: True})

        async def door() -> Gateway:
            return self._door

        serving = asyncio.get_running_loop().create_task(serve_for(carried, other, door))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        return mine

    async def _upwards(self) -> None:
        while True:
            message = await self._receive()
            packed = pack(message)
            self._said.append(packed)
            if message["type"] == DRAIN:
                self._patience.reschedule(asyncio.get_running_loop().time() + DRAINING)
            if (leg := self._leg) is not None and (waiting := leg.send(packed)) is not None:
                await waiting
            if message["type"] == "websocket.disconnect":
                return
            if self._leg is None:
                await self._leg_is_there.wait()

    async def _downwards(self, leg: Exchange) -> OpenSocket | Unknown | None:
        """Tell the client what its agent says; return what is known of the socket if its tree went elsewhere."""
        while (packed := await leg.receive()) is not None:
            message = read_message(packed)
            if message["type"] == TAKEN:
                self._has(message["count"])
            elif message["type"] == MOVED:
                return _read_kept(message["socket"]) if message["socket"] else Unknown()
            elif message["type"] != "websocket.accept" or not self._accepted:
                await self._send(message)
                self._accepted = True
        return None

    def _has(self, taken: int) -> None:
        while self._accepted and self._taken < taken:
            self._said.popleft()
            self._taken += 1


def pair() -> tuple[PipeEnd, PipeEnd]:
    """Return both ends of an exchange within one process."""
    one, two = PipeEnd(), PipeEnd()
    one.other, two.other = two, one
    return one, two


class PipeEnd:
    """One end of it."""

    other: PipeEnd

    def __init__(self) -> None:
        self._incoming: deque[bytes] = deque()
        self._bytes = 0
        self._reader: Future[None] | None = None
        self._room: Future[None] | None = None
        """Done when the other end has taken enough of what this one sent."""
        self._ended = False
        self._error: Exception | None = None
        self._stops: list[Callable[[], object]] = []
        self._is_stopped = False

    def send(self, message: bytes) -> Awaitable[None] | None:
        other = self.other
        if other._ended or other._is_stopped or self._is_stopped:
            return None
        other._incoming.append(message)
        other._bytes += len(message) + EACH
        other._wake()
        if other._bytes < WINDOW:
            return None
        if self._room is None or self._room.done():
            self._room = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._room)

    async def receive(self) -> bytes | None:
        while not self._incoming:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        message = self._incoming.popleft()
        self._bytes -= len(message) + EACH
        if self._bytes < WINDOW // 2:
            self.other._go_on()
        return message

    def reply(self) -> Future[bytes]:
        return asyncio.ensure_future(self._only())

    async def _only(self) -> bytes:
        message = await self.receive()
        if message is None:
            raise Unavailable("The connection ended before the response.")
        return message

    def end(self, message: bytes | None = None) -> None:
        if message is not None:
            self.send(message)
        self.other._over(None)

    def fail(self, error: Exception) -> None:
        self.other._over(error)

    def drop(self) -> None:
        other = self.other
        if other._is_stopped:
            return
        other._is_stopped = True
        other._incoming.clear()
        other._over(None)
        stops, other._stops = other._stops, []
        for act in stops:
            act()

    async def stop(self) -> None:
        self.drop()

    def when_stopped(self, act: Callable[[], object]) -> None:
        if self._is_stopped:
            act()
        else:
            self._stops.append(act)

    def _over(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended, self._error = True, error
        self._wake()
        self._go_on()
        self.other._go_on()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _go_on(self) -> None:
        if self._room is not None:
            with contextlib.suppress(asyncio.InvalidStateError):
                self._room.set_result(None)
