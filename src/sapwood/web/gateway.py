"""The ASGI application over one node: answers requests and serves sockets, each by the agent that its URL names."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, MutableMapping, Sequence
from typing import Any, cast
from urllib.parse import parse_qs, unquote
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response

from sapwood import tracing
from sapwood.address import Address, kebab
from sapwood.errors import InvalidName, Unavailable
from sapwood.escapes import escape_controls
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.outbox import Outbox
from sapwood.kernel.actors.sockets import RESTARTING, Socket
from sapwood.kernel.marshal.agent_class import AgentClass, named, resolve
from sapwood.kernel.marshal.disclosure import told_of
from sapwood.kernel.marshal.exceptions import describe, unlogged
from sapwood.kernel.marshal.messages import address_of
from sapwood.kernel.marshal.values import value_from
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.placement import Moved
from sapwood.kernel.rpc.remote import Peers
from sapwood.web.access_log import client_of, log_request, log_socket, shown_path
from sapwood.web.agent_router import AgentRouter, Arrival, app_code, segments_of
from sapwood.web.asgi_types import Receive, Scope, Send
from sapwood.web.errors import INTERNAL, RETRY, TEXT, close_code, closing, headers_of, status_of, told
from sapwood.web.locate import Locate, repeated
from sapwood.web.metrics import Metrics, all_figures, answer_figures, merged
from sapwood.web.origins import cross_origin_refusal
from sapwood.web.pages import Pages
from sapwood.web.relay_messages import NEAR, OpenSocket
from sapwood.web.request_body import TOO_LARGE, BodyRefused, RequestBody
from sapwood.web.response_headers import CORS
from sapwood.web.root_locations import RootLocations
from sapwood.web.sender import user_key
from sapwood.web.socket_sessions import Clients, SocketSessions, tell_moved
from sapwood.web.socket_writer import SocketWriter
from sapwood.web.target import Refusal, UrlTarget, raw_path, refusal
from sapwood.wire import routing
from sapwood.wire.files import STREAM, is_upload

log = logging.getLogger(__name__)


class Gateway:
    """The way in from outside."""

    def __init__(
        self,
        node: Node,
        clients: Callable[[Actor], Clients],
        *,
        authenticate: Callable[[HTTPConnection], Any] | None,
        authorize: Callable[[Any, Address, str], Any] | None,
        pages: str | None = None,
        roots: Sequence[AgentClass] | None = None,
    ) -> None:
        self._node = node
        self._roots = node.roots if roots is None else roots
        """The roots that have URLs."""
        self._clients = clients
        self._conversations = SocketSessions(node, clients, self._log)
        self._settings = node.settings
        self.frame_ancestors = node.settings.frame_ancestors
        """Which pages may frame a response, as in the header."""
        self._metrics = Metrics(node)
        self._locations = RootLocations(node.forwards, self._log)
        self._router = AgentRouter(node, clients, authenticate=authenticate, authorize=authorize)
        self._pages = Pages(pages) if pages is not None else None
        self._open: Counter[object] = Counter()
        """How many sockets and requests under way each agent and each user has."""
        self._bodies: Counter[Hashable] = Counter()
        """Bytes of the bodies of requests under way: of each user or remote address, and of all."""
        self._count = 0

    def find(self, scope: Scope) -> UrlTarget | None:
        """Return where a path leads; None if it is not ours. Raises `Refusal` if it is ours and leads nowhere."""
        root_path = str(scope.get("root_path", ""))
        path = routing.relative(raw_path(scope), root_path)
        found = routing.parse_root(path, self._settings.prefix)
        if found is None and root_path:
            found = routing.parse_root(path, "")  # the mount point is the prefix
        if found is None:
            return None
        segment = unquote(found.segment)
        kind = next((root for root in self._roots if segment in segments_of(root)), None)
        if kind is None:
            roots = ", ".join(kebab(root.type) for root in self._roots)
            shown = escape_controls(segment)
            log.debug("request refused client=%s: no root class %r; this app has: %s", client_of(scope), shown, roots)
            raise refusal(400, "Invalid request")
        return UrlTarget(kind, self._locations.name_now(kind, found.name, scope, found.rest), found.rest)

    def away(self, place: UrlTarget) -> tuple[Peers, Address] | None:
        """Return the way to a root that another node runs, or `None` if this node runs it or it cannot exist."""
        far = self._node.far
        if far is None:
            return None
        try:
            address = Address.root_of(place.root.type, place.name)
        except InvalidName:
            return None
        return None if far.directory.is_here(address) else (far, address)

    def moving(self, place: UrlTarget) -> tuple[Peers, Address] | None:
        """Return the way to a root that another node may run at any time, or `None` if it does not move."""
        far = self._node.far
        if far is None:
            return None
        try:
            address = Address.root_of(place.root.type, place.name)
        except InvalidName:
            return None
        return (far, address) if far.moves(address) else None

    def is_here(self, type: str, name: str) -> bool:
        """Return whether a root that another node has a client for is run here."""
        try:
            return self._node.owns(Address.root_of(type, name))
        except InvalidName:
            return True  # the node that serves it reports the error

    @contextlib.contextmanager
    def counted(self, scope: Scope) -> Generator[None, None, None]:
        """Count a socket that is held here for another node; refuse it if there are too many."""
        number = int(scope["type"] == "websocket")
        if self._count + number > self._settings.connections:
            raise refusal(429)
        self._count += number
        try:
            yield
        finally:
            self._count -= number

    def place(self, type: str, name: str, rest: str) -> UrlTarget:
        """Return the place that another node found a URL to lead to."""
        return UrlTarget(resolve(type, self._node.roots), name, rest)

    def figures(self) -> bytes:
        """Return the figures of this node; nothing if nothing is counted."""
        return self._metrics.figures()

    async def about(self, scope: Scope) -> Response | None:
        """Answer what a load balancer or a monitoring system asks; None if it is something else."""
        path = routing.relative(raw_path(scope), str(scope.get("root_path", "")))
        if path == "/healthz":
            return PlainTextResponse("ok")
        if path == "/readyz":
            self._node.storage.look()
            why = self._node.unready
            return PlainTextResponse("ready") if why is None else PlainTextResponse(f"not ready: {why}", 503, RETRY)
        if path == "/metrics":
            await self._router.user(HTTPConnection(scope))  # the figures are not public
            own, far = self.figures(), self._node.far
            return answer_figures(own if far is None else merged(await all_figures(far, own)))
        return None

    async def page(self, scope: Scope) -> Response | None:
        """Answer with a file of the app's pages; None if it has none, or another app around it has the paths."""
        if self._pages is None or scope.get("root_path"):
            return None
        return await self._pages.answer(scope)

    @property
    def is_cors(self) -> bool:
        """Whether pages of other origins may read responses."""
        return self._settings.cors

    async def located(
        self, locate: Locate, scope: Scope, receive: Receive, *, is_public: bool = False
    ) -> tuple[Response | tuple[AgentClass, str, str], Receive]:
        """Return the root for a request that says in its body for whom it is, or the response to it.

        The second value receives the body once more. If the path `is_public`, the client needs no user.
        """
        body = RequestBody(self._bodies, self._settings.request_bytes, scope, receive)
        request = Request(scope, body.receive)  # one: who authenticates may read the body, too
        try:
            self._check(request, is_upload=False)
            if self._settings.cors and scope["method"] == "OPTIONS":
                return Response(status_code=204), receive
            if not is_public:
                scope["user"] = await self._router.user(request)
            text = await request.body()
            found = await locate(request)
            if not isinstance(found, Response):
                kind, name, rest = found
                found = kind, self._locations.name_now(kind, name, scope, rest), rest
            return found, repeated(text, receive)
        except Refusal as no:
            return no.response, receive
        except BodyRefused as no:
            status: int = no.args[0]
            return PlainTextResponse(TEXT[status], status, None if status == TOO_LARGE else RETRY), receive
        except ClientDisconnect:
            return Response(status_code=400), receive  # no client is left to read it
        except Exception as error:  # noqa: BLE001 - whatever an adapter raised
            status = status_of(error)
            reference = self._log("request", error, scope, "none")
            text_told = (told_of(error) or str(error)) if status < INTERNAL else told(error, reference)
            return PlainTextResponse(text_told, status, headers_of(error)), receive
        finally:
            body.release()

    def has_user(self, scope: Scope) -> bool:
        """Return whether `authenticate` was asked about a request."""
        return self._router.has_asked(scope)

    def trust(self, scope: Scope, user: object) -> None:
        """Take this user for that of a request: another node of the app has asked `authenticate`."""
        self._router.trust(scope, user)

    async def http(self, place: UrlTarget, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request."""
        began = time.monotonic()
        sent: list[int] = []
        trace = trace_of(scope)
        body = RequestBody(self._bodies, self._settings.request_bytes, scope, receive)
        scope[STREAM] = body.stream
        request = Request(scope, body.receive)

        async def noted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                sent.append(message["status"])
                body.release()  # it was read: a stream of answers may last for hours
                if self._settings.cors:
                    message["headers"] = [*message.get("headers", ()), *CORS]
            await send(message)

        try:
            self._check(request, is_upload=is_upload(scope["method"], place.rest))
            if self._settings.cors and scope["method"] == "OPTIONS":
                await Response(status_code=204)(scope, receive, noted)
                return
            name = f"{scope['method']} {place.root.type}"
            who = f"{place.root.type}:{place.name}"
            parent = request.headers.get("traceparent")
            with tracing.span(
                name, parent=parent, is_new=True, http__request__method=scope["method"], sapwood__root=who
            ):
                if (ids := tracing.ids()) is not None:
                    trace = ids[0]
                arrival = await self._router.arrive(place, request, "request")
                with self._count_open(arrival.actor.address, arrival.user):
                    await self._respond(arrival, scope, receive, noted)
        except Refusal as no:
            if not sent:
                await no.response(scope, receive, noted)
        except BodyRefused as no:
            if not sent:
                status: int = no.args[0]
                headers = None if status == TOO_LARGE else RETRY
                await PlainTextResponse(TEXT[status], status, headers)(scope, receive, noted)
        except ClientDisconnect:
            pass  # no client is left to answer
        except Moved:
            raise  # nothing of it was begun: the node that runs it now is asked
        except Exception as error:  # noqa: BLE001 - whatever a hook raised
            await self._failed(error, place, scope, receive, noted, began=bool(sent))
        finally:
            body.release()
            seconds = time.monotonic() - began
            self._metrics.answered(sent[0] if sent else 0, seconds)
            log_request(scope, sent[0] if sent else None, seconds, trace, root=f"{place.root.type}:{place.name}")

    def _check(self, request: HTTPConnection, *, is_upload: bool) -> None:
        """Refuse a request whose headers alone forbid it."""
        if _is_ambiguous(request):
            raise Refusal(PlainTextResponse(TEXT[400], 400, {"connection": "close"}))
        if not is_upload and _length(request) > self._settings.request_bytes:
            raise BodyRefused(TOO_LARGE)
        if (refused := cross_origin_refusal(request, self._settings)) is not None:
            raise Refusal(refused)

    async def _failed(
        self, error: Exception, place: UrlTarget, scope: Scope, receive: Receive, send: Send, *, began: bool
    ) -> None:
        status = status_of(error)
        reference = self._log("request", error, scope, f"{place.root.type}:{place.name}")
        if not began:
            text = (told_of(error) or str(error)) if status < INTERNAL else told(error, reference)
            await PlainTextResponse(text, status, headers_of(error))(scope, receive, send)

    async def _respond(self, arrival: Arrival, scope: Scope, receive: Receive, send: Send) -> None:
        actor = arrival.actor
        request = cast(Request, arrival.request)

        async def leaving(message: MutableMapping[str, Any]) -> None:
            await actor.leave_now()
            await send(message)

        async def work() -> None:
            response: Any = await self._clients(actor).respond(request)
            if not callable(response):
                raise TypeError(f"on_request must return a Response, got a {type(response).__name__}.")
            await cast("Response", response)(request.scope, request.receive, leaving)

        with app_code():
            await self._clients(actor).perform("on_request", work)

    async def websocket(self, place: UrlTarget, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket until either side closes it."""
        first = await receive()
        if first["type"] != "websocket.connect":
            return
        await send({"type": "websocket.accept"})
        # Accepted before anybody is asked: to a refused handshake the clients come back for ever.
        wire = SocketWriter(send, self._settings.outgoing_bytes)
        number = int(NEAR not in scope)  # a relayed socket is counted by the node that holds it
        self._count += number
        began = time.monotonic()
        trace = trace_of(scope)
        who = f"{place.root.type}:{place.name}"
        log_socket(scope, trace, root=who)
        try:
            socket = await self._let_in(place, HTTPConnection(scope), wire)
            if socket is not None:
                await self._hold(socket, wire, scope, receive)
        finally:
            log_socket(scope, trace, root=who, seconds=time.monotonic() - began)
            self._count -= number

    async def go_on(self, kept: OpenSocket, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket that was open already when its agent came to this node."""
        wire = SocketWriter(send, self._settings.outgoing_bytes)
        address = address_of(kept.steps)
        socket = Socket(
            kept.id,
            address,
            named(kept.module, kept.qualname) or resolve(address.type),
            wire,
            path=kept.path,
            query=kept.query,
            headers=Headers(dict(kept.headers)),
            user=None if kept.user is None else value_from(kept.user),
        )
        socket.tags, socket.note, socket.sent = tuple(kept.tags), kept.note, kept.sent
        socket.is_readonly, socket.is_watch_only = kept.is_readonly, kept.is_watch_only
        socket.is_protocol, socket.shown, socket.runs = kept.is_protocol, dict(kept.shown), set(kept.runs)
        number = int(NEAR not in scope)
        self._count += number
        try:
            while (actor := self._node.awake(address)) is not None and (outbox := actor.found(Outbox)) is not None:
                if (waiting := outbox.until_empty()) is None:
                    break
                await asyncio.wait({waiting})  # what was said to all before it came is said to it from what it missed
            if self._followed_at_once(kept, address.root) and self._node.sockets.come(socket):
                await self._hold(socket, wire, scope, receive, kept.taken)
            else:
                socket.close(RESTARTING, "The agent restarts")
        finally:
            self._count -= number

    def _followed_at_once(self, kept: OpenSocket, root: Address) -> bool:
        """Return whether no other node ran the tree between the one that a socket comes from and this one."""
        far = self._node.far
        # One that released it, and one that took it.
        return far is None or not kept.epoch or far.epoch_of(root) <= kept.epoch + 2

    async def _let_in(self, place: UrlTarget, request: HTTPConnection, wire: SocketWriter) -> Socket | None:
        """Return the socket of a client; None if it was refused, and told so."""
        arriving = self._node.sockets.arriving
        try:
            if self._count > self._settings.connections:
                raise refusal(429)
            if (refused := cross_origin_refusal(request, self._settings)) is not None:
                raise Refusal(refused)
            arrival = await self._router.arrive(place, request, "connect", lambda user: arriving.update({wire: user}))
            if wire.gone.done():
                return None  # the user was disconnected since
            socket = self._socket(arrival, wire)
            arriving[socket] = socket.user
            return socket
        except Refusal as no:
            status = no.response.status_code
            wire.close(close_code(status), f"{no.what} rejected ({status})")
        except Moved:
            await tell_moved(wire)
        except Exception as error:  # noqa: BLE001 - whatever a hook raised
            reference = self._log("connection", error, request.scope, f"{place.root.type}:{place.name}")
            wire.close(*closing(error, reference))
        finally:
            arriving.pop(wire, None)
        return None

    async def _hold(self, socket: Socket, wire: SocketWriter, scope: Scope, receive: Receive, taken: int = 0) -> None:
        with self._count_open(socket.address, socket.user, is_checked=False):
            try:
                async with asyncio.timeout(None) as patience:
                    wire.gone.add_done_callback(lambda _: self._end_soon(patience))
                    await self._conversations.hold(socket, wire, scope, receive, taken)
            except TimeoutError:
                pass

    def _check_open(self, address: Address, user: object) -> None:
        """Refuse one more socket or request of an agent or a user that has too many."""
        settings = self._settings
        if self._open[address] >= settings.connections_per_agent or (
            user is not None and self._open["user", user_key(user)] >= settings.connections_per_user
        ):
            raise Refusal(PlainTextResponse(TEXT[429], 429, RETRY))

    @contextlib.contextmanager
    def _count_open(self, address: Address, user: object, *, is_checked: bool = True) -> Generator[None, None, None]:
        """Count a socket or a request that is under way."""
        if is_checked:
            self._check_open(address, user)
        counted = (address, ("user", user_key(user)))
        self._open.update(counted)
        try:
            yield
        finally:
            for one in counted:
                self._open[one] -= 1
                if not self._open[one]:
                    del self._open[one]

    def _end_soon(self, patience: asyncio.Timeout) -> None:
        # A client that does not read does not take our close either.
        with contextlib.suppress(RuntimeError):  # it has ended already
            patience.reschedule(self._node.loop.time() + self._node.timings.socket_close_timeout)

    def _log(self, what: str, error: BaseException, scope: Scope, root: str) -> str | None:
        """Log an error that is no client's fault; return its reference if it is internal."""
        failures, url = self._node.failures, shown_path(scope)
        if isinstance(error, Unavailable):  # about no tree: all clients come again while a cluster cannot answer
            text = "%s to %s unavailable, client should retry: %s"
            failures.report(log, logging.WARNING, text, what, url, error, error=error)
        elif status_of(error) >= INTERNAL:
            text = "%s to %s failed agent=%s error=%s"
            return failures.report(
                log,
                logging.ERROR,
                text,
                what,
                url,
                root,
                describe(error),
                error=error,
                about=(what, root),
                traceback=unlogged(error),
                with_reference=True,
                root=root,
            )
        return None

    def _socket(self, arrival: Arrival, wire: SocketWriter) -> Socket:
        address = arrival.actor.address
        self._check_open(address, arrival.user)
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


def trace_of(scope: Scope) -> str:
    """Return the trace a request belongs to: the one its sender named (W3C `traceparent`), or a new one."""
    for name, value in scope.get("headers", ()):
        if name == b"traceparent":
            parts = value.decode("latin-1").split("-")
            if len(parts) >= 4 and len(parts[1]) == 32 and parts[1].isalnum():
                return parts[1]
    return uuid4().hex


def _is_ambiguous(request: HTTPConnection) -> bool:
    """Return whether a proxy may have seen another end of this request than we do, and another request behind it."""
    return "transfer-encoding" in request.headers and "content-length" in request.headers


def _length(request: HTTPConnection) -> int:
    """Return how long a body is said to be."""
    said = request.headers.get("content-length", "")
    return int(said) if said.isdecimal() and len(said) < 20 else 0
