"""A node that may not answer any more sends its clients away, and they are told to ask again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.serving import serving
from tests.machine import patience

from sapwood import Agent, App, Settings, Unavailable, expose
from sapwood.client import connect
from sapwood.kernel.ports.log import OutOfTouch
from sapwood.kernel.ports.placement import NotBegun

began, go_on = asyncio.Event(), asyncio.Event()


class Teller(Agent):
    create_from_url = True

    @expose
    async def tell(self) -> int:
        return 1

    @expose
    async def dig(self) -> None:
        self.start_fiber("digging", self.digging)

    async def digging(self) -> int:
        began.set()
        await go_on.wait()
        return await self.step("find", self.find)

    async def find(self) -> int:
        return 7

    @expose
    async def dug(self) -> list[str]:
        return [str(one.status) for one in self.fibers.list()]

    @expose
    async def pass_on(self) -> int:
        raise Unavailable("The other one is not there.")


def out_of_touch(app: App) -> None:
    """Have the gate refuse everything, as it does when a node's lease is over."""

    def wait(_: object) -> None:
        raise OutOfTouch

    app.node.gate.wait = wait  # type: ignore[method-assign]


async def test_a_call_that_may_not_be_answered_is_unavailable_and_nothing_is_logged_as_a_mistake(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(agents=[Teller], settings=Settings(data=str(tmp_path)))
    async with serving(app) as url, connect(url, Teller, "ann", delay=lambda _: 0.01) as ann:
        assert await ann.stub.tell() == 1
        gate = app.node.gate
        out_of_touch(app)
        with pytest.raises(Unavailable):
            await ann.stub.tell()
        del gate.wait  # type: ignore[attr-defined]
        assert await ann.stub.tell() == 1

    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_work_that_is_under_way_waits_until_its_node_may_answer_again_and_does_not_fail(tmp_path: Path) -> None:
    app = App(agents=[Teller], settings=Settings(data=str(tmp_path)))
    async with serving(app) as url, connect(url, Teller, "ann", delay=lambda _: 0.01) as ann:
        await ann.stub.dig()
        await began.wait()
        gate = app.node.gate
        out_of_touch(app)
        go_on.set()
        await asyncio.sleep(0.3)
        del gate.wait  # type: ignore[attr-defined]
        async with asyncio.timeout(patience()):
            while (dug := await ann.stub.dug()) == ["running"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    assert dug == ["completed"]


async def test_what_is_unavailable_for_an_agent_is_so_for_its_client(tmp_path: Path) -> None:
    app = App(agents=[Teller], settings=Settings(data=str(tmp_path)))
    async with serving(app) as url, connect(url, Teller, "ann") as ann:
        with pytest.raises(Unavailable, match="Not available now"):
            await ann.stub.pass_on()


async def test_clients_that_have_to_come_again_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Semaphore(0)

    async def refused(*_: object, **__: object) -> None:
        asked.release()
        raise Unavailable("Nobody runs it.")

    async def come(url: str) -> None:
        async with connect(url, Teller, "ann", timeout=None, delay=lambda _: 0.0):
            pass

    app = App(agents=[Teller], settings=Settings(data=str(tmp_path)))
    async with serving(app) as url:
        monkeypatch.setattr(app.node, "reach", refused)
        client = asyncio.create_task(come(url))
        async with asyncio.timeout(patience()):
            for _ in range(5):
                await asked.acquire()
        client.cancel()
        await asyncio.wait([client])
        told = [record for record in caplog.records if "client should retry" in record.getMessage()]

    assert len(told) == 1


async def test_who_asks_an_app_that_stops_does_not_start_it_anew(tmp_path: Path) -> None:
    asked: list[Exception] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_: object) -> None:
        await asyncio.sleep(0)

    @asynccontextmanager
    async def deps() -> AsyncGenerator[None, None]:
        yield
        try:
            await app({"type": "http", "method": "GET", "path": "/", "headers": []}, receive, send)
        except NotBegun as error:
            asked.append(error)

    app = App(agents=[Teller], deps=deps, settings=Settings(data=str(tmp_path)))
    async with app:
        pass

    assert [str(error) for error in asked] == ["The app is shutting down."]
