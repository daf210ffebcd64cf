"""What a client says by a WebSocket gets to its agent, message by message, wherever the agent is by then.

Who holds a socket and who runs its agent are kept apart: this module knows addresses, and asks the node for
the agent at each.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from asyncio import FIRST_COMPLETED, CancelledError, Future, wait
from collections.abc import Callable, Collection, MutableMapping
from typing import Any, Protocol, cast
from uuid import uuid4

import msgspec

from sapwood.errors import NotCopyable, NotFound, SapwoodError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.outbox import Outbox
from sapwood.kernel.actors.sockets import RESTARTING, SETTLED, TOO_BIG, TOO_LONG, TRY_AGAIN, Socket
from sapwood.kernel.aio import to_the_end
from sapwood.kernel.marshal.agent_class import resolve
from sapwood.kernel.marshal.disclosure import code_for_clients
from sapwood.kernel.marshal.exceptions import describe, mistake
from sapwood.kernel.marshal.messages import Steps, kind_named
from sapwood.kernel.marshal.values import value_of
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.placement import Moved
from sapwood.web.asgi_types import DRAIN, FRAME_LIMIT, Receive, Scope
from sapwood.web.errors import closing
from sapwood.web.relay_messages import MOVED, TAKEN, OpenSocket
from sapwood.web.socket_writer import SocketWriter, size
from sapwood.wire import frames
from sapwood.wire.inline_files import take_files

log = logging.getLogger(__name__)

IN_FLIGHT = 256
"""Messages of one socket that may be under way; then it is not read until one has ended."""
PATIENCE = 60.0
"""Seconds that a full socket waits for one of them to end."""
LAST_ANSWERS = 2.0
"""Seconds that calls are given to end when the server that holds their client's socket stops."""
UNSAID = 1005
SAID_EACH = 16
SAID_BYTES = 64 * 1024
"""After this many messages, or bytes, the node that holds a socket is told that they reached the agent."""
CLOSING = 0.002


class Clients(Protocol):
    """What the agent's side does with its clients."""

    async def perform(self, name: str, function: Callable[..., Any], *args: Any) -> Any: ...

    async def respond(self, request: Any) -> Any: ...

    async def connect(self, socket: Socket) -> None: ...

    def message(self, socket: Socket, data: str | bytes) -> Future[Any] | None: ...

    def takes_files(self, socket: Socket) -> bool: ...

    async def closed(self, socket: Socket, code: int, reason: str) -> None: ...


