"""Promise 7: limits hold before the act. A runaway agent is stopped inside the very slice it runs away in."""

from __future__ import annotations

import pytest

from sapwood import Agent, App, Limits, OverLimit
from sapwood.storage.image import PAGE_SIZE
from sapwood.testing import World, running

LIMIT = 64 * PAGE_SIZE


class Runaway(Agent):
    migrations = ("CREATE TABLE t (v TEXT)",)

    async def run_away(self, size: int) -> None:
        while True:
            self.sql("INSERT INTO t VALUES (?)", "x" * size)

    async def run_away_slice_by_slice(self, size: int) -> None:
        while True:
            await self.add(size)

    async def add(self, size: int) -> None:
        self.sql("INSERT INTO t VALUES (?)", "x" * size)
        await self.flush()

    async def at_once(self) -> None:
        self.sql("INSERT INTO t VALUES (zeroblob(10000000))")

    async def count(self) -> int:
        return self.sql("SELECT count(*) FROM t").scalar(int)

    async def make_room(self) -> None:
        self.sql("DELETE FROM t")


class Small(Runaway):
    limits = Limits(database_bytes=LIMIT)


class Owner(Agent):
    async def make(self, name: str) -> None:
        await self.sub_agent(Small, name)

    async def look(self, name: str) -> int:
        return self.children.status(Small, name).database_bytes or 0

    async def look_at_all(self) -> int:
        return (await self.children.subtree()).database_bytes


def largest(world: World) -> int:
    return max(file.stat().st_size for file in world.data.rglob("*.db"))


@pytest.mark.parametrize("method", ["run_away", "run_away_slice_by_slice"])
@pytest.mark.parametrize("size", [10, 1000, 5000, 60_000])
async def test_a_runaway_agent_is_stopped_and_its_file_stays_within_a_page_of_its_limit(method: str, size: int) -> None:
    async with running(App(agents=[Small]), slow_slices="allow") as world:
        small = await world.get_agent(Small, "a")

        with pytest.raises(OverLimit) as caught:
            await getattr(small, method)(size)

        assert caught.value.limit == "database_bytes"
        await world.restart()
        assert largest(world) <= LIMIT + PAGE_SIZE
        small = await world.get_agent(Small, "a")
        assert await small.count() >= 0
        await small.make_room()
        await small.add(10)
        assert await small.count() == 1


async def test_a_single_statement_cannot_outgrow_the_limit() -> None:
    async with running(App(agents=[Small]), slow_slices="allow") as world:
        small = await world.get_agent(Small, "a")
        await small.add(10)

        with pytest.raises(OverLimit) as caught:
            await small.at_once()

        assert caught.value.limit == "database_bytes"
        assert await small.count() == 1
        assert largest(world) <= LIMIT + PAGE_SIZE


async def test_the_limit_of_a_class_holds_also_when_its_parent_looked_at_it_while_it_slept() -> None:
    async with running(App(agents=[Owner]), slow_slices="allow") as world:
        owner = await world.get_agent(Owner, "o")
        await owner.make("s")
        await (await world.get_agent(Owner, "o", sub=[(Small, "s")])).add(10)
        world.sleep()

        owner = await world.get_agent(Owner, "o")
        assert await owner.look("s") > 0
        assert await owner.look_at_all() > 0
        small = await world.get_agent(Owner, "o", sub=[(Small, "s")])
        with pytest.raises(OverLimit):
            await small.at_once()

        with pytest.raises(OverLimit):
            await small.run_away(1000)
        assert largest(world) <= LIMIT + PAGE_SIZE


async def test_a_child_cannot_be_given_more_than_its_parent_has() -> None:
    class Greedy(Runaway):
        limits = Limits(database_bytes=1000 * LIMIT)

    class Frugal(Agent):
        limits = Limits(database_bytes=LIMIT)

        async def let_it(self) -> None:
            child = await self.sub_agent(Greedy, "g")
            await child.at_once()

    async with running(App(agents=[Frugal]), slow_slices="allow") as world:
        frugal = await world.get_agent(Frugal, "f")

        with pytest.raises(OverLimit):
            await frugal.let_it()


async def test_many_children_together_stay_within_the_limit_of_their_tree() -> None:
    class Sower(Agent):
        async def sow(self) -> None:
            for number in range(10_000):
                child = await self.sub_agent(Runaway, str(number))
                await child.add(60_000)

    allowed = 4_000_000
    async with running(App(agents=[Sower]), slow_slices="allow", limits=Limits(tree_bytes=allowed)) as world:
        sower = await world.get_agent(Sower, "s")

        with pytest.raises(OverLimit) as caught:
            await sower.sow()

        assert caught.value.limit == "tree_bytes"
        used = sum(file.stat().st_size for file in (world.data / "trees").rglob("*") if file.is_file())
        print(f"a tree that may have {allowed} bytes stopped at {used}")
        assert used < allowed * 1.3  # the WALs hold some pages more than once
