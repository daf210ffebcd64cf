"""What a durable answer costs: one sync for all who leave together, none for what is on the disk already."""

from __future__ import annotations

import asyncio
import errno
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.conformance.runtimes import running
from tests.machine import patience

from sapwood import Agent, App
from sapwood.errors import Unavailable
from sapwood.storage.database import Database
from sapwood.testing import World
from sapwood.testing.faults import CountingFiles

pytestmark = [pytest.mark.storage, pytest.mark.core("cluster")]

SYNC, COMMIT = CountingFiles.sync_descriptor, Database.commit


class Tally(Agent):
    migrations = ("CREATE TABLE marks (number INTEGER NOT NULL) STRICT",)

    async def mark(self, number: int) -> int:
        self.sql("INSERT INTO marks VALUES (?)", number)
        return self.sql("SELECT count(*) FROM marks").scalar(int)

    async def count(self) -> int:
        return self.sql("SELECT count(*) FROM marks").scalar(int)


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the syncs of each file, and the commits."""
    counted: Counter[str] = Counter()

    def sync(self: CountingFiles, path: Path, descriptor: int) -> None:
        counted[path.name] += 1
        SYNC(self, path, descriptor)

    def commit(self: Database) -> None:
        counted["commits"] += 1
        COMMIT(self)

    monkeypatch.setattr(CountingFiles, "sync_descriptor", sync)
    monkeypatch.setattr(Database, "commit", commit)
    return counted


async def tallying(world: World) -> Tally:
    tally = await world.get_agent(Tally, "t")
    await tally.mark(0)
    return tally


async def test_answers_that_leave_together_share_a_commit_and_a_sync(syncs: Counter[str]) -> None:
    async with running(App(agents=[Tally]), durability="disk") as world:
        tally = await tallying(world)
        syncs.clear()

        counts = await asyncio.gather(*(tally.mark(number) for number in range(64)))

        assert counts == list(range(2, 66))
        assert syncs["commits"] <= 2
        assert syncs["root.db-wal"] <= 2
        await world.crash()
        assert await (await world.get_agent(Tally, "t")).count() == 65


async def test_an_agent_that_slept_with_everything_on_the_disk_wakes_without_a_sync(syncs: Counter[str]) -> None:
    async with running(App(agents=[Tally]), durability="disk") as world:
        tally = await tallying(world)
        world.sleep()
        syncs.clear()

        assert await tally.count() == 1

        assert not syncs


async def test_a_new_agent_of_a_destroyed_ones_name_is_synced_from_the_beginning(syncs: Counter[str]) -> None:
    class Doomed(Tally):
        async def end(self) -> None:
            await self.destroy()

    async with running(App(agents=[Doomed]), durability="disk") as world:
        doomed = await world.get_agent(Doomed, "d")
        await doomed.mark(1)
        world.sleep()
        await (await world.get_agent(Doomed, "d")).end()
        syncs.clear()

        assert await (await world.get_agent(Doomed, "d")).mark(1) == 1

        assert syncs["root.db"] == 1


async def test_a_commit_that_fails_fails_everybody_who_was_about_to_leave_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(App(agents=[Tally]), durability="disk") as world:
        tally = await tallying(world)

        def fail(self: Database) -> None:
            monkeypatch.undo()
            self.give_up(Unavailable("The disk is full."))
            raise Unavailable("The disk is full.")

        monkeypatch.setattr(Database, "commit", fail)
        answers = await asyncio.gather(*(tally.mark(number) for number in range(8)), return_exceptions=True)

        assert all(isinstance(answer, Unavailable) for answer in answers)
        assert await tally.count() == 1


async def test_a_database_closed_to_make_room_is_not_synced_when_it_opens_again(syncs: Counter[str]) -> None:
    async with running(App(agents=[Tally]), durability="disk") as world:
        tally = await tallying(world)
        (tree,) = world.node.trees.values()
        assert tree.close_database(tree.databases["root"])
        syncs.clear()

        assert await tally.count() == 1

        assert not syncs


async def test_what_cannot_be_synced_for_want_of_descriptors_is_told_and_shown_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opens = CountingFiles.open

    def open_(self: CountingFiles, path: Path) -> int:
        if path.name.endswith("-wal"):
            raise OSError(errno.EMFILE, "Too many open files")
        return opens(self, path)

    monkeypatch.setattr(CountingFiles, "open", open_)
    async with (
        asyncio.timeout(patience()),
        running(App(agents=[Tally]), slow_slices="allow", durability="disk") as world,
    ):
        tally = await world.get_agent(Tally, "t")

        with pytest.raises(Unavailable, match="too many open files"):
            await tally.mark(1)
        with pytest.raises(Unavailable, match="too many open files"):
            await tally.count()

        monkeypatch.undo()
        assert await tally.count() == 1
        await world.crash()
        assert await (await world.get_agent(Tally, "t")).count() == 1


@pytest.mark.realtime("a disk that is slow really: writers have to overtake it")
async def test_a_child_is_made_and_deleted_while_its_parent_is_written_to_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Parent(Tally):
        async def make(self, name: str) -> int:
            return await (await self.sub_agent(Tally, name)).mark(1)

        async def remove(self, name: str) -> None:
            await self.children.delete(Tally, name)

    def slow(self: CountingFiles, path: Path, descriptor: int) -> None:
        time.sleep(0.003)
        SYNC(self, path, descriptor)

    monkeypatch.setattr(CountingFiles, "sync_descriptor", slow)
    async with running(App(agents=[Parent]), slow_slices="allow", durability="disk") as world:
        parent = await world.get_agent(Parent, "p")
        await parent.make("old")
        busy = True

        async def write(after: float) -> None:
            await asyncio.sleep(after)
            while busy:
                await parent.mark(1)

        writers = [asyncio.create_task(write(number * 0.0007)) for number in range(8)]
        try:
            await asyncio.sleep(0.1)
            async with asyncio.timeout(patience()):
                assert await parent.make("new") == 1
                await parent.remove("old")
        finally:
            busy = False
            await asyncio.gather(*writers)
