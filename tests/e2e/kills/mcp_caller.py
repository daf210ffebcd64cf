"""The official MCP client for Python: tasks that are followed by their id, and calls of a session that is held."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from mcp import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ClientMessageMetadata
from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult, ElicitResult, InitializeResult
from mcp_types.version import LATEST_MODERN_VERSION
from tests.e2e.kills.caller import PAUSE, Caller
from tests.e2e.test_mcp import Tasks, ask, text_of
from tests.machine import patience

BROKEN = (MCPError, httpx2.HTTPError, ExceptionGroup, OSError)
"""What the client raises when its server dies, alone or in a group."""
INVALID_PARAMS = -32602
YES = {"action": "accept", "content": {"approved": True}}


class McpCaller(Caller):
    """A program that declares the extension for tasks, and shows forms."""

    name = "mcp-tasks"

    @asynccontextmanager
    async def _joined(self) -> AsyncGenerator[Any, None]:
        async with (
            httpx2.AsyncClient(timeout=httpx2.Timeout(patience(30), read=patience(60))) as http,
            Client(
                streamable_http_client(f"{self.url}/mcp", http_client=http),
                mode=LATEST_MODERN_VERSION,  # else it does without tasks if the server is away when it connects
                extensions=[Tasks()],
            ) as client,
        ):
            yield client

    async def operate(self, operation: str) -> str | None:
        task = ""
        answers: dict[str, Any] = {}
        is_sent = False
        while True:
            try:
                async with self._joined() as client:
                    if not task:
                        if is_sent:
                            return None
                        await client.list_tools()
                        self.heard()
                        is_sent = True
                        task = text_of(await client.call_tool("desk", {"message": operation}))
                    while True:
                        if answers:
                            await ask(client, "tasks/update", taskId=task, inputResponses=answers)
                            self.accepted(*answers)
                            answers = {}
                        found = await ask(client, "tasks/get", taskId=task)
                        self.heard()
                        if found["status"] == "input_required":
                            answers = dict.fromkeys(found["inputRequests"], YES)
                            self.asked(operation, *answers)
                        elif found["status"] == "completed":
                            return found["result"]["content"][0]["text"]
                        elif found["status"] != "working":
                            return str(found)
                        else:
                            await asyncio.sleep(PAUSE)
            except BROKEN as error:
                check_broken(error)
                is_sent = is_sent and not is_not_sent(error)
            await self.cut()


def is_not_sent(error: BaseException) -> bool:
    """Return whether a request has not reached the server."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_not_sent, error.exceptions))
    return isinstance(error, httpx2.ConnectError)


def check_broken(error: BaseException) -> None:
    """Raise an error of the protocol that is no broken connection."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            check_broken(one)
    elif not isinstance(error, BROKEN) or (isinstance(error, MCPError) and error.code == INVALID_PARAMS):
        raise error


NOT_STARTED = ("The run had not started when the process ended.", "This call has no run")
"""What a call is told that did nothing, because a run had not started when the process ended: it can be made again."""
QUESTION = "question:"
"""What the ids begin with by which the server asks."""


@dataclass
class HeldCall:
    """What a program keeps of a session and of a call in it, so that it can continue it on another connection."""

    session: str = ""
    server: InitializeResult | None = None
    is_sent: bool = False
    token: str = ""
    """Where the stream of the call continues."""

    async def note_token(self, token: str) -> None:
        self.token = token


class McpHeldCaller(Caller):
    """A program of the revision before, which holds its calls and continues their streams.

    The client ends its session if an answer to a question cannot be sent, and after two attempts to continue a stream.
    The program continues both then, as long as it knows an event of the stream.
    """

    name = "mcp-session"

    async def operate(self, operation: str) -> str | None:
        call = HeldCall()
        while True:
            try:
                async with self._session(operation, call) as client:
                    self.heard()
                    if call.server is None:
                        call.server = await client.initialize()
                    else:
                        client.adopt(call.server)
                    if call.is_sent and not call.token:
                        return None
                    call.is_sent = True
                    told = text_of(await self._result(client, operation, call))
                    self.heard()
                    if not told.startswith(NOT_STARTED):
                        return told
            except BROKEN as error:
                if not is_not_started(error):
                    check_broken(error)
                    call.is_sent = call.is_sent and not is_not_sent(error)
                    await self.cut()
                    continue
            call = HeldCall()

    @asynccontextmanager
    async def _session(self, operation: str, call: HeldCall) -> AsyncGenerator[ClientSession, None]:
        """Open a connection for a new session, or for the one that is known."""

        async def answer(context: Any, params: Any) -> ElicitResult:
            self.heard()
            self.asked(operation, str(context.request_id))
            return ElicitResult(action="accept", content={"approved": True})

        async def received(response: httpx2.Response) -> None:
            call.session = response.headers.get("mcp-session-id", call.session)
            if response.status_code == httpx2.codes.ACCEPTED:
                sent = json.loads(response.request.content)
                if str(sent.get("id")).startswith(QUESTION):
                    self.accepted(sent["id"])

        if call.server is None:
            call.session = ""
        headers = {"mcp-session-id": call.session} if call.session else {}
        wait = httpx2.Timeout(patience(30), read=patience(60))
        async with (
            httpx2.AsyncClient(timeout=wait, headers=headers, event_hooks={"response": [received]}) as http,
            streamable_http_client(f"{self.url}/mcp", http_client=http, terminate_on_close=False) as streams,
            ClientSession(*streams, elicitation_callback=answer) as client,
        ):
            yield client

    async def _result(self, client: ClientSession, operation: str, call: HeldCall) -> CallToolResult:
        """Make the call, or continue it."""
        params = CallToolRequestParams(name="desk", arguments={"message": operation})
        where = ClientMessageMetadata(call.token or None, call.note_token)
        return await client.send_request(CallToolRequest(params=params), CallToolResult, metadata=where)


def is_not_started(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_not_started, error.exceptions))
    return isinstance(error, MCPError) and error.error.message.startswith(NOT_STARTED)
