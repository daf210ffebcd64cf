"""Remote runs whose caller is destroyed, deleted or aborted, at any depth: the other server is always told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.conformance.drivers import running
from tests.conformance.errands import over
from tests.conformance.far import Both, FarDigger, at, both
from tests.machine import patience

from sapwood import Agent, App, Run
from sapwood.testing import World
from sapwood.timings import DEFAULTS

pytestmark = pytest.mark.slow  # two servers, many crashes

DEEP = 3
"""How many levels below the root the agent is that starts the remote run."""


def level(url: str) -> type[Any]:
    """Make a class whose agents give the run to one below them, and the lowest one to the far server."""
    stand_in = at(url, FarDigger)

    class NearLevel(Agent):
        async def on_run(self, input: int) -> str:
            run = await self.start(input)
            return run.status

        async def start(self, depth: int, id: str = "r") -> Run:
            if depth:
                return await self.run_agent(NearLevel, depth - 1, run_id=id)
            return await self.run_agent(stand_in, "wait", run_id=id)

        async def one(self, id: str) -> Run | None:
            return self.runs.get(id)

        async def lowest(self, depth: int) -> Run | None:
            """Return the remote run, as the agent stores it that started it."""
            if not depth:
                return self.runs.get("r")
            return await (await self.sub_agent(NearLevel, "r")).lowest(depth - 1)

        async def cancel(self) -> None:
            self.runs.cancel("r", "enough")

        async def clear(self) -> None:
            await self.runs.clear()

        async def end_child(self, how: str) -> None:
            cls = NearLevel if self.children.list(NearLevel) else stand_in
            if how == "abort":
                self.children.abort(cls, "r", "enough")
            else:
                await self.children.delete(cls, "r")

        async def destroy_child(self) -> None:
            await (await self.sub_agent(NearLevel, "r")).end()

        async def end(self) -> None:
            await self.destroy()

        async def child_names(self) -> int:
            return len(self.children.list())

    return NearLevel


class Levels:
    """A near server whose lowest agent has the far server do a run."""

    def __init__(self, two: Both, world: World, cls: type[Any]) -> None:
        self.two, self.world, self.cls = two, world, cls

    async def root(self, name: str = "l") -> Any:
        return await self.world.get_agent(self.cls, name)

    async def end(self, how: str, name: str = "l") -> None:
        root = await self.root(name)
        await (root.end_child(how) if how in ("abort", "delete") else getattr(root, how)())

    @asynccontextmanager
    async def started(self, depth: int, name: str = "l") -> AsyncGenerator[Run, None]:
        """Start a remote run this many levels below the root; it is under way in this block."""
        root, bench = await self.root(name), self.two.bench
        bench.is_followed = False
        giving = asyncio.create_task(root.start(depth))
        try:
            await bench.followed()
            await bench.seen("begun wait")  # a driver may take its time
            yield await root.lowest(depth)
        finally:
            giving.cancel()
            await asyncio.gather(giving, return_exceptions=True)

    async def ended(self, run: Run) -> str:
        """Return why the far server was told to stop a run, once it was."""
        async with asyncio.timeout(patience()):
            while (state := (await self.two.ask(run)).json()).get("status") != "cancelled":  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
        return state["reason"]


@asynccontextmanager
async def levels(**options: Any) -> AsyncGenerator[Levels, None]:
    async with both() as two:
        cls = level(f"http://127.0.0.1:{two.far.site.port}")
        async with running(App(agents=[cls], deps=two.bench), slow_slices="allow", **options) as world:
            yield Levels(two, world, cls)


@pytest.mark.promise("B-34", "B-38")
@pytest.mark.parametrize("depth", [0, DEEP])
@pytest.mark.parametrize(
    ("how", "reason"),
    [("end", "destroyed"), ("delete", "deleted"), ("abort", "enough"), ("clear", "cleared"), ("cancel", "enough")],
)
async def test_the_other_server_is_told_whatever_ends_the_caller(how: str, reason: str, depth: int) -> None:
    async with levels() as near, near.started(depth) as run:
        await near.end(how)

        assert await near.ended(run) == reason
        await near.two.bench.seen("cut")


@pytest.mark.promise("B-34")
async def test_an_agent_that_destroys_itself_has_the_runs_below_it_stopped() -> None:
    async with levels() as near, near.started(DEEP) as run:
        await (await near.root()).destroy_child()

        assert await near.ended(run) == "destroyed"


@pytest.mark.promise("B-34")
@pytest.mark.parametrize("depth", [0, DEEP])
@pytest.mark.parametrize("how", ["delete", "abort", "clear", "cancel"])
async def test_a_server_that_cannot_be_reached_is_told_later_also_after_a_crash(how: str, depth: int) -> None:
    async with levels() as near:
        async with near.started(depth) as run:
            near.two.bench.is_down = True
            await near.end(how)
            await near.world.crash()

        near.two.bench.is_down = False

        await near.ended(run)


@pytest.mark.promise("B-34")
@pytest.mark.slow
@pytest.mark.parametrize("how", ["delete", "destroy_child"])
async def test_killed_at_any_commit_of_a_deletion_the_other_server_is_told(how: str) -> None:
    async with levels() as near:
        nth, passed = 0, True
        while passed:
            nth += 1
            name = f"l{nth}"
            async with near.started(DEEP, name) as run:
                before = near.world.points.passed["committed"]
                near.world.crash_at("committed", nth)
                await asyncio.gather(near.end(how, name), return_exceptions=True)
                passed = near.world.points.passed["committed"] >= before + nth
                await near.world.crash()
            if await (await near.root(name)).child_names():  # the deletion did not happen
                await near.end(how, name)

            await near.ended(run)
        assert nth > 2


async def test_a_root_is_destroyed_although_the_other_server_cannot_be_told() -> None:
    timings = replace(DEFAULTS, remote_stop_timeout=0.05)
    async with levels(timings=timings) as near, near.started(0) as run:
        near.two.bench.is_down = True

        await (await near.root()).end()

        near.two.bench.is_down = False
        assert await (await near.root()).one("r") is None
        assert (await near.two.ask(run)).json()["status"] == "running"


async def test_nothing_is_started_while_a_root_is_being_destroyed() -> None:
    async with levels() as near, near.started(0):
        root = await near.root()
        near.two.bench.is_down = True
        ending = asyncio.create_task(root.end())
        await asyncio.sleep(0)
        late = await asyncio.gather(root.start(0, "late"), return_exceptions=True)
        near.two.bench.is_down = False
        await ending

        assert near.two.bench.log.count("begun wait") == 1
        (refused,) = late
        assert "is being destroyed" in refused.error


@pytest.mark.promise("A-215")
async def test_a_run_far_below_the_root_goes_on_after_a_crash_of_its_caller() -> None:
    async with levels() as near:
        async with near.started(DEEP):
            await near.world.crash()
        near.two.bench.go.set()

        run = await over(await near.root(), "r")

        assert (run.status, run.output) == ("completed", "completed")
        assert near.two.bench.log == ["begun wait"]
