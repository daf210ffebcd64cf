"""Deletion at depth: with an agent end the runs, schedules, queued calls, fibers, sockets and files of all below it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.conformance.errands import Bench, over
from tests.conformance.served import Client, Served, served
from tests.conformance.test_chat_recovery import expect_deaths
from tests.conformance.worlds import asleep
from tests.machine import patience

from sapwood import Agent, App, Every, NotFound, Refused, Run, Unavailable
from sapwood.address import kebab
from sapwood.errors import Aborted

pytestmark = pytest.mark.slow

LEVELS = pytest.mark.parametrize("levels", [1, 2, 3])
"""How many levels below the root the lowest agent is."""
ERRORS = {"delete": NotFound, "destroy": NotFound, "clear": NotFound, "destroy the root": NotFound, "abort": Aborted}
"""How an agent is ended, and what callers get that wait for one below it."""
PERIOD = 10.0


class Keeper(Agent):
    """Waits for the run below."""

    worker: type[Agent[Any]]

    async def on_run(self, input: Any) -> str:
        return (await self.give()).status

    async def give(self) -> Run:
        return await self.run_agent(self.worker, None, run_id="r")

    async def delete(self) -> None:
        await self.children.delete(self.worker, "r")

    async def destroy_child(self) -> None:
        child: Any = await self.sub_agent(self.worker, "r")
        await child.end()

    async def clear(self) -> int:
        return await self.runs.clear()

    async def abort(self) -> None:
        self.children.abort(self.worker, "r", "enough")

    async def end(self) -> None:
        await self.destroy()

    async def all_runs(self) -> list[Run]:
        return self.runs.list()

    async def one(self, id: str) -> Run | None:
        return self.runs.get(id)

    async def child_names(self) -> int:
        return len(self.children.list())


class Laden(Agent):
    """Has something of everything that goes on without a caller."""

    deps: Bench

    async def on_run(self, input: Any) -> None:
        self.schedule(Every(timedelta(seconds=PERIOD)), self.tick)
        self.enqueue(self.hang, "queued call")
        self.start_fiber("fiber", self.hang, "fiber")
        await self.hang("run")

    async def tick(self) -> None:
        self.deps.log.append("tick")

    async def hang(self, what: str) -> None:
        self.deps.log.append(f"{what} begun")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.deps.log.append(f"{what} cut")

    async def end(self) -> None:
        await self.destroy()


class Chain:
    """A root, the keepers below it, and the lowest agent, which has something of everything."""

    def __init__(self, one: Served, classes: list[Any], bench: Bench) -> None:
        self.served, self.world, self.bench = one, one.world, bench
        self.root, *self.below = classes

    async def agent(self, level: int, name: str = "k") -> Any:
        """Return the agent that is this many levels below the root."""
        return await self.world.get_agent(self.root, name, sub=[(cls, "r") for cls in self.below[:level]])

    async def lowest(self, name: str = "k") -> Any:
        return await self.agent(len(self.below), name)

    async def join_lowest(self, name: str = "k") -> Client:
        hops = "".join(f"/sub/{kebab(cls.__name__)}/r" for cls in self.below)
        return await self.served.join(f"/agents/{kebab(self.root.__name__)}/{name}{hops}")

    @asynccontextmanager
    async def working(self, name: str = "k") -> AsyncGenerator[asyncio.Task[Run], None]:
        """Have the lowest agent of a root work; in this block the run of the root is waited for."""
        self.bench.log.clear()
        giving = asyncio.create_task((await self.agent(0, name)).give())
        try:
            for what in ("run", "queued call", "fiber"):
                await self.bench.seen(f"{what} begun")
            yield giving
        finally:
            giving.cancel()
            await asyncio.gather(giving, return_exceptions=True)

    async def end(self, how: str, level: int = 0, name: str = "k") -> None:
        """End the child of the agent of this level, with all below it."""
        agent = await self.agent(level, name)
        ways = {"destroy": agent.destroy_child, "destroy the root": agent.end, "abort": agent.abort}
        await (ways | {"delete": agent.delete, "clear": agent.clear})[how]()

    def files(self) -> int:
        return len(list(self.world.data.rglob("*.db"))) - len(list(self.world.data.glob("*.db")))

    async def until_files(self, number: int) -> None:
        await self.world.until(lambda: self.files() == number)

    async def check_still(self) -> None:
        """Check that nothing of the lowest agent happens any more, also after a restart."""
        self.bench.log.clear()
        for _ in range(2):
            await self.world.clock.advance(3 * PERIOD)
            await self.world.restart()
        await self.world.clock.advance(3 * PERIOD)
        assert self.bench.log == []
        await asleep(self.world)


@asynccontextmanager
async def keeping(levels: int, **settings: Any) -> AsyncGenerator[Chain, None]:
    classes: list[Any] = [Laden]
    for level in range(levels - 1, -1, -1):
        classes.insert(0, type(f"Keeper{level}", (Keeper,), {"worker": classes[0]}))
    bench = Bench()
    async with asyncio.timeout(patience()), served(App(agents=[classes[0]], deps=bench), **settings) as one:
        yield Chain(one, classes, bench)


@LEVELS
@pytest.mark.parametrize("how", ERRORS)
@pytest.mark.promise("A-31", "A-32", "A-36", "B-34")
async def test_what_goes_on_far_below_ends_with_an_agent_above_and_callers_are_told(levels: int, how: str) -> None:
    async with keeping(levels) as chain, chain.working() as giving:
        waiting = asyncio.create_task((await chain.lowest()).hang("call"))
        await chain.bench.seen("call begun")
        client = await chain.join_lowest()
        assert chain.files() == levels + 1

        await chain.end(how)

        with pytest.raises(ERRORS[how]):
            await waiting
        for what in ("run", "queued call", "fiber", "call"):
            await chain.bench.seen(f"{what} cut")
        await check_told(giving, how)
        if how == "abort":
            assert chain.files() == levels + 1
            return
        await client.ended()
        await chain.until_files(0 if how == "destroy the root" else 1)
        with pytest.raises(NotFound):
            await chain.lowest()
        await chain.check_still()
        root = await chain.agent(0)
        assert await root.child_names() == 0
        assert [run.status for run in await root.all_runs()] == ([] if "root" in how or how == "clear" else ["failed"])


async def check_told(giving: asyncio.Task[Run], how: str) -> None:
    """Check what the caller of the highest run is told."""
    if how == "destroy the root":
        with pytest.raises(NotFound):
            await giving
    elif how == "clear":
        with pytest.raises(Refused, match="was cleared"):
            await giving
    else:
        run = await giving
        assert (run.status, run.reason) == (("cancelled", "enough") if how == "abort" else ("failed", None))
        assert how == "abort" or "was deleted" in (run.error or "")


@LEVELS
@pytest.mark.parametrize("how", ["delete", "destroy", "clear"])
@pytest.mark.promise("A-36")
async def test_agents_above_the_one_that_ends_go_on(levels: int, how: str) -> None:
    for level in range(levels):
        async with keeping(levels) as chain, chain.working() as giving:
            await chain.end(how, level)

            await chain.until_files(level + 1)
            if level:
                run = await giving
                told = "failed" if how == "clear" and level == 1 else "completed"
                assert run.status == told, (level, run)
            else:
                await check_told(giving, how)
            await chain.check_still()


@LEVELS
@pytest.mark.parametrize("how", ["delete", "destroy", "clear"])
@pytest.mark.promise("B-11", "B-19", "B-34", "CF-194")
async def test_killed_at_any_commit_of_a_deletion_all_of_it_is_there_or_nothing(
    levels: int, how: str, level: str
) -> None:
    expect_deaths()
    async with keeping(levels, durability=level) as chain:
        nth, was_killed = 0, True
        while was_killed:
            nth += 1
            name, before = f"k{nth}", chain.files()
            async with chain.working(name):
                passed = chain.world.points.passed["committed"]
                chain.world.crash_at("committed", nth)
                with contextlib.suppress(Unavailable, NotFound):
                    await chain.end(how, name=name)
                    await chain.world.settled()
                was_killed = chain.world.points.passed["committed"] >= passed + nth
                await chain.world.crash()
            root = await chain.agent(0, name)
            if await root.child_names():
                assert chain.files() == before + levels + 1
                await chain.end(how, name=name)
            await chain.until_files(before + 1)
            if how == "clear":
                assert await root.all_runs() == []
            else:
                run = await over(root, "r")
                assert (run.status, "was deleted" in str(run.error)) == ("failed", True)
            assert await root.child_names() == 0
            await root.clear()
            await chain.check_still()
        assert nth > 1
