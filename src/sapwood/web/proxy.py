"""Requests and sockets for a tree that another node runs.

The node that accepted a client holds its connection, and carries what goes over it: what an
ASGI server and an application say to each other, message by message. So the door of the
other node need not know how far away its client is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any

from sapwood.address import Address
from sapwood.errors import NotCopyable, Unavailable, UsageError
from sapwood.kernel.actors.sockets import RESTARTING
from sapwood.kernel.marshal.values import Value, pack, value_from, value_of
from sapwood.kernel.ports.placement import Moved, NotBegun
from sapwood.kernel.ports.transport import Exchange, Transport
from sapwood.kernel.rpc.remote import Peers
from sapwood.web.asgi_types import ASGI, Receive, Scope, Send
from sapwood.web.relay_messages import CARRY, FIGURES, HERE, RelayedConnection, read_carried, read_message

if TYPE_CHECKING:
    from sapwood.web.gateway import Gateway
    from sapwood.web.target import UrlTarget

log = logging.getLogger(__name__)

FACTS = (
    "type",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "headers",
    "client",
    "server",
    "root_path",
    "subprotocols",
)
"""The parts of a request's scope that the other node gets; the rest concerns only this process."""
LOST = 1006
REPLAYED = 1024 * 1024
"""Bytes of a request that are buffered until its node is found."""
ASGI_VERSION = {"version": "3.0", "spec_version": "2.3"}


async def carry(
    door: Gateway, far: Peers, root: Address, place: UrlTarget, scope: Scope, receive: Receive, send: Send
) -> None:
    """Let another node answer a client of this one."""
    await relay(far.open(CARRY, root, pack(told_of(door, place, scope))), scope, receive, send, root)


async def follow(
    door: Gateway, far: Peers, root: Address, place: UrlTarget, scope: Scope, receive: Receive, send: Send
) -> None:
    """Let the node that runs a tree that may move answer a request: this one or another."""
    message = b""
    replayed = ReplayBuffer(receive)

    async def once() -> None:
        nonlocal message
        replayed.again()
        if far.directory.is_here(root):
            try:
                await door.http(place, scope, replayed.receive, send)
            except Moved:
                if not replayed.is_whole:
                    raise Unavailable("The request body is too large to retry on another node.") from None
                raise
            return
        message = message or pack(told_of(door, place, scope))
        await relay(far.open(CARRY, root, message), scope, replayed.receive, send, root, replayed)

    try:
        await far.follow(root, once)
    except Unavailable:
        await _excuse(f"The process of {root}", scope, receive, send, was_asked=False)


async def relay_to(
    far: Peers, root: Address, verb: str, message: bytes, scope: Scope, receive: Receive, send: Send
) -> None:
    """Let the node that runs a tree, now or soon, answer a request that is complete in this message."""
    replayed = ReplayBuffer(receive)

    async def once() -> None:
        replayed.again()
        await relay(far.open(verb, root, message), scope, replayed.receive, send, replayed=replayed)

    try:
        await far.follow(root, once)
    except Unavailable:
        await _excuse("The agent's process", scope, receive, send, was_asked=False)


def told_of(door: Gateway, place: UrlTarget, scope: Scope) -> RelayedConnection:
    """Return what the other node gets of a request or a socket."""
    facts = {name: scope[name] for name in FACTS if name in scope}
    told = RelayedConnection(place.root.type, place.name, place.rest, facts, None)
    told.is_authenticated = door.has_user(scope)
    try:
        told.user = _user(scope)
    except UsageError:
        if not told.is_authenticated:
            raise
        told.is_authenticated = False  # that node finds this user in the same request
    return told


