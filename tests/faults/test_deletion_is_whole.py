"""What was deleted is gone with everything below it, and a crash in the middle leaves no half of it."""

from __future__ import annotations

import asyncio

import pytest
from tests.faults.workload import Branch, Leaf, Root, pages

from sapwood import Agent, App
from sapwood.errors import SapwoodError, Unavailable
from sapwood.testing import World, running


@pytest.fixture(params=["process", "disk"])
async def world(request: pytest.FixtureRequest) -> object:
    async with running(App(agents=[Root, Trunk]), durability=request.param) as world:
        yield world


def databases(world: World) -> int:
    return len(list((world.data / "trees").glob("*/*.db")))


async def grow(world: World) -> None:
    """Make a root with two branches of three leaves each."""
    root = await world.get_agent(Root, "oak")
    for branch in ("north", "south"):
        for leaf in ("one", "two", "three"):
            await root.write_deep(branch, leaf)


async def settle(world: World) -> list[str]:
    """Wake everything, let deletions finish, and return who is there."""
    there: list[str] = []
    async for where, page in pages(world.app, "oak"):
        assert not isinstance(page, SapwoodError), page
        assert page.ids
        there.append(where)
    await world.restart()
    return there


POINTS = [("committed", 3), ("before remove", 8), ("after remove", 8)]


@pytest.mark.parametrize(("point", "nth"), [(point, nth) for point, last in POINTS for nth in range(1, last + 1)])
async def test_a_crash_in_the_middle_of_a_deletion_leaves_all_or_nothing(world: World, point: str, nth: int) -> None:
    await grow(world)
    root = await world.get_agent(Root, "oak")

    world.crash_at(point, nth)
    with pytest.raises(Unavailable):  # noqa: PT012 - either may be the one
        await root.remove("north")
        await root.write_deep("east", "one")  # for points that the deletion itself does not reach
    await world.crash()

    there = await settle(world)
    below = [where for where in there if where.startswith("oak/north")]
    assert len(below) in (0, 4)
    assert [where for where in there if where.startswith("oak/south")] != []
    assert databases(world) == len(there)


class Twig(Agent[int]):
    initial_state = 0

    async def bud(self) -> None:
        self.set_state(self.state + 1)

    async def buds(self) -> int:
        return self.state

    async def leave_slowly(self) -> None:
        await self.destroy()
        await asyncio.sleep(0.05)


class Trunk(Agent):
    async def bud(self) -> None:
        await (await self.sub_agent(Twig, "t")).bud()

    async def fell(self) -> None:
        await self.destroy()


async def test_a_deletion_that_was_going_on_in_a_destroyed_tree_leaves_its_successor_alone(world: World) -> None:
    trunk = await world.get_agent(Trunk, "oak")
    await trunk.bud()
    twig = await world.get_agent(Trunk, "oak", sub=[(Twig, "t")])
    leaving = asyncio.create_task(twig.leave_slowly())
    await asyncio.sleep(0.01)

    await trunk.fell()
    trunk = await world.get_agent(Trunk, "oak")
    await trunk.bud()
    await leaving
    await trunk.bud()
    await world.restart()

    twig = await world.get_agent(Trunk, "oak", sub=[(Twig, "t")])
    assert await twig.buds() == 2


async def test_a_child_that_deletes_itself_while_all_fall_asleep_is_gone(world: World) -> None:
    await grow(world)
    leaf = await world.get_agent(Root, "oak", sub=[(Branch, "north"), (Leaf, "one")])

    await leaf.leave()
    world.sleep()
    branch = await world.get_agent(Root, "oak", sub=[(Branch, "north")])
    await branch.write(1, False)
    world.sleep()

    assert "oak/north/one" not in await settle(world)
    assert databases(world) == 8