class SocketSessions:
    """What sockets that are let in say, and hear."""

    def __init__(
        self,
        node: Node,
        clients: Callable[[Actor], Clients],
        failed: Callable[[str, BaseException, Scope, str], str | None],
    ) -> None:
        self._node = node
        self._clients = clients
        self._settings = node.settings
        self._failed = failed
        """Logs what went wrong, and returns its reference if it is internal."""
        self._decoding = asyncio.Lock()
        """One frame with files is decoded at a time: it takes several times its size."""

    async def hold(self, socket: Socket, wire: SocketWriter, scope: Scope, receive: Receive, taken: int) -> None:
        """Hand on what a client says, to the end; `taken`: how many of its messages another node handed on before."""
        code, reason = UNSAID, ""
        try:
            if not taken:
                try:
                    actor = await self._awake(socket)
                except Moved:
                    socket.is_orphan = True
                    await tell_moved(wire)
                    return
                clients = self._clients(actor)
                await clients.connect(socket)
                if clients.takes_files(socket):
                    wire.tell({"type": FRAME_LIMIT, "bytes": self._settings.file_frame_bytes})
            try:
                # The first is that it wants to connect.
                code, reason = await self._listen(socket, wire, receive, taken or 1)
            except TreeMoves as leaving:
                await self._hand_over(socket, wire, leaving.counts)
        except CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever on_connect raised
            socket.close(*closing(error, self._failed("connection", error, scope, str(socket.address))))
        finally:
            self._node.sockets.remove(socket)
            socket.is_open = False
            wire.lost()
            if not socket.is_orphan:
                await self._say_goodbye(socket, code, reason)

    async def _listen(self, socket: Socket, wire: SocketWriter, receive: Receive, taken: int) -> tuple[int, str]:
        """Hand on what a client says; return the code and the reason it closed with."""
        under_way: set[Future[Any]] = set()
        far, root = self._node.far, socket.address.root
        counts = Taken(taken, far.epoch_of(root), wire) if far is not None and far.moves(root) else None
        actor = self._node.awake(socket.address)
        while True:
            message = await (receive() if counts is None else self._next(socket, receive, counts))
            if message["type"] == "websocket.disconnect":
                return message.get("code", UNSAID), message.get("reason") or ""
            if message["type"] == DRAIN:
                await self._settle(socket, under_way)
                continue
            if not socket.is_open:
                continue  # it was closed since: what is still on its way must not wake an agent
            data, came = await self._read(socket, actor, message)
            if size(data) > self._settings.frame_bytes:
                socket.close(TOO_BIG, TOO_LONG)
                return UNSAID, ""
            if actor is None or not actor.ready:
                try:
                    actor = await self._awake_for(socket, data)
                except Moved:
                    if counts is None:
                        raise
                    raise TreeMoves(counts) from None
                if actor is not None and counts is not None and not self._node.owns(socket.address.root):
                    raise TreeMoves(counts)  # it moved while it was woken, and the next node gets this message again
            pending = self._clients(actor).message(socket, data) if actor is not None and actor.ready else None
            if counts is not None:
                counts.add(came)
            if pending is not None:
                under_way.add(pending)
                pending.add_done_callback(functools.partial(_ended, under_way))
                if not await self._has_room(under_way, pending if came > self._settings.frame_bytes else None):
                    socket.close(TRY_AGAIN, "Too many calls under way")
                    return UNSAID, ""

    async def _has_room(self, under_way: set[Future[Any]], large: Future[Any] | None) -> bool:
        """Wait until the next message may be read; return `False` if that takes too long. `large` has files."""
        if large is not None:
            await wait({large}, timeout=PATIENCE)  # its server counts its bytes until the next message is asked for
        if len(under_way) < IN_FLIGHT:
            return True
        # A client that left is not noticed here, so this may not last for ever.
        ended, _ = await wait(under_way, timeout=PATIENCE, return_when=FIRST_COMPLETED)
        return bool(ended)

    async def _read(
        self, socket: Socket, actor: Actor | None, message: MutableMapping[str, Any]
    ) -> tuple[str | bytes, int]:
        """Return what a client says, without its inline files if it is long, and how many bytes it had."""
        data = message.pop("text", None)
        data = data if data is not None else message.get("bytes") or b""
        came = size(data)
        if came > self._settings.frame_bytes:
            data = await self._without_files(socket, actor, data)
        return data, came

    async def _without_files(self, socket: Socket, actor: Actor | None, data: str | bytes) -> str | bytes:
        """Return a message with its inline files decoded, or as it is if this client may not send so much."""
        if not isinstance(data, str) or not data.isascii() or len(data) > self._settings.file_frame_bytes:
            return data
        if actor is None or not actor.ready:
            try:
                actor = await self._awake_for(socket, "")
            except Moved:
                return data
        if actor is None or not self._clients(actor).takes_files(socket):
            return data
        async with self._decoding:
            return await to_the_end(take_files, data, uuid4().hex)

    async def _settle(self, socket: Socket, under_way: Collection[Future[Any]]) -> None:
        """Close a socket, as the node that holds it stops: soon, and if possible once all its messages are answered."""
        left: Collection[Future[Any]] = ()
        if under_way:
            ended, left = await wait(set(under_way), timeout=LAST_ANSWERS)
            left = left or {one for one in ended if one.cancelled()}  # no client was answered
        actor = self._node.awake(socket.address)
        outbox = actor.found(Outbox) if actor is not None else None
        if outbox is not None and (waiting := outbox.until_empty()) is not None:
            _, unsent = await wait({waiting}, timeout=LAST_ANSWERS)
            left = left or unsent
        socket.close(RESTARTING, "The server stops" if left else SETTLED)

    async def _next(self, socket: Socket, receive: Receive, counts: Taken) -> MutableMapping[str, Any]:
        """Return what a client says next, or raise `TreeMoves`: whatever it says is for another node."""
        # It may have been let in when its tree had begun to leave.
        if not socket.is_leaving and self._node.owns(socket.address.root):
            try:
                async with asyncio.timeout(None) as socket.reading:
                    message = await receive()
                # It may have come at the same moment; then the next node of the tree gets it again.
                if self._node.owns(socket.address.root):
                    return message
            except TimeoutError:
                if not socket.is_leaving:
                    raise
            finally:
                socket.reading = None
        raise TreeMoves(counts)

    async def _hand_over(self, socket: Socket, wire: SocketWriter, counts: Taken) -> None:
        """Tell the node that holds a socket that its agent is at another node now, and what that has to know of it."""
        root = socket.address.root
        # Until its tree is closed here, its agent may speak to it, and keep something with it.
        while root in self._node.trees and not self._node.owns(root):  # noqa: ASYNC110 - a tree has no event for it
            await asyncio.sleep(CLOSING)
        socket.is_orphan = True
        if not socket.is_open:
            return
        kind = socket.kind or resolve(socket.address.type)
        try:
            user = None if socket.user is None else value_of(socket.user)
        except (NotCopyable, NotImplementedError):
            socket.close(RESTARTING, "The agent restarts")  # the client authenticates again
            return
        kept = OpenSocket(
            socket.id,
            cast("Steps", list(socket.address.segments)),
            *kind_named(kind),
            socket.path,
            socket.query,
            list(socket.headers.items()),
            user,
            list(socket.tags),
            socket.note,
            socket.is_readonly,
            socket.is_protocol,
            socket.sent,
            counts.taken,
            counts.epoch,
            socket.is_watch_only,
            socket.shown,
            list(socket.runs),
        )
        await tell_moved(wire, kept)

    async def _awake(self, socket: Socket) -> Actor:
        assert socket.kind is not None
        return await self._node.reach(socket.address, socket.kind, None)

    async def _awake_for(self, socket: Socket, data: str | bytes) -> Actor | None:
        """Wake the agent for a message; if it cannot be woken, a caller is told so."""
        try:
            return await self._awake(socket)
        except Moved:
            raise
        except SapwoodError as error:
            frame = frames.read(data) if isinstance(data, str) else None
            if isinstance(frame, frames.Rpc):
                text = self._node.failures.disclose(error, address=socket.address, method=frame.method)
                socket.send(frames.error(frame.id, text, code_for_clients(error)))
            return None

    async def _say_goodbye(self, socket: Socket, code: int, reason: str) -> None:
        tree = self._node.trees.get(socket.address.root)
        actor = tree.actors.get(socket.address) if tree is not None else None
        try:
            if actor is None and socket.hears_close:
                actor = await self._awake(socket)
            if actor is not None and actor.ready:
                await self._clients(actor).closed(socket, code, reason)
        except NotFound:
            pass
        except Exception as error:  # noqa: BLE001 - the user's hook may raise anything
            text, who = "on_close of %s failed: %s", socket.address
            self._node.failures.report(
                log, logging.WARNING, text, who, describe(error), error=error, about=who, traceback=mistake(error)
            )


