"""Promise 3: every alarm fires, at least once, never early, also when the process was dead at the time."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import apsw
import pytest
from tests.conformance.worlds import until
from tests.faults.lives import points_of
from tests.faults.running import LIVES, run_lives

from sapwood import Agent, App
from sapwood.errors import FiberFailed
from sapwood.storage.engine import CHECKED
from sapwood.testing import running

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("level", ["process", "disk"])
def test_whatever_ends_a_process_and_however_its_clock_is_set_everything_promised_happens(level: str) -> None:
    result = run_lives(level, LIVES, "alarms", of="time_lives")

    assert result["violations"] == [], f"seed {result['seed']}, kept in {result['kept']}"
    assert result["lives"] == LIVES
    assert result["replies"] > 0
    if LIVES >= 40:  # the first ones reply little: each dies when it reaches another point for the first time
        assert result["replies"] > LIVES
        assert set(points_of(level)) <= set(result["points"])


class Note(Agent):
    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)
    failures = 0
    walks = 0
    steps = 0
    """The walk that came as far as its step last."""
    going = asyncio.Event()

    async def later(self, text: str) -> None:
        self.schedule(MINUTE, self.add, text)

    async def add(self, text: str) -> None:
        self.sql("INSERT INTO notes VALUES (?)", text)

    async def read(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM notes ORDER BY rowid")]

    async def make(self, name: str) -> None:
        await self.sub_agent(Note, name)

    async def remove(self, name: str) -> None:
        await self.children.delete(Note, name)

    async def leave(self) -> None:
        await self.destroy()
        await Note.going.wait()

    async def later_after_a_failure(self) -> None:
        self.schedule(MINUTE, self.fail_once)

    async def fail_once(self) -> None:
        await self.add("tried")
        Note.failures += 1
        if Note.failures == 1:
            raise ValueError

    async def work(self) -> None:
        await self.fibers.run("long", self.wait_for_ever)

    async def wait_for_ever(self) -> None:
        await asyncio.Event().wait()

    async def stop_work(self) -> None:
        (fiber,) = self.fibers.list()
        self.fibers.cancel(fiber.id)

    async def begin(self) -> None:
        self.start_fiber("walk", self.walk)

    async def walk(self) -> None:
        Note.walks += 1
        self.schedules.cancel(self.schedule(MINUTE, self.add, "never").id)
        await asyncio.sleep(0.01)  # the indexes say by now when the fiber would be recovered
        await self.step(f"step {Note.walks}", self.add, "further")
        Note.steps = Note.walks
        await asyncio.Event().wait()


async def test_the_tables_of_an_agent_stay_when_the_first_call_that_needs_them_fails() -> None:
    Note.failures = 0
    async with running(App(agents=[Note])) as world:
        note = await world.get_agent(Note, "n")
        await note.later_after_a_failure()

        await world.clock.advance(2 * MINUTE)

        assert await note.read() == ["tried"]


async def test_what_an_agent_wishes_that_was_made_anew_while_the_old_one_leaves_happens() -> None:
    Note.going = asyncio.Event()
    async with running(App(agents=[Note])) as world:
        root = await world.get_agent(Note, "n")
        await root.make("child")
        leaving = asyncio.create_task((await world.get_agent(Note, "n", sub=[(Note, "child")])).leave())
        await asyncio.sleep(0.01)
        await root.make("child")
        child = await world.get_agent(Note, "n", sub=[(Note, "child")])
        await child.later("milk")

        Note.going.set()
        await leaving
        await asyncio.sleep(0.01)
        await world.crash()
        await world.clock.advance(MINUTE)

        child = await world.get_agent(Note, "n", sub=[(Note, "child")])
        assert await child.read() == ["milk"]


async def test_a_tree_that_the_nodes_index_forgot_is_found_when_somebody_wakes_it() -> None:
    async with running(App(agents=[Note])) as world:
        await (await world.get_agent(Note, "n")).later("milk")
        await world.app.__aexit__()
        with apsw.Connection(str(world.data / "alarms.db"), vfs=CHECKED) as database:
            database.execute("DELETE FROM sapwood_node_alarms WHERE root != ''")
        database.close()
        await world.start()

        note = await world.get_agent(Note, "n")
        await world.clock.advance(MINUTE)

        assert await note.read() == ["milk"]


async def test_a_node_starts_beside_a_tree_whose_birth_the_power_cut_short() -> None:
    async with running(App(agents=[Note])) as world:
        await (await world.get_agent(Note, "n")).later("milk")
        await world.app.__aexit__()
        (world.data / "alarms.db").unlink()
        torn = world.data / "trees" / ("0" * 40)
        torn.mkdir()
        (torn / "address").touch()

        await world.start()
        await world.clock.advance(MINUTE)

        assert await (await world.get_agent(Note, "n")).read() == ["milk"]


async def test_a_subtree_and_an_agent_in_it_are_deleted_at_the_same_time(caplog: pytest.LogCaptureFixture) -> None:
    async with running(App(agents=[Note])) as world:
        agent = root = await world.get_agent(Note, "n")
        path: list[tuple[type[Note], str]] = []
        agents = [root]
        for name in ("a", "b", "c", "d"):
            await agent.make(name)
            path.append((Note, name))
            agent = await world.get_agent(Note, "n", sub=path)
            agents.append(agent)

        await asyncio.gather(agents[2].remove("c"), agents[1].remove("b"), return_exceptions=True)
        await asyncio.sleep(0.05)

        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
        await agents[1].make("b")


async def test_a_fiber_that_runs_within_a_call_can_be_cancelled() -> None:
    async with running(App(agents=[Note])) as world:
        note = await world.get_agent(Note, "n")
        working = asyncio.create_task(note.work())
        await asyncio.sleep(0.01)

        await note.stop_work()

        with pytest.raises(FiberFailed, match="cancelled"):
            await working
        await note.add("it goes on")


async def test_a_fiber_that_got_further_after_a_crash_is_recovered_at_once_after_the_next() -> None:
    Note.walks = Note.steps = 0
    async with running(App(agents=[Note])) as world:
        await (await world.get_agent(Note, "n")).begin()
        await until(lambda: Note.walks == 1)
        await world.crash()
        await until(lambda: Note.steps == 2)

        await world.crash()

        await until(lambda: Note.walks == 3)
