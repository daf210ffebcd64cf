"""The way from a URL down to its agent: authenticates the client, and asks every agent on the path."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response

from sapwood.address import Address, PathSegment, kebab
from sapwood.errors import InvalidName, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import AgentClass, all_classes, resolve
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.placement import NotBegun
from sapwood.web.access_log import client_of
from sapwood.web.asgi_types import Scope
from sapwood.web.auth import ApiKeys, JwtAuth
from sapwood.web.rate_limit import MinuteLimit
from sapwood.web.request_path import with_path
from sapwood.web.sender import sender_key
from sapwood.web.socket_sessions import Clients
from sapwood.web.target import Refusal, UrlTarget, refusal
from sapwood.wire import routing

log = logging.getLogger(__name__)

BELOW = "Sub-agent connection"
AUTHENTICATED = "sapwood.authenticated"
"""In the scope of a request: the user that `authenticate` has found, and the router that has asked it."""


@dataclass(slots=True)
class Arrival:
    """A client that got as far as its agent."""

    actor: Actor
    request: HTTPConnection
    path: str
    user: object


class AgentRouter:
    """Leads the clients of one node to their agents."""

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
        self._new_roots = MinuteLimit(self._settings.new_roots_per_minute, node.loop.time)

    async def arrive(
        self, place: UrlTarget, request: HTTPConnection, action: str, known: Callable[[object], None] | None = None
    ) -> Arrival:
        """Go down to the agent, and ask every agent on the way. `known` is called with the user as soon as possible."""
        user = await self.user(request)
        request.scope["user"] = user
        if known is not None:
            known(user)
        try:
            address = Address.root_of(place.root.type, place.name)
        except InvalidName:
            raise refusal(400) from None
        if self._authorize is not None and not await _maybe(self._authorize(user, address, action)):
            log.info("authorize refused a client address=%s action=%s", address, action)
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
        request = await self._ask(actor, f"on_before_{action}", before, request)
        actor = await self._node.reach(actor.address, actor.kind, None)  # it too may have gone to sleep since
        return Arrival(actor, request, request.scope["path"], user)

    async def _exists(self, kind: AgentClass, root: Address) -> bool:
        """Return whether a root has data or is in memory, also by a former name of its class."""
        for type in (root.segments[0].type, *kind.aliases):
            if await self._node.loader.exists(Address.root_of(type, root.segments[0].name)):
                return True
        return False

    def _count_new(self, user: object, request: HTTPConnection) -> None:
        """Count an agent that a URL makes; refuse it if the user or the remote address has made too many."""
        key = sender_key(user, request.scope)
        if key is not None and (seconds := self._new_roots.take(key)):
            text = (
                f"Too many new agents: the limit new_roots_per_minute={self._settings.new_roots_per_minute} is reached."
            )
            raise Refusal(PlainTextResponse(f"{text} Retry in {seconds} s.", 429, {"retry-after": str(seconds)}))

    async def _refuse_unknown(self, parent: Actor, request: HTTPConnection, path: str) -> None:
        """Refuse a socket to a child of an unknown class; its parent may decide how. A request is the parent's own."""
        if (hop := routing.parse_hop(path, lambda _: True)) is not None:
            hook, step = parent.agent.on_before_sub_agent, PathSegment(hop.segment, hop.name)
            await self._ask(parent, "on_before_sub_agent", hook, request, step)
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
        answer = await self._ask(parent, "on_before_sub_agent", parent.agent.on_before_sub_agent, given, step)
        path = hop.rest
        if answer.scope["path"] != given.scope["path"]:
            path = routing.encoded(answer.scope["path"])
        address = parent.address.child(kind.type, hop.name)
        # It may have gone to sleep after it was asked; using it then would open its file a second time.
        parent = await self._node.reach(parent.address, parent.kind, None)
        if not parent.registry.has(kind.type_ids, hop.name):
            if not getattr(kind.cls, "create_from_url", False):
                raise refusal(404, f"{kind.type} {hop.name!r} not found")
            self._count_new(request.scope.get("user"), request)
            await self._clients(parent).perform("sub_agent", parent.agent.sub_agent, kind.cls, hop.name)
        return await self._node.reach(address, kind, None), answer, path

    def _child_class(self, parent: Actor, hop: routing.Hop, found: list[AgentClass]) -> AgentClass | None:
        """Return the class a segment means here: of several, the one whose child it is; `None` if that is unknown."""
        told = self._node.trees[parent.address.root].kinds
        for kind in found:
            if parent.registry.has(kind.type_ids, hop.name):
                return told.get(kind.type) or resolve(kind.type)
        if len(found) > 1:
            found = [kind for kind in found if told.get(kind.type) is kind]
        return found[0] if len(found) == 1 else None

    async def _ask(
        self, actor: Actor, name: str, hook: Callable[..., Any], request: HTTPConnection, *more: object
    ) -> HTTPConnection:
        """Ask a hook: it lets the request through, answers it, or puts another in its place."""
        with app_code():
            answer = await self._clients(actor).perform(name, hook, request, *more)
        if answer is None:
            return request
        if isinstance(answer, Response):
            raise Refusal(answer)
        if isinstance(answer, HTTPConnection):
            return cast("HTTPConnection[Any]", answer)
        raise TypeError(f"{name} must return None, a Response or a request, got a {type(answer).__name__}.")

    async def user(self, request: HTTPConnection) -> object:
        """Return the user that `authenticate` finds, or refuse the client if it finds none. It is asked once."""
        if self._authenticate is None:
            return request.scope.get("user")  # the app it is mounted in may know
        if self.has_asked(request.scope):
            return request.scope[AUTHENTICATED][1]
        user = await _maybe(self._authenticate(request))
        if user is None:
            if not isinstance(self._authenticate, JwtAuth | ApiKeys):  # they have logged why
                log.debug("authentication failed client=%s: authenticate returned None", client_of(request.scope))
            raise refusal(401)
        self.trust(request.scope, user)
        return user

    def has_asked(self, scope: Scope) -> bool:
        """Return whether the user of a request is known. Another app in this process knows others."""
        return AUTHENTICATED in scope and scope[AUTHENTICATED][0] is self

    def trust(self, scope: Scope, user: object) -> None:
        """Take this user for that of a request: `authenticate` has found it, here or at another node of the app."""
        scope[AUTHENTICATED] = (self, user)


@contextlib.contextmanager
def app_code() -> Generator[None, None, None]:
    """Run what the app wrote: it has begun then, also if something that it asked for has not, and is asked once."""
    try:
        yield
    except NotBegun as error:
        raise Unavailable(str(error)) from error


def segments_of(kind: AgentClass) -> tuple[str, ...]:
    return _kebabs(*kind.type_ids)


@functools.lru_cache(maxsize=4096)
def _kebabs(*types: str) -> tuple[str, ...]:
    return tuple(kebab(type_) for type_ in types)


def _classes() -> dict[str, list[AgentClass]]:
    """Return the classes each segment may mean. Made once per request: a path may ask a thousand times."""
    found: dict[str, list[AgentClass]] = {}
    for kind in all_classes():
        for segment in set(segments_of(kind)):
            found.setdefault(segment, []).append(kind)
            found.setdefault(quote(segment), found[segment])
    return found


def _names_nobody(path: str) -> bool:
    """Return whether a path asks for a child of an unknown class."""
    segments = path.split("/")
    return any(segment == routing.SUB for segment in segments[:-2])


async def _maybe(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
