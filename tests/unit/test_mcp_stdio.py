"""MCP over standard input and output: each line is a request to the app, and each message of it a line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sapwood import App
from sapwood.cli.mcp_command import mcp
from sapwood.errors import UsageError
from sapwood.protocols.mcp_stdio import StdioBridge, endpoint_of

META: dict[str, Any] = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}


class FakeServer:
    """An ASGI app that remembers its requests, and answers as it is told to."""

    def __init__(self, status: int = 200, kind: str = "application/json", body: bytes = b"{}", **headers: str) -> None:
        self.requests: list[dict[str, str]] = []
        self.lost = asyncio.Event()
        self._status, self._kind, self._body, self._headers = status, kind, body, headers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests.append({name.decode(): value.decode() for name, value in scope["headers"]})
        sent = json.loads((await receive())["body"])
        if sent.get("method") == "wait":
            assert (await receive())["type"] == "http.disconnect"
            self.lost.set()
            return
        headers = {
            "content-type": self._kind,
            **{name.replace("_", "-"): value for name, value in self._headers.items()},
        }
        head = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": self._status, "headers": head})
        for byte in self._body:
            await send({"type": "http.response.body", "body": bytes([byte]), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def told(server: Any, *messages: Any) -> list[Any]:
    """Return what a client is told that sends these messages, and ends."""
    found: list[Any] = []
    bridge = StdioBridge(server, "/mcp", lambda line: found.append(json.loads(line)), {"authorization": "Bearer x"})
    lines = [one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in messages]

    async def line() -> bytes:
        await asyncio.sleep(0.01)
        return lines.pop(0) if lines else b""

    await bridge.serve(line)
    return found


def request(method: str, id: int = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


async def test_a_stateless_request_has_the_headers_of_its_message() -> None:
    server = FakeServer(body=b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert await told(server, request("tools/call", name="é", **META)) == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
    (headers,) = server.requests
    assert headers["mcp-protocol-version"] == "2026-07-28"
    assert headers["mcp-method"] == "tools/call"
    assert headers["mcp-name"] == "=?base64?w6k=?="
    assert headers["authorization"] == "Bearer x"


async def test_a_session_is_kept_for_the_messages_that_follow() -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25"}}'
    server = FakeServer(body=body, mcp_session_id="s1")
    await told(server, request("initialize"), request("tools/list", 2))
    first, second = server.requests
    assert "mcp-session-id" not in first
    assert (second["mcp-session-id"], second["mcp-protocol-version"]) == ("s1", "2025-11-25")


async def test_a_stream_is_told_message_by_message_without_its_pings() -> None:
    stream = b': ping\n\nid: 1\nretry: 5\ndata: \n\nevent: message\ndata: {"n":1}\n\ndata: {"n":2}\n\n'
    assert await told(FakeServer(kind="text/event-stream", body=stream), request("x")) == [{"n": 1}, {"n": 2}]


async def test_a_refusal_is_an_error_and_a_broken_line_too() -> None:
    server = FakeServer(401, "text/plain", b"Unauthorized")
    refused, broken = sorted(await told(server, b"{\n", b"\n", request("x")), key=lambda one: one["id"] is None)
    assert (refused["id"], refused["error"]["message"]) == (1, "Unauthorized")
    assert broken["error"]["code"] == -32700
    assert len(server.requests) == 1


async def test_a_cancelled_request_and_the_end_of_the_input_close_the_connection() -> None:
    for more in ([{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}], []):
        server = FakeServer()
        assert await told(server, request("wait", **META), *more) == []
        assert server.lost.is_set()
        assert len(server.requests) == 1


def test_an_app_without_a_server_and_a_header_without_a_name_are_refused() -> None:
    with pytest.raises(UsageError, match="no MCP server"):
        endpoint_of(App(agents=[]).protocols)
    with pytest.raises(UsageError, match="--header must be"):
        mcp("app:app", header=["nothing"])
