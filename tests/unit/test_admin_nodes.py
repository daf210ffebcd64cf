"""What nodes ask each other for the admin API: nothing is left behind, and no stream outlives its token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.conformance.two_nodes import AllAtTheBack, Front, running_on_two_nodes
from tests.machine import patience
from tests.unit.admin_requests import stream
from tests.unit.test_workers_transport import pair

from sapwood import Agent, App
from sapwood.admin.access import Access, Scope
from sapwood.admin.door import AdminDoor, collected
from sapwood.admin.endpoint import AdminCall, Endpoint, Event, OneAgent
from sapwood.admin.endpoints import ENDPOINTS
from sapwood.admin.event_stream import together
from sapwood.admin.tokens import TokenKey
from sapwood.errors import Unavailable
from sapwood.studio import StudioTab
from sapwood.testing import World


class AdminFar(Agent):
    """Runs at the other node."""

    studio_tabs = (StudioTab("Far", Path(__file__).parents[2] / "examples/studio_tab.html", methods=("hello",)),)

    async def hello(self) -> str:
        return "hello"


async def test_an_answer_that_takes_too_long_is_not_waited_for_at_the_other_node(tmp_path: Path) -> None:
    stopped = asyncio.Event()
    async with pair(tmp_path, lambda _, exchange: exchange.when_stopped(stopped.set)) as both:
        assert await collected(both.one.open("2", "ask", b""), 0.01) is None
        async with asyncio.timeout(patience()):
            await stopped.wait()


async def test_a_part_of_a_stream_that_fails_in_an_unknown_way_ends_the_stream() -> None:
    async def good() -> AsyncGenerator[Event, None]:
        await asyncio.Event().wait()
        yield "rows", {}

    async def bad() -> AsyncGenerator[Event, None]:
        raise KeyError("a")
        yield "rows", {}

    async with asyncio.timeout(patience()):
        with pytest.raises(KeyError):
            async for _ in together([good(), bad()]):
                pass


@asynccontextmanager
async def doors() -> AsyncGenerator[tuple[World, httpx2.AsyncClient]]:
    """Open the doors of both nodes; the client is at the one that runs no agents."""
    async with running_on_two_nodes(App(agents=[AdminFar])) as world:
        await (await world.get_agent(AdminFar, "a")).hello()
        front = world.app
        assert isinstance(front, Front)
        back = AdminDoor(_started, lambda: world.node, "token")
        await back({"type": "lifespan"}, _nothing, _nothing)
        transport = httpx2.ASGITransport(app=AdminDoor(front, lambda: front.node, "token"))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1/_sapwood") as client:
            yield world, client


async def _started(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "lifespan.startup.complete"})


async def _nothing(*_: Any) -> Any:
    return None


@pytest.mark.parametrize("is_far", [False, True])
async def test_what_needs_its_client_is_cancelled_when_the_client_leaves(
    monkeypatch: pytest.MonkeyPatch, is_far: bool
) -> None:
    begun, left, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def endless(call: AdminCall, params: OneAgent) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    body = [{"type": "http.request", "body": b'{"address": "AdminFar:a"}', "more_body": False}]

    async def receive() -> Any:
        if body:
            return body.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    monkeypatch.setitem(ENDPOINTS, "endless", Endpoint("endless", "look", OneAgent, endless, needs_client=True))
    async with doors() as (world, _):
        node = world.node
        if is_far:
            assert isinstance(world.app, Front)
            node = world.app.node
        headers = [(b"authorization", b"Bearer token"), (b"host", b"127.0.0.1")]
        scope = {"type": "http", "method": "POST", "path": "/_sapwood/endless", "query_string": b"", "headers": headers}
        asking = asyncio.ensure_future(AdminDoor(_started, lambda: node, "token")(scope, receive, _nothing))
        async with asyncio.timeout(patience()):
            await begun.wait()
            assert not cancelled.is_set()
            left.set()
            await cancelled.wait()
            await asking


async def test_a_stream_of_another_node_ends_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def endless(call: AdminCall, params: OneAgent) -> AsyncIterator[Event]:
        yield "rows", {"rows": []}
        begun.set()
        await go.wait()
        while True:
            yield "rows", {"rows": ["secret"]}
            await asyncio.sleep(0)

    monkeypatch.setitem(ENDPOINTS, "endless", Endpoint("endless", "look", OneAgent, stream=endless))
    async with doors() as (world, client):
        front = world.app
        assert isinstance(front, Front)
        until = world.clock.now() + 60
        token = TokenKey(front.node.folder).sign(Access("ann", frozenset[Scope](["look"]), None, until))
        asking = asyncio.ensure_future(
            client.post("/endless", json={"address": "AdminFar:a"}, headers={"authorization": f"Bearer {token}"})
        )
        async with asyncio.timeout(patience()):
            await begun.wait()
            await world.clock.advance(61)
            go.set()
            told = (await asking).text
        assert "secret" not in told
        assert "The token is not valid any more" in told


async def test_a_tab_calls_its_agent_at_another_node() -> None:
    async with doors() as (_, client):
        body = {"address": "AdminFar:a", "tab": "Far", "method": "hello"}
        answer = await client.post("/tab-call", json=body, headers={"authorization": "Bearer token"})

        assert answer.json() == {"result": "hello"}


async def test_a_watched_agent_that_moves_to_another_node_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_on_two_nodes(App(agents=[AdminFar])) as world:
        await (await world.get_agent(AdminFar, "a")).hello()
        events = stream(world, "watch", addresses=["AdminFar:a"])
        assert (await anext(events))[1]["rows"][0]["status"] == "live"
        monkeypatch.setattr(AllAtTheBack, "is_here", lambda *_: False)  # a new owner
        with pytest.raises(Unavailable, match="moved to another node"):
            await anext(events)
