"""Keep-alive: whoever holds one, at any depth, keeps the whole tree in memory."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.conformance.works import Bench, Worker, worker
from tests.conformance.worlds import Run

from sapwood import Unavailable
from sapwood.testing import World
from sapwood.types import KeepAlive


def awake(world: World) -> int:
    """Return how many agents are in memory, after every idle one was put to sleep."""
    world.sleep()
    return sum(len(tree.actors) for tree in world.node.trees.values())


@pytest.mark.promise("A-94", "A-255", "CF-51")
async def test_a_keep_alive_keeps_the_whole_tree_awake_until_it_is_released(run: Run, bench: Bench, depth: int) -> None:
    async with run(Worker, deps=bench) as world:
        deepest = await worker(world, 3)
        assert await deepest.notes() == []
        here = await worker(world, depth)

        hold: KeepAlive = await bench.within(here, lambda me: me.keep_alive())

        assert awake(world) == 4
        hold.release()
        assert awake(world) == 0


@pytest.mark.promise("A-94")
async def test_other_trees_sleep_while_one_is_kept_awake(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        await worker(world, 1)
        other = await world.get_agent(Worker, "other")

        await bench.within(other, lambda me: me.keep_alive())

        assert awake(world) == 1


@pytest.mark.promise("CF-51", "CF-191")
async def test_a_tree_stays_awake_until_the_last_of_several_is_released(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        root, child = await worker(world), await worker(world, 1)
        holds = [await bench.within(one, lambda me: me.keep_alive()) for one in (root, child, child)]

        seen: list[int] = []
        for hold in holds:
            seen.append(awake(world))
            hold.release()

        assert seen == [2, 2, 2]
        assert awake(world) == 0


@pytest.mark.promise("CF-191")
async def test_releasing_twice_releases_nobody_else(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        root = await worker(world)
        first, second = [await bench.within(root, lambda me: me.keep_alive()) for _ in range(2)]

        first.release()
        first.release()

        assert awake(world) == 1
        second.release()
        assert awake(world) == 0


@pytest.mark.promise("CF-191")
async def test_a_block_holds_the_tree_as_long_as_it_runs_and_blocks_nest(run: Run, bench: Bench, depth: int) -> None:
    seen: list[int] = []
    async with run(Worker, deps=bench) as world:

        async def nested(me: Worker) -> None:
            with me.keep_alive():
                with me.keep_alive():
                    seen.append(len(world.node.loader.tree(me.address).kept_awake))
                with me.keep_alive():
                    seen.append(len(world.node.loader.tree(me.address).kept_awake))
                seen.append(len(world.node.loader.tree(me.address).kept_awake))
            seen.append(len(world.node.loader.tree(me.address).kept_awake))

        await bench.within(await worker(world, depth), nested)

        assert seen == [2, 2, 1, 0]
        assert awake(world) == 0


@pytest.mark.promise("CF-51")
async def test_a_block_that_raises_lets_go(run: Run, bench: Bench, depth: int) -> None:
    async def fail(me: Worker) -> None:
        with me.keep_alive():
            raise LookupError("in the block")

    async with run(Worker, deps=bench) as world:
        here = await worker(world, depth)

        with pytest.raises(LookupError, match="in the block"):
            await bench.within(here, fail)

        assert awake(world) == 0


async def test_a_block_that_is_cancelled_lets_go(run: Run, bench: Bench) -> None:
    async def wait(me: Worker) -> None:
        with me.keep_alive():
            bench.log.append("waiting")
            await bench.go.wait()

    async with run(Worker, deps=bench) as world:
        call = asyncio.create_task(bench.within(await worker(world, 1), wait))
        await bench.seen("waiting")

        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call

        assert awake(world) == 0


@pytest.mark.parametrize("end", ["abort", "delete"])
async def test_what_an_agent_held_goes_with_it(run: Run, bench: Bench, end: str) -> None:
    async def finish(me: Worker) -> None:
        if end == "abort":
            me.children.abort(Worker, "level 1", "over")
            await me.sub_agent(Worker, "level 1")
        else:
            await me.children.delete(Worker, "level 1")

    async with run(Worker, deps=bench) as world:
        root, below = await worker(world), await worker(world, 2)
        hold = await bench.within(below, lambda me: me.keep_alive())

        await bench.within(root, finish)
        await asyncio.sleep(0.02)

        assert awake(world) == 0
        hold.release()


async def test_a_crash_lets_go(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        hold = await bench.within(await worker(world, 1), lambda me: me.keep_alive())

        await world.crash()
        await worker(world, 1)

        assert awake(world) == 0
        hold.release()


async def test_an_agent_that_was_put_away_can_hold_nothing(run: Run, bench: Bench) -> None:
    async with run(Worker, deps=bench) as world:
        left: Any = await bench.within(await worker(world), lambda me: me)
        world.sleep()

        with pytest.raises(Unavailable):
            left.keep_alive()
        assert awake(world) == 0
