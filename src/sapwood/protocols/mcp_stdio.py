"""MCP over standard input and output: each message becomes a request to the app, in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, cast

import msgspec

from sapwood.errors import UsageError

MODERN_META = "io.modelcontextprotocol/protocolVersion"
NAMES = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}
INTERNAL = -32603
PARSE_ERROR = -32700
Asgi = Callable[[Any, Any, Any], Awaitable[None]]


class StdioBridge:
    """Hands the messages of one client to an app, and the answers back, one message in a line."""

    def __init__(self, app: Asgi, path: str, write: Callable[[bytes], None], headers: Mapping[str, str]) -> None:
        self._app, self._path, self._write = app, path, write
        self._headers = {"host": "127.0.0.1", "content-type": "application/json", **headers}
        self._session: dict[str, str] = {}
        self._open: dict[Any, asyncio.Event] = {}
        """The requests that are not answered, each with what closes its connection."""
        self._tasks = set[asyncio.Task[None]]()

    async def serve(self, lines: Callable[[], Awaitable[bytes]]) -> None:
        """Answer messages until the input ends."""
        while line := await lines():
            if not line.strip():
                continue
            try:
                message = msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError, UnicodeError):
                self._tell({"jsonrpc": "2.0", "id": None, "error": {"code": PARSE_ERROR, "message": "Parse error"}})
                continue
            if not self._is_cancelled(message):
                await self._begin(message, line)
        for lost in self._open.values():
            lost.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _begin(self, message: Any, line: bytes) -> None:
        task = asyncio.create_task(self._exchange(message, line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if field(message, "method") == "initialize":
            await asyncio.wait({task})  # what follows belongs to its session

    def _is_cancelled(self, message: Any) -> bool:
        """Take back a request of the revision without sessions: to close its stream is to cancel it."""
        if field(message, "method") != "notifications/cancelled" or self._session:
            return False
        lost = self._open.get(field(field(message, "params"), "requestId"))
        if lost is not None:
            lost.set()
        return True

    async def _exchange(self, message: Any, line: bytes) -> None:
        id: Any = field(message, "id")
        lost, received = asyncio.Event(), False
        is_request = field(message, "method") is not None and isinstance(id, str | int)
        if is_request:
            self._open[id] = lost

        async def receive() -> MutableMapping[str, Any]:
            nonlocal received
            if not received:
                received = True
                return {"type": "http.request", "body": line, "more_body": False}
            await lost.wait()
            return {"type": "http.disconnect"}

        answer = _Answer(self._tell)
        try:
            await self._app(self._scope(message), receive, answer.send)
            self._finish(message, answer, id if is_request else None)
        finally:
            lost.set()
            if self._open.get(id) is lost:
                del self._open[id]

    def _finish(self, message: Any, answer: _Answer, id: Any) -> None:
        if field(message, "method") == "initialize" and (session := answer.headers.get("mcp-session-id")):
            version = field(field(answer.last, "result"), "protocolVersion")
            self._session = {"mcp-session-id": session, "mcp-protocol-version": str(version)}
        if id is not None and answer.last is None and answer.status:
            text = answer.text or f"The server answered with the HTTP status {answer.status}."
            self._tell({"jsonrpc": "2.0", "id": id, "error": {"code": INTERNAL, "message": text}})

    def _scope(self, message: Any) -> dict[str, Any]:
        params = field(message, "params")
        told = {**self._headers, "accept": "application/json, text/event-stream"}
        version = field(field(params, "_meta"), MODERN_META)
        if isinstance(version, str):
            method = str(field(message, "method"))
            named = field(params, NAMES.get(method, ""))
            told |= {"mcp-protocol-version": version, "mcp-method": method}
            told |= {"mcp-name": encoded(named)} if isinstance(named, str) else {}
        elif field(message, "method") != "initialize":
            told |= self._session
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in told.items()],
            "client": ("127.0.0.1", 0),
            "server": ("127.0.0.1", 0),
        }

    def _tell(self, message: Mapping[str, Any]) -> None:
        self._write(msgspec.json.encode(message) + b"\n")


class _Answer:
    """Reads a response: messages as they come, or whatever else it is."""

    def __init__(self, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._tell = tell
        self.status = 0
        self.headers: dict[str, str] = {}
        self.last: Any = None
        self.text = ""
        self._rest = b""

    async def send(self, part: MutableMapping[str, Any]) -> None:
        if part["type"] == "http.response.start":
            self.status = part["status"]
            self.headers = {name.decode().lower(): value.decode("latin-1") for name, value in part["headers"]}
            return
        self._rest += part.get("body", b"")
        kind = self.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                self._take(line.strip().removeprefix(b"data: "))
        elif not part.get("more_body"):
            if kind.startswith("application/json"):
                self._take(self._rest)
            else:
                self.text = self._rest.decode(errors="replace")

    def _take(self, text: bytes) -> None:
        if text.startswith(b"{"):
            self.last = msgspec.json.decode(text)
            self._tell(self.last)


def field(value: Any, name: str) -> Any:
    """Return a field of what a client sent; `None` if that is no object, or has no such field."""
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def encoded(value: str) -> str:
    """Return the form that a value has in a header."""
    from mcp.shared.inbound import encode_header_value

    return encode_header_value(value)


def endpoint_of(protocols: Any) -> str:
    """Return the path of the app's MCP server. Raises `UsageError` if it has none."""
    from sapwood.protocols.mcp_server import Mcp

    for one in protocols:
        if isinstance(one, Mcp):
            return one.path
    raise UsageError("The app has no MCP server. Write App(protocols=[Mcp(tools=[…])]).")
