"""A full disk: writes are refused, nothing acknowledged is lost, and runs and turns wait as after a crash."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from tests.cases import slow
from tests.conformance import runtimes
from tests.conformance.chats import talker
from tests.conformance.full_disk import full_disk
from tests.conformance.served import served

from sapwood import Agent, App, agent_tool, expose
from sapwood.errors import Unavailable
from sapwood.testing import ScriptedModel, World, call, running, text

pytestmark = pytest.mark.storage

DEPTH = 3
NODES = {"workers": 2, "movable": 2, "cluster": 3}
"""How many nodes of a runtime look at the disk, each with a log of its own."""


class Book(Agent):
    migrations = ("CREATE TABLE lines (n INTEGER NOT NULL) STRICT",)

    async def write(self, n: int) -> None:
        self.sql("INSERT INTO lines VALUES (?)", n)


class Worker(Agent):
    migrations = ("CREATE TABLE done (depth INTEGER NOT NULL) STRICT",)

    async def on_run(self, input: Any) -> Any:
        depth = int(input["message"] if isinstance(input, dict) else input)
        await self.step("before", self.note, depth)
        await (await self.sub_agent(Book, "book")).write(depth)  # a refused write of a child is no failure of the run
        below = None
        if depth > 1:
            below = await self.run_agent(Worker, depth - 1, run_id="below")
            assert below.ok, (below.status, below.reason, below.error)
        await self.step("after", self.note, -depth)
        return [depth, *(below.output if below is not None else [])]

    async def note(self, depth: int) -> int:
        self.sql("INSERT INTO done VALUES (?)", depth)
        await asyncio.sleep(0)
        return depth


class Boss(Agent):
    migrations = ("CREATE TABLE kept (n INTEGER PRIMARY KEY) STRICT",)

    @expose
    async def delegate(self) -> Any:
        run = await self.run_agent(Worker, DEPTH, run_id="work")
        return [run.status, run.output, run.reason, run.error]

    @expose
    async def keep(self, n: int) -> int:
        self.sql("INSERT INTO kept VALUES (?)", n)
        return n

    @expose
    async def kept(self) -> int:
        return self.sql("SELECT count(*) FROM kept").scalar(int)

    async def on_request(self, request: Any) -> Any:
        return PlainTextResponse(str(await self.keep(int(request.query_params["n"]))))


async def patiently(attempt: Callable[[], Awaitable[Any]]) -> Any:
    """Try again as a client does."""
    for _ in range(50):
        try:
            return await attempt()
        except Unavailable:
            await asyncio.sleep(1)
    raise AssertionError("It is unavailable still.")


async def at_each_write(
    monkeypatch: pytest.MonkeyPatch, every: int, refusals: int, cls: type[Agent], ask: Callable[[Any], Awaitable[Any]]
) -> None:
    """Let the disk be full from each n-th write on, until so many were refused; `ask` is tried as by a client."""
    write, was_refused = 1, True
    while was_refused:
        with full_disk(monkeypatch) as disk:
            async with running(App(agents=[cls])) as world:
                disk.fill_at(write, refusals)

                async def attempt(world: World = world) -> Any:
                    return await ask(await world.get_agent(cls, "a"))

                assert await patiently(attempt) == ("completed", "done"), f"write {write}"
            was_refused = bool(disk.refused)
        write += every
    assert write > 20


EVERY = pytest.mark.parametrize(
    ("every", "refusals"),
    [
        pytest.param(19, 1, marks=pytest.mark.slow),
        pytest.param(23, 4, marks=pytest.mark.slow),
        pytest.param(1, 1, marks=pytest.mark.nightly),
        pytest.param(1, 4, marks=pytest.mark.nightly),
    ],
)


@EVERY
async def test_a_run_three_levels_deep_completes_whichever_write_is_refused(
    monkeypatch: pytest.MonkeyPatch, every: int, refusals: int
) -> None:
    async def ask(boss: Any) -> Any:
        status, output, reason, error = await boss.delegate()
        assert output == [3, 2, 1], (status, reason, error)
        return status, "done"

    await at_each_write(monkeypatch, every, refusals, Boss, ask)


@EVERY
async def test_a_turn_whose_tool_is_a_sub_agent_completes_whichever_write_is_refused(
    monkeypatch: pytest.MonkeyPatch, every: int, refusals: int
) -> None:
    async def ask(talker: Any) -> Any:
        turn = await talker.turns.wait((await talker.turns.start("hi", id="t1")).id)
        return turn.status, turn.text

    script = ScriptedModel(call("helper", message="2"), text("done"), each=True)
    cls = talker(script, tools=(agent_tool(Worker, name="helper", description="Help."),))
    await at_each_write(monkeypatch, every, refusals, cls, ask)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EMFILE, "the process has too many open files"),
        *slow([(errno.EROFS, "the file system is read-only"), (errno.EDQUOT, "the disk quota is exceeded")]),
    ],
)
async def test_a_refused_write_is_503_and_1013_and_readyz_has_the_reason_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int, reason: str
) -> None:
    caplog.set_level(logging.WARNING)
    with full_disk(monkeypatch, code) as disk:
        async with served(App(agents=[Boss])) as one:
            client = await one.join("/agents/boss/old")
            assert (await client.call("keep", 1))["result"] == 1
            disk.is_full = True

            for name in ("old", "new"):
                for number in range(10):
                    answer = await one.site.http(f"/agents/boss/{name}?n={number + 2}")
                    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            ready = await one.site.http("/readyz")
            assert (ready.status, ready.headers["retry-after"], ready.text) == (503, "1", f"not ready: {reason}")
            for name in ("old", "new"):
                other = await one.join(f"/agents/boss/{name}")
                await other.send({"type": "rpc", "id": "1", "method": "keep", "args": [3]})
                assert await other.ended() == (1013, "Service Unavailable")
            reader = await one.join("/agents/boss/old")
            assert (await reader.call("kept"))["result"] == 1

            disk.is_full = False
            while (await one.site.http("/readyz")).status != 200:  # noqa: ASYNC110 - a client can only ask again
                await asyncio.sleep(0.1)
            assert (await (await one.join("/agents/boss/old")).call("keep", 4))["result"] == 4
            assert (await (await one.join("/agents/boss/new")).call("keep", 4))["result"] == 4
            assert (await (await one.join("/agents/boss/old")).call("kept"))["result"] == 2

    lines = Counter((record.name, record.msg) for record in caplog.records)
    assert max(lines.values()) <= NODES.get(runtimes.chosen, 1), caplog.text
    assert len(lines) < 5, caplog.text
    assert not any(record.exc_info for record in caplog.records)
