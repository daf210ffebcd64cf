"""Delete and destroy: a child, all below it and all their data are gone for good."""

from __future__ import annotations

import asyncio

import pytest
from tests.conformance.worlds import Branch, Probe, Run, a_while, below, crash_everywhere, until
from tests.machine import patience

from sapwood import Agent, Limits, NotFound
from sapwood.testing import POINTS, World

pytestmark = pytest.mark.storage


def databases(world: World) -> int:
    """Return how many agents have a file."""
    return len(list((world.data / "trees").rglob("*.db")))


@pytest.mark.promise("A-31", "A-35", "A-58", "A-225", "CF-19", "CF-30")
async def test_a_deleted_child_and_its_data_are_gone_and_the_next_of_that_name_is_new(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.note_below("a", "old")
        (old,) = await root.generations()

        await root.cut("a")

        assert not await root.has("a")
        assert await root.child_names() == []
        assert await root.note_below("a", "new") == 1
        (new,) = await root.generations()
        assert new > old


@pytest.mark.promise("A-31", "A-32", "CF-19")
async def test_the_files_of_a_deleted_branch_are_gone_when_delete_returns(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b", "c")
        for names in [("a",), ("a", "b"), ("a", "b", "c")]:
            await (await world.get_agent(Branch, "r", sub=below(*names))).note("x")
        assert databases(world) == 4

        await root.cut("a")

        assert databases(world) == 1
        assert {path.name for path in world.data.rglob("*.db*")} == {"root.db", "root.db-wal"}


@pytest.mark.promise("A-32")
async def test_deleting_reaches_sleeping_descendants_too(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b", "c")
        await (await world.get_agent(Branch, "r", sub=below("a", "b", "c"))).note("x")
        await world.restart()
        root = await world.get_agent(Branch, "r")

        await root.cut("a")

        assert databases(world) == 1
        await root.grow("a", "b", "c")
        assert await (await world.get_agent(Branch, "r", sub=below("a", "b", "c"))).notes() == []


@pytest.mark.promise("A-33", "CF-20")
async def test_deleting_what_is_gone_or_never_was_succeeds_silently(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")

        await root.cut("never")
        await root.grow("a")
        await root.cut("a")
        await root.cut("a")

        assert await root.child_names() == []


@pytest.mark.promise("A-33")
async def test_a_child_deleted_twice_at_once_is_counted_once(run: Run) -> None:
    async with run(Branch, limits=Limits(children=2)) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a")
        await root.grow("b")

        await asyncio.gather(root.cut("a"), root.cut("a"), root.cut("a"))
        await root.grow("c")

        assert await root.child_names() == ["b", "c"]
        with pytest.raises(Exception, match="children"):
            await root.grow("d")


async def test_callers_of_a_deleted_child_learn_that_it_is_not_found(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b")
        child = await world.get_agent(Branch, "r", sub=below("a"))
        leaf = await world.get_agent(Branch, "r", sub=below("a", "b"))
        pending = asyncio.create_task(leaf.hang())
        await asyncio.sleep(0)

        await root.cut("a")

        with pytest.raises(NotFound):
            await pending
        for stub in (child, leaf):
            with pytest.raises(NotFound) as gone:
                await stub.notes()
            assert gone.value.path[:2] == (("Branch", "r"), ("Branch", "a"))
        with pytest.raises(NotFound):
            await world.get_agent(Branch, "r", sub=below("a"))
        assert not await root.has("a")


async def test_an_old_stub_reaches_the_child_that_was_made_again(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.note_below("a", "old")
        stub = await world.get_agent(Branch, "r", sub=below("a"))
        await root.cut("a")

        await root.grow("a")

        assert await stub.notes() == []


async def test_a_late_write_of_a_deleted_child_never_brings_its_file_back(run: Run, probe: Probe) -> None:
    class Stubborn(Agent):
        deps: Probe

        async def write_when_cancelled(self) -> None:
            self.sql("CREATE TABLE t (x)")
            self.deps.log.append("waiting")
            try:
                await self.deps.go.wait()
            except asyncio.CancelledError:
                try:
                    self.sql("INSERT INTO t VALUES (1)")
                except NotFound:
                    self.deps.log.append("refused")
                raise

    class Keeper(Agent):
        async def work(self) -> None:
            await (await self.sub_agent(Stubborn, "s")).write_when_cancelled()

        async def delete(self) -> None:
            await self.children.delete(Stubborn, "s")

    async with run(Keeper, deps=probe) as world:
        keeper = await world.get_agent(Keeper, "k")
        call = asyncio.create_task(keeper.work())
        await probe.seen("waiting")

        await keeper.delete()

        with pytest.raises(NotFound):
            await call
        await probe.seen("refused")
        assert databases(world) == 1


async def test_the_reply_of_the_call_that_destroyed_its_agent_still_arrives(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.note_below("a", "x")
        child = await world.get_agent(Branch, "r", sub=below("a"))

        assert await child.end() == "ended"

        assert not await root.has("a")
        await until(lambda: databases(world) == 1)
        with pytest.raises(NotFound):
            await child.notes()


@pytest.mark.promise("A-36", "CF-25")
async def test_destroy_in_a_nested_child_takes_everything_below_it_and_nothing_else(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b", "c")
        await root.grow("a", "x")
        for names in [("a",), ("a", "x"), ("a", "b"), ("a", "b", "c")]:
            await (await world.get_agent(Branch, "r", sub=below(*names))).note("kept")

        await (await world.get_agent(Branch, "r", sub=below("a", "b"))).end()

        await until(lambda: databases(world) == 3)
        middle = await world.get_agent(Branch, "r", sub=below("a"))
        assert await middle.child_names() == ["x"]
        assert await middle.notes() == ["kept"]
        with pytest.raises(NotFound):
            await world.get_agent(Branch, "r", sub=below("a", "b", "c"))


async def test_destroy_in_a_root_removes_the_whole_tree_and_the_next_of_that_name_is_new(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        other = await world.get_agent(Branch, "other")
        await other.note("kept")
        await root.note("gone")
        await root.grow("a", "b")

        assert await root.end() == "ended"

        again = await world.get_agent(Branch, "r")
        assert await again.notes() == []
        assert await again.child_names() == []
        assert await other.notes() == ["kept"]
        with pytest.raises(NotFound):
            await world.get_agent(Branch, "r", sub=below("a"))


async def test_a_child_that_destroys_itself_twice_is_counted_once(run: Run) -> None:
    class Twice(Agent):
        async def end(self) -> str:
            await self.destroy()
            await self.destroy()
            return "ended"

    class Counter(Agent):
        async def make(self, name: str) -> None:
            await self.sub_agent(Twice, name)

        async def end(self, name: str) -> str:
            return await (await self.sub_agent(Twice, name)).end()

        async def names(self) -> list[str]:
            return [child.name for child in self.children.list()]

    async with run(Counter, limits=Limits(children=2)) as world:
        counter = await world.get_agent(Counter, "c")
        await counter.make("a")
        await counter.make("b")

        assert await counter.end("a") == "ended"

        await counter.make("c")
        with pytest.raises(Exception, match="children"):
            await counter.make("d")
        assert await counter.names() == ["b", "c"]


async def test_an_agent_may_be_deleted_at_its_own_request_or_in_its_own_start(run: Run) -> None:
    class Weary(Agent):
        async def on_start(self) -> None:
            if self.name == "stillborn":
                await self.destroy()

        async def ask_to_be_deleted(self) -> None:
            await (await self.parent_agent(Merciful)).delete(self.name)

    class Merciful(Agent):
        async def delete(self, name: str) -> None:
            await self.children.delete(Weary, name)

        async def go(self, name: str) -> None:
            await (await self.sub_agent(Weary, name)).ask_to_be_deleted()

        async def child_names(self) -> int:
            return len(self.children.list())

    async with run(Merciful) as world, asyncio.timeout(patience()):
        merciful = await world.get_agent(Merciful, "m")

        for name in ("weary", "stillborn"):
            with pytest.raises(NotFound, match="was deleted"):
                await merciful.go(name)

        assert await merciful.child_names() == 0


async def test_a_child_made_again_while_the_destroyed_one_still_answers_is_a_new_one(run: Run, probe: Probe) -> None:
    class Slow(Agent):
        deps: Probe
        migrations = Branch.migrations

        async def end_slowly(self) -> None:
            self.sql("INSERT INTO notes VALUES ('old')")
            await self.destroy()
            self.deps.log.append("destroyed")
            await self.deps.go.wait()

        async def notes(self) -> int:
            return self.sql("SELECT count(*) FROM notes").scalar(int)

    class Patron(Agent):
        async def end(self) -> None:
            await (await self.sub_agent(Slow, "s")).end_slowly()

        async def notes(self) -> int:
            return await (await self.sub_agent(Slow, "s")).notes()

        async def has(self) -> bool:
            return self.children.has(Slow, "s")

    async with run(Patron, deps=probe) as world:
        patron = await world.get_agent(Patron, "p")
        ending = asyncio.create_task(patron.end())
        await probe.seen("destroyed")
        assert not await patron.has()

        asked = asyncio.create_task(patron.notes())
        await asyncio.sleep(0)
        probe.go.set()

        assert await asked == 0
        await ending
        assert await patron.has()
        assert await patron.notes() == 0


async def test_a_parent_may_sleep_while_a_deletion_below_it_is_under_way(run: Run) -> None:
    for steps in range(12):
        async with run(Branch) as world:
            root = await world.get_agent(Branch, "r")
            await root.grow("a", "b")
            middle = await world.get_agent(Branch, "r", sub=below("a"))
            await middle.note("kept")
            leaf = await world.get_agent(Branch, "r", sub=below("a", "b"))
            await leaf.note("x")

            await leaf.end()
            for _ in range(steps):
                await asyncio.sleep(0)
            world.sleep()
            await asyncio.sleep(0)

            assert await middle.notes() == ["kept"]
            assert await middle.child_names() == []
            await until(lambda world=world: databases(world) == 2)


async def grown(world: World) -> Branch:
    """Return a root whose child `a` has a child with two children, all with data."""
    root = await world.get_agent(Branch, "r")
    await root.note("root")
    await root.grow("keep")
    await root.grow("a", "b", "c")
    await root.grow("a", "b", "d")
    for names in [("keep",), ("a",), ("a", "b"), ("a", "b", "c"), ("a", "b", "d")]:
        await (await world.get_agent(Branch, "r", sub=below(*names))).note("x")
    return root


async def deleted_or_whole(world: World) -> None:
    """Check that `a` is either all there or all gone, its files included, and the rest is untouched."""
    root = await world.get_agent(Branch, "r")
    assert await root.notes() == ["root"]
    keep = await world.get_agent(Branch, "r", sub=below("keep"))
    assert await keep.notes() == ["x"]
    if await root.has("a"):
        assert databases(world) == 6
        await root.cut("a")
    await until(lambda: databases(world) == 2)
    assert await root.child_names() == ["keep"]
    await root.grow("a", "b", "c")
    assert await (await world.get_agent(Branch, "r", sub=below("a", "b", "c"))).notes() == []


@pytest.mark.slow
@pytest.mark.promise("B-11", "B-19", "CF-194")
@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_at_any_point_of_a_deletion_is_finished_at_the_next_wake(run: Run, point: str) -> None:
    async def delete(world: World) -> None:
        await (await world.get_agent(Branch, "r")).cut("a")

    await crash_everywhere(run, point, prepare=grown, act=delete, check=deleted_or_whole)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.promise("A-36", "B-11", "CF-194")
@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_at_any_point_of_a_child_s_destroy_is_finished_at_the_next_wake(run: Run, point: str) -> None:
    async def destroy(world: World) -> None:
        await (await world.get_agent(Branch, "r", sub=below("a"))).end()
        await a_while()

    await crash_everywhere(run, point, prepare=grown, act=destroy, check=deleted_or_whole)


@pytest.mark.slow
@pytest.mark.promise("B-11", "CF-194")
@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_at_any_point_of_a_root_s_destroy_leaves_all_or_nothing(run: Run, point: str) -> None:
    ended = False

    async def destroy(world: World) -> None:
        nonlocal ended
        ended = False
        ended = await (await world.get_agent(Branch, "r")).end() == "ended"
        await a_while()

    async def all_or_nothing(world: World) -> None:
        root = await world.get_agent(Branch, "r")
        notes = await root.notes()
        assert notes == [] if ended else notes in ([], ["root"])
        assert await root.child_names() == ([] if notes == [] else ["keep", "a"])

    await crash_everywhere(run, point, prepare=grown, act=destroy, check=all_or_nothing)
