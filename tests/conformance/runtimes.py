"""Where the agents of this folder's tests live, as `pytest --runtime` says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.conformance.replicated import running_replicated
from tests.conformance.three_nodes import running_on_three_nodes
from tests.conformance.two_nodes import running_on_two_nodes, running_with_movable_trees
from tests.machine import patience

from sapwood import App
from sapwood.address import Address
from sapwood.admin.admin import Admin
from sapwood.errors import UsageError
from sapwood.testing import World
from sapwood.testing import running as running_here

RUNTIMES: dict[str, Callable[..., AbstractAsyncContextManager[World]]] = {
    "local": running_here,
    "workers": running_on_two_nodes,
    "movable": running_with_movable_trees,
    "replicated": running_replicated,
    "cluster": running_on_three_nodes,
}
IN_A_LOG = ("replicated", "cluster")
"""Those whose trees lie in a log."""
chosen = "local"


def running(app: App, **options: Any) -> AbstractAsyncContextManager[World]:
    """Run an app for a test."""
    return RUNTIMES[chosen](app, **options)


def operator(world: World, address: str) -> Admin:
    """Return the operator of the node that runs the agent, as the front of a cluster finds it."""
    of: Any = getattr(world.node, "of", None)
    return Admin(world.node if of is None else of(Address.parse(address).root))


async def open_questions(agent: Any) -> list[Any]:
    """Return the questions of an agent, once it has any."""
    async with asyncio.timeout(patience()):
        while not (found := await agent.questions.list()):  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
    return found


async def serve(world: World, scope: Any, receive: Any, send: Any) -> None:
    """Serve a connection. A cluster starts again in a while: until then it is not the app that ended that is asked."""
    if chosen in IN_A_LOG:
        async with asyncio.timeout(patience()):
            while not _is_running(world.app):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.005)
    await world.app(scope, receive, send)


def _is_running(app: App) -> bool:
    try:
        return app.node is not None
    except UsageError:
        return False