class TreeMoves(Exception):
    """The tree of a socket's agent is about to be run by another node."""

    def __init__(self, counts: Taken) -> None:
        super().__init__("Another node runs the tree.")
        self.counts = counts


class Taken:
    """Counts what got from a client to its agent, and reports it to the node that holds the socket now and then."""

    __slots__ = ("_bytes", "_told", "_wire", "epoch", "taken")

    def __init__(self, taken: int, epoch: int, wire: SocketWriter) -> None:
        self.taken = self._told = taken
        self.epoch = epoch
        self._bytes = 0
        self._wire = wire

    def add(self, size: int) -> None:
        self.taken += 1
        self._bytes += size
        if self.taken - self._told >= SAID_EACH or self._bytes >= SAID_BYTES:
            self._told, self._bytes = self.taken, 0
            self._wire.tell({"type": TAKEN, "count": self.taken})


async def tell_moved(wire: SocketWriter, kept: OpenSocket | None = None) -> None:
    """Tell the node that holds a socket that another node runs its agent; nothing was begun here if nothing is kept."""
    wire.tell({"type": MOVED, "socket": b"" if kept is None else msgspec.msgpack.encode(kept)})
    await wire.until_written()


def _ended(under_way: set[Future[Any]], one: Future[Any]) -> None:
    under_way.discard(one)
    if not one.cancelled():
        one.exception()  # the client was told
