"""A real server for a test: an app under uvicorn, on a free port, in the test's own loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from sapwood.web.server import WebSockets


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def serving(app: Any, port: int = 0, **options: Any) -> AsyncGenerator[str, None]:
    """Serve an ASGI application; yield its URL. `options` are uvicorn's."""
    port = port or free_port()
    usual: dict[str, Any] = {"ws": WebSockets, "lifespan": "on", "timeout_graceful_shutdown": 1}
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, ws_per_message_deflate=False, log_config=None, **{**usual, **options}
    )
    server = uvicorn.Server(config)
    # Not serve(), which would take over the signals of the test run.
    task = asyncio.create_task(server._serve())
    while not server.started:
        if task.done():
            await task
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task
