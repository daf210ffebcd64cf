"""Tasks given to real servers by A2A, while the caller or the other server is killed: nothing is done twice."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.worlds import happens
from tests.machine import patience
from tests.servers import Server

HERE = Path(__file__).parent
WORDS = 6
pytestmark = pytest.mark.slow


class A2aCaller(Server):
    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--data", str(self._data), "--log-level", "warning"]
        return [sys.executable, "-m", "sapwood", "serve", f"{HERE / 'a2a_caller_app.py'}:app", *options]


class SapwoodServer(Server):
    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--data", str(self._data), "--log-level", "warning"]
        return [sys.executable, "-m", "sapwood", "serve", f"{HERE / 'a2a_app.py'}:app", *options]


class SdkServer(Server):
    def command(self) -> list[str]:
        return [sys.executable, str(HERE / "a2a_sdk_server.py"), str(self.port)]


class Both:
    """Two servers, and what was done in the other one."""

    def __init__(self, folder: Path, kind: type[Server], path: str = "") -> None:
        self._log = folder / "done.log"
        self.other = kind(folder, folder / "other", A2A_LOG=str(self._log))
        self.caller = A2aCaller(folder, folder / "caller", A2A_URL=f"http://{self.other.host}{path}")

    def done(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def allow(self, *numbers: int) -> None:
        for number in numbers:
            Path(f"{self._log}.{number}").touch()

    async def seen(self, line: str) -> None:
        async with asyncio.timeout(patience(30)):
            await happens(lambda: line in self.done())

    async def kill(self, server: Server) -> None:
        await asyncio.to_thread(server.end, signal.SIGKILL)
        await asyncio.to_thread(server.start)

    async def ask(self, path: str, **body: Any) -> dict[str, Any]:
        url = f"http://{self.caller.host}/agents/far-desk/d{path}"
        request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")

        def answer() -> dict[str, Any]:
            with urllib.request.urlopen(request, timeout=patience(30)) as response:
                return json.loads(response.read())

        return await asyncio.to_thread(answer)

    async def until(self, **wanted: Any) -> dict[str, Any]:
        """Wait until the desk tells this of its run."""
        async with asyncio.timeout(patience(60)):
            while True:
                told = await self.ask("/look")
                if all(told.get(name) == value for name, value in wanted.items()):
                    return told
                await asyncio.sleep(0.05)

    def end(self) -> None:
        self.caller.end(signal.SIGKILL)
        self.other.end(signal.SIGKILL)


@pytest.fixture
def sdk(tmp_path: Path) -> Iterator[Both]:
    both = Both(tmp_path, SdkServer)
    yield both
    both.end()


@pytest.fixture
def looks(tmp_path: Path) -> Iterator[Both]:
    both = Both(tmp_path, SapwoodServer, "/a2a/look-agent")
    yield both
    both.end()


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Both]:
    both = Both(tmp_path, SapwoodServer, "/a2a/order-agent")
    yield both
    both.end()


@pytest.mark.promise("B-38")
async def test_a_task_of_another_system_is_done_once_though_its_caller_is_killed(sdk: Both) -> None:
    await sdk.ask("/start", input="dig")
    await sdk.seen("execute dig")
    await sdk.kill(sdk.caller)  # it may know the task by now, or not
    sdk.allow(0, 1, 2)
    await sdk.seen("word 2")
    await sdk.kill(sdk.caller)
    sdk.allow(3, 4, 5)

    told = await sdk.until(status="completed")

    assert told["output"] == "".join(f"word{number} " for number in range(WORDS))
    assert sdk.done() == ["execute dig", *(f"word {number}" for number in range(WORDS))]


async def test_what_a_task_of_another_system_asks_is_answered_after_a_kill(sdk: Both) -> None:
    await sdk.ask("/start", input="paint")
    await sdk.until(asked=["Which colour?"])
    await sdk.kill(sdk.caller)
    await sdk.until(asked=["Which colour?"])

    await sdk.ask("/answer", value="blue")

    assert (await sdk.until(status="completed"))["output"] == "painted blue"
    assert sdk.done() == ["execute paint", "execute blue"]


@pytest.mark.nightly
async def test_a_task_of_another_system_is_cancelled_with_its_caller(sdk: Both) -> None:
    await sdk.ask("/start", input="dig")
    await sdk.seen("execute dig")
    await sdk.ask("/stop")
    await sdk.kill(sdk.caller)
    await sdk.ask("/look")
    await sdk.seen("cancelled")
    assert sdk.done() == ["execute dig", "cancelled"]


@pytest.mark.nightly
async def test_a_task_that_its_system_forgets_when_it_is_killed_is_not_begun_again(sdk: Both) -> None:
    await sdk.ask("/start", input="dig")
    sdk.allow(0)
    await sdk.seen("word 0")
    await sdk.kill(sdk.other)

    assert "remote_lost" in (await sdk.until(status="failed"))["error"]
    assert sdk.done() == ["execute dig", "word 0"]


@pytest.mark.nightly
@pytest.mark.promise("B-38")
async def test_a_task_of_a_sapwood_server_is_done_once_though_both_are_killed(looks: Both) -> None:
    await looks.ask("/start", input="hills")
    looks.allow(0, 1, 2)
    await looks.seen("look 2")
    await looks.kill(looks.other)
    await looks.kill(looks.caller)
    looks.allow(3, 4, 5)
    await looks.seen("look 5")
    await looks.kill(looks.caller)
    await looks.kill(looks.other)
    looks.allow(6, 7, 8, 9)

    assert (await looks.until(status="completed"))["output"] == "hills has 10 sides"
    assert looks.done() == [f"look {number}" for number in range(10)]


@pytest.mark.nightly
async def test_an_approval_five_levels_down_in_two_servers_is_given_after_kills_and_paid_once(orders: Both) -> None:
    await orders.ask("/start", input="bread")
    await orders.until(asked=["pay"])
    await orders.kill(orders.other)
    await orders.kill(orders.caller)
    await orders.until(asked=["pay"])

    await orders.ask("/answer", value=True)

    assert (await orders.until(status="completed"))["output"] == "all is bought"
    assert orders.done() == ["paid 3"]
