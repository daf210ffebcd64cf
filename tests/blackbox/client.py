"""Single calls of a client, for tests that look at what one agent answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from tests.blackbox.app import Node, Root
from tests.blackbox.server import Server
from tests.machine import patience

from sapwood.client import connect
from sapwood.errors import SapwoodError


@asynccontextmanager
async def connected(server: Server, root: str, below: Sequence[str] = ()) -> AsyncGenerator[Root, None]:
    """Yield a stub of a root, or of an agent below it."""
    sub = tuple((Node, name) for name in below)
    async with connect(server.url, Root, root, sub=sub, timeout=patience(10.0)) as agent:
        yield cast(Root, agent.stub)


async def call(server: Server, root: str, method: str, *arguments: Any, below: Sequence[str] = (), **more: Any) -> Any:
    """Call a method over a connection of its own, and return the answer."""
    async with connected(server, root, below) as agent:
        return await getattr(agent, method)(*arguments, **more)


async def code_of(server: Server, root: str, method: str, *arguments: Any, below: Sequence[str] = ()) -> str:
    """Call a method, and return the code of the error that the client gets: `"answered"` if there is none."""
    try:
        await call(server, root, method, *arguments, below=below)
    except SapwoodError as error:
        return error.code
    return "answered"


async def count_items(server: Server, root: str, below: Sequence[str] = ()) -> int:
    return len((await call(server, root, "content", below=below))["items"])
