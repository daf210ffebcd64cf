"""An app under test behind a real server, and clients that see every frame."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Self

import websockets
from tests.conformance.drivers import running
from tests.conformance.runtimes import serve
from tests.conformance.serving import Site, serving
from tests.machine import patience
from websockets.asyncio.client import ClientConnection

from sapwood import App
from sapwood.testing import World


class Client:
    """A socket that keeps everything it receives, in order."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.frames: list[Any] = []
        self.closed: tuple[int, str] | None = None
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read())
        self._calls = 0

    async def _read(self) -> None:
        try:
            async for data in self._connection:
                self.frames.append(_decoded(data))
                self._news.set()
        except websockets.ConnectionClosed:
            pass
        self.closed = (self._connection.close_code or 0, self._connection.close_reason or "")
        self._news.set()

    async def until(self, fits: Any) -> Any:
        """Return the first frame that fits, waiting for it."""
        async with asyncio.timeout(patience()):
            while True:
                for frame in self.frames:
                    if fits(frame):
                        return frame
                if self.closed is not None:
                    raise AssertionError(f"closed {self.closed}, having seen {self.frames}")
                self._news.clear()
                await self._news.wait()

    async def greeted(self) -> Self:
        """Wait for the last frame of the greeting."""
        await self.until(lambda frame: type_of(frame) == "cf_agent_mcp_servers")
        return self

    async def ended(self) -> tuple[int, str]:
        async with asyncio.timeout(patience()):
            await self._reading
        assert self.closed is not None
        return self.closed

    async def send(self, message: Any) -> None:
        await self._connection.send(message if isinstance(message, str | bytes) else json.dumps(message))

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method as the npm clients do; return the last frame of the answer."""
        self._calls += 1
        id_ = f"call-{self._calls}"
        await self.send({"type": "rpc", "id": id_, "method": method, "args": list(args)})
        return await self.until(
            lambda frame: type_of(frame) == "rpc" and frame["id"] == id_ and frame.get("done") is not False
        )

    def of_type(self, kind: str) -> list[Any]:
        return [frame for frame in self.frames if type_of(frame) == kind]

    async def close(self) -> None:
        await self._connection.close()
        await self._reading


def _decoded(data: str | bytes) -> Any:
    try:
        return json.loads(data) if isinstance(data, str) else data
    except ValueError:
        return data


def type_of(frame: Any) -> Any:
    return frame.get("type") if isinstance(frame, dict) else None


class Served:
    """A running app, its server, and its clients."""

    def __init__(self, world: World, site: Site) -> None:
        self.world = world
        self.site = site
        self._clients: list[Client] = []

    async def connect(self, path: str, **options: Any) -> Client:
        connection = await websockets.connect(f"ws://127.0.0.1:{self.site.port}{path}", compression=None, **options)
        client = Client(connection)
        self._clients.append(client)
        return client

    async def join(self, path: str, **options: Any) -> Client:
        """Connect, and wait until greeted."""
        return await (await self.connect(path, **options)).greeted()

    async def end(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def served(app: App, **settings: Any) -> AsyncGenerator[Served, None]:
    """Run an app for a test behind a real server."""
    async with running(app, slow_slices="allow", **settings) as world:

        async def current(scope: Any, receive: Any, send: Any) -> None:
            await serve(world, scope, receive, send)

        async with serving(current, world) as site:
            one = Served(world, site)
            try:
                yield one
            finally:
                await one.end()
