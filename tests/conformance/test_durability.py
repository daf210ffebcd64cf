"""What a durable answer costs: one sync for all who leave together, none for what is on the disk already."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from sapwood import Agent, App
from sapwood.errors import Unavailable
from sapwood.storage.database import Database
from sapwood.testing import World, running
from sapwood.testing.faults import CountingFiles

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
        world.app.node.sleep()
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
        world.app.node.sleep()
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
