"""The ASGI application over one node: finds the agent a URL names, asks every agent on the path, and hands over."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, MutableMapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qs, quote, unquote
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response

from sapwood import tracing
from sapwood.address import Address, PathSegment, kebab
from sapwood.errors import InvalidName, Unavailable
from sapwood.escapes import escape_controls
from sapwood.kernel.actor import Actor
from sapwood.kernel.classes import AgentClass, all_classes, named, resolve
from sapwood.kernel.disclosure import new_reference, told_of
from sapwood.kernel.far import Far
from sapwood.kernel.node import Node
from sapwood.kernel.outbox import Outbox
from sapwood.kernel.parcels import address_of, value_from
from sapwood.kernel.ports import Moved, NotBegun
from sapwood.kernel.sockets import RESTARTING, Socket
from sapwood.web.asgi import Receive, Scope, Send
from sapwood.web.carrying import NEAR, Kept, all_figures
from sapwood.web.connection_limits import address_key, is_loopback_address
from sapwood.web.conversing import Clients, Conversations, tell_moved
from sapwood.web.errors import INTERNAL, TEXT, close_code, status_of, told
from sapwood.web.metrics import Metrics, answer_figures, merged
from sapwood.web.origins import cross_origin_refusal
from sapwood.web.pages import Pages, with_page_rules
from sapwood.web.rate_limit import MinuteLimit
from sapwood.web.request_path import with_path
from sapwood.web.wire import Wire
from sapwood.wire import routing

log = logging.getLogger(__name__)
access = logging.getLogger("sapwood.access")

TELL_AGAIN = 5.0
"""Seconds between two lines in the log that clients have to come again."""
BODIES_OF_ONE, BODIES_OF_ALL = 4, 16
"""Bodies of the full size that the requests under way of one sender, and of all, may have together."""
ALL = "all"
TOO_LARGE = 413
RETRY = {"retry-after": "1"}
BELOW = "Sub-agent connection"


class Refusal(Exception):
    """An agent on the path refuses the client."""

    def __init__(self, response: Response, what: str = "Connection") -> None:
        super().__init__(response.status_code)
        self.response = response
        self.what = what
        """What was refused, in the words of a close frame."""


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
        pages: str | None = None,
    ) -> None:
        self._node = node
        self._clients = clients
        self._conversations = Conversations(node, clients, self._log)
        self._settings = node.settings
        self._metrics = Metrics(node)
        self._authenticate = authenticate
        self._authorize = authorize
        self._pages = Pages(pages, node.settings.frame_ancestors) if pages is not None else None
        self._open: Counter[object] = Counter()
        """How many sockets and requests under way each agent and each user has."""
        self._bodies: Counter[Hashable] = Counter()
        """Bytes of the bodies of requests under way: of each user or remote address, and of all."""
        self._count = 0
        self._sent_away = 0
        """Clients that had to come again since it was last told."""
        self._tell_again = 0.0
        self._new_roots = MinuteLimit(self._settings.new_roots_per_minute, node.loop.time)

    def find(self, scope: Scope) -> Place | None:
        """Return where a path leads; None if it is not ours. Raises `Refusal` if it is ours and leads nowhere."""
        root_path = str(scope.get("root_path", ""))
        path = routing.relative(raw_path(scope), root_path)
        found = routing.parse_root(path, self._settings.prefix)
        if found is None and root_path:
            found = routing.parse_root(path, "")  # the mount point is the prefix
        if found is None:
            return None
        segment = unquote(found.segment)
        kind = next((root for root in self._node.roots if segment in _segments(root)), None)
        if kind is None:
            raise refusal(400, "Invalid request")
        return Place(kind, found.name, found.rest)

    def away(self, place: Place) -> tuple[Far, Address] | None:
        """Return the way to a root that another node runs, or `None` if this node runs it or it cannot exist."""
        far = self._node.far
        if far is None:
            return None
        try:
            address = Address.root_of(place.root.type, place.name)
        except InvalidName:
            return None
        return None if far.directory.is_here(address) else (far, address)

    def moving(self, place: Place) -> tuple[Far, Address] | None:
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
            return True  # whoever serves it says so

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

    def place(self, type: str, name: str, rest: str) -> Place:
        """Return the place that another node found a URL to lead to."""
        return Place(resolve(type, self._node.roots), name, rest)

    def figures(self) -> bytes:
        """Return the figures of this node; nothing if nothing is counted."""
        return self._metrics.figures()

    async def about(self, scope: Scope) -> Response | None:
        """Answer what a load balancer or a monitoring system asks; None if it is something else."""
        path = routing.relative(raw_path(scope), str(scope.get("root_path", "")))
        if path == "/healthz":
            return PlainTextResponse("ok")
        if path == "/readyz":
            why = self._node.unready
            return PlainTextResponse("ready") if why is None else PlainTextResponse(f"not ready: {why}", 503, RETRY)
        if path == "/metrics":
            await self._user(HTTPConnection(scope))  # how much there is of everything is not for everybody
            own, far = self.figures(), self._node.far
            return answer_figures(own if far is None else merged(await all_figures(far, own)))
        return None

    async def page(self, scope: Scope) -> Response | None:
        """Answer with a file of the app's pages; None if it has none, or another app around it has the paths."""
        if self._pages is None or scope.get("root_path"):
            return None
        return await self._pages.answer(scope)

    async def http(self, place: Place, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request."""
        began = time.monotonic()
        sent: list[int] = []
        trace = trace_of(scope)
        body = Body(self._bodies, self._settings.request_bytes, scope, receive)
        request = Request(scope, body.receive)

        async def noted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                sent.append(message["status"])
                body.release()  # it was read: a stream of answers may last for hours
                message["headers"] = with_page_rules(message.get("headers", ()), self._settings.frame_ancestors)
                if self._settings.cors:
                    message["headers"] += CORS
            await send(message)

        try:
            self._check(request)
            if self._settings.cors and scope["method"] == "OPTIONS":
                await Response(status_code=204)(scope, receive, noted)
                return
            name = f"{scope['method']} {place.root.type}"
            who = f"{place.root.type}:{place.name}"
            parent = request.headers.get("traceparent")
            with tracing.span(
                name, parent=parent, is_new=True, http__request__method=scope["method"], sapwood__root=who
            ):
                arrival = await self._arrive(place, request, "request")
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
            pass  # nobody is left to be told
        except Moved:
            raise  # nothing of it was begun: whoever runs it now is asked
        except Exception as error:  # noqa: BLE001 - whatever a hook raised
            await self._failed(error, scope, receive, noted, began=bool(sent))
        finally:
            body.release()
            seconds = time.monotonic() - began
            self._metrics.answered(sent[0] if sent else 0, seconds)
            access.info(
                "%s %s %s %.1f ms trace %s",
                scope["method"],
                _shown(scope),
                sent[0] if sent else "-",
                seconds * 1e3,
                trace,
                extra={"address": f"{place.root.type}:{place.name}", "trace": trace},
            )

    def _check(self, request: HTTPConnection) -> None:
        """Refuse a request whose headers alone forbid it."""
        if _is_ambiguous(request):
            raise Refusal(PlainTextResponse(TEXT[400], 400, {"connection": "close"}))
        if _length(request) > self._settings.request_bytes:
            raise BodyRefused(TOO_LARGE)
        if (refused := cross_origin_refusal(request, self._settings)) is not None:
            raise Refusal(refused)

    async def _failed(self, error: Exception, scope: Scope, receive: Receive, send: Send, *, began: bool) -> None:
        status, reference = status_of(error), self._log("request", error, scope)
        if not began:
            text = (told_of(error) or str(error)) if status < INTERNAL else told(status, reference)
            await PlainTextResponse(text, status, RETRY if status == 503 else None)(scope, receive, send)

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

        with _begun():
            await self._clients(actor).perform("on_request", work)

    async def _arrive(
        self, place: Place, request: HTTPConnection, action: str, known: Callable[[object], None] | None = None
    ) -> Arrival:
        """Go down to the agent, asking everybody on the way; `known` is told who it is as soon as that is clear."""
        user = await self._user(request)
        request.scope["user"] = user
        if known is not None:
            known(user)
        try:
            address = Address.root_of(place.root.type, place.name)
        except InvalidName:
            raise refusal(400) from None
        if self._authorize is not None and not await _maybe(self._authorize(user, address, action)):
            raise refusal(403)
        if not await self._exists(place.root, address):
            self._count_new(user, request)
        actor = await self._node.reach(address, place.root, None)
        path = place.rest
        classes = _classes() if routing.SUB in path else {}
        try:
            while (hop := routing.parse_hop(path, classes.__contains__)) is not None:
                kind = self._child_class(actor, hop, classes[hop.segment])
                actor, request, path = await self._descend(actor, request, path, hop, kind)
            if action == "connect" and _names_nobody(path):
                await self._refuse_unknown(actor, with_path(request, path), path)
        except Refusal as no:
            raise Refusal(no.response, BELOW) from None
        request = with_path(request, path)
        before = actor.agent.on_before_connect if action == "connect" else actor.agent.on_before_request
        request = await self._asked(actor, f"on_before_{action}", before, request)
        actor = await self._node.reach(actor.address, actor.kind, None)  # it too may have gone to sleep meanwhile
        return Arrival(actor, request, request.scope["path"], user)

    async def _exists(self, kind: AgentClass, root: Address) -> bool:
        """Return whether a root has data or is in memory, also by a former name of its class."""
        for type in (root.segments[0].type, *kind.aliases):
            if await self._node.exists(Address.root_of(type, root.segments[0].name)):
                return True
        return False

    def _count_new(self, user: object, request: HTTPConnection) -> None:
        """Count an agent that a URL makes; refuse it if the user or the remote address has made too many."""
        key = _sender(user, request.scope)
        if key is not None and (seconds := self._new_roots.take(key)):
            text = (
                f"Too many new agents: the limit new_roots_per_minute={self._settings.new_roots_per_minute} is reached."
            )
            raise Refusal(PlainTextResponse(f"{text} Retry in {seconds} s.", 429, {"retry-after": str(seconds)}))

    async def _refuse_unknown(self, parent: Actor, request: HTTPConnection, path: str) -> None:
        """Refuse a socket to a child of a class nobody knows; its parent may say how. A request is the parent's own."""
        if (hop := routing.parse_hop(path, lambda _: True)) is not None:
            hook, step = parent.agent.on_before_sub_agent, PathSegment(hop.segment, hop.name)
            await self._asked(parent, "on_before_sub_agent", hook, request, step)
        raise refusal(404)

    async def _descend(
        self, parent: Actor, request: HTTPConnection, path: str, hop: routing.Hop, kind: AgentClass | None
    ) -> tuple[Actor, HTTPConnection, str]:
        if "\0" in hop.name:
            raise refusal(400)
        if kind is None:
            raise refusal(404)
        step = PathSegment(kind.type, hop.name)
        given = with_path(request, path)
        answer = await self._asked(parent, "on_before_sub_agent", parent.agent.on_before_sub_agent, given, step)
        path = hop.rest
        if answer.scope["path"] != given.scope["path"]:
            path = routing.encoded(answer.scope["path"])
        address = parent.address.child(kind.type, hop.name)
        # It may have gone to sleep after it was asked; whoever used it then would open its file a second time.
        parent = await self._node.reach(parent.address, parent.kind, None)
        if not parent.registry.has(kind.type_ids, hop.name):
            if not getattr(kind.cls, "create_from_url", False):
                raise refusal(404, f"{kind.type} {hop.name!r} not found")
            self._count_new(request.scope.get("user"), request)
            await self._clients(parent).perform("sub_agent", parent.agent.sub_agent, kind.cls, hop.name)
        return await self._node.reach(address, kind, None), answer, path

    def _child_class(self, parent: Actor, hop: routing.Hop, found: list[AgentClass]) -> AgentClass | None:
        """Return the class a segment means here: of several, the one whose child it is; None if nobody can tell."""
        told = self._node.trees[parent.address.root].kinds
        for kind in found:
            if parent.registry.has(kind.type_ids, hop.name):
                return told.get(kind.type) or resolve(kind.type)
        if len(found) > 1:
            found = [kind for kind in found if told.get(kind.type) is kind]
        return found[0] if len(found) == 1 else None

    async def _asked(
        self, actor: Actor, name: str, hook: Callable[..., Any], request: HTTPConnection, *more: object
    ) -> HTTPConnection:
        """Ask a hook: it lets the request through, answers it, or puts another in its place."""
        with _begun():
            answer = await self._clients(actor).perform(name, hook, request, *more)
        if answer is None:
            return request
        if isinstance(answer, Response):
            raise Refusal(answer)
        if isinstance(answer, HTTPConnection):
            return cast("HTTPConnection[Any]", answer)
        raise TypeError(f"{name} must return None, a Response or a request, got a {type(answer).__name__}.")

    async def _user(self, request: HTTPConnection) -> object:
        if self._authenticate is None:
            return request.scope.get("user")  # the app it is mounted in may know
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
        number = int(NEAR not in scope)  # it is counted by whoever holds it
        self._count += number
        began = time.monotonic()
        trace = trace_of(scope)
        about = {"address": f"{place.root.type}:{place.name}", "trace": trace}
        access.info("SOCKET %s opened trace %s", _shown(scope), trace, extra=about)
        try:
            socket = await self._let_in(place, HTTPConnection(scope), wire)
            if socket is not None:
                await self._hold(socket, wire, receive)
        finally:
            lasted = time.monotonic() - began
            access.info("SOCKET %s closed after %.1f s trace %s", _shown(scope), lasted, trace, extra=about)
            self._count -= number

    async def go_on(self, kept: Kept, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket that was open already when its agent came to this node."""
        wire = Wire(send, self._settings.outgoing_bytes)
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
                await self._hold(socket, wire, receive, kept.taken)
            else:
                socket.close(RESTARTING, "The agent restarts")
        finally:
            self._count -= number

    def _followed_at_once(self, kept: Kept, root: Address) -> bool:
        """Return whether nobody ran the tree between whoever a socket comes from and this node."""
        far = self._node.far
        # One that released it, and one that took it.
        return far is None or not kept.epoch or far.epoch_of(root) <= kept.epoch + 2

    async def _let_in(self, place: Place, request: HTTPConnection, wire: Wire) -> Socket | None:
        """Return the socket of a client; None if it was refused, and told so."""
        arriving = self._node.sockets.arriving
        try:
            if self._count > self._settings.connections:
                raise refusal(429)
            if (refused := cross_origin_refusal(request, self._settings)) is not None:
                raise Refusal(refused)
            arrival = await self._arrive(place, request, "connect", lambda user: arriving.update({wire: user}))
            if wire.gone.done():
                return None  # the user was shown out meanwhile
            socket = self._socket(arrival, wire)
            arriving[socket] = socket.user
            return socket
        except Refusal as no:
            status = no.response.status_code
            wire.close(close_code(status), f"{no.what} rejected ({status})")
        except Moved:
            await tell_moved(wire)
        except Exception as error:  # noqa: BLE001 - whatever a hook raised
            status, reference = status_of(error), self._log("connection", error, request.scope)
            wire.close(close_code(status), told(status, reference))
        finally:
            arriving.pop(wire, None)
        return None

    async def _hold(self, socket: Socket, wire: Wire, receive: Receive, taken: int = 0) -> None:
        with self._count_open(socket.address, socket.user, is_checked=False):
            try:
                async with asyncio.timeout(None) as patience:
                    wire.gone.add_done_callback(lambda _: self._end_soon(patience))
                    await self._conversations.hold(socket, wire, receive, taken)
            except TimeoutError:
                pass

    def _check_open(self, address: Address, user: object) -> None:
        """Refuse one more socket or request of an agent or a user that has too many."""
        settings = self._settings
        if self._open[address] >= settings.connections_per_agent or (
            user is not None and self._open["user", _key(user)] >= settings.connections_per_user
        ):
            raise Refusal(PlainTextResponse(TEXT[429], 429, RETRY))

    @contextlib.contextmanager
    def _count_open(self, address: Address, user: object, *, is_checked: bool = True) -> Generator[None, None, None]:
        """Count a socket or a request that is under way."""
        if is_checked:
            self._check_open(address, user)
        counted = (address, ("user", _key(user)))
        self._open.update(counted)
        try:
            yield
        finally:
            for one in counted:
                self._open[one] -= 1
                if not self._open[one]:
                    del self._open[one]

    def _end_soon(self, patience: asyncio.Timeout) -> None:
        # Whoever does not read does not take our close either.
        with contextlib.suppress(RuntimeError):  # it has ended already
            patience.reschedule(self._node.loop.time() + self._node.timings.socket_close_timeout)

    def _log(self, what: str, error: BaseException, scope: Scope) -> str | None:
        """Log an error that is no client's fault; return its reference if it is internal."""
        if isinstance(error, Unavailable):  # nobody's mistake: it stops, or somebody it needs is not there
            now = time.monotonic()
            self._sent_away += 1
            if now >= self._tell_again:  # all clients come again and again while a cluster cannot answer
                more = f" ({self._sent_away - 1} more suppressed)" if self._sent_away > 1 else ""
                log.warning("%s to %s unavailable, client should retry%s: %s", what, _shown(scope), more, error)
                self._tell_again, self._sent_away = now + TELL_AGAIN, 0
        elif status_of(error) >= 500:
            reference = new_reference()
            extra = {"reference": reference}
            log.error("%s to %s failed reference=%s", what, _shown(scope), reference, exc_info=error, extra=extra)
            return reference
        return None

    def _socket(self, arrival: Arrival, wire: Wire) -> Socket:
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


class Body:
    """The body of one request, as it is read: it counts for its sender and for all until the response begins."""

    def __init__(self, held: Counter[Hashable], limit: int, scope: Scope, receive: Receive) -> None:
        self._held = held
        self._limit = limit
        self._scope = scope
        self._receive = receive
        self._bytes: Counter[Hashable] = Counter()

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the next message; raise if the body is too long, or those of its sender or of all together are."""
        message = await self._receive()
        if size := len(message.get("body", b"")):
            sender = _sender(self._scope.get("user"), self._scope)
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

    def release(self) -> None:
        """Count it no more."""
        self._held.subtract(self._bytes)
        for key in self._bytes:
            if not self._held[key]:
                del self._held[key]
        self._bytes.clear()


class BodyRefused(Exception):
    """The body of a request is not read any further; its argument is the status."""


CORS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, POST, HEAD, OPTIONS"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-max-age", b"86400"),
)


def _segments(kind: AgentClass) -> tuple[str, ...]:
    return _kebabs(*kind.type_ids)


@functools.lru_cache(maxsize=4096)
def _kebabs(*types: str) -> tuple[str, ...]:
    return tuple(kebab(type_) for type_ in types)


def _classes() -> dict[str, list[AgentClass]]:
    """Return the classes each segment may mean. Made once per request: a path may ask a thousand times."""
    found: dict[str, list[AgentClass]] = {}
    for kind in all_classes():
        for segment in set(_segments(kind)):
            found.setdefault(segment, []).append(kind)
            found.setdefault(quote(segment), found[segment])
    return found


def _names_nobody(path: str) -> bool:
    """Return whether a path asks for a child of a class nobody knows."""
    segments = path.split("/")
    return any(segment == routing.SUB for segment in segments[:-2])


def trace_of(scope: Scope) -> str:
    """Return the trace a request belongs to: the one its sender named (W3C `traceparent`), or a new one."""
    for name, value in scope.get("headers", ()):
        if name == b"traceparent":
            parts = value.decode("latin-1").split("-")
            if len(parts) >= 4 and len(parts[1]) == 32 and parts[1].isalnum():
                return parts[1]
    return uuid4().hex


def raw_path(scope: Scope) -> str:
    """Return a path as it stands in the URL."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if raw else quote(scope["path"], errors="replace")


@contextlib.contextmanager
def _begun() -> Generator[None, None, None]:
    """Run what the app wrote: it has begun then, also if something that it asked for has not, and is asked once."""
    try:
        yield
    except NotBegun as error:
        raise Unavailable(str(error)) from error


def _is_ambiguous(request: HTTPConnection) -> bool:
    """Return whether a proxy may have seen another end of this request than we do, and another request behind it."""
    return "transfer-encoding" in request.headers and "content-length" in request.headers


def _length(request: HTTPConnection) -> int:
    """Return how long a body is said to be."""
    said = request.headers.get("content-length", "")
    return int(said) if said.isdecimal() and len(said) < 20 else 0


def _shown(scope: Scope) -> str:
    """Return a path for a line of a log, which it cannot break."""
    return escape_controls(raw_path(scope))


def _sender(user: object, scope: Scope) -> Hashable:
    """Return what a user, or else a remote address, is counted under; `None` for this machine."""
    if user is not None:
        return ("user", _key(user))
    host = scope["client"][0] if scope.get("client") else ""
    # This machine may be a proxy that does not say for whom it asks.
    return None if not host or is_loopback_address(host) else address_key(host)


def _key(user: object) -> Hashable:
    """Return what a user is counted under."""
    try:
        hash(user)
    except TypeError:
        return repr(user)
    return user


async def _maybe(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
