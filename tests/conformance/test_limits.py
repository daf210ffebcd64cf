"""Limits: what would go over is refused before it happens, exactly at the limit, and zero means zero."""

from __future__ import annotations

import asyncio

import pytest
from tests.conformance.worlds import Branch, Run, below, crash_everywhere
from tests.machine import patience

from sapwood import Agent, Limits, OverLimit
from sapwood.testing import POINTS, World

KIB = 1024


@pytest.mark.promise("A-21", "B-4")
async def test_a_tree_may_have_exactly_as_many_levels_as_allowed(run: Run) -> None:
    async with run(Branch, limits=Limits(depth=3)) as world:
        root = await world.get_agent(Branch, "r")

        await root.grow("a", "b", "c")
        with pytest.raises(OverLimit, match=r"4 levels below its root.*Limits\(depth=3\)") as over:
            await root.grow("a", "b", "c", "d")

        assert over.value.limit == "depth"
        assert over.value.code == "over_limit"
        assert [name for _, name in over.value.path] == ["r", "a", "b", "c"]
        deepest = await world.get_agent(Branch, "r", sub=below("a", "b", "c"))
        assert await deepest.child_names() == []


@pytest.mark.promise("B-4")
async def test_an_agent_may_have_exactly_as_many_children_as_allowed(run: Run) -> None:
    async with run(Branch, limits=Limits(children=2)) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a")
        await root.grow("b")

        with pytest.raises(OverLimit, match=r"has 2 sub-agents.*Limits\(children=2\)") as over:
            await root.grow("c")

        assert over.value.limit == "children"
        assert await root.child_names() == ["a", "b"]
        await root.grow("a")
        await root.grow("b", "x")


@pytest.mark.promise("B-4")
async def test_a_tree_may_have_exactly_as_many_descendants_as_allowed(run: Run) -> None:
    async with run(Branch, limits=Limits(descendants=4)) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b", "c")
        await root.grow("d")

        for names in [("e",), ("a", "e"), ("a", "b", "c", "e")]:
            with pytest.raises(OverLimit, match=r"Limits\(descendants=4\)") as over:
                await root.grow(*names)
            assert over.value.limit == "descendants"
        assert await root.child_names() == ["a", "d"]


@pytest.mark.promise("B-4")
@pytest.mark.parametrize("limit", ["depth", "children", "descendants"])
async def test_zero_means_no_sub_agent_at_all(run: Run, limit: str) -> None:
    async with run(Branch, limits=Limits(**{limit: 0})) as world:
        root = await world.get_agent(Branch, "r")

        with pytest.raises(OverLimit) as over:
            await root.grow("a")

        assert over.value.limit == limit
        assert await root.child_names() == []
        assert await root.note("still works") == 1


@pytest.mark.parametrize("limit", ["children", "descendants"])
async def test_what_is_deleted_or_destroyed_is_free_again(run: Run, limit: str) -> None:
    async with run(Branch, limits=Limits(**{limit: 2})) as world:
        root = await world.get_agent(Branch, "r")
        for n in range(5):
            await root.grow(f"a{n}")
            await root.grow(f"b{n}")
            with pytest.raises(OverLimit):
                await root.grow("too many")

            await root.cut(f"a{n}")
            await (await world.get_agent(Branch, "r", sub=below(f"b{n}"))).end()

        assert await root.child_names() == []


async def test_a_deleted_branch_frees_all_it_held(run: Run) -> None:
    async with run(Branch, limits=Limits(descendants=5)) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b", "c", "d")
        with pytest.raises(OverLimit):
            await root.grow("x", "y")

        await root.cut("a")

        assert await root.child_names() == ["x"]
        await root.grow("x", "1", "2", "3", "4")
        with pytest.raises(OverLimit):
            await root.grow("y")


async def test_children_asked_for_at_once_are_held_to_the_limit_together(run: Run) -> None:
    async with run(Branch, limits=Limits(children=3)) as world:
        root = await world.get_agent(Branch, "r")

        outcomes = await asyncio.gather(*(root.grow(f"c{n}") for n in range(10)), return_exceptions=True)

        assert sum(isinstance(outcome, OverLimit) for outcome in outcomes) == 7
        assert len(await root.child_names()) == 3


class Tight(Branch):
    """Allows less than the app does."""

    limits = Limits(children=1, depth=2, database_bytes=200 * KIB)

    async def grow_any(self, name: str) -> None:
        await self.sub_agent(Branch, name)

    async def grow_wide(self, name: str, *below: str) -> None:
        child = await self.sub_agent(Wide, name)
        if below:
            await child.grow(*below)


