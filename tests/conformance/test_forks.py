"""A fork is a copy of a tree, or of a part of it: of what it knows, and not of what it has to do."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.conformance.worlds import Run, asleep, until

from sapwood import After, Agent, Every, NotFound
from sapwood.errors import FiberFailed, UsageError
from sapwood.types import Address, ForkOrigin

pytestmark = pytest.mark.slow

HOUR = 3600.0


class ForkTwig(Agent):
    migrations = ("CREATE TABLE t (n INTEGER) STRICT",)
    done: ClassVar[list[str]] = []

    async def put(self, n: int) -> None:
        self.sql("INSERT INTO t VALUES (?)", n)

    async def numbers(self) -> list[int]:
        return [int(str(row["n"])) for row in self.sql("SELECT n FROM t ORDER BY n")]

    async def later(self) -> None:
        self.schedule(timedelta(hours=1), self.ring)

    async def ring(self) -> None:
        ForkPlant.done.append(f"leaf {self.address}")


class ForkBough(ForkTwig):
    async def leaf(self, name: str, n: int) -> None:
        await (await self.sub_agent(ForkTwig, name)).put(n)


class ForkPlant(ForkBough):
    done: ClassVar[list[str]] = []
    """What was done to the world."""
    forks: ClassVar[list[str]] = []

    async def grow(self, branch: str, leaf: str, n: int) -> None:
        await (await self.sub_agent(ForkBough, branch)).leaf(leaf, n)

    async def on_fork(self, source: ForkOrigin) -> None:
        self.forks.append(f"{source.address} to {self.address}")

    async def origin(self) -> ForkOrigin | None:
        return self.history.forked_from

    async def note(self, text: str) -> None:
        ForkPlant.done.append(f"{text} {self.name}")

    async def plan(self) -> None:
        self.schedule(After(timedelta(hours=1), key="tea"), self.note, "tea")
        self.schedule(Every(timedelta(hours=2)), self.note, "water")
        self.queues["slow"].add(self.wait_and_note, "first")
        self.queues["slow"].add(self.note, "second")

    async def wait_and_note(self, text: str) -> None:
        await asyncio.Event().wait()

    async def work(self) -> None:
        self.start_fiber("work", self.long_work, datetime.fromtimestamp(self._actor.host.clock.now() + HOUR, UTC))

    async def long_work(self, until: datetime) -> str:
        await self.step("one", lambda: ForkPlant.done.append(f"one {self.name}"))
        await self.sleep_until(until)
        await self.step("two", lambda: ForkPlant.done.append(f"two {self.name}"))
        return "done"

    async def letters(self) -> list[tuple[str, str, str]]:
        return [(one.id, one.method, one.code) for one in self.dead_letters.list()]

    async def replay(self, id: str) -> bool:
        return self.dead_letters.replay(id)

    async def schedules_of(self) -> list[tuple[str, str]]:
        return [(one.method, one.id) for one in self.schedules.list()]

    async def key_of(self, key: str) -> bool:
        return self.schedules.get(key) is not None

    async def fiber(self) -> tuple[str, str | None]:
        fiber = self.fibers.get("work")
        assert fiber is not None
        return fiber.status, fiber.error

    async def resume_work(self) -> bool:
        return self.fibers.resume("work")

    async def result(self) -> Any:
        return await self.fibers.result("work")


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    ForkPlant.done.clear()
    ForkPlant.forks.clear()


@pytest.mark.core("workers", "cluster")
async def test_a_fork_has_all_agents_and_tables_and_the_two_continue_apart(run: Run) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.put(1)
        await plant.grow("left", "x", 2)

        fork = await world.app.fork(ForkPlant, "a", to="b")

        assert str(fork.address) == "ForkPlant:b"
        assert fork.name == "b"
        assert fork.agents == 3
        await plant.put(10)
        await plant.grow("left", "x", 11)
        await plant.grow("right", "y", 12)
        copy = await world.get_agent(ForkPlant, "b")
        assert await copy.numbers() == [1]
        leaf = await world.app.get_agent(ForkPlant, "b", sub=((ForkBough, "left"), (ForkTwig, "x")))
        assert await leaf.numbers() == [2]
        with pytest.raises(NotFound):
            await world.app.get_agent(ForkPlant, "b", sub=[(ForkBough, "right")])
        await copy.grow("left", "z", 3)
        with pytest.raises(NotFound):
            await world.app.get_agent(ForkPlant, "a", sub=((ForkBough, "left"), (ForkTwig, "z")))


@pytest.mark.core("workers", "cluster")
async def test_a_fork_survives_a_crash_right_after_it(run: Run) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.grow("left", "x", 2)
        await world.app.fork(ForkPlant, "a", to="b")

        await world.crash()

        leaf = await world.app.get_agent(ForkPlant, "b", sub=((ForkBough, "left"), (ForkTwig, "x")))
        assert await leaf.numbers() == [2]


async def test_an_agent_knows_what_it_is_a_copy_of_and_the_hook_is_called_once(run: Run) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.put(1)
        assert await plant.origin() is None
        await world.app.fork(ForkPlant, "a", to="b")

        copy = await world.get_agent(ForkPlant, "b")

        origin = await copy.origin()
        assert origin is not None
        assert origin.address == Address.root_of("ForkPlant", "a")
        assert origin.work == "hold"
        await asleep(world)
        await copy.numbers()
        await world.crash()
        await (await world.get_agent(ForkPlant, "b")).numbers()
        assert ForkPlant.forks == ["ForkPlant:a to ForkPlant:b"]

        await world.app.fork(ForkPlant, "b", to="c")
        await (await world.get_agent(ForkPlant, "c")).numbers()
        assert ForkPlant.forks == ["ForkPlant:a to ForkPlant:b", "ForkPlant:b to ForkPlant:c"]


@pytest.mark.core("cluster")
async def test_a_descendant_becomes_a_root_with_all_below_it(run: Run) -> None:
    async with run(ForkPlant, ForkBough) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.grow("other", "o", 9)
        await plant.grow("left", "x", 2)
        await plant.grow("left", "y", 3)
        branch = await world.app.get_agent(ForkPlant, "a", sub=[(ForkBough, "left")])
        await branch.put(1)

        with pytest.raises(NotFound, match="ForkBough:missing does not exist"):
            await world.app.fork(ForkPlant, "a", to="alone", sub=[(ForkBough, "missing")])
        fork = await world.app.fork(ForkPlant, "a", to="alone", sub=[(ForkBough, "left")])

        assert (str(fork.address), fork.agents) == ("ForkBough:alone", 3)
        alone = await world.get_agent(ForkBough, "alone")
        assert await alone.numbers() == [1]
        for name, number in (("x", 2), ("y", 3)):
            assert await (await world.app.get_agent(ForkBough, "alone", sub=[(ForkTwig, name)])).numbers() == [number]
        await alone.leaf("x", 4)
        await alone.leaf("z", 5)
        assert await (await world.app.get_agent(ForkBough, "alone", sub=[(ForkTwig, "x")])).numbers() == [2, 4]
        assert await (
            await world.app.get_agent(ForkPlant, "a", sub=((ForkBough, "left"), (ForkTwig, "x")))
        ).numbers() == [2]


async def test_a_schedule_fires_in_the_original_only_until_it_is_released(run: Run) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.plan()

        fork = await world.app.fork(ForkPlant, "a", to="b")

        assert fork.held.calls == 4
        copy = await world.get_agent(ForkPlant, "b")
        letters = await copy.letters()
        assert [(method, code) for _, method, code in letters] == [
            ("note", "forked"),
            ("note", "forked"),
            ("wait_and_note", "forked"),
            ("note", "forked"),
        ]
        assert await copy.schedules_of() == []
        await world.clock.advance(HOUR + 1)
        await until(lambda: ForkPlant.done == ["tea a"])

        await copy.replay(letters[1][0])

        assert [method for method, _ in await copy.schedules_of()] == ["note"]
        await world.clock.advance(HOUR + 1)
        await until(lambda: sorted(ForkPlant.done) == ["tea a", "water a", "water b"])
        assert await plant.letters() == []


async def test_a_released_call_keeps_its_key_and_its_time(run: Run) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.plan()
        await world.app.fork(ForkPlant, "a", to="b")
        copy = await world.get_agent(ForkPlant, "b")
        [(tea, *_), *_] = await copy.letters()

        assert await copy.replay(tea)

        assert await copy.key_of("tea")
        await world.clock.advance(HOUR / 2)
        assert ForkPlant.done == []
        await world.clock.advance(HOUR)
        await until(lambda: sorted(ForkPlant.done) == ["tea a", "tea b"])


async def test_a_fiber_of_a_fork_is_interrupted_and_resumes_after_its_last_step(run: Run) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.work()
        await until(lambda: ForkPlant.done == ["one a"])

        fork = await world.app.fork(ForkPlant, "a", to="b")

        assert fork.held.fibers == 1
        copy = await world.get_agent(ForkPlant, "b")
        status, error = await copy.fiber()
        assert status == "interrupted"
        assert error is not None
        assert "forked" in error
        with pytest.raises(FiberFailed, match="interrupted"):
            await copy.result()
        await world.clock.advance(HOUR + 1)
        await until(lambda: ForkPlant.done == ["one a", "two a"])
        assert await copy.resume_work()
        assert await copy.result() == "done"
        assert ForkPlant.done == ["one a", "two a", "two b"]


async def test_work_that_is_dropped_is_gone_and_work_that_runs_is_done_twice(run: Run) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.plan()
        await plant.work()
        await until(lambda: ForkPlant.done == ["one a"])

        dropped = await world.app.fork(ForkPlant, "a", to="dropped", work="drop")
        runs = await world.app.fork(ForkPlant, "a", to="runs", work="run")

        assert (dropped.held.calls, runs.held.calls) == (4, 0)
        copy = await world.get_agent(ForkPlant, "dropped")
        assert await copy.letters() == []
        assert (await copy.fiber())[0] == "cancelled"
        await world.clock.advance(HOUR + 1)
        await until(lambda: sorted(ForkPlant.done) == ["one a", "tea a", "tea runs", "two a", "two runs"])


async def test_a_schedule_of_a_child_is_held_and_its_tree_is_listed_with_dead_letters(run: Run) -> None:
    async with run(ForkPlant, ForkBough) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.grow("left", "x", 2)
        leaf = await world.app.get_agent(ForkPlant, "a", sub=((ForkBough, "left"), (ForkTwig, "x")))
        await leaf.later()

        fork = await world.app.fork(ForkPlant, "a", to="alone", sub=[(ForkBough, "left")])

        assert fork.held.calls == 1
        await world.clock.advance(HOUR + 1)
        await until(lambda: ForkPlant.done == ["leaf ForkPlant:a/ForkBough:left/ForkTwig:x"])


async def test_a_fork_needs_a_free_name_data_and_a_root_class(run: Run) -> None:
    async with run(ForkPlant) as world:
        plant = await world.get_agent(ForkPlant, "a")
        await plant.grow("left", "x", 2)
        taken = await world.get_agent(ForkPlant, "taken")
        await taken.put(1)

        with pytest.raises(UsageError, match="ForkPlant:taken exists already"):
            await world.app.fork(ForkPlant, "a", to="taken")
        with pytest.raises(UsageError, match="cannot be a fork of itself"):
            await world.app.fork(ForkPlant, "a", to="a")
        with pytest.raises(NotFound, match="ForkPlant:missing has no data"):
            await world.app.fork(ForkPlant, "missing", to="b")
        with pytest.raises(UsageError, match="ForkBough is not a root of this app"):
            await world.app.fork(ForkPlant, "a", to="b", sub=[(ForkBough, "left")])
        with pytest.raises(UsageError, match='`work` must be "hold", "drop" or "run"'):
            await world.app.fork(ForkPlant, "a", to="b", work="keep")  # type: ignore[arg-type]

        assert await taken.numbers() == [1]
        await until(lambda: not list((Path(world.settings.data) / "trees").glob("*.copying*")))
