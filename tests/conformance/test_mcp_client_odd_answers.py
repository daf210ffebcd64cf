"""MCP servers that answer with values of other types than the protocol has lose their tools, and no turn fails."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.conformance.mcp_servers import Asked, RemoteServer, respond, said, tool
from tests.conformance.served import served

from sapwood import Agent, App
from sapwood.errors import Refused
from sapwood.types import McpServer

LOCAL: dict[str, Any] = {
    "mcp_private_hosts": ("127.0.0.1",),
    "secret_keys": ("a key for the secrets of a test, long enough",),
    "public_url": "https://agents.example.com",
}
HUGE = "1" + "0" * 400
"""An integer that no float can hold."""


class OddUser(Agent):
    """Uses one server."""

    async def add(self, url: str) -> McpServer:
        return await self.mcp.add("odd", url, timeout=10.0)

    async def use(self) -> Any:
        return await self.mcp.call("odd", "play", {})


def app() -> App:
    return App(agents=[OddUser])


def raw(text: str, status: int = 200, **headers: str) -> Any:
    """Return a function that answers with this text."""

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        respond(writer, status, text.replace("ID", str(asked.message.get("id"))), **headers)

    return answer


def result(text: str) -> Any:
    return raw(f'{{"jsonrpc": "2.0", "id": ID, "result": {text}}}')


@pytest.mark.parametrize(
    ("method", "answer", "why"),
    [
        ("server/discover", raw('{"id": ID, "error": {"code": -32022, "data": {"supported": [[]]}}}'), "no reason"),
        ("server/discover", raw(f'{{"id": ID, "error": {{"code": {HUGE}}}}}'), "Method not found"),
        ("initialize", result('{"protocolVersion": []}'), "revision ''"),
        ("initialize", result('{"protocolVersion": {}}'), "revision ''"),
        ("tools/list", raw("", 302, location="http://["), "as expected"),
        ("tools/list", raw("", 401, www_authenticate='Bearer resource_metadata="http://["'), "as expected"),
        ("tools/list", raw("", 401, www_authenticate='Bearer resource_metadata="http://a:b/"'), "InvalidURL"),
        ("tools/list", raw(f"retry: {HUGE}\ndata: {{}}\n\n", content_type="text/event-stream"), "ended the response"),
        ("tools/list", raw("id: \u00fc\ndata: {}\n\n", content_type="text/event-stream"), "as expected"),
    ],
)
async def test_a_list_with_odd_values_is_the_state_of_its_server(method: str, answer: Any, why: str) -> None:
    server = RemoteServer([tool("play")])
    if method == "initialize":
        server.answers["server/discover"] = {"error": {"code": -32601, "message": "not known"}}
    server.raw[method] = answer
    async with served(app(), **LOCAL) as one, server.serving() as url:
        user = await one.world.get_agent(OddUser, "u")
        added = await user.add(url)
        assert added.status == "failed"
        assert why in (added.error or "")


@pytest.mark.parametrize(
    "tools",
    ['"inputSchema": {"type": {}}', '"inputSchema": {"type": "object"}, "annotations": 3, "description": []'],
)
async def test_odd_tools_are_left_out_or_read_as_far_as_possible(tools: str) -> None:
    server = RemoteServer()
    server.raw["tools/list"] = result(f'{{"nextCursor": {{}}, "tools": [{{"name": "a", {tools}}}]}}')
    async with served(app(), **LOCAL) as one, server.serving() as url:
        added = await (await one.world.get_agent(OddUser, "u")).add(url)
        assert added.status == "ready"
        assert [tool.name for tool in added.tools] == (["a"] if "annotations" in tools else [])


async def test_a_list_whose_time_is_a_huge_number_counts_as_long_as_it_may() -> None:
    server = RemoteServer([tool("play")], {"tools/call": said("played")})
    server.raw["tools/list"] = result(f'{{"tools": {json.dumps(server.tools)}, "ttlMs": {HUGE}}}')
    async with served(app(), **LOCAL) as one, server.serving() as url:
        user = await one.world.get_agent(OddUser, "u")
        assert (await user.add(url)).status == "ready"
        assert await user.use() == "played"


@pytest.mark.parametrize(
    ("answer", "returned"),
    [
        (result(f'{{"resultType": "task", "taskId": "t", "pollIntervalMs": {HUGE}}}'), "played"),
        (result('{"resultType": {}, "content": [[], {"type": [], "text": 1}]}'), ""),
        (result('{"content": [{"type": "image", "data": "\u00e9", "mimeType": "image/png"}], "isError": 5}'), ""),
    ],
)
async def test_a_result_with_odd_values_is_read_as_far_as_possible(answer: Any, returned: str) -> None:
    server = RemoteServer([tool("play")], {"tasks/get": {"status": "completed", "result": said("played")}})
    server.raw["tools/call"] = answer
    async with served(app(), **LOCAL) as one, server.serving() as url:
        user = await one.world.get_agent(OddUser, "u")
        await user.add(url)
        assert await user.use() == returned


@pytest.mark.parametrize(
    "answer",
    [
        result('{"resultType": "task", "taskId": []}'),
        result('{"resultType": "input_required", "inputRequests": {"a": {"method": [], "params": 1}}}'),
        raw('{"jsonrpc": "2.0", "id": ID, "error": {"code": "x", "message": {}, "data": 1}}'),
    ],
)
async def test_a_refusal_with_odd_values_is_a_refusal(answer: Any) -> None:
    server = RemoteServer([tool("play")])
    server.raw["tools/call"] = answer
    async with served(app(), **LOCAL) as one, server.serving() as url:
        user = await one.world.get_agent(OddUser, "u")
        await user.add(url)
        with pytest.raises(Refused):
            await user.use()


async def test_what_is_secret_in_a_url_is_not_shown_if_a_server_redirects() -> None:
    server = RemoteServer()

    async def elsewhere(asked: Asked, writer: asyncio.StreamWriter) -> None:
        respond(writer, 307, "", location=f"http://user:word@other.example.com{asked.path}")

    server.raw["server/discover"] = elsewhere
    async with served(app(), **LOCAL) as one, server.serving() as url:
        client = await one.join("/agents/odd-user/u")
        added = await (await one.world.get_agent(OddUser, "u")).add(f"{url}?key=very-secret")
        assert added.error is not None
        assert "'http://other.example.com/mcp'" in added.error
        frame = await client.until(lambda frame: "other.example.com" in str(frame))
        assert "very-secret" not in str(frame)


async def test_a_server_that_does_not_answer_the_end_of_a_session_does_not_hold_up_a_result() -> None:
    server = RemoteServer([tool("play")], {"tools/call": said("played")})
    server.answers["server/discover"] = {"error": {"code": -32601, "message": "not known"}}
    sessions = asyncio.Event()

    async def initialize(asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = {"jsonrpc": "2.0", "id": asked.message["id"], "result": {"protocolVersion": "2025-11-25"}}
        respond(writer, 200, body, mcp_session_id="s1")

    async def hang(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.verb == "DELETE":
            sessions.set()
            await asyncio.Event().wait()
        await server._respond(asked, writer)

    server.raw["initialize"], server.raw["/mcp"] = initialize, hang
    async with served(app(), **LOCAL) as one, server.serving() as url:
        user = await one.world.get_agent(OddUser, "u")
        assert (await user.add(url)).status == "ready"
        assert await user.use() == "played"
        assert sessions.is_set()


async def test_a_server_that_refuses_an_answer_to_its_own_ping_still_gives_its_result() -> None:
    server = RemoteServer([tool("play")])

    async def pings(asked: Asked, writer: asyncio.StreamWriter) -> None:
        ping = {"jsonrpc": "2.0", "id": "p", "method": "ping"}
        answer = {"jsonrpc": "2.0", "id": asked.message["id"], "result": said("played")}
        events = "".join(f"data: {json.dumps(one)}\n\n" for one in (ping, answer))
        respond(writer, 200, events, content_type="text/event-stream")

    async def refuses(asked: Asked, writer: asyncio.StreamWriter) -> None:
        respond(writer, 400, {"error": "unknown id"})

    server.raw["tools/call"] = pings
    async with served(app(), **LOCAL) as one, server.serving() as url:
        user = await one.world.get_agent(OddUser, "u")
        await user.add(url)
        server.raw["/mcp"] = refuses
        assert await user.use() == "played"
        assert any(asked.message.get("id") == "p" for asked in server.seen)