class Wide(Branch):
    """Would allow more than those above it do."""

    limits = Limits(children=100, depth=100)


@pytest.mark.promise("B-4")
async def test_limits_of_class_ancestors_and_app_combine_to_the_tightest(run: Run) -> None:
    async with run(Tight, Wide, limits=Limits(children=3, depth=5)) as world:
        tight = await world.get_agent(Tight, "t")
        wide = await world.get_agent(Wide, "w")

        await tight.grow_wide("w", "x")
        with pytest.raises(OverLimit, match=r"Limits\(children=1\)"):
            await tight.grow_any("second")
        with pytest.raises(OverLimit, match=r"Limits\(children=1\)"):
            await tight.grow_wide("w", "second")
        with pytest.raises(OverLimit, match=r"Limits\(depth=2\)"):
            await tight.grow_wide("w", "x", "y")

        for n in range(3):
            await wide.grow(f"c{n}")
        with pytest.raises(OverLimit, match=r"Limits\(children=3\)"):
            await wide.grow("c3")


class Filler(Agent):
    migrations = ("CREATE TABLE blobs (data BLOB NOT NULL)",)

    async def fill(self, size: int) -> int:
        """Write one blob after another until it is refused; return how many there are."""
        for _ in range(10_000):
            try:
                self.sql("INSERT INTO blobs VALUES (zeroblob(?))", size)
            except OverLimit:
                break
            await asyncio.sleep(0)
        return self.sql("SELECT count(*) FROM blobs").scalar(int)

    async def fill_below(self, name: str, size: int) -> int:
        return await (await self.sub_agent(Filler, name)).fill(size)

    async def write(self, size: int) -> None:
        self.sql("INSERT INTO blobs VALUES (zeroblob(?))", size)

    async def write_below(self, name: str, size: int) -> None:
        await (await self.sub_agent(Filler, name)).write(size)

    async def empty(self) -> None:
        self.sql("DELETE FROM blobs")

    async def delete(self, name: str) -> None:
        await self.children.delete(Filler, name)

    async def end(self) -> None:
        await self.destroy()

    async def bytes(self) -> int:
        return (await self.children.subtree()).database_bytes

    async def bytes_of(self, name: str) -> int:
        return self.children.status(Filler, name).database_bytes or 0


@pytest.mark.promise("B-4")
async def test_a_database_grows_up_to_its_limit_and_never_beyond(run: Run) -> None:
    limit = 256 * KIB
    async with run(Filler, limits=Limits(database_bytes=limit)) as world:
        filler = await world.get_agent(Filler, "f")

        count = await filler.fill(1000)

        used = await filler.bytes()
        assert limit - 16 * KIB < used <= limit
        with pytest.raises(OverLimit, match="database") as over:
            await filler.write(1000)
        assert over.value.path == (("Filler", "f"),)
        assert await filler.fill(1000) == count
        await filler.empty()
        await filler.write(1000)


async def test_a_single_statement_cannot_jump_over_the_limit(run: Run) -> None:
    limit = 256 * KIB
    async with run(Filler, limits=Limits(database_bytes=limit)) as world:
        filler = await world.get_agent(Filler, "f")
        await filler.write(1000)

        with pytest.raises(OverLimit) as over:
            await filler.write(10 * limit)

        assert over.value.limit == "database_bytes"
        assert await filler.bytes() <= limit
        filler = await world.get_agent(Filler, "f")
        await filler.write(1000)


async def test_each_agent_has_its_own_limit_also_after_others_looked_at_it(run: Run) -> None:
    limit = 128 * KIB

    class Small(Filler):
        limits = Limits(database_bytes=limit)

    class Parent(Agent):
        async def make(self) -> None:
            await self.sub_agent(Small, "s")

        async def look(self) -> int:
            return (await self.children.subtree()).database_bytes

    async with run(Parent) as world:
        parent = await world.get_agent(Parent, "p")
        await parent.make()
        small = await world.get_agent(Parent, "p", sub=[(Small, "s")])
        await small.write(1000)
        world.sleep()
        before = await parent.look()

        with pytest.raises(OverLimit):
            await small.write(2 * limit)
        await small.fill(1000)

        assert before < await parent.look() <= limit + 64 * KIB


