"""The ASGI application over one node: finds the agent a URL names, asks everybody on the way, and hands over.

Who holds a socket and who runs its agent are kept apart: the door knows addresses, and asks
the node for whoever lives there, message by message.
"""

from __future__ import annotations

import inspect
import logging
import time
from asyncio import FIRST_COMPLETED, CancelledError, Future, wait
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol, cast
from urllib.parse import parse_qs, quote, urlsplit
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response

from sapwood.address import Address, Step, kebab
from sapwood.errors import InvalidName, NotFound, SapwoodError
from sapwood.kernel.actor import Actor
from sapwood.kernel.classes import AgentClass, all_classes
from sapwood.kernel.node import Node
from sapwood.kernel.sockets import Socket
from sapwood.web import routing
from sapwood.web.asgi import Receive, Scope, Send
from sapwood.web.errors import TEXT, close_code, status_of
from sapwood.web.wire import Wire
from sapwood.wire import frames

log = logging.getLogger(__name__)
access = logging.getLogger("sapwood.access")

IN_FLIGHT = 256
"""Messages of one socket that may be under way; then it is not read until one has ended."""
TOO_BIG = 1009
UNSAID = 1005


class Clients(Protocol):
    """What the agent's side does with its clients."""

    async def perform(self, name: str, function: Callable[..., Any], *args: Any) -> Any: ...

    async def connect(self, socket: Socket) -> None: ...

    def message(self, socket: Socket, data: str | bytes) -> Future[Any] | None: ...

    async def closed(self, socket: Socket, code: int, reason: str) -> None: ...


class Refusal(Exception):
    """Somebody on the way does not let the client through."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def refusal(status: int, text: str | None = None) -> Refusal:
    return Refusal(PlainTextResponse(text or TEXT[status], status))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a URL leads: a root, and what follows it."""

    root: AgentClass
    name: str
    rest: str


@dataclass(slots=True)
class Arrival:
    """A client that got as far as its agent."""

    actor: Actor
    request: HTTPConnection
    path: str
    user: object


