"""A tree that is moved is at one address: whatever crashes, nothing of it is lost, and nothing is done twice."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import ClassVar

import pytest

from sapwood import After, Agent, App
from sapwood.errors import SapwoodError
from sapwood.kernel.node.data_folder import roots_in
from sapwood.testing import POINTS, World, running

pytestmark = pytest.mark.slow

MOST = 60
"""Crashes at one point at most."""


class Effects:
    done: ClassVar[list[str]] = []


class Bell(Agent):
    async def set(self) -> None:
        self.schedule(After(timedelta(hours=1), key="bell"), self.ring)

    async def ring(self) -> None:
        Effects.done.append("child rang")


class Desk(Bell):
    migrations = ("CREATE TABLE notes (n INTEGER NOT NULL UNIQUE) STRICT",)

    async def note(self, n: int) -> int:
        self.sql("INSERT OR IGNORE INTO notes VALUES (?)", n)
        return n

    async def notes(self) -> list[int]:
        return [int(str(row["n"])) for row in self.sql("SELECT n FROM notes ORDER BY n")]

    async def ring(self) -> None:
        Effects.done.append("rang")

    async def grow(self) -> None:
        await (await self.sub_agent(Bell, "a")).set()


async def prepare(world: World) -> None:
    Effects.done.clear()
    desk = await world.get_agent(Desk, "old")
    await desk.note(1)
    await desk.set()
    await desk.grow()


@pytest.mark.parametrize("durability", ["process", "disk"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_crash_at_each_step_leaves_the_tree_whole_at_one_address(point: str, durability: str) -> None:
    for nth in range(1, MOST):
        async with running(App(agents=[Desk]), durability=durability) as world:
            await prepare(world)
            before = world.points.passed[point]
            world.crash_at(point, nth)
            with suppress(SapwoodError):
                await world.app.move(Desk, "old", to="new")
            passed = world.points.passed[point] >= before + nth
            world.points.disarm()
            await world.crash()
            desk = await world.get_agent(Desk, "old")
            assert await desk.notes() == [1], (point, nth)
            roots = [root.name for root in roots_in(world.data)]
            assert roots in (["old"], ["new"]), (point, nth, roots)
            await world.restart()
            await world.clock.advance(timedelta(hours=2))
            await world.until(lambda: len(Effects.done) >= 2)
            await world.clock.advance(timedelta(hours=2))
            assert sorted(Effects.done) == ["child rang", "rang"], (point, nth)
            if not passed:
                assert roots == ["new"]
                return
            # What a crash left of the move is in the way of none.
            if roots == ["old"]:
                await world.app.move(Desk, "old", to="new")
                assert [root.name for root in roots_in(world.data)] == ["new"]
            assert await (await world.get_agent(Desk, "old")).notes() == [1]
    raise AssertionError(f"The move passed {point!r} more than {MOST} times.")
