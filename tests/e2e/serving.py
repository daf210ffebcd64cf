"""A real server for a test: an app under uvicorn, on a free port, in the test's own loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from tests.conformance import serving as conformance

from sapwood.web.server import WebSockets


@asynccontextmanager
async def serving(app: Any, port: int = 0, **options: Any) -> AsyncGenerator[str, None]:
    """Serve an ASGI application as `sapwood serve` does; yield its URL. `options` are uvicorn's."""
    usual: dict[str, Any] = {"ws": WebSockets, "lifespan": "on", "timeout_graceful_shutdown": 1, "log_config": None}
    async with conformance.serving(app, port=port, **{**usual, **options}) as site:
        yield f"http://127.0.0.1:{site.port}"
