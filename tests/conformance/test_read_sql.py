"""`read_sql`: a long query reads what was written before it, and its agent and all others work on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.worlds import Branch, Probe, Run, asleep, happens, until
from tests.machine import patience

from sapwood import Agent, App, Settings, deadline
from sapwood.errors import Aborted, ForbiddenSql, NotFound, SlowSql, TimedOut, Unavailable
from sapwood.testing import World
from sapwood.timings import DEFAULTS

ENDLESS = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
DEEP = ("a", "b", "c")


class Reader(Branch):
    """Reads for as long as it is let."""

    deps: Probe

    async def read_forever(self) -> None:
        await self.read_sql(ENDLESS)

    async def read_beside(self) -> None:
        """Leave a query behind that belongs to no call."""
        self.left = asyncio.create_task(self.read_sql(ENDLESS))
        self.left.add_done_callback(lambda left: self.deps.log.append(type(left.exception()).__name__))

    async def write_and_count(self, text: str) -> int:
        self.sql("INSERT INTO notes VALUES (?)", text)
        return await self.count()

    async def count(self) -> int:
        return (await self.read_sql("SELECT count(*) FROM notes")).scalar(int)

    async def run(self, sql: str) -> list[Any]:
        return list(await self.read_sql(sql))

    async def both(self) -> tuple[int, int]:
        """Count twice: what was written when the query began, and what was written by its end."""
        counting = asyncio.create_task(self.count())
        await asyncio.sleep(0)
        self.sql("INSERT INTO notes VALUES ('later')")
        return await counting, self.sql("SELECT count(*) FROM notes").scalar(int)

    async def grow(self, *names: str) -> None:
        first, *below = names
        child = await self.sub_agent(Reader, first)
        if below:
            await child.grow(*below)

    async def stop_child(self, name: str) -> None:
        self.children.abort(Reader, name, "enough")

    async def delete_child(self, name: str) -> None:
        await self.children.delete(Reader, name)

    async def in_block(self) -> None:
        with self.transaction():
            self.sql("INSERT INTO notes VALUES ('undone')")
            await self.read_sql("SELECT 1")


def at(*names: str) -> list[tuple[type[Reader], str]]:
    return [(Reader, name) for name in names]


def readers(world: World) -> int:
    return sum(len(database.readers) for tree in world.node.trees.values() for database in tree.databases.values())


async def reading(world: World, agent: Reader) -> asyncio.Task[None]:
    """Have an agent run a query without an end."""
    before = readers(world)
    task = asyncio.create_task(agent.read_forever())
    await until(lambda: readers(world) > before)
    return task


async def stopped(task: asyncio.Task[None]) -> BaseException | None:
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    return outcome


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO notes VALUES ('x')",
        "UPDATE notes SET text = 'x'",
        "DELETE FROM notes",
        "CREATE TABLE more (v)",
        "PRAGMA user_version = 3",
        "PRAGMA journal_mode = DELETE",
    ],
)
async def test_it_refuses_to_write(run: Run, probe: Probe, sql: str) -> None:
    async with run(Reader, deps=probe) as world:
        agent = await world.get_agent(Reader, "r")
        await agent.note("kept")

        with pytest.raises(ForbiddenSql, match=r"PRAGMA|Use self.sql\(\) to write"):
            await agent.run(sql)

        assert await agent.notes() == ["kept"]


@pytest.mark.core("cluster")
async def test_it_sees_every_write_before_it_also_of_its_own_slice(run: Run, probe: Probe) -> None:
    async with run(Reader, deps=probe) as world:
        agent = await world.get_agent(Reader, "r")

        assert [await agent.write_and_count(text) for text in ("one", "two", "three")] == [1, 2, 3]
        await world.crash()
        assert await (await world.get_agent(Reader, "r")).count() == 3


async def test_it_sees_no_write_after_it(run: Run, probe: Probe) -> None:
    async with run(Reader, deps=probe) as world:
        agent = await world.get_agent(Reader, "r")
        await agent.note("before")

        assert await agent.both() == (1, 2)


async def test_it_reads_the_tables_of_an_agent_that_never_wrote(run: Run, probe: Probe) -> None:
    async with run(Reader, deps=probe) as world:
        assert await (await world.get_agent(Reader, "r")).count() == 0


async def test_a_transaction_does_not_contain_it(run: Run, probe: Probe) -> None:
    async with run(Reader, deps=probe) as world:
        agent = await world.get_agent(Reader, "r")

        with pytest.raises(Exception, match="suspended by an await"):
            await agent.in_block()

        assert await agent.notes() == []


@pytest.mark.parametrize("deep", range(len(DEEP) + 1))
async def test_its_agent_and_all_above_and_below_read_and_write_during_it(run: Run, probe: Probe, deep: int) -> None:
    async with asyncio.timeout(patience()), run(Reader, deps=probe) as world:
        await (await world.get_agent(Reader, "r")).grow(*DEEP)
        agents = [await world.get_agent(Reader, "r", sub=at(*DEEP[:number])) for number in range(len(DEEP) + 1)]
        for agent in agents:
            await agent.note("before")
        busy = await reading(world, agents[deep])

        for agent in agents:
            assert await agent.note("during") == 2
            assert await agent.notes() == ["before", "during"]
        await agents[-1].grow("d")
        await agents[0].grow("e")

        assert not busy.done()
        assert isinstance(await stopped(busy), asyncio.CancelledError)
        await world.crash()
        for number in range(len(DEEP) + 1):
            agent = await world.get_agent(Reader, "r", sub=at(*DEEP[:number]))
            assert await agent.notes() == ["before", "during"]


async def test_a_cancelled_one_ends_and_the_next_sees_what_was_written(run: Run, probe: Probe) -> None:
    async with asyncio.timeout(patience()), run(Reader, deps=probe) as world:
        agent = await world.get_agent(Reader, "r")
        busy = await reading(world, agent)
        await agent.note("during")

        assert isinstance(await stopped(busy), asyncio.CancelledError)

        await until(lambda: readers(world) == 0)
        assert await agent.count() == 1


async def test_one_after_a_write_waits_for_those_before_it(run: Run, probe: Probe) -> None:
    async with asyncio.timeout(patience()), run(Reader, deps=probe) as world:
        agent = await world.get_agent(Reader, "r")
        await agent.note("before")
        busy = await reading(world, agent)
        assert await agent.count() == 1  # nothing was written since: both run
        counting = asyncio.create_task(agent.write_and_count("during"))
        while len(await agent.notes()) < 2:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0)
        await agent.notes()

        assert not counting.done()
        await agent.note("while it waits")
        await stopped(busy)
        assert await counting == 3  # it sees what was written before it started


@pytest.mark.core("cluster")
@pytest.mark.parametrize("how", ["stop_child", "delete_child"])
async def test_an_agent_that_is_aborted_or_deleted_ends_it(run: Run, probe: Probe, how: str) -> None:
    async with asyncio.timeout(patience()), run(Reader, deps=probe) as world:
        root = await world.get_agent(Reader, "r")
        await root.grow("a")
        child = await world.get_agent(Reader, "r", sub=at("a"))
        await child.note("old")
        busy = await reading(world, child)

        await getattr(root, how)("a")

        with pytest.raises(Aborted if how == "stop_child" else NotFound):
            await busy
        await until(lambda: readers(world) == 0)
        await root.grow("a")
        left = await (await world.get_agent(Reader, "r", sub=at("a"))).notes()
        assert left == (["old"] if how == "stop_child" else [])


@pytest.mark.core("cluster")
async def test_a_root_is_destroyed_during_it(run: Run, probe: Probe) -> None:
    class Mortal(Reader):
        async def end(self) -> None:
            await self.destroy()

    async with asyncio.timeout(patience()), run(Mortal, deps=probe) as world:
        root = await world.get_agent(Mortal, "r")
        await root.note("old")
        busy = await reading(world, root)

        await root.end()

        await asyncio.wait({busy})
        assert busy.exception() is not None
        assert await (await world.get_agent(Mortal, "r")).notes() == []


async def test_its_agent_does_not_sleep_and_does_after_it(run: Run, probe: Probe) -> None:
    async with asyncio.timeout(patience()), run(Reader, deps=probe) as world:
        agent = await world.get_agent(Reader, "r")
        busy = await reading(world, agent)

        world.sleep()

        assert readers(world) == 1
        await stopped(busy)
        await asleep(world)


@pytest.mark.parametrize("how", ["restart", pytest.param("crash", marks=pytest.mark.core("workers", "cluster"))])
async def test_the_process_may_end_during_it(run: Run, probe: Probe, how: str) -> None:
    async with asyncio.timeout(patience()), run(Reader, deps=probe) as world:
        agent = await world.get_agent(Reader, "r")
        await agent.note("before")
        busy = await reading(world, agent)
        await agent.note("during")

        await getattr(world, how)()

        with pytest.raises(Unavailable):
            await busy
        assert await (await world.get_agent(Reader, "r")).count() == 2


@pytest.mark.parametrize("how", ["stop_child", "sleep"])
async def test_one_that_belongs_to_no_call_ends_with_its_agent(run: Run, probe: Probe, how: str) -> None:
    async with asyncio.timeout(patience()), run(Reader, deps=probe) as world:
        root = await world.get_agent(Reader, "r")
        await root.grow("a")
        await (await world.get_agent(Reader, "r", sub=at("a"))).read_beside()
        await until(lambda: readers(world) == 1)

        if how == "sleep":
            await happens(lambda: _slept(world))
        else:
            await root.stop_child("a")

        await probe.seen("Unavailable" if how == "sleep" else "Aborted")


def _slept(world: World) -> bool:
    world.sleep()
    return readers(world) == 0


async def test_the_deadline_of_a_call_ends_it(run: Run, probe: Probe) -> None:
    async with asyncio.timeout(patience()), run(Reader, deps=probe) as world:
        agent = await world.get_agent(Reader, "r")

        with pytest.raises(TimedOut), deadline(0.05):
            await agent.read_forever()

        await until(lambda: readers(world) == 0)
        assert await agent.note("after") == 1


async def test_a_backup_during_it_has_what_was_written_during_it(run: Run, probe: Probe, tmp_path: Path) -> None:
    async with asyncio.timeout(patience()), run(Reader, deps=probe) as world:
        agent = await world.get_agent(Reader, "r")
        await agent.note("before")
        busy = await reading(world, agent)
        await agent.note("during")

        assert await world.app.backup(tmp_path / "copy") == 1

        assert not busy.done()
        await stopped(busy)
        async with App(agents=[Reader], deps=probe, settings=Settings(data=tmp_path / "copy")) as copy:
            assert await (await copy.get_agent(Reader, "r")).notes() == ["before", "during"]


async def test_one_that_starts_during_a_backup_waits_for_it(run: Run, probe: Probe) -> None:
    async with asyncio.timeout(patience()), run(Reader, deps=probe) as world:
        agent = await world.get_agent(Reader, "r")
        await agent.note("before")
        (tree,) = world.node.trees.values()
        with tree.kept_still():
            counting = asyncio.create_task(agent.write_and_count("during"))
            while len(await agent.notes()) < 2:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0)
            await agent.notes()
            assert not counting.done()

        assert await counting == 2


async def test_an_agent_that_writes_very_much_interrupts_it(probe: Probe, run: Run) -> None:
    timings = replace(DEFAULTS, checkpoint_frames=10, reader_frames=40)
    async with asyncio.timeout(patience()), run(Reader, deps=probe, timings=timings) as world:
        agent = await world.get_agent(Reader, "r")
        busy = await reading(world, agent)

        while not busy.done():
            await agent.note("x" * 3000)

        with pytest.raises(SlowSql, match="write-ahead log"):
            await busy
        assert await agent.count() == len(await agent.notes())


async def test_agents_of_other_trees_are_not_held_up(run: Run, probe: Probe) -> None:
    class Other(Agent):
        async def ping(self) -> str:
            return "pong"

    async with asyncio.timeout(patience()), run(Reader, Other, deps=probe) as world:
        busy = await reading(world, await world.get_agent(Reader, "r"))

        assert {await (await world.get_agent(Other, str(number))).ping() for number in range(20)} == {"pong"}

        assert not busy.done()
        await stopped(busy)