@pytest.mark.promise("B-4")
async def test_a_tree_grows_up_to_its_limit_and_space_given_back_can_be_used_again(run: Run) -> None:
    limit = 512 * KIB
    slack = 64 * KIB  # databases are measured now and then, not at every write
    async with run(Filler, limits=Limits(tree_bytes=limit)) as world:
        root = await world.get_agent(Filler, "f")
        await root.write_below("a", 1000)
        await root.write_below("b", 1000)

        await root.fill_below("a", 1000)

        assert limit - slack < await root.bytes() <= limit + slack
        for _ in range(2):
            with pytest.raises(OverLimit, match="tree") as over:
                await root.write_below("b", 1000)
            assert over.value.limit == "tree_bytes"
        await root.delete("a")
        await root.write_below("b", 1000)
        await world.crash()
        root = await world.get_agent(Filler, "f")
        await root.write_below("b", 1000)


async def test_a_full_agent_can_delete_its_children_and_itself(run: Run) -> None:
    for limits in (Limits(database_bytes=256 * KIB), Limits(tree_bytes=256 * KIB)):
        async with run(Filler, limits=limits) as world:
            root = await world.get_agent(Filler, "f")
            await root.write_below("a", 1000)
            await root.write_below("b", 1000)
            await root.fill(1000)
            with pytest.raises(OverLimit):
                await root.write(1000)

            await root.delete("a")
            await (await world.get_agent(Filler, "f", sub=[(Filler, "b")])).end()
            await root.end()

            root = await world.get_agent(Filler, "f")
            await root.write(1000)


async def test_a_full_tree_can_be_emptied_by_deleting_rows(run: Run) -> None:
    async with run(Filler, limits=Limits(tree_bytes=256 * KIB)) as world:
        root = await world.get_agent(Filler, "f")
        await root.write_below("a", 1000)
        await root.fill(1000)
        with pytest.raises(OverLimit):
            await root.write_below("a", 1000)

        await root.empty()

        await root.write_below("a", 1000)


async def test_a_class_may_limit_its_trees(run: Run) -> None:
    class SmallTree(Filler):
        limits = Limits(tree_bytes=256 * KIB)

    async with run(SmallTree) as world:
        root = await world.get_agent(SmallTree, "s")

        await root.fill(1000)

        assert await root.bytes() < 400 * KIB


@pytest.mark.parametrize("limit", ["database_bytes", "tree_bytes"])
async def test_zero_bytes_means_that_nothing_can_be_written(run: Run, limit: str) -> None:
    async with run(Filler, limits=Limits(**{limit: 0})) as world:
        filler = await world.get_agent(Filler, "f")

        for _ in range(2):
            with pytest.raises(OverLimit) as over:
                await filler.write(1)
            assert over.value.limit == limit


async def test_a_full_tree_with_few_open_files_says_that_it_is_full_and_nothing_else(run: Run) -> None:
    limits = Limits(tree_bytes=300 * KIB)
    async with asyncio.timeout(patience()), run(Filler, limits=limits, open_databases=1) as world:
        root = await world.get_agent(Filler, "f")
        refused = 0

        for n in range(24):
            try:
                await root.write_below(str(n % 4), 40_000)
            except OverLimit:
                refused += 1

        assert refused >= 10


ROOM = 6


async def exactly_full(world: World) -> None:
    """Check that the tree counts right: it has room for exactly as many as it should."""
    root = await world.get_agent(Branch, "r")
    for n in range(await count(world), ROOM):
        await root.grow("a", f"more {n}")
    assert await count(world) == ROOM
    for names in [("too many",), ("a", "too many"), ("a", "b", "too many")]:
        with pytest.raises(OverLimit):
            await root.grow(*names)


async def count(world: World, *names: str) -> int:
    """Count the descendants of an agent one by one."""
    agent = await world.get_agent(Branch, "r", sub=below(*names))
    children = await agent.child_names()
    return len(children) + sum([await count(world, *names, child) for child in children])


@pytest.mark.promise("B-4")
@pytest.mark.parametrize("point", POINTS)
async def test_counts_are_right_after_a_crash_at_any_point_of_making_grandchildren(run: Run, point: str) -> None:
    async def prepare(world: World) -> None:
        await (await world.get_agent(Branch, "r")).grow("a", "b")

    async def grow(world: World) -> None:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b", "c")
        await root.grow("a", "d")

    limits = Limits(descendants=ROOM)
    await crash_everywhere(run, point, prepare=prepare, act=grow, check=exactly_full, limits=limits)


@pytest.mark.parametrize("point", POINTS)
async def test_counts_are_right_after_a_crash_at_any_point_of_deleting_grandchildren(run: Run, point: str) -> None:
    async def prepare(world: World) -> None:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b", "c")
        await root.grow("a", "d")

    async def cut(world: World) -> None:
        middle = await world.get_agent(Branch, "r", sub=below("a"))
        await middle.cut("b")

    limits = Limits(descendants=ROOM)
    await crash_everywhere(run, point, prepare=prepare, act=cut, check=exactly_full, limits=limits)
