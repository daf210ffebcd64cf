"""Agents below one that shares an MCP server use it, and never see its token."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.conformance.mcp_servers import Asked, RemoteServer, said, tool
from tests.conformance.served import served
from tests.conformance.worlds import until

from sapwood import Agent, App, ChatAgent
from sapwood.errors import NotFound
from sapwood.testing import ScriptedModel, call, text
from sapwood.types import McpServer

KEY = "a key for the secrets of a test, long enough"
LOCAL: dict[str, Any] = {"mcp_private_hosts": ("127.0.0.1",), "secret_keys": (KEY,)}


class ShareLeaf(ChatAgent):
    """Uses what agents above it share."""

    model = ScriptedModel(call("hotel_book", city="Bonn", id="b1"), text("booked"), each=True)

    async def servers(self) -> list[McpServer]:
        return self.mcp.list()

    async def add(self, name: str, url: str) -> McpServer:
        return await self.mcp.add(name, url, approval="never")

    async def use(self, name: str) -> Any:
        return await self.mcp.call("hotel", name, {})

    async def outputs(self) -> list[Any]:
        messages = await self.conversation.messages()
        parts: list[Any] = [part for message in messages for part in message["parts"]]
        return [part.get("output", part.get("errorText")) for part in parts if "toolCallId" in part]


class ShareMiddle(Agent):
    """Has an agent below it."""

    async def grow(self) -> None:
        await self.sub_agent(ShareLeaf, "leaf")


class ShareRoot(Agent):
    """Shares servers with those below it."""

    async def add(self, name: str, url: str, options: dict[str, Any]) -> McpServer:
        return await self.mcp.add(name, url, approval="never", **options)

    async def grow(self) -> None:
        middle = await self.sub_agent(ShareMiddle, "middle")
        await middle.grow()


SHARED = {"shared": True, "token": "very-secret-token"}
LEAF = [(ShareMiddle, "middle"), (ShareLeaf, "leaf")]


def app() -> App:
    return App(agents=[ShareRoot])


async def root_of(one: Any, url: str, options: dict[str, Any]) -> ShareLeaf:
    root = await one.world.get_agent(ShareRoot, "r")
    await root.add("hotel", url, options)
    await root.grow()
    return await leaf_of(one)


async def leaf_of(one: Any) -> ShareLeaf:
    return await one.world.get_agent(ShareRoot, "r", sub=LEAF)


async def test_a_model_two_levels_down_uses_a_shared_server() -> None:
    hotel = RemoteServer([tool("book")], {"tools/call": said("booked")})
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        leaf = await root_of(one, url, SHARED)
        assert (await leaf.send("book")).status == "completed"
        assert await leaf.outputs() == ["booked"]
        (asked,) = hotel.asked("tools/call")
        assert asked.headers["authorization"] == "Bearer very-secret-token"
        assert await leaf.servers() == []
        assert await leaf.use("book") == "booked"


async def test_a_server_that_is_not_shared_is_unknown_below() -> None:
    hotel = RemoteServer([tool("book")], {"tools/call": said("booked")})
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        leaf = await root_of(one, url, {})
        with pytest.raises(NotFound, match="This agent uses none"):
            await leaf.use("book")
        await leaf.send("book")
        assert not hotel.asked("tools/call")


async def test_a_server_of_its_own_comes_before_a_shared_one_of_the_same_name() -> None:
    above, own = (RemoteServer([tool("book")], {"tools/call": said(one)}) for one in ("above", "own"))
    async with served(app(), **LOCAL) as one, above.serving() as first, own.serving() as second:
        leaf = await root_of(one, first, SHARED)
        await leaf.add("hotel", second)
        assert await leaf.use("book") == "own"


async def test_the_task_of_a_shared_server_is_followed_again_after_a_crash() -> None:
    hotel = RemoteServer([tool("book")])
    hotel.answers["tools/call"] = {"resultType": "task", "taskId": "t1", "status": "working", "pollIntervalMs": 500}
    hotel.answers["tasks/get"] = {"resultType": "complete", "taskId": "t1", "status": "working", "pollIntervalMs": 500}
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        leaf = await root_of(one, url, SHARED)
        await leaf.turns.start("book", id="m1")
        await until(lambda: len(hotel.asked("tasks/get")) > 0)
        await one.world.crash()
        hotel.answers["tasks/get"] = {"taskId": "t1", "status": "completed", "result": said("booked")}
        leaf = await leaf_of(one)
        await leaf.turns.wait("m1")
        assert await leaf.outputs() == ["booked"]
        assert len(hotel.asked("tools/call")) == 1


async def test_cancelling_a_call_below_closes_the_request_of_the_agent_above() -> None:
    hotel, closed = RemoteServer([tool("book")]), asyncio.Event()

    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        try:
            while not writer.is_closing():
                writer.write(b": still here\n\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    hotel.raw["tools/call"] = endless
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        leaf = await root_of(one, url, SHARED)
        await leaf.turns.start("book", id="m1")
        await until(lambda: len(hotel.asked("tools/call")) == 1)
        await leaf.turns.cancel("m1")
        await until(closed.is_set)


async def test_clients_of_a_child_see_shared_servers_but_not_where_to_sign_in() -> None:
    hotel = RemoteServer([tool("book")])
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        await root_of(one, url, SHARED)
        client = await one.join("/agents/share-root/r/sub/share-middle/middle/sub/share-leaf/leaf")
        (frame,) = client.of_type("cf_agent_mcp_servers")
        assert frame["mcp"]["servers"]["hotel"]["state"] == "ready"
        assert frame["mcp"]["servers"]["hotel"]["auth_url"] is None
