"""An app behind a real server on a port of its own, and clients that send exactly what they are told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import uvicorn
from tests.conformance.runtimes import running, serve
from tests.machine import patience
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from sapwood import Agent, App
from sapwood.testing import World


class _Server(uvicorn.Server):
    """A server that ends as soon as it can: uvicorn's own looks every tenth of a second, in hundreds of tests."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stop = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # What was accepted just now is no connection yet, and would never be one of a server that is closed.
        for server in self.servers:
            for listening in server.sockets:
                asyncio.get_running_loop().remove_reader(listening)
        for _ in range(5):
            await asyncio.sleep(0)
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.001)
        except TimeoutError:
            for task in state.tasks:
                task.cancel()
        await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals to pytest."""
        yield


@dataclass(frozen=True)
class Answer:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class Site:
    """Where the app is served."""

    def __init__(self, port: int, world: World | None = None) -> None:
        self.port = port
        self._world = world

    @property
    def world(self) -> World:
        assert self._world is not None
        return self._world

    async def http(
        self,
        target: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | AsyncIterable[bytes] = b"",
    ) -> Answer:
        """Send a request whose target is not touched; a body that is a stream is sent in chunks."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            sent = {"host": f"127.0.0.1:{self.port}", "connection": "close"}
            sent |= {"content-length": str(len(body))} if isinstance(body, bytes) else {"transfer-encoding": "chunked"}
            lines = [f"{name}: {value}" for name, value in (sent | dict(headers or {})).items()]
            writer.write("\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""]).encode("latin-1"))
            sending = asyncio.create_task(_send(writer, body))
            answer = await read_answer(reader)
            sending.cancel()
            await asyncio.wait({sending})
            return answer
        finally:
            writer.close()

    def socket(self, target: str, **options: Any) -> Any:
        """Return a WebSocket client; ``async with`` opens and closes it."""
        return connect(f"ws://127.0.0.1:{self.port}{target}", proxy=None, max_size=None, compression=None, **options)

    async def refused(self, target: str, **options: Any) -> int:
        """Open a socket that is accepted and closed at once; return its close code."""
        async with self.socket(target, **options) as client:
            return await closed(client)


async def _send(writer: asyncio.StreamWriter, body: bytes | AsyncIterable[bytes]) -> None:
    with contextlib.suppress(ConnectionError):
        if isinstance(body, bytes):
            writer.write(body)
        else:
            async for part in body:
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        await writer.drain()


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read one response to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Answer(int(head[0].split()[1]), headers, body)


async def closed(client: ClientConnection) -> int:
    """Read a socket to its end; return its close code."""
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(patience()):
            while True:
                await client.recv()
    assert client.close_code is not None
    return client.close_code


async def frames_until(client: ClientConnection, type: str) -> list[dict[str, Any]]:
    """Read frames up to the first of this type."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(patience()):
        while not found or found[-1].get("type") != type:
            frame = await client.recv()
            with contextlib.suppress(ValueError):
                found.append(json.loads(frame))
    return found


async def greeted(client: ClientConnection) -> dict[str, Any]:
    """Read the greeting; return who the agent says it is."""
    return (await frames_until(client, "cf_agent_mcp_servers"))[0]


async def call(client: ClientConnection, method: str, *args: Any) -> Any:
    """Call a method as the npm client does; return its result, or raise what it was told."""
    id_ = uuid4().hex
    await client.send(json.dumps({"type": "rpc", "id": id_, "method": method, "args": args}))
    while (answer := (await frames_until(client, "rpc"))[-1])["id"] != id_:
        pass
    if not answer["success"]:
        raise RuntimeError(answer["error"])
    return answer.get("result")


@asynccontextmanager
async def serving(app: Any, world: World | None = None, *, port: int = 0, **config: Any) -> AsyncGenerator[Site, None]:
    """Serve an ASGI application on a free port, or on this one. `config` is uvicorn's."""
    listening = socket.create_server(("127.0.0.1", port))
    options = {"lifespan": "off", "ws": "websockets-sansio", "ws_per_message_deflate": False, "log_level": "critical"}
    server = _Server(uvicorn.Config(app, **{**options, "timeout_graceful_shutdown": 2, **config}))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        async with asyncio.timeout(patience()):
            while not server.started:
                if task.done():
                    await task  # it says why
                await asyncio.sleep(0.001)
        yield Site(listening.getsockname()[1], world)
    finally:
        server.stop.set()
        await task
        listening.close()
        for late in list(server.server_state.connections):  # they did not end in time
            late.transport.abort()  # pyright: ignore[reportAttributeAccessIssue]
        await asyncio.sleep(0)


@asynccontextmanager
async def door(
    *roots: type[Agent[Any]],
    deps: Any = None,
    authenticate: Callable[..., Any] | None = None,
    authorize: Callable[..., Any] | None = None,
    user_limits: Callable[[str], Any] | None = None,
    **settings: Any,
) -> AsyncGenerator[Site, None]:
    """Run an app in a world of its own, and serve it."""
    app = App(agents=roots, deps=deps, authenticate=authenticate, authorize=authorize, user_limits=user_limits)
    async with running(app, slow_slices="allow", **settings) as world:

        async def now(scope: Any, receive: Any, send: Any) -> None:
            await serve(world, scope, receive, send)

        async with serving(now, world) as site:
            yield site
