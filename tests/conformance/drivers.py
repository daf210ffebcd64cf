"""Who drives the apps of these tests: their own fibers, or Temporal with ``pytest --driver temporal``.

Each process of pytest then has a Temporal server of its own. An app is served on a port that a worker,
in a process of its own, knows from the beginning; the next test's app is served there after it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import PlainTextResponse
from tests.conformance.serving import serving

from sapwood import App, UsageError
from sapwood.runs.pacing import Part
from sapwood.testing import World, world
from sapwood.testing import running as running_by_itself

if TYPE_CHECKING:
    from sapwood.drivers.temporal import TemporalDriver
    from sapwood.drivers.temporal.workflow import Driven

ROOT = Path(__file__).parents[2]
TOKEN = "the worker of these tests"
PATIENCE = 0.6
"""What `World.settled` waits for a step that Temporal has to ask for first."""


@asynccontextmanager
async def running(app: App, **options: Any) -> AsyncGenerator[World, None]:
    """Run an app for a test, as `sapwood.testing.running` does, driven as pytest was told."""
    if _temporal is None:
        async with running_by_itself(app, **options) as one:
            yield one
        return
    with _temporal.place() as place:
        app.driver, begun = place.driver()
        try:
            async with place.serving() as serve, running_by_itself(app, **options) as one:
                serve(one)
                yield one
        finally:
            await _temporal.end(begun)


@contextmanager
def driven_by(name: str) -> Generator[None, None, None]:
    """Have this driver drive the apps in this block."""
    global _temporal
    if name == "temporal":
        _temporal, usual = Temporal(), world.PATIENCE
        world.PATIENCE = PATIENCE
    try:
        yield
    finally:
        if _temporal is not None:
            _temporal.stop()
            _temporal, world.PATIENCE = None, usual


class Temporal:
    """A Temporal server, and where apps are served that it drives."""

    def __init__(self) -> None:
        import temporalio.client as _  # noqa: F401 - it takes a while, which no test is to wait for

        self._held, port = _held_port()
        self.target = f"127.0.0.1:{port}"
        command = ["temporal", "server", "start-dev", "--headless", "--log-level", "error"]
        self._process = subprocess.Popen(
            [*command, "--ip", "127.0.0.1", "--port", str(port)], stdout=subprocess.DEVNULL
        )
        _until_listening(self._process, port)
        self._all = [Place(self.target, "place 0")]
        self._free = [*self._all]
        self._client: Any = None

    @contextmanager
    def place(self) -> Generator[Place, None, None]:
        """Have a place for one app; some tests have two apps at once."""
        if not self._free:
            self._all.append(Place(self.target, f"place {len(self._all)}"))
            self._free.append(self._all[-1])
        place = self._free.pop()
        try:
            yield place
        finally:
            self._free.append(place)

    async def end(self, workflows: set[str]) -> None:
        """End what a test left: agents of the next one may have the same names."""
        from temporalio.client import Client
        from temporalio.service import RPCError

        if self._client is None:
            self._client = await Client.connect(self.target)

        async def terminate(workflow: str) -> None:
            with suppress(RPCError):  # most have ended
                await self._client.get_workflow_handle(workflow).terminate("the test is over")

        await asyncio.gather(*map(terminate, workflows))

    def stop(self) -> None:
        for place in self._all:
            place.stop()
        _stop(self._process)
        self._held.close()


class Place:
    """A port where one app after the other is served, and the worker that asks there."""

    def __init__(self, target: str, queue: str) -> None:
        self._held, self._port = _held_port()
        self._target, self._queue = target, queue
        command = [sys.executable, "-m", __name__, target, queue, f"http://127.0.0.1:{self._port}"]
        self._worker = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._worker.stdout is not None
        self._worker.stdout.readline()  # it says when it has begun

    def driver(self) -> tuple[TemporalDriver, set[str]]:
        """Return a driver for one app, and the ids of the workflows it has begun."""
        driver, begun = driver_of(self._target, self._queue), set[str]()
        driven = driver.driven

        def noted(part: Part) -> Driven:
            begun.add((found := driven(part)).workflow)
            return found

        driver.driven = noted
        return driver, begun

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[Any, None]:
        """Serve what is handed to the function that is yielded, whenever it runs."""
        worlds: list[World] = []

        async def current(scope: Any, receive: Any, send: Any) -> None:
            running = next((one.app for one in worlds if _runs(one)), None)
            await (running or PlainTextResponse("it does not run", 503))(scope, receive, send)

        async with serving(current, port=self._port):
            yield worlds.append

    def stop(self) -> None:
        _stop(self._worker)
        self._held.close()


def _runs(one: World) -> bool:
    try:
        return one.node is not None
    except UsageError:
        return False


def _held_port() -> tuple[socket.socket, int]:
    """Return a port that nobody else is given, and what holds it: whoever asks for this one may listen there."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held, int(held.getsockname()[1])


def _until_listening(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.02)
    raise RuntimeError("Temporal did not start.")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def driver_of(target: str, queue: str) -> TemporalDriver:
    """Return what an app and its worker both have."""
    from sapwood.drivers.temporal import TemporalDriver

    return TemporalDriver(target, token=TOKEN, queue=queue)


_temporal: Temporal | None = None
"""What drives the apps of this process; None: their fibers."""


async def main(target: str, queue: str, url: str) -> None:
    """Work until whoever started this is no more; say when it has begun."""
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

    from sapwood.drivers.temporal.worker import work

    until, driver = asyncio.Event(), driver_of(target, queue)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), until.set)
    working = asyncio.create_task(work(driver, url, until))
    service = (await driver.connect()).workflow_service
    asked = DescribeTaskQueueRequest(namespace=driver.namespace, task_queue=TaskQueue(name=queue))
    while not (await service.describe_task_queue(asked)).pollers:  # noqa: ASYNC110 - seen from outside
        await asyncio.sleep(0.02)
    print("begun", flush=True)
    await working


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    os._exit(0)  # threads of Temporal's client may end the interpreter with an error otherwise
