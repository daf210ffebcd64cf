"""Finds the root for a request by its user and body, and repeats the body for that root."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from sapwood.web.asgi_types import Receive

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from sapwood.kernel.marshal.agent_class import AgentClass

Target = tuple["AgentClass", str, str]
"""A root: its class, its name, and the path that it receives."""
Locate = Callable[["Request"], Awaitable["Target | Response"]]


def repeated(body: bytes, receive: Receive) -> Receive:
    """Return a function that receives a body that was read, and then whatever follows."""
    is_first = True

    async def receive_again() -> MutableMapping[str, Any]:
        nonlocal is_first
        if is_first:
            is_first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return receive_again
