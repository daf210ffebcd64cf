"""The gates between an agent and those below it, as one client would pass them on its way down by URL.

What an agent shows of those below it, and what it hands down to them, goes to clients that could go there themselves.
A class that does not override a hook has nothing to say, so its agents are not asked, nor woken.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import quote

from sapwood.address import Address, PathSegment, kebab
from sapwood.errors import NotFound, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.sockets import Socket
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.marshal.call import current
from sapwood.kernel.marshal.exceptions import describe, mistake
from sapwood.kernel.trees.tree import tree_of
from sapwood.web.request_path import with_path

log = logging.getLogger(__name__)

Path = tuple[PathSegment, ...]


class Shut(Exception):
    """A gate does not let a client through."""

    def __init__(self, response: Any) -> None:
        super().__init__("A gate refused this client.")
        self.response = response
        """The answer of the gate; `None` if there is nothing behind it."""


class Gates:
    """The gates below one agent, for one client."""

    def __init__(
        self, actor: Actor, request: Any, action: Literal["request", "connect"], rest: str, *, wakes: bool = True
    ) -> None:
        tree = tree_of(actor)
        self._actor, self._tree = actor, tree
        self._request = request
        self._hooks = (f"on_before_{action}", *(("on_before_watch",) if action == "request" else ()))
        self._rest = rest
        self._wakes = wakes

    async def admits(self, path: Path) -> bool:
        """Return whether the client may go to the agent at the end of a path."""
        try:
            await self.pass_to(path)
        except Shut:
            return False
        return True

    async def pass_to(self, path: Path) -> bool:
        """Ask every gate on the way. Returns `False` if one of them sleeps and was not asked; raises `Shut`."""
        request, is_sure, steps = self._request, True, self._actor.address.segments
        for depth, step in enumerate(path):
            at, rest = Address((*steps, *path[:depth])), _url(path[depth:]) + self._rest
            request, was_asked = await self._ask(at, "on_before_sub_agent", request, rest, step)
            is_sure = is_sure and was_asked
        for hook in self._hooks if path else ():
            request, was_asked = await self._ask(Address((*steps, *path)), hook, request, self._rest)
            is_sure = is_sure and was_asked
        return is_sure

    async def _ask(self, address: Address, hook: str, request: Any, rest: str, *more: object) -> tuple[Any, bool]:
        """Ask a hook of the agent at an address; return the request for the next gate, and whether it was asked.

        `rest` is what that agent sees of the path.
        """
        from starlette.responses import Response

        try:
            kind = self._kind(address)
        except UsageError:
            raise Shut(None) from None  # there is no such class
        if not kind.overrides(hook):
            return request, True
        actor = self._tree.actors.get(address)
        if actor is None or not actor.ready:
            if not self._wakes:
                return request, False
            try:
                actor = await self._tree.reach(address, None, current.get())
            except NotFound:
                actor = None
            if actor is None:
                raise Shut(None)
        given = with_path(request, rest)
        _, reply = actor.handle(hook, getattr(actor.agent, hook), given, *more)
        try:
            answer = await reply
        except Exception as error:  # noqa: BLE001 - a hook of the user's
            report_failed_hook(address, hook, error)
            raise Shut(Response(status_code=403)) from None
        if isinstance(answer, Response):
            raise Shut(answer)
        if answer is None:
            return request, True
        if answer.scope["path"] != given.scope["path"]:
            raise Shut(Response(status_code=403))  # it leads its clients to another agent
        return answer, True

    def _kind(self, address: Address) -> AgentClass:
        above = address.parent
        parent = self._tree.actors.get(above) if above is not None else None
        return self._tree.kind_of(address.type, None if parent is None else parent.kind)


def report_failed_hook(address: Address, hook: str, error: Exception) -> None:
    """Log an exception of a hook that decides about a client: it refuses that client."""
    log.error(
        "hook failed, client refused hook=%s address=%s: %s", hook, address, describe(error), exc_info=mistake(error)
    )


async def refused_to_watch(actor: Actor, request: Any) -> Any:
    """Return the response with which an agent refuses a client that wants to read what the framework shows of it."""
    from starlette.responses import Response

    if not actor.kind.overrides("on_before_watch"):
        return None
    answer = await actor.agent.on_before_watch(request)
    return answer if isinstance(answer, Response) else None


def request_of(socket: Socket) -> Any:
    """Return the request that a socket was opened with, as gates see it."""
    from starlette.requests import HTTPConnection

    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in socket.headers.items()]
    where = {"path": socket.path, "raw_path": quote(socket.path).encode(), "root_path": ""}
    came_with = {"query_string": socket.query.encode("latin-1"), "headers": headers, "user": socket.user}
    return HTTPConnection({"type": "websocket", **where, **came_with})


def _url(path: Sequence[PathSegment]) -> str:
    return "".join(f"/sub/{quote(kebab(step.type))}/{quote(step.name, safe='')}" for step in path)
