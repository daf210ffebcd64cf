"""A parent follows the states of its children: at least once, in order, the last of several, also after a crash."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import pytest
from tests.conformance.worlds import Probe, Run, until
from tests.machine import patience

from sapwood import Agent, Unavailable, on_child_state
from sapwood.errors import UsageError
from sapwood.testing import World
from sapwood.types import PathSegment


@dataclass(frozen=True)
class Reading:
    degrees: int = 0


class Thermometer(Agent[Reading]):
    initial_state = Reading()

    async def measure(self, *degrees: int) -> None:
        for one in degrees:
            self.set_state(Reading(one))

    async def tables(self) -> list[str]:
        return [str(row["name"]) for row in self.sql("SELECT name FROM sqlite_master WHERE type = 'table'")]


class OvenThermometer(Thermometer): ...


class Hygrometer(Agent[Reading]):
    initial_state = Reading()

    async def measure(self, degrees: int) -> None:
        self.set_state(Reading(degrees))


class WeatherStation(Agent):
    """Follows thermometers, and notes what it is told with what else it knows."""

    deps: Probe
    migrations = ("CREATE TABLE heard (child TEXT NOT NULL, degrees INTEGER NOT NULL) STRICT",)

    @on_child_state(Thermometer)
    async def measured(self, child: PathSegment, state: Reading) -> None:
        self.sql("INSERT INTO heard VALUES (?, ?)", child.name, state.degrees)
        self.deps.log.append(f"{child.name} {state.degrees}")
        if state.degrees == 13 and self.deps.log.count(f"{child.name} 13") < 2:
            raise RuntimeError("not now")

    async def measure(self, name: str, *degrees: int) -> None:
        await (await self.sub_agent(Thermometer, name)).measure(*degrees)

    async def measure_in_oven(self, name: str, degrees: int) -> None:
        await (await self.sub_agent(OvenThermometer, name)).measure(degrees)

    async def measure_wet(self, name: str, degrees: int) -> None:
        await (await self.sub_agent(Hygrometer, name)).measure(degrees)

    async def make_anew(self, name: str) -> None:
        await self.children.delete(Thermometer, name)

    async def heard(self) -> list[tuple[str, int]]:
        rows = self.sql("SELECT child, degrees FROM heard ORDER BY rowid")
        return [(str(row["child"]), int(str(row["degrees"]))) for row in rows]


class SlowStation(Agent):
    """Takes its time with what it is told."""

    deps: Probe

    @on_child_state(Thermometer)
    async def measured(self, child: PathSegment, state: Reading) -> None:
        self.deps.log.append(f"{child.name} {state.degrees}")
        await self.deps.go.wait()

    async def measure(self, name: str, *degrees: int) -> None:
        await (await self.sub_agent(Thermometer, name)).measure(*degrees)


class DeafStation(Agent):
    """Follows nobody."""

    async def tables(self) -> list[str]:
        thermometer = await self.sub_agent(Thermometer, "t")
        await thermometer.measure(1)
        own = self.sql("SELECT name FROM sqlite_master WHERE type = 'table'")
        return [*await thermometer.tables(), *(str(row["name"]) for row in own)]


async def heard(world: World, *wanted: tuple[str, int]) -> None:
    """Wait until the station has heard just this."""
    station = await world.get_agent(WeatherStation, "s")
    async with asyncio.timeout(patience()):
        while len(await station.heard()) < len(wanted):  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.001)
    assert await station.heard() == list(wanted)


@pytest.mark.promise("B-6")
async def test_a_parent_is_called_with_its_child_and_the_new_state(run: Run, probe: Probe) -> None:
    async with run(WeatherStation, deps=probe) as world:
        station = await world.get_agent(WeatherStation, "s")

        await station.measure("north", 20)
        await heard(world, ("north", 20))
        await station.measure("south", 30)
        await heard(world, ("north", 20), ("south", 30))


@pytest.mark.promise("B-6")
async def test_of_several_changes_in_a_row_the_last_is_told(run: Run, probe: Probe) -> None:
    async with run(WeatherStation, deps=probe) as world:
        await (await world.get_agent(WeatherStation, "s")).measure("north", *range(1000))

        await heard(world, ("north", 999))


async def test_what_changes_while_the_parent_is_busy_is_told_once_it_is_not(run: Run, probe: Probe) -> None:
    async with run(SlowStation, deps=probe) as world:
        station = await world.get_agent(SlowStation, "s")
        await station.measure("north", 1)
        await probe.seen("north 1")

        for degrees in (2, 3, 4):
            await station.measure("north", degrees)
        probe.go.set()

        await probe.seen("north 4")
        assert probe.log == ["north 1", "north 4"]


async def test_classes_that_are_not_followed_are_not_told_of_and_subclasses_are(run: Run, probe: Probe) -> None:
    async with run(WeatherStation, deps=probe) as world:
        station = await world.get_agent(WeatherStation, "s")

        await station.measure_wet("cellar", 80)
        await station.measure_in_oven("oven", 200)

        await heard(world, ("oven", 200))


async def test_a_method_that_raises_is_called_again(run: Run, probe: Probe) -> None:
    async with run(WeatherStation, deps=probe) as world:
        station = await world.get_agent(WeatherStation, "s")
        await station.measure("north", 13)
        await probe.seen("north 13")

        await world.clock.advance(60)

        await until(lambda: probe.log.count("north 13") == 2)
        await station.measure("north", 14)
        await probe.seen("north 14")


async def test_a_child_that_is_made_anew_is_followed_from_its_beginning(run: Run, probe: Probe) -> None:
    async with run(WeatherStation, deps=probe) as world:
        station = await world.get_agent(WeatherStation, "s")
        for degrees in (1, 2, 3):
            await station.measure("north", degrees)
        await probe.seen("north 3")

        await station.make_anew("north")
        await station.measure("north", 7)

        await probe.seen("north 7")


async def test_who_follows_nobody_pays_nothing(run: Run) -> None:
    async with run(DeafStation) as world:
        tables = await (await world.get_agent(DeafStation, "d")).tables()

        assert not {"sapwood_state_news", "sapwood_child_states", "sapwood_calls"} & set(tables)


@pytest.mark.slow
@pytest.mark.promise("B-6")
async def test_killed_at_any_commit_the_last_state_is_told_and_no_change_twice(run: Run) -> None:
    for nth in range(1, 40):
        probe = Probe()
        async with run(WeatherStation, deps=probe) as world:
            await (await world.get_agent(WeatherStation, "s")).measure("north", 1)
            await probe.seen("north 1")
            await world.settled()
            passed = world.points.passed["committed"]

            world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                for degrees in (2, 3):
                    await (await world.get_agent(WeatherStation, "s")).measure("north", degrees)
                await world.settled()
            was_killed = world.points.passed["committed"] >= passed + nth
            await world.crash()

            station = await world.get_agent(WeatherStation, "s")
            await station.measure("north", 4)
            await probe.seen("north 4")
            await world.settled()
            degrees = [one for _, one in await station.heard()]
            assert degrees == sorted(set(degrees))
            assert degrees[-1] == 4
        if not was_killed:
            return
    raise AssertionError("it never got to the end")


@pytest.mark.promise("B-6")
async def test_a_change_that_was_not_told_before_the_crash_is_told_without_anybody_asking(run: Run) -> None:
    probe = Probe()
    async with run(SlowStation, deps=probe) as world:
        await (await world.get_agent(SlowStation, "s")).measure("north", 1)
        await probe.seen("north 1")
        await world.crash()

        await until(lambda: probe.log.count("north 1") == 2)


def test_a_method_that_cannot_be_told_is_refused() -> None:
    with pytest.raises(UsageError, match="async def measured"):

        @on_child_state(Thermometer)
        async def measured(self: object, state: Reading) -> None: ...

    with pytest.raises(UsageError):
        on_child_state(Reading)
