"""MCP servers of earlier revisions, with sessions: they ask in the response to a call, or beside it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from tests.cases import slow
from tests.conformance.mcp_servers import Asked, RemoteServer, respond, said, tool
from tests.conformance.served import Served, served
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import App, ChatAgent
from sapwood.mcp_client import http
from sapwood.testing import ScriptedModel, call, text
from sapwood.types import McpServer

LOCAL: dict[str, Any] = {"mcp_private_hosts": ("127.0.0.1",)}
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
FORM = {"type": "object", "properties": {"nights": {"type": "integer"}}, "required": ["nights"]}
QUESTION = {"method": "elicitation/create", "params": {"message": "How many nights?", "requestedSchema": FORM}}


class SessionGuest(ChatAgent):
    """Has its model call a tool of a server with sessions."""

    model = ScriptedModel(call("inn_book", id="b1"), text("done"), each=True)

    async def add(self, url: str) -> McpServer:
        return await self.mcp.add("inn", url, approval="never", timeout=patience())


class Inn(RemoteServer):
    """Speaks the revision of 2025-11-25, and asks beside the response to a call."""

    def __init__(self, *questions: Any, status: int = 200) -> None:
        super().__init__([tool("book")])
        self.questions = questions
        self.status = status
        self.told: list[Any] = []
        self.is_called, self.is_over = asyncio.Event(), asyncio.Event()
        self.raw = {"initialize": self._initialize, "tools/call": self._call, "/mcp": self._other}
        self.answers["server/discover"] = {"error": {"code": -32601, "message": "Method not found"}}

    @property
    def listening(self) -> int:
        return sum(asked.verb == "GET" for asked in self.seen)

    async def _initialize(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "inn"}}
        answer = {"jsonrpc": "2.0", "id": asked.message["id"], "result": result}
        respond(writer, 200, answer, mcp_session_id="s1")

    async def _call(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        self.is_called.set()
        if self.status == 200:
            await self.is_over.wait()
        result = said(f"booked {json.dumps(self.told)}")
        respond(writer, 200, {"jsonrpc": "2.0", "id": asked.message["id"], "result": result})

    async def _other(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.verb == "GET":
            await self._ask(writer)
        elif "result" in asked.message or "error" in asked.message:
            self.told.append(asked.message.get("result", {"error": asked.message.get("error", {}).get("code")}))
            if len(self.told) == len(self.questions):
                self.is_over.set()
            respond(writer, 202, "")
        elif asked.verb == "DELETE":
            respond(writer, 200, "")
        else:
            await self._respond(asked, writer)

    async def _ask(self, writer: asyncio.StreamWriter) -> None:
        if self.status != 200:
            respond(writer, self.status, {})
            return
        writer.write(EVENTS)
        await writer.drain()
        await self.is_called.wait()
        with suppress(ConnectionError):
            for number, question in enumerate(self.questions):
                writer.write(b"data: %s\n\n" % json.dumps({"jsonrpc": "2.0", "id": number, **question}).encode())
                await writer.drain()
            await self.is_over.wait()


async def booked(one: Served) -> Any:
    """Return what the model was told by the tool."""
    guest = await one.world.get_agent(SessionGuest, "ann")
    parts = [part for message in await guest.conversation.messages() for part in message["parts"]]
    return next(part["output"] for part in parts if "toolCallId" in part)


async def begun(one: Served, url: str) -> Any:
    """Have the model call the tool; return the agent."""
    guest = await one.world.get_agent(SessionGuest, "ann")
    assert (await guest.add(url)).status == "ready"
    await guest.turns.start("book", id="m1")
    return guest


async def test_a_question_beside_the_response_is_answered_by_a_person() -> None:
    inn = Inn({"method": "ping"}, QUESTION, {"method": "roots/list"})
    async with asyncio.timeout(patience()), served(App(agents=[SessionGuest]), **LOCAL) as one, inn.serving() as url:
        guest = await begun(one, url)
        while not (questions := await guest.questions.list()):
            await until(inn.is_called.is_set)
            await asyncio.sleep(0.005)
        assert questions[0].prompt == "inn: How many nights?"
        assert await guest.questions.answer(questions[0], {"nights": 3})
        await guest.turns.wait("m1")
        answers = [{}, {"action": "accept", "content": {"nights": 3}}, {"error": -32601}]
        assert await booked(one) == f"booked {json.dumps(answers)}"
        assert inn.listening == 1


@pytest.mark.parametrize("status", [405, 401, *slow([404, 500, 302])])
async def test_a_server_that_offers_no_stream_is_used_without_it(status: int) -> None:
    inn = Inn(status=status)
    async with asyncio.timeout(patience()), served(App(agents=[SessionGuest]), **LOCAL) as one, inn.serving() as url:
        guest = await begun(one, url)
        await guest.turns.wait("m1")
        assert await booked(one) == "booked []"
        assert inn.listening == 1


async def test_a_stream_that_does_not_open_holds_a_call_up_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    inn, is_left = Inn(status=405), asyncio.Event()

    async def mute(writer: asyncio.StreamWriter) -> None:
        await is_left.wait()

    monkeypatch.setattr(inn, "_ask", mute)
    monkeypatch.setattr(http, "OPENING", 0.1)
    async with asyncio.timeout(patience()), served(App(agents=[SessionGuest]), **LOCAL) as one, inn.serving() as url:
        guest = await begun(one, url)
        await guest.turns.wait("m1")
        assert await booked(one) == "booked []"
        is_left.set()


async def test_a_flood_of_requests_of_a_server_is_answered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_REQUESTS", 5)
    inn = Inn(*[{"method": "ping"}] * 50)
    async with asyncio.timeout(patience()), served(App(agents=[SessionGuest]), **LOCAL) as one, inn.serving() as url:
        guest = await begun(one, url)
        await until(lambda: len(inn.told) == 5)
        inn.is_over.set()
        await guest.turns.wait("m1")
        assert len(inn.told) == 5
