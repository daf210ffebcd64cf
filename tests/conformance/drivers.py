"""Who drives the apps of these tests: their own fibers, or Temporal with ``pytest --driver temporal``.

Each process of pytest then has a Temporal server of its own. An app is served on a port that a worker,
in a process of its own, knows from the beginning; the next test's app is served there after it.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import PlainTextResponse
from tests.conformance.runtimes import running as running_by_itself
from tests.conformance.serving import serving
from tests.machine import patience
from tests.servers import Server

from sapwood import App
from sapwood.errors import UsageError
from sapwood.runs.execution.driver import DrivenWork
from sapwood.testing import World, world

if TYPE_CHECKING:
    from temporalio.client import Client

    from sapwood.drivers.temporal import TemporalDriver
    from sapwood.drivers.temporal.messages import Driven

PATIENCE = 0.6
"""What `World.settled` waits for a step that Temporal has to ask for first."""


@asynccontextmanager
async def running(app: App, **options: Any) -> AsyncGenerator[World, None]:
    """Run an app for a test, where and driven as pytest was told."""
    if not _temporal or app.driver is not None:
        async with running_by_itself(app, **options) as one:
            yield one
        return
    async with _temporal[0].place() as place:
        app.driver, begun = place.driver()
        try:
            async with place.serving() as serve, running_by_itself(app, **options) as one:
                serve(one)
                yield one
        finally:
            await _temporal[0].end_all(begun)


@contextmanager
def driven_by(name: str) -> Generator[None, None, None]:
    """Have this driver drive the apps in this block."""
    if name != "temporal":
        yield
        return
    usual = world.PATIENCE
    with tempfile.TemporaryDirectory(prefix="sapwood-temporal-") as folder:
        temporal = Temporal(Path(folder), Path(folder, "data"))
        try:
            asyncio.run(temporal.begin())
            _temporal.append(temporal)
            world.PATIENCE = PATIENCE
            yield
        finally:
            world.PATIENCE = usual
            _temporal.clear()
            temporal.end(signal.SIGTERM)


class Temporal(Server):
    """A Temporal server that keeps nothing, and the places where apps are served that it drives."""

    def __init__(self, work: Path, data: Path) -> None:
        self._all: list[Place] = []
        self._free: list[Place] = []
        self._connected: Client | None = None
        super().__init__(work, data)

    def command(self) -> list[str]:
        program = Path(sys.executable).with_name("temporal")
        where = ["--ip", "127.0.0.1", "--port", str(self.port)]
        return [str(program), "server", "start-dev", "--headless", "--log-level", "error", *where]

    async def begin(self) -> None:
        """Have the first place, so that no test has to wait for it."""
        async with self.place():
            pass

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[Place, None]:
        """Have a place for one app; some tests have two apps at once."""
        if not self._free:
            self._all.append(place := Place(self._work, self.host, f"place-{len(self._all)}"))
            await place.begun(await self._client())
            self._free.append(place)
        place = self._free.pop()
        try:
            yield place
        finally:
            self._free.append(place)

    async def end_all(self, workflows: set[str]) -> None:
        """End what a test left: agents of the next one may have the same names."""
        from temporalio.service import RPCError

        client = await self._client()

        async def end(workflow: str) -> None:
            with suppress(RPCError):  # most have ended
                await client.get_workflow_handle(workflow).terminate("the test is over")

        await asyncio.gather(*map(end, workflows))

    def end(self, how: signal.Signals) -> None:
        for place in self._all:
            place.end()
        super().end(how)

    async def _client(self) -> Client:
        from temporalio.client import Client

        async with asyncio.timeout(patience()):
            while self._connected is None:
                try:
                    self._connected = await Client.connect(self.host)
                except RuntimeError:  # it listens, and is not ready
                    await asyncio.sleep(0.05)
        return self._connected


class Place:
    """A port where one app after the other is served, and the worker that asks there."""

    def __init__(self, folder: Path, target: str, queue: str) -> None:
        from tests.temporal.cluster import TOKEN, Worker

        from sapwood.drivers.temporal import TemporalDriver

        self._held, self._port = _held_port()
        self._target, self._queue = target, queue
        driver = TemporalDriver(target, token=TOKEN, queue=queue)
        self._worker = Worker(folder, driver, f"http://127.0.0.1:{self._port}")

    async def begun(self, client: Client) -> None:
        """Return when the worker asks for work."""
        from temporalio.api.taskqueue.v1 import TaskQueue
        from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

        asked = DescribeTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=self._queue))
        async with asyncio.timeout(patience(120)):
            while not (await client.workflow_service.describe_task_queue(asked)).pollers:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def driver(self) -> tuple[TemporalDriver, set[str]]:
        """Return a driver for one app, and the ids of the workflows it begins."""
        from tests.temporal.cluster import TOKEN

        from sapwood.drivers.temporal import TemporalDriver

        driver, begun = TemporalDriver(self._target, token=TOKEN, queue=self._queue), set[str]()
        driven, state, now = driver.driven, driver.state, datetime.now(UTC)

        def noted(part: DrivenWork) -> Driven:
            begun.add((found := driven(part)).workflow)
            return found

        async def of_this_test(part: DrivenWork, since: datetime | None = None) -> str | None:
            # Of the test before, whose workflows were ended, agents may have had the same names.
            return await state(part, since or now)

        driver.driven, driver.state = noted, of_this_test
        return driver, begun

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[Callable[[World], None], None]:
        """Serve the world that is handed to the function that is yielded, whenever it runs."""
        worlds: list[World] = []

        async def current(scope: Any, receive: Any, send: Any) -> None:
            running = next((one.app for one in worlds if _runs(one)), None)
            await (running or PlainTextResponse("it does not run", 503))(scope, receive, send)

        async with serving(current, port=self._port):
            yield worlds.append

    def end(self) -> None:
        self._worker.end()
        self._held.close()


def _runs(one: World) -> bool:
    try:
        return one.node is not None
    except UsageError:
        return False


def _held_port() -> tuple[socket.socket, int]:
    """Return what holds a port, so that nobody else is given it, and the port; whoever asks for it may listen there."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held, int(held.getsockname()[1])


_temporal: list[Temporal] = []
"""What drives the apps of this process; empty: their fibers."""