class Door:
    """The way in from outside."""

    def __init__(
        self,
        node: Node,
        clients: Callable[[Actor], Clients],
        *,
        authenticate: Callable[[HTTPConnection], Any] | None,
        authorize: Callable[[Any, Address, str], Any] | None,
    ) -> None:
        self._node = node
        self._clients = clients
        self._settings = node.settings
        self._authenticate = authenticate
        self._authorize = authorize
        self._users: dict[object, int] = {}
        self._count = 0

    def find(self, scope: Scope) -> Place | None:
        """Return where a path leads; None if it is not ours. Raises `Refusal` if it is ours and leads nowhere."""
        root_path = str(scope.get("root_path", ""))
        raw = scope.get("raw_path")
        path = routing.relative(raw.decode("latin-1") if raw else quote(scope["path"]), root_path)
        found = routing.parse_root(path, self._settings.prefix)
        if found is None and root_path:
            found = routing.parse_root(path, "")  # the mount point is the prefix
        if found is None:
            return None
        kind = next((root for root in self._node.roots if found.segment in _segments(root)), None)
        if kind is None:
            raise refusal(400, "Invalid request")
        return Place(kind, found.name, found.rest)

    def about(self, scope: Scope) -> Response | None:
        """Answer what a load balancer asks; None if it is something else."""
        path = routing.relative(scope["path"], str(scope.get("root_path", "")))
        if path == "/healthz":
            return PlainTextResponse("ok")
        if path == "/readyz":
            is_ready = self._node.is_ready
            return PlainTextResponse("ready" if is_ready else "not ready", 200 if is_ready else 503)
        return None

    async def http(self, place: Place, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request."""
        began = time.monotonic()
        sent: list[int] = []
        request = Request(scope, self._counted(receive))

        async def noted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                sent.append(message["status"])
                if self._settings.cors:
                    message["headers"] = [*message.get("headers", ()), *CORS]
            await send(message)

        try:
            if self._settings.cors and scope["method"] == "OPTIONS":
                await Response(status_code=204)(scope, receive, noted)
                return
            arrival = await self._arrive(place, request, "request")
            await self._respond(arrival, scope, receive, noted)
        except Refusal as no:
            if not sent:
                await no.response(scope, receive, noted)
        except TooLarge:
            if not sent:
                await PlainTextResponse(TEXT[413], 413)(scope, receive, noted)
        except SapwoodError as error:
            await self._failed(error, scope, receive, noted, began=bool(sent))
        except Exception as error:  # noqa: BLE001 - whatever a hook raised
            await self._failed(error, scope, receive, noted, began=bool(sent))
        finally:
            access.info(
                "%s %s %s %.1f ms",
                scope["method"],
                scope["path"],
                sent[0] if sent else "-",
                (time.monotonic() - began) * 1e3,
            )

    async def _failed(self, error: Exception, scope: Scope, receive: Receive, send: Send, *, began: bool) -> None:
        status = status_of(error)
        if status >= 500:
            log.error("a request to %s failed", scope["path"], exc_info=error)
        if not began:
            text = str(error) if status < 500 else TEXT[status]
            await PlainTextResponse(text, status)(scope, receive, send)

    async def _respond(self, arrival: Arrival, scope: Scope, receive: Receive, send: Send) -> None:
        actor = arrival.actor
        request = cast(Request, arrival.request)

        async def leaving(message: MutableMapping[str, Any]) -> None:
            await actor.leave()
            await send(message)

        async def work() -> None:
            response: Any = await actor.agent.on_request(request)
            if not callable(response):
                raise TypeError(f"on_request returned a {type(response).__name__}; it has to return a Response.")
            await cast("Response", response)(request.scope, request.receive, leaving)

        await self._clients(actor).perform("on_request", work)

    def _counted(self, receive: Receive) -> Receive:
        limit, total = self._settings.request_bytes, 0

        async def counted() -> MutableMapping[str, Any]:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > limit:
                raise TooLarge
            return message

        return counted

    async def _arrive(self, place: Place, request: HTTPConnection, action: str) -> Arrival:
        """Go down to the agent, asking everybody on the way."""
        user = await self._user(request)
        request.scope["user"] = user
        try:
            address = Address.root_of(place.root.type, place.name)
        except InvalidName:
            raise refusal(400) from None
        if self._authorize is not None and not await _maybe(self._authorize(user, address, action)):
            raise refusal(403)
        actor = await self._node.reach(address, place.root, None)
        path = place.rest
        while (hop := routing.parse_hop(path, _is_class)) is not None:
            actor, request, path = await self._descend(actor, request, hop)
        if action == "connect" and _names_nobody(path):
            raise refusal(404)
        request = _with_path(request, path)
        before = actor.agent.on_before_connect if action == "connect" else actor.agent.on_before_request
        request = await self._asked(actor, f"on_before_{action}", before, request)
        return Arrival(actor, request, request.scope["path"], user)

    async def _descend(
        self, parent: Actor, request: HTTPConnection, hop: routing.Hop
    ) -> tuple[Actor, HTTPConnection, str]:
        if "\0" in hop.name:
            raise refusal(400)
        kind = self._child_class(parent, hop)
        step = Step(kind.type, hop.name)
        given = _with_path(request, f"{hop.before}/sub/{hop.segment}/{hop.name}{hop.rest}")
        answer = await self._asked(parent, "on_before_sub_agent", parent.agent.on_before_sub_agent, given, step)
        path = hop.rest if answer is given or answer.scope["path"] == given.scope["path"] else answer.scope["path"]
        address = parent.address.child(kind.type, hop.name)
        if not parent.registry.has((kind.type, *kind.aliases), hop.name):
            if not getattr(kind.cls, "made_by_url", False):
                raise refusal(404, f"{kind.type} {hop.name!r} not found")
            await self._clients(parent).perform("sub_agent", parent.agent.sub_agent, kind.cls, hop.name)
        return await self._node.reach(address, kind, None), answer, path

    def _child_class(self, parent: Actor, hop: routing.Hop) -> AgentClass:
        """Return the class a segment means here: of several with one name, the one whose child it is."""
        found = [kind for kind in all_classes() if hop.segment in _segments(kind)]
        for kind in found:
            if parent.registry.has((kind.type, *kind.aliases), hop.name):
                return kind
        return found[-1]

    async def _asked(
        self, actor: Actor, name: str, hook: Callable[..., Any], request: HTTPConnection, *more: object
    ) -> HTTPConnection:
        """Ask a hook: it lets the request through, answers it, or puts another in its place."""
        answer = await self._clients(actor).perform(name, hook, request, *more)
        if answer is None:
            return request
        if isinstance(answer, Response):
            raise Refusal(answer)
        if isinstance(answer, HTTPConnection):
            return cast("HTTPConnection[Any]", answer)
        raise TypeError(f"{name} returned a {type(answer).__name__}; it returns None, a Response or a request.")

    async def _user(self, request: HTTPConnection) -> object:
        if self._authenticate is None:
            return None
        user = await _maybe(self._authenticate(request))
        if user is None:
            raise refusal(401)
        return user

    async def websocket(self, place: Place, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket until either side closes it."""
        first = await receive()
        if first["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept"})
        # Accepted before anybody is asked: to a refused handshake the clients come back for ever.
        wire = Wire(send, self._settings.outgoing_bytes)
        request = HTTPConnection(scope)
        try:
            if not self._may_come_from(request):
                raise refusal(403)
            arrival = await self._arrive(place, request, "connect")
            socket = self._socket(arrival, wire)
        except Refusal as no:
            status = no.response.status_code
            wire.close(close_code(status), f"Sub-agent connection rejected ({status})")
            return
        except Exception as error:  # noqa: BLE001 - whatever a hook raised
            self._log(error, scope)
            wire.close(close_code(status_of(error)), TEXT.get(status_of(error), "Error"))
            return
        self._count += 1
        self._users[socket.user] = self._users.get(socket.user, 0) + 1
        began = time.monotonic()
        access.info("SOCKET %s opened", scope["path"])
        try:
            await self._converse(socket, wire, receive)
        finally:
            access.info("SOCKET %s closed after %.1f s", scope["path"], time.monotonic() - began)
            self._count -= 1
            self._users[socket.user] -= 1
            if not self._users[socket.user]:
                del self._users[socket.user]

    def _log(self, error: BaseException, scope: Scope) -> None:
        if status_of(error) >= 500:
            log.error("a connection to %s failed", scope["path"], exc_info=error)

    def _socket(self, arrival: Arrival, wire: Wire) -> Socket:
        settings, address = self._settings, arrival.actor.address
        user: Any = arrival.user
        if not _hashable(user):
            user = None
        if (
            self._count >= settings.connections
            or self._node.sockets.number_of(address) >= settings.connections_per_agent
            or (user is not None and self._users.get(user, 0) >= settings.connections_per_user)
        ):
            raise refusal(429)
        query = arrival.request.scope.get("query_string", b"").decode("latin-1")
        given = parse_qs(query).get("_pk", [""])[0]
        return Socket(
            given or uuid4().hex,
            address,
            arrival.actor.kind,
            wire,
            path=arrival.path,
            query=query,
            headers=Headers(scope=cast(Any, arrival.request.scope)),
            user=arrival.user,
        )

    async def _converse(self, socket: Socket, wire: Wire, receive: Receive) -> None:
        code, reason = UNSAID, ""
        under_way: set[Future[Any]] = set()
        try:
            clients = self._clients(await self._awake(socket))
            await clients.connect(socket)
            while True:
                message = await receive()
                if message["type"] == "websocket.disconnect":
                    code, reason = message.get("code", UNSAID), message.get("reason") or ""
                    break
                data = message.get("text")
                data = data if data is not None else message.get("bytes") or b""
                if len(data) > self._settings.frame_bytes:
                    socket.close(TOO_BIG, "The message is too long")
                    break
                pending = await self._deliver(socket, data)
                if pending is not None:
                    under_way.add(pending)
                    pending.add_done_callback(under_way.discard)
                    if len(under_way) >= IN_FLIGHT:
                        await wait(under_way, return_when=FIRST_COMPLETED)
        except CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever on_connect raised
            self._log(error, {"path": str(socket.address)})
            socket.close(close_code(status_of(error)), TEXT.get(status_of(error), "Error"))
        finally:
            self._node.sockets.remove(socket)
            socket.is_open = False
            wire.lost()
            await self._say_goodbye(socket, code, reason)

    async def _awake(self, socket: Socket) -> Actor:
        return await self._node.reach(socket.address, socket.kind, None)

    async def _deliver(self, socket: Socket, data: str | bytes) -> Future[Any] | None:
        try:
            return self._clients(await self._awake(socket)).message(socket, data)
        except SapwoodError as error:
            frame = frames.read(data) if isinstance(data, str) else None
            if isinstance(frame, frames.Rpc):
                socket.send(frames.error(frame.id, str(error)))
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
        except Exception as error:
            log.warning("on_close of %s failed", socket.address, exc_info=error)

    def _may_come_from(self, request: HTTPConnection) -> bool:
        """Return whether a page of this origin may connect: a browser sends cookies along, wherever a page is from."""
        origin = request.headers.get("origin")
        allowed = self._settings.origins
        if origin is None or "*" in allowed or origin in allowed:
            return True
        if f"{origin.rpartition(':')[0]}:*" in allowed:
            return True
        return urlsplit(origin).netloc == request.headers.get("host")


class TooLarge(Exception):
    """The body of a request is longer than may be."""


CORS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, POST, HEAD, OPTIONS"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-max-age", b"86400"),
)


def _segments(kind: AgentClass) -> set[str]:
    return {kebab(type_) for type_ in (kind.type, *kind.aliases)}


def _is_class(segment: str) -> bool:
    return any(segment in _segments(kind) for kind in all_classes())


def _names_nobody(path: str) -> bool:
    """Return whether a path asks for a child of a class nobody knows."""
    segments = path.split("/")
    return any(segment == routing.SUB for segment in segments[:-2])


def _with_path(request: HTTPConnection, path: str) -> HTTPConnection:
    scope = {**request.scope, "path": path, "raw_path": path.encode("latin-1", "replace"), "root_path": ""}
    return Request(scope, request.receive) if isinstance(request, Request) else HTTPConnection(scope)


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


async def _maybe(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