class ReplayBuffer:
    """What a client says, from the beginning each time it is to be told to another node."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._said: list[MutableMapping[str, Any]] = []
        self._bytes = 0
        self._at = 0

    async def receive(self) -> MutableMapping[str, Any]:
        if self._at < len(self._said):
            message = self._said[self._at]
        else:
            message = await self._receive()
            self._bytes += len(message.get("body", b""))
            if self._bytes <= REPLAYED:
                self._said.append(message)
        self._at += 1
        return message

    def again(self) -> None:
        """Start again from the beginning."""
        self._at = 0

    @property
    def is_whole(self) -> bool:
        """Whether it can be said again; False: it was too much to keep."""
        return self._bytes <= REPLAYED


async def relay(
    opening: Awaitable[Exchange],
    scope: Scope,
    receive: Receive,
    send: Send,
    root: Address | None = None,
    replayed: ReplayBuffer | None = None,
) -> None:
    """Be the server of an application that is at the other end of an exchange, in the process that runs this root.

    With what can be said again, `NotBegun` if the other end did not begin.
    """
    is_http = scope["type"] == "http"
    begun = over = False
    exchange: Exchange | None = None
    upwards: asyncio.Task[None] | None = None
    try:
        exchange = await opening
        upwards = asyncio.get_running_loop().create_task(_upwards(receive, exchange))
        while (packed := await exchange.receive()) is not None:
            begun = True
            message = read_message(packed)
            await send(message)
            over = over or _is_last(message)
    except OSError:
        pass  # the client is gone; the other node learns of it
    except Unavailable as error:
        if isinstance(error, NotBegun) and not begun and replayed is not None:
            if upwards is not None:
                upwards.cancel()
                await asyncio.wait({upwards})
            if replayed.is_whole:
                raise
        if over:
            pass  # the client has the whole response, and may continue with its next request
        elif is_http:
            if begun:
                raise  # the server cuts the connection, so that no client takes half a response for a whole one
            whose = "The agent's process" if root is None else f"The process of {root}"
            await _excuse(whose, scope, receive, send, was_asked=exchange is not None)
        else:
            if upwards is None:
                await receive()  # that it wants to connect
            await close_again(send, begun=begun)
    finally:
        if exchange is not None:
            exchange.drop()
        if upwards is not None:
            upwards.cancel()
            await asyncio.wait({upwards})


def _is_last(message: MutableMapping[str, Any]) -> bool:
    """Return whether an application that said this has nothing more to say."""
    kind = message["type"]
    return kind == "websocket.close" or (kind.endswith("http.response.body") and not message.get("more_body", False))


def _user(scope: Scope) -> Value | None:
    user = scope.get("user")
    try:
        return None if user is None else value_of(user)
    except (NotCopyable, NotImplementedError):
        raise UsageError(
            "The user of a request must be copied to the process that runs the agent, and a "
            f"{type(user).__name__} cannot be copied. Return a dataclass or plain data as the user, or "
            "authenticate with App(authenticate=…)."
        ) from None


async def _upwards(receive: Receive, exchange: Exchange) -> None:
    is_whole = False
    while True:
        message = await receive()
        if is_whole and message["type"] == "http.request":
            await asyncio.sleep(0)  # a server that does not wait for the client to go; others have to have their turn
            continue
        is_whole = message["type"] == "http.request" and not message.get("more_body", False)
        waiting = exchange.send(pack(message))
        if message["type"] in ("http.disconnect", "websocket.disconnect"):
            return
        if waiting is not None:
            await waiting


async def _excuse(whose: str, scope: Scope, receive: Receive, send: Send, *, was_asked: bool) -> None:
    from starlette.responses import PlainTextResponse

    how = "exited before it answered. The outcome of the request is unknown." if was_asked else "does not answer."
    await PlainTextResponse(f"{whose} {how}", 503, {"retry-after": "1"})(scope, receive, send)


async def close_again(send: Send, *, begun: bool) -> None:
    with contextlib.suppress(OSError):  # the client may have gone at the same time
        if not begun:
            await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": RESTARTING, "reason": "The agent restarts"})


def answer_carried(transport: Transport, door: Callable[[], Awaitable[Gateway]]) -> None:
    """Have the door serve clients that other nodes hold."""
    tasks: set[asyncio.Task[None]] = set()

    async def answered(work: Coroutine[Any, Any, None], exchange: Exchange) -> None:
        try:
            await work
        except Unavailable as error:  # the node that holds the client retries, or tells it to
            exchange.fail(error)
        except Exception as error:
            log.exception("serving a client of another process failed")
            exchange.fail(Unavailable(str(error)))

    def begin(work: Coroutine[Any, Any, None], exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(answered(work, exchange))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def figures(exchange: Exchange) -> None:
        exchange.end((await door()).figures())

    transport.answer(CARRY, lambda message, exchange: begin(serve_for(read_carried(message), exchange, door), exchange))
    transport.answer(FIGURES, lambda message, exchange: begin(figures(exchange), exchange))


async def serve_for(carried: RelayedConnection, exchange: Exchange, door: Callable[[], Awaitable[Gateway]]) -> None:
    """Serve a client that another node holds."""
    opened = await door()
    is_http = carried.scope["type"] == "http"
    if not opened.is_here(carried.type, carried.name):
        exchange.fail(Moved(f"{carried.type}:{carried.name}"))
        return
    scope: Scope = {**carried.scope, "asgi": ASGI_VERSION}
    for name in ("headers", "client", "server"):
        if scope.get(name) is not None:
            scope[name] = _pairs(scope[name]) if name == "headers" else tuple(scope[name])
    if carried.user is not None:
        scope["user"] = value_from(carried.user)
    if carried.is_authenticated:
        opened.trust(scope, scope["user"])
    if carried.may_move:
        exchange.send(pack({"type": HERE}))
    if carried.kept is not None:
        await answer_over(exchange, partial(opened.go_on, carried.kept), scope)
        return
    place = opened.place(carried.type, carried.name, carried.rest)
    await answer_over(exchange, partial(opened.http if is_http else opened.websocket, place), scope)


async def answer_over(exchange: Exchange, application: ASGI, scope: Scope) -> None:
    """Have an application serve a client whose server is at the other end of an exchange."""
    is_http = scope["type"] == "http"

    async def receive() -> MutableMapping[str, Any]:
        try:
            packed = await exchange.receive()
        except Unavailable:
            packed = None
        if packed is not None:
            return read_message(packed)
        return {"type": "http.disconnect"} if is_http else {"type": "websocket.disconnect", "code": LOST}

    async def send(message: MutableMapping[str, Any]) -> None:
        if (waiting := exchange.send(pack(message))) is not None:
            await waiting

    try:
        await application(scope, receive, send)
        exchange.end()
    except Moved as error:
        exchange.fail(error)
    except Exception as error:
        log.exception("serving a client of another process failed")
        exchange.fail(Unavailable(str(error)))


def answer_relayed(transport: Transport, verb: str, application: Callable[[bytes], ASGI]) -> None:
    """Have requests that other nodes relay be answered here, each by what `application` makes of its first message."""
    tasks: set[asyncio.Task[None]] = set()

    def answer(message: bytes, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(answer_over(exchange, application(message), {"type": "http"}))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    transport.answer(verb, answer)


def _pairs(headers: list[list[bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers]
