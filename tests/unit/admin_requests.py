"""Asks the endpoints of the admin API of a world, without HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from sapwood.admin.access import FULL, Access, Scope
from sapwood.admin.admin import Admin
from sapwood.admin.endpoint import AdminCall, Event
from sapwood.admin.endpoints import ENDPOINTS
from sapwood.testing import World

LOOK = Access("ann", frozenset[Scope](["look"]))


async def ask(world: World, what: str, access: Access = FULL, **params: Any) -> Any:
    """Return the answer of an endpoint."""
    endpoint = ENDPOINTS[what]
    assert endpoint.answer is not None
    return await endpoint.answer(_call(world, access), endpoint.read(params, access))


def stream(world: World, what: str, access: Access = FULL, **params: Any) -> AsyncIterator[Event]:
    """Return the events of an endpoint."""
    endpoint = ENDPOINTS[what]
    assert endpoint.stream is not None
    return endpoint.stream(_call(world, access), endpoint.read(params, access))


async def pages(world: World, what: str, **params: Any) -> list[list[dict[str, Any]]]:
    """Return the rows of all pages."""
    found: list[list[dict[str, Any]]] = []
    after: str | None = None
    while not found or after is not None:
        page = await ask(world, what, after=after, **params)
        found.append(page["rows"])
        after = page["next"]
    return found


def _call(world: World, access: Access) -> AdminCall:
    return AdminCall(world.node, Admin(world.node), access)
