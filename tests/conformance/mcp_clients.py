"""A client of MCP that sends exactly what it is told to, and sees every message of a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Self

from tests.conformance.served import Served, served
from tests.conformance.serving import Answer
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import App

MODERN, LEGACY = "2026-07-28", "2025-11-25"
META = "io.modelcontextprotocol"
TASKS = f"{META}/tasks"
NAMED = {"tools/call": "name", "resources/read": "uri", "tasks/get": "taskId"}
FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
WITH_TASKS: dict[str, Any] = {**FORMS, "extensions": {TASKS: {}}}


@asynccontextmanager
async def mcp_served(app: App, **settings: Any) -> AsyncGenerator[Served, None]:
    async with asyncio.timeout(patience()), served(app, **settings) as one:
        yield one


class Mcp:
    """One client: stateless, or with a session once it has `begun`."""

    def __init__(self, one: Served, capabilities: dict[str, Any] | None = None, path: str = "/mcp", **headers: str):
        self.one, self.capabilities, self.path = one, capabilities or {}, path
        self.session: str | None = None
        self.is_stateless = True
        self._headers = headers
        self._ids = 0

    async def begun(self) -> Self:
        """Do the handshake of the revisions with sessions."""
        self.is_stateless = False
        info = {"name": "test", "version": "1"}
        params = {"protocolVersion": LEGACY, "capabilities": self.capabilities, "clientInfo": info}
        answer = await self.post("initialize", **params)
        self.session = answer.headers["mcp-session-id"]
        await self.notify("notifications/initialized")
        return self

    def request(self, method: str, params: dict[str, Any], id: Any = None) -> tuple[dict[str, str], bytes]:
        """Return the headers and the body of a request."""
        self._ids += 1
        if self.is_stateless:
            meta = {f"{META}/protocolVersion": MODERN, f"{META}/clientCapabilities": self.capabilities}
            params = {**params, "_meta": {**meta, **params.get("_meta", {})}}
        message = {"jsonrpc": "2.0", "id": self._ids if id is None else id, "method": method, "params": params}
        headers = {**self.headers(), **({"mcp-method": method} if self.is_stateless else {})}
        if self.is_stateless and isinstance(name := params.get(NAMED.get(method, "")), str):
            headers["mcp-name"] = name
        return headers, json.dumps(message).encode()

    def headers(self) -> dict[str, str]:
        session = {} if self.session is None else {"mcp-session-id": self.session}
        version = {"mcp-protocol-version": MODERN if self.is_stateless else LEGACY}
        return {"accept": "application/json, text/event-stream", **version, **session, **self._headers}

    async def http(self, method: str, body: bytes = b"") -> Answer:
        return await self.one.site.http(self.path, method=method, headers=self.headers(), body=body)

    async def post(self, method: str, *, version: str | None = None, **params: Any) -> Answer:
        headers, body = self.request(method, params)
        headers |= {} if version is None else {"mcp-protocol-version": version}
        return await self.one.site.http(self.path, method="POST", headers=headers, body=body)

    async def notify(self, method: str, **params: Any) -> Answer:
        return await self.http("POST", json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    async def respond(self, id: Any, result: dict[str, Any]) -> Answer:
        return await self.http("POST", json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode())

    async def answer(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the message that answers a request."""
        answer = await self.post(method, **params)
        if answer.headers["content-type"] == "application/json":
            return answer.json()
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
        lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
        return json.loads(lines[-1].removeprefix("data: "))

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a request, without what the server says about itself."""
        message = await self.answer(method, **params)
        assert "result" in message, message
        return {name: value for name, value in message["result"].items() if name != "_meta"}

    async def call(self, tool: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Call a tool, and come again as often as the server wants it."""
        while True:
            result = await self.ask("tools/call", name=tool, arguments=arguments, **more)
            if result.get("resultType") != "input_required" or "inputRequests" in result:
                return result
            more = {"requestState": result["requestState"]}

    async def error(self, method: str, **params: Any) -> dict[str, Any]:
        return (await self.answer(method, **params))["error"]

    async def settled(self, task: str) -> dict[str, Any]:
        """Return a task once it is over, or waits for an answer."""
        while (found := await self.ask("tasks/get", taskId=task))["status"] == "working":
            await self.one.world.clock.advance(1)
            await asyncio.sleep(0.01)
        return found


class Stream:
    """Reads the response to one request as it comes."""

    def __init__(self, one: Served, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.messages: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.status = 0
        self.connected = self.is_over = False
        self._one, self._method, self._path, self._headers, self._body = one, method, path, headers, body
        self._writer: asyncio.StreamWriter | None = None
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._one.site.port)
        sent = {"host": f"127.0.0.1:{self._one.site.port}", "connection": "close"}
        sent |= {"content-length": str(len(self._body)), **self._headers}
        lines = [f"{name}: {value}" for name, value in sent.items()]
        self._writer.write("\r\n".join([f"{self._method} {self._path} HTTP/1.1", *lines, "", ""]).encode() + self._body)
        self.connected = True
        try:
            self.status = int((await reader.readline()).split()[1])
            while line := await reader.readline():
                text = line.decode().strip().removeprefix("data: ")
                if text.startswith("{"):
                    self.messages.append(json.loads(text))
                elif text.startswith("id: "):
                    self.ids.append(text.removeprefix("id: "))
        except (ConnectionError, IndexError):
            pass
        finally:
            self.is_over = True
            self._writer.close()

    async def over(self) -> dict[str, Any]:
        """Return the last message, once the response has ended."""
        await until(lambda: self.is_over)
        return self.messages[-1]

    async def close(self) -> None:
        """Close the connection, as a client that is lost."""
        assert self._writer is not None
        self._writer.close()
        await until(lambda: self.is_over)


def held(
    one: Served,
    client: Mcp,
    tool: str = "",
    arguments: dict[str, Any] | None = None,
    *,
    id: Any = None,
    progress: str | None = None,
    after: str | None = None,
) -> Stream:
    """Call a tool and read the stream; with `after`, continue the stream of a call after an event."""
    if after is not None:
        return Stream(one, "GET", client.path, {**client.headers(), "last-event-id": after}, b"")
    meta = {} if progress is None else {"_meta": {"progressToken": progress}}
    headers, body = client.request("tools/call", {"name": tool, "arguments": arguments or {}, **meta}, id)
    return Stream(one, "POST", client.path, headers, body)
