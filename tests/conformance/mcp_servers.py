"""A server of MCP that does exactly what it is told to, and notes every request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

MODERN = "2026-07-28"
Respond = Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Asked:
    """One request that the server received."""

    verb: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> dict[str, Any]:
        return json.loads(self.body) if self.body.startswith(b"{") else {}

    @property
    def method(self) -> str:
        return self.message.get("method", "")

    @property
    def params(self) -> dict[str, Any]:
        return self.message.get("params", {})


@dataclass
class RemoteServer:
    """Answers each method as it is told: with a result, or a function that returns one."""

    tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    """By method: a result, or a function of the request that returns one."""
    raw: dict[str, Respond] = field(default_factory=dict[str, Respond])
    """By method or path: writes the whole response."""
    seen: list[Asked] = field(default_factory=list[Asked])
    port: int = 0

    def asked(self, method: str) -> list[Asked]:
        return [one for one in self.seen if one.method == method]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[str]:
        """Serve in this block, at the port of before if there is one."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self.url
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                verb, path, _ = head[0].split(" ")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                asked = Asked(verb, path, headers, body)
                self.seen.append(asked)
                respond = self.raw.get(asked.method) or self.raw.get(path.partition("?")[0])
                await (respond or self._respond)(asked, writer)
                await writer.drain()
            finally:
                writer.close()

    async def _respond(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        method, number = asked.method, asked.message.get("id")
        result: Any = self.answers.get(method, self._known(method))
        if callable(result):
            result = result(asked)
            if isinstance(result, Awaitable):
                result = await result
        status = 200
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": number}
        if number is None:
            status, answer = 202, {}
        elif result is None:
            status, answer = 404, {**answer, "error": {"code": -32601, "message": "Method not found"}}
        elif "error" in result:
            answer |= result
        else:
            answer["result"] = result
        respond(writer, status, answer)

    def _known(self, method: str) -> Any:
        if method == "server/discover":
            about = {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}
            return {"resultType": "complete", **about, "ttlMs": 0, "cacheScope": "private"}
        if method == "tools/list":
            return {"resultType": "complete", "tools": self.tools, "cacheScope": "private"}
        return None


def respond(writer: asyncio.StreamWriter, status: int, body: Any, **headers: str) -> None:
    """Write a response, JSON if the body is no text."""
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    sent = {"content-type": "application/json", "content-length": str(len(content)), "connection": "close"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in sent.items()]
    writer.write("\r\n".join([f"HTTP/1.1 {status} X", *lines, "", ""]).encode() + content)


def tool(name: str, **annotations: Any) -> dict[str, Any]:
    """Return a tool with any arguments."""
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": annotations}


def said(text: str) -> dict[str, Any]:
    """Return the result of a tool call."""
    return {"resultType": "complete", "content": [{"type": "text", "text": text}]}
