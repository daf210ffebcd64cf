"""One request of MCP over Streamable HTTP, answered inside the desk: as JSON, or as a stream once there is news."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import anyio
import msgspec
from mcp.server.connection import Connection
from mcp.server.runner import serve_one
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp.shared.transport_context import TransportContext
from mcp_types.jsonrpc import INTERNAL_ERROR
from pydantic import ValidationError
from starlette.responses import Response

from sapwood.errors import Unavailable

PING = 15.0
"""Seconds without news after which a stream has a comment, so that no proxy closes it."""
RETRY = 3000
"""Milliseconds after which a client that lost its connection comes again. Clients give up after two attempts, and a
server that is killed needs some seconds to be back."""
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Unfinished(Exception):
    """The server stops, and the client is to continue the stream of a held call at the next one."""


@dataclass
class OneRequest:
    """What the `mcp` package is told of a request: it cannot send requests of its own."""

    request_id: Any
    headers: Mapping[str, str]
    message_metadata: Any = None
    can_send_request: bool = False
    cancel_requested: anyio.Event = field(default_factory=anyio.Event)

    @property
    def transport(self) -> TransportContext:
        return TransportContext(kind="streamable-http", can_send_request=False, headers=self.headers)

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Any, opts: Any = None) -> None:
        """Send nothing: what is told during a request is told by its `Caller`."""

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Send nothing, in the same way."""


class Exchanged(Response):
    """The response to one request. Its work is done while it is sent, inside the desk."""

    def __init__(
        self, work: Callable[[Exchanged], Awaitable[dict[str, Any]]], id: Any, *, on_lost: Callable[[], None] | None
    ) -> None:
        super().__init__()
        self._work, self._id, self._on_lost = work, id, on_lost
        self.headers_of_json: dict[str, str] = {}
        self._send: Send | None = None
        self._is_stream = False
        self._lock = anyio.Lock()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Do the work, tell what happens, and answer."""
        self._send = send
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, receive, group.cancel_scope)
                group.start_soon(self._ping)
                message = await _outcome(self._id, self._work(self))
                async with self._lock:
                    await self._answer(scope, receive, message)
                group.cancel_scope.cancel()
        except BaseExceptionGroup as several:  # the server knows what to do with the one that is in it
            raise several.exceptions[0] from None

    async def tell(self, message: Mapping[str, Any], id: str | None = None) -> None:
        """Send a message before the answer."""
        async with self._lock:
            await self._write(_event(message, id))

    async def mark(self, id: str) -> None:
        """Send the id that a client which lost the connection continues from."""
        async with self._lock:
            await self._write(f"id: {id}\nretry: {RETRY}\ndata: \n\n".encode())

    async def _ping(self) -> None:
        while True:
            await anyio.sleep(PING)
            async with self._lock:
                await self._write(b": ping\n\n")

    async def _write(self, text: bytes) -> None:
        assert self._send is not None
        if not self._is_stream:
            self._is_stream = True
            await self._send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        await self._send({"type": "http.response.body", "body": text, "more_body": True})

    async def _answer(self, scope: Any, receive: Receive, message: dict[str, Any] | None) -> None:
        assert self._send is not None
        if self._is_stream:
            last = b"" if message is None else _event(message, None)
            await self._send({"type": "http.response.body", "body": last, "more_body": False})
        elif message is None:
            await refusal(503, INTERNAL_ERROR, "The server stops. Try again.", self._id)(scope, receive, self._send)
        else:
            status = ERROR_CODE_HTTP_STATUS.get(message["error"]["code"], 200) if "error" in message else 200
            response = json_response(message, status)
            response.headers.update(self.headers_of_json)
            await response(scope, receive, self._send)

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive()).get("type") != "http.disconnect":
            pass
        if self._on_lost is not None:
            self._on_lost()
        scope.cancel()


async def _outcome(id: Any, work: Awaitable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the result of a request, or its error, as a message; `None` if the server stops before there is one."""
    try:
        return {"jsonrpc": "2.0", "id": id, "result": await work}
    except Unfinished:
        return None
    except (MCPError, ValidationError) as error:
        told: Any = handler_exception_to_error_data(error)
        return {"jsonrpc": "2.0", "id": id, "error": told.model_dump(mode="json", exclude_none=True)}


class AnyCaller(Protocol):
    """Who makes a request."""

    def cancel(self) -> None:
        """Cancel what the request waits for."""
        ...

    def told(self, error: Exception, method: str) -> str:
        """Return what the client may be told of an error."""
        ...


async def served(
    server: Any, caller: AnyCaller, message: Mapping[str, Any], connection: Connection, headers: Mapping[str, str]
) -> dict[str, Any]:
    """Have the `mcp` package check a request, and answer it.

    Raises `Unavailable` if the agent has to be asked elsewhere, or later: that is told as an error of HTTP.
    """
    one, method = cast("Any", OneRequest(message["id"], headers)), message["method"]
    try:
        return await serve_one(server, one, method, message.get("params"), connection=connection, lifespan_state=caller)
    except (MCPError, ValidationError, Unavailable, Unfinished):
        raise
    except Exception as error:  # noqa: BLE001 - whatever a hook raised; it is logged
        raise MCPError(INTERNAL_ERROR, caller.told(error, method)) from None


def progress_to(exchanged: Callable[[], Exchanged], params: Any) -> Callable[..., Awaitable[None]]:
    """Return what tells a client of progress, if it has asked for that."""
    token = field_of(field_of(params, "_meta"), "progressToken")

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        if isinstance(token, str | int):
            told: dict[str, Any] = {"progressToken": token, "progress": progress, "total": total, "message": message}
            known = {name: value for name, value in told.items() if value is not None}
            await exchanged().tell({"jsonrpc": "2.0", "method": "notifications/progress", "params": known})

    return tell


def field_of(value: Any, name: str) -> Any:
    """Return a field of what a client sent; `None` if that is no object, or has no such field."""
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def json_response(message: Mapping[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(message), status, media_type="application/json")


def refusal(status: int, code: int, text: str, id: Any = None, data: Any = None) -> Response:
    """Return the response to a request that is refused before it is served."""
    error = {"code": code, "message": text, **({} if data is None else {"data": data})}
    return json_response({"jsonrpc": "2.0", "id": id, "error": error}, status)


def _event(message: Mapping[str, Any], id: str | None) -> bytes:
    head = b"" if id is None else f"id: {id}\n".encode()
    return b"event: message\n" + head + b"data: " + msgspec.json.encode(message) + b"\n\n"
