"""The official MCP client for Python: tasks that are followed by their id, and calls of a session that is held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult
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
    async def _joined(self, **options: Any) -> AsyncGenerator[Any, None]:
        async with (
            httpx2.AsyncClient(timeout=httpx2.Timeout(patience(30), read=patience(60))) as http,
            Client(streamable_http_client(f"{self.url}/mcp", http_client=http), **options) as client,
        ):
            yield client

    async def operate(self, operation: str) -> str | None:
        task = ""
        answers: dict[str, Any] = {}
        is_sent = False
        while True:
            try:
                async with self._joined(extensions=[Tasks()]) as client:
                    self.heard()
                    if not task:
                        if is_sent:
                            return None
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
            await self.cut()


def check_broken(error: BaseException) -> None:
    """Raise an error of the protocol that is no broken connection."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            check_broken(one)
    elif not isinstance(error, BROKEN) or (isinstance(error, MCPError) and error.code == INVALID_PARAMS):
        raise error


NOT_STARTED = "The run had not started when the process ended."
"""The end of a call whose run only its client could start again: a held call is not sent again."""


class McpHeldCaller(McpCaller):
    """A program of the revision before, which holds its calls and continues their streams."""

    name = "mcp-session"

    async def operate(self, operation: str) -> str | None:
        async def answer(context: Any, params: Any) -> ElicitResult:
            self.heard()
            self.asked(operation, params.message)
            return ElicitResult(action="accept", content={"approved": True})

        while True:
            is_sent = False
            try:
                async with self._joined(mode="legacy", elicitation_callback=answer) as client:
                    self.heard()
                    is_sent = True
                    result = await client.call_tool("desk", {"message": operation})
                    self.heard()
                    told = text_of(result)
                    return None if told == NOT_STARTED else told
            except BROKEN as error:
                check_broken(error)
            await self.cut()
            if is_sent:
                return None
