"""A real Temporal server, real workers, and an app that they drive: each test has a queue of its own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from google.protobuf.json_format import MessageToJson
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from tests.conformance.served import Served, served
from tests.machine import patience
from tests.servers import Server

from sapwood import Agent, App
from sapwood.drivers.temporal import TemporalDriver

CHECKOUT = Path(__file__).parents[2]
TOKEN = "only-for-tests"
PATIENCE = 2.0
"""Seconds after which somebody who is dead is missed."""


class Temporal(Server):
    """Temporal's own dev server; what it knows is in a file, so it can be ended and started again."""

    def command(self) -> list[str]:
        program = Path(sys.executable).with_name("temporal")
        kept = self._data / "temporal.db"
        where = ["--ip", "127.0.0.1", "--port", str(self.port), "--db-filename", str(kept)]
        return [str(program), "server", "start-dev", "--headless", "--log-level", "error", *where]

    async def client(self) -> Client:
        async with asyncio.timeout(patience()):
            while True:
                try:
                    return await Client.connect(self.host)
                except RuntimeError:  # it listens, and is not ready
                    await asyncio.sleep(0.05)


class Worker:
    """`sapwood temporal worker`, in a process of its own."""

    def __init__(self, folder: Path, driver: TemporalDriver, url: str, *, token: str = TOKEN) -> None:
        self._file = folder / f"worker-{uuid4().hex[:8]}.log"
        told = {"TEMPORAL_TARGET": driver.target, "TEMPORAL_QUEUE": driver.queue, "TEMPORAL_TOKEN": token}
        told["TEMPORAL_PATIENCE"] = str(driver.patience)
        command = [sys.executable, "-m", "sapwood", "temporal", "worker", "tests.temporal.worked:app", "--url", url]
        with self._file.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=CHECKOUT, env={**os.environ, **told}, stdout=log, stderr=log, start_new_session=True
            )

    def log(self) -> str:
        return self._file.read_text()

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(how)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Driven:
    """An app behind a real server, driven by Temporal."""

    def __init__(self, one: Served, driver: TemporalDriver, temporal: Temporal, client: Client, folder: Path) -> None:
        self.one = one
        self.world = one.world
        self.driver = driver
        self.temporal = temporal
        self.client = client
        self._folder = folder
        self.name = f"t{uuid4().hex[:8]}"
        """For the root of this test: Temporal is the same for all of them."""
        self.workers: list[Worker] = []

    def work(self, **more: Any) -> Worker:
        """Start a worker."""
        url = f"http://127.0.0.1:{self.one.site.port}"
        self.workers.append(Worker(self._folder, self.driver, url, **more))
        return self.workers[-1]

    def workflow(self, address: str, id: str) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(f"{address} {id}")

    async def begun(self, n: int = 1) -> list[str]:
        """Wait until there are so many workflows; return their ids."""
        async with asyncio.timeout(patience()):
            while len(found := await self.workflows()) < n:  # noqa: ASYNC110 - Temporal does not tell
                await asyncio.sleep(0.05)
        return sorted(found)

    async def workflows(self) -> dict[str, WorkflowExecutionStatus | None]:
        """Return how all workflows of this app stand that Temporal lists, by their ids."""
        found = self.client.list_workflows(f"TaskQueue = '{self.driver.queue}'")
        return {one.id: one.status async for one in found if one.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW}

    async def closed(self, n: int) -> dict[str, str]:
        """Wait until there are so many workflows and none is open; return how each ended."""
        async with asyncio.timeout(patience()):
            while True:
                found = await self.workflows()
                # The list is late; whoever it says is open is asked.
                if len(found) >= n and WorkflowExecutionStatus.RUNNING not in found.values():
                    return {id: status.name for id, status in found.items() if status is not None}
                await asyncio.sleep(0.05)

    async def histories(self) -> dict[str, str]:
        """Return all that Temporal keeps of each workflow, as text, with what is packed in it."""
        found: dict[str, str] = {}
        for id in await self.workflows():
            history = await self.client.get_workflow_handle(id).fetch_history()
            found[id] = "\n".join(_read(MessageToJson(event)) for event in history.events)
        return found


def _read(event: str) -> str:
    """Return an event with its payloads in words."""
    return re.sub(r'"data": "([^"]*)"', lambda found: b64decode(found[1]).decode(errors="replace"), event)


async def until_ended(handle: WorkflowHandle[Any, Any]) -> str:
    """Wait until a workflow has ended; return how."""
    async with asyncio.timeout(patience()):
        while True:
            found = (await handle.describe()).status
            if found is not None and found is not WorkflowExecutionStatus.RUNNING:
                return found.name
            await asyncio.sleep(0.02)


@asynccontextmanager
async def driven(
    temporal: Temporal,
    folder: Path,
    *agents: type[Agent[Any]],
    patience: float = PATIENCE,
    look: float = 900.0,
    workers: int = 1,
    **settings: Any,
) -> AsyncGenerator[Driven, None]:
    """Serve an app whose turns and runs Temporal drives."""
    queue = f"queue-{uuid4().hex[:8]}"
    driver = TemporalDriver(temporal.host, token=TOKEN, queue=queue, patience=patience, look=look)
    client = await temporal.client()
    async with served(App(agents=agents, driver=driver), **settings) as one:
        found = Driven(one, driver, temporal, client, folder)
        try:
            for _ in range(workers):
                found.work()
            yield found
        finally:
            for worker in found.workers:
                worker.end()
