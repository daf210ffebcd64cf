"""Promise 1: nothing leaves an agent before everything committed before it is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.faults.lives import points_of
from tests.faults.machine import Machine
from tests.faults.running import LIVES, run_lives

from sapwood import Agent, App
from sapwood.testing import running

LONG_ENOUGH = 0.05
"""Seconds in which something would have happened if it could."""


@pytest.mark.parametrize("level", ["process", "disk"])
def test_whatever_ends_a_process_everything_it_acknowledged_is_kept(level: str) -> None:
    result = run_lives(level, LIVES, "acknowledged")

    assert result["violations"] == [], f"seed {result['seed']}, kept in {result['kept']}"
    assert result["lives"] == LIVES
    assert result["replies"] > LIVES
    if LIVES >= 40:
        assert set(points_of(level)) <= set(result["points"])


class Note(Agent):
    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)

    async def add(self, text: str) -> None:
        self.sql("INSERT INTO notes VALUES (?)", text)

    async def read(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM notes ORDER BY rowid")]


class Shelf(Note):
    async def make(self, name: str) -> None:
        await self.sub_agent(Note, name)


async def test_the_first_write_to_a_new_folder_survives_a_loss_of_power(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Shelf)
    async with machine.run(then="power cut") as (app, _):
        shelf = await app.get_agent(Shelf, "s")
        await shelf.make("n")
        await (await app.get_agent(Shelf, "s", sub=[(Note, "n")])).add("milk")

    async with machine.run(then="killed") as (app, _):
        note = await app.get_agent(Shelf, "s", sub=[(Note, "n")])

        assert await note.read() == ["milk"]


async def test_nobody_sees_what_a_killed_process_left_before_the_disk_has_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Shelf)
    async with machine.run(then="killed") as (app, files):
        shelf = await app.get_agent(Shelf, "s")
        await shelf.add("kept")
        files.running.clear()
        unanswered = asyncio.create_task(shelf.add("committed"))
        await asyncio.wait({unanswered}, timeout=LONG_ENOUGH)
        assert not unanswered.done()
    unanswered.cancel()

    async with machine.run(then="power cut") as (app, _):
        shelf = await app.get_agent(Shelf, "s")
        seen = await shelf.read()

    assert seen == ["kept", "committed"]
    async with machine.run(then="killed") as (app, _):
        shelf = await app.get_agent(Shelf, "s")
        assert await shelf.read() == seen


async def test_nobody_reaches_a_new_child_before_the_disk_has_the_row_that_names_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path, Shelf)
    async with machine.run(then="power cut") as (app, files):
        shelf = await app.get_agent(Shelf, "s")
        await shelf.add("kept")
        files.running.clear()
        making = asyncio.create_task(shelf.make("n"))
        await asyncio.wait({making}, timeout=LONG_ENOUGH)

        again = asyncio.create_task(shelf.make("n"))
        outside = asyncio.create_task(app.get_agent(Shelf, "s", sub=[(Note, "n")]))
        done, _ = await asyncio.wait({making, again, outside}, timeout=LONG_ENOUGH)

        assert not done
        files.running.set()
        await asyncio.gather(making, again, outside)
        await (await outside).add("milk")

    async with machine.run(then="killed") as (app, _):
        note = await app.get_agent(Shelf, "s", sub=[(Note, "n")])
        assert await note.read() == ["milk"]


@pytest.mark.parametrize("durability", ["process", "disk"])
@pytest.mark.parametrize("point", ["after make_folder", "before create", "after create"])
async def test_a_tree_whose_birth_was_cut_short_says_whose_it_is_once_it_lives(point: str, durability: str) -> None:
    async with running(App(agents=[Shelf]), durability=durability) as world:
        world.crash_at(point)
        with pytest.raises(Exception, match="crashed"):
            await (await world.get_agent(Shelf, "s")).add("lost")
        await world.crash()

        await (await world.get_agent(Shelf, "s")).add("milk")

        (tree,) = (world.data / "trees").iterdir()
        assert (tree / "address").read_text() == "Shelf:s"


async def test_a_log_whose_file_was_lost_at_its_birth_is_not_taken_for_that_of_the_next() -> None:
    async with running(App(agents=[Shelf]), durability="disk") as world:
        await (await world.get_agent(Shelf, "s")).add("lost")
        await world.node.die()
        (tree,) = (world.data / "trees").iterdir()
        (tree / "root.db").unlink()
        assert (tree / "root.db-wal").exists()
        await world.crash()

        shelf = await world.get_agent(Shelf, "s")
        await shelf.add("milk")

        assert await shelf.read() == ["milk"]
