"""Limits at depth: what is used far below counts for each agent above, and a refusal names the one it counts for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.conformance.drivers import running
from tests.conformance.errands import Bench
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Limits, OverLimit, Run, tool
from sapwood.chat.models.token_estimates import OVERHEAD
from sapwood.testing import ScriptedModel, World, call, text

pytestmark = pytest.mark.slow

LEVELS = pytest.mark.parametrize(
    ("levels", "limited"), [(levels, limited) for levels in (1, 2, 3) for limited in range(levels)]
)
"""How many levels below the root the worker is, and the level of the class that has the limit."""
STARTED = pytest.mark.parametrize("is_started", [False, True], ids=["awaited", "started"])
MOST = 60
"""Tokens an answer may have."""
SETTINGS = {"max_tokens": MOST}
STEP = OVERHEAD + 4 + MOST
"""What is reserved for an answer to "go"."""
PRICES = {"scripted": (1.0, 1.0)}
"""A millionth of a dollar for each token."""
MONEY = [("tokens", STEP + 20), ("dollars", (STEP + 20) / 1e6)]

End = tuple[str, str | None, str | None]
"""The status, the reason and the error of a run."""


class Leader(Agent):
    """Has the agent below work; the lowest one has workers."""

    worker: type[Agent[Any]]
    is_started: bool

    async def on_run(self, input: int) -> list[End]:
        return await self.give(input)

    async def give(self, number: int, id: str = "w", branch: str = "r") -> list[End]:
        """Have this many workers work, one after the other; return how their runs ended."""
        if issubclass(self.worker, Leader):
            run = await self.have_done(number, branch)
            return [tuple(end) for end in run.output] if run.ok else [(run.status, run.reason, run.error)]
        runs = [await self.have_done("go", f"{id}{at}") for at in range(number)]
        return [(run.status, run.reason, run.error) for run in runs]

    async def have_done(self, input: Any, id: str) -> Run:
        if self.is_started:
            await self.start_run(self.worker, input, run_id=id)
        return await self.run_agent(self.worker, input, run_id=id)

    async def make(self, *names: str) -> None:
        """Make a child by the first name, a child of that by the second, and so on."""
        first, *more = names
        child: Any = await self.sub_agent(self.worker, first)
        if more:
            await child.make(*more)

    async def cut(self) -> None:
        await self.children.delete(self.worker, "r")

    async def own_usage(self) -> dict[str, Any]:
        return await self.spending.total(below=False)


class TalkingWorker(ChatAgent):
    """Answers."""

    model_settings = SETTINGS
    model = ScriptedModel(text("one two"))


class LookingWorker(ChatAgent):
    """Asks its model twice."""

    model_settings = SETTINGS
    model = ScriptedModel(call("look", id="c1"), text("well"), each=True)

    @tool
    async def look(self) -> str:
        """Look."""
        return "seen"


class Porter(Agent):
    """Works until the test lets it end."""

    deps: Bench

    async def on_run(self, input: str) -> str:
        self.deps.log.append("begun")
        await self.deps.go.wait()
        return input


class Nest(Leader):
    """Has children like itself."""

    is_started = False


Nest.worker = Nest


class Chain:
    """A root, the leaders below it, and the lowest one, which has workers."""

    def __init__(self, world: World, classes: list[Any], bench: Bench) -> None:
        self.world, self.bench = world, bench
        self.root, *self.below = classes

    async def agent(self, level: int) -> Any:
        """Return the agent that is this many levels below the root."""
        return await self.world.get_agent(self.root, "c", sub=[(cls, "r") for cls in self.below[:level]])

    async def lowest(self) -> Any:
        return await self.agent(len(self.below))

    def address(self, level: int) -> str:
        return "/".join(["Leader0:c", *(f"{cls.__name__}:r" for cls in self.below[:level])])

    async def used(self) -> list[int]:
        """Return how many tokens the agent of each level, with all below it, has used."""
        found = [await (await self.agent(level)).spending.total() for level in range(len(self.below) + 1)]
        return [sum(one["input_tokens"] + one["output_tokens"] for one in usage.values()) for usage in found]


@asynccontextmanager
async def leading(
    levels: int, limited: int, worker: type, limits: dict[str, Any], *, is_started: bool = False
) -> AsyncGenerator[Chain, None]:
    """Run an app whose leaders of one level have limits."""
    classes: list[Any] = [worker]
    for level in range(levels - 1, -1, -1):
        settings = {"worker": classes[0], "is_started": is_started}
        if level == limited:
            settings["limits"] = Limits(**limits)
        classes.insert(0, type(f"Leader{level}", (Leader,), settings))
    bench = Bench()
    app = App(agents=[classes[0]], deps=bench)
    async with asyncio.timeout(patience()), running(app, slow_slices="allow", prices=PRICES) as world:
        yield Chain(world, classes[:-1], bench)


def check_refused(end: End, limit: str, address: str) -> None:
    status, reason, error = end
    assert (status, reason) == ("failed", "over_limit")
    assert f"Limits({limit}=" in (error or "")
    assert f"for {address} and all agents under it" in (error or "")


@LEVELS
@STARTED
@pytest.mark.parametrize(("limit", "most"), MONEY, ids=["tokens", "dollars"])
@pytest.mark.promise("B-4")
async def test_what_workers_use_counts_for_each_agent_above_also_after_a_crash(
    levels: int, limited: int, is_started: bool, limit: str, most: float
) -> None:
    async with leading(levels, limited, TalkingWorker, {limit: most}, is_started=is_started) as chain:
        first, second = await (await chain.agent(0)).give(2)

        assert first == ("completed", None, None)
        check_refused(second, limit, chain.address(limited))
        used = await chain.used()
        assert used[0] > 0
        assert used == [used[0]] * levels

        await chain.world.crash()
        (third,) = await (await chain.lowest()).give(1, "after a crash ")
        check_refused(third, limit, chain.address(limited))
        await chain.world.restart()
        (fourth,) = await (await chain.lowest()).give(1, "after a restart ")
        check_refused(fourth, limit, chain.address(limited))
        assert await chain.used() == used
        assert [await (await chain.agent(level)).own_usage() for level in range(levels)] == [{}] * levels


@LEVELS
@pytest.mark.parametrize(("limit", "most"), MONEY, ids=["tokens", "dollars"])
@pytest.mark.promise("B-4")
async def test_one_worker_that_uses_all_is_refused_by_the_agent_whose_limit_it_is(
    levels: int, limited: int, limit: str, most: float
) -> None:
    async with leading(levels, limited, LookingWorker, {limit: most}) as chain:
        (end,) = await (await chain.agent(0)).give(1)

        check_refused(end, limit, chain.address(limited))


@LEVELS
@STARTED
@pytest.mark.promise("B-4")
async def test_runs_under_way_far_below_count_for_each_agent_above_also_after_a_crash(
    levels: int, limited: int, is_started: bool
) -> None:
    under_way = levels - limited  # the worker's, and those of the leaders between
    async with leading(levels, limited, Porter, {"runs_at_once": under_way}, is_started=is_started) as chain:
        giving = asyncio.create_task((await chain.agent(0)).give(1))
        await chain.bench.seen("begun")
        (refused,) = await (await chain.lowest()).give(1, "second ")
        check_refused(refused, "runs_at_once", chain.address(limited))

        await chain.world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        (refused,) = await (await chain.lowest()).give(1, "third ")
        check_refused(refused, "runs_at_once", chain.address(limited))
        chain.bench.go.set()
        lowest = await chain.lowest()
        async with asyncio.timeout(patience()):
            while (await lowest.give(1, f"{len(chain.bench.log)} {chain.world.clock.now()} "))[0][0] != "completed":
                await chain.world.clock.advance(1)


@LEVELS
@STARTED
@pytest.mark.promise("B-4")
async def test_runs_that_begin_far_below_count_for_the_minute_of_each_agent_above(
    levels: int, limited: int, is_started: bool
) -> None:
    async with leading(levels, limited, Porter, {"runs_per_minute": 2}, is_started=is_started) as chain:
        chain.bench.go.set()
        if levels > 1:
            await (await chain.agent(0)).make(*["r"] * (levels - 1))
        first, second, third = await (await chain.lowest()).give(3)

        assert (first[0], second[0]) == ("completed", "completed")
        check_refused(third, "runs_per_minute", chain.address(limited))
        await chain.world.crash()
        (fourth,) = await (await chain.lowest()).give(1, "after a crash ")
        check_refused(fourth, "runs_per_minute", chain.address(limited))
        await chain.world.clock.advance(60)
        assert await (await chain.lowest()).give(1, "later ") == [("completed", None, None)]


@LEVELS
@pytest.mark.parametrize("limit", ["depth", "children", "descendants"])
@pytest.mark.promise("B-4")
async def test_the_number_of_agents_is_limited_at_each_level_below_the_class_that_limits_it(
    levels: int, limited: int, limit: str
) -> None:
    most = {"depth": levels, "children": 1, "descendants": levels}[limit]
    async with leading(levels, limited, Nest, {limit: most}) as chain:
        root = await chain.agent(0)
        await root.make(*["r"] * levels)
        for level in range(limited, levels + 1):
            names = (*["r"] * level, "more")
            fits = (limit == "depth" and level < levels) or (limit == "children" and level == levels)
            for _ in range(2):
                if fits:
                    await root.make(*names)
                    continue
                with pytest.raises(OverLimit, match=rf"Limits\({limit}={most}\)") as refused:
                    await root.make(*names)
                assert refused.value.limit == limit
                assert [name for _, name in refused.value.path] == ["c", *["r"] * level]
            await chain.world.crash()
            root = await chain.agent(0)


@LEVELS
@pytest.mark.promise("B-4")
async def test_what_deleted_agents_have_used_stays_counted_for_each_agent_above(levels: int, limited: int) -> None:
    async with leading(levels, limited, TalkingWorker, {"tokens": STEP + 20}) as chain:
        await (await chain.agent(0)).give(1)
        used = await chain.used()
        for level in range(levels - 2, -1, -1):
            await (await chain.agent(level)).cut()
            if level % 2:
                await chain.world.crash()
            else:
                await chain.world.restart()
            usage = await (await chain.agent(level)).spending.total()
            assert sum(one["input_tokens"] + one["output_tokens"] for one in usage.values()) == used[0]
        if limited == 0 and levels > 1:
            (end,) = await (await chain.agent(0)).give(1, branch="new")
            check_refused(end, "tokens", chain.address(0))
