"""An operator finds the calls that were given up wherever they are, and wakes only those who are to call again."""

from __future__ import annotations

import gc
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sapwood import After, Agent, App, NotFound, Retry, agent
from sapwood.address import Address
from sapwood.admin.admin import Admin
from sapwood.errors import Quarantined
from sapwood.testing import World, running

ONCE = After(timedelta(0), retry=Retry(max_attempts=1))
SECOND = timedelta(seconds=1)
MAIN = Address.root_of("House", "main")


class Heating(Agent):
    """Fails as long as somebody says so."""

    async def heat(self, room: str, degrees: int) -> None:
        self.schedule(ONCE, self._heat, room, degrees)

    async def _heat(self, room: str, degrees: int) -> None:
        if self.deps["broken"]:
            raise OSError(f"no oil for {room}")
        self.deps["warm"].append((room, degrees))


class House(Heating):
    async def flat(self, name: str) -> None:
        await (await self.sub_agent(Heating, name)).heat("kitchen", 21)

    async def demolish(self, name: str) -> None:
        await self.children.delete(Heating, name)


class Terrace(Agent):
    async def vanish(self) -> None:
        await self.destroy()

    async def build(self, name: str) -> None:
        house = await self.sub_agent(House, name)
        await house.heat("hall", 18)
        await house.flat("first")


@pytest.fixture
def oil() -> dict[str, Any]:
    """What all heatings share: whether they are broken, and whom they have warmed."""
    return {"broken": True, "warm": []}


@pytest.fixture
def app(oil: dict[str, Any]) -> App:
    return App(agents=[House, Terrace], deps=oil)


async def broken(world: World) -> Admin:
    """Have four calls given up: in two trees, at depths 0 to 2."""
    await (await world.get_agent(House, "main")).heat("hall", 18)
    await (await world.get_agent(House, "main")).flat("first")
    await (await world.get_agent(Terrace, "main")).build("a")
    await world.clock.advance(SECOND)
    world.sleep()
    return Admin(world.node)


def agents_of(answer: dict[str, Any]) -> list[str]:
    return [letter["agent"] for letter in answer["letters"]]


async def test_all_dead_letters_of_all_trees_are_found_and_nobody_is_woken(app: App) -> None:
    async with running(app) as world:
        operator = await broken(world)

        found = await operator.dead_letters.list()

        assert agents_of(found) == [
            "House:main",
            "House:main/Heating:first",
            "Terrace:main/House:a",
            "Terrace:main/House:a/Heating:first",
        ]
        assert (
            found["letters"][0].items()
            >= {
                "method": "_heat",
                "arguments": {"room": "hall", "degrees": 18},
                "code": "crashed",
                "error": "OSError: no oil for hall",
                "attempts": 1,
                "occurrences": 1,
            }.items()
        )
        assert not any(tree.actors for tree in world.node.trees.values())


@pytest.mark.slow
async def test_they_are_found_after_a_crash_and_where_the_index_was_lost(app: App, tmp_path: Path) -> None:
    async with running(app) as world:
        operator = await broken(world)
        before = agents_of(await operator.dead_letters.list())
        await world.app.backup(tmp_path / "copy")

        await world.crash()

        assert agents_of(await Admin(world.node).dead_letters.list()) == before
    async with running(app, data=str(tmp_path / "copy")) as world:
        assert agents_of(await Admin(world.node).dead_letters.list()) == before


async def test_those_of_one_agent_and_of_those_below_it(app: App) -> None:
    async with running(app) as world:
        operator = await broken(world)

        assert agents_of(await operator.dead_letters.list("House:main")) == ["House:main"]
        assert agents_of(await operator.dead_letters.list("Terrace:main")) == []
        assert agents_of(await operator.dead_letters.list("Terrace:main", below=True)) == [
            "Terrace:main/House:a",
            "Terrace:main/House:a/Heating:first",
        ]
        with pytest.raises(NotFound, match="House:other does not exist"):
            await operator.dead_letters.list("House:other")


async def test_an_id_is_the_one_the_agent_itself_uses() -> None:
    class Reader(Heating):
        async def ids(self) -> list[str]:
            return [letter.id for letter in self.dead_letters.list()]

    async with running(App(agents=[Reader], deps={"broken": True})) as world:
        main = await world.get_agent(Reader, "main")
        await main.heat("hall", 18)
        await world.clock.advance(SECOND)

        (letter,) = (await Admin(world.node).dead_letters.list("Reader:main"))["letters"]

        assert [letter["id"]] == await main.ids()


async def test_replay_calls_again_and_what_succeeds_is_no_dead_letter_any_more(app: App, oil: dict[str, Any]) -> None:
    async with running(app) as world:
        operator = await broken(world)
        (letter,) = (await operator.dead_letters.list("House:main/Heating:first"))["letters"]
        oil["broken"] = False

        assert await operator.dead_letters.replay("House:main/Heating:first", letter["id"]) == 1
        await world.clock.advance(SECOND)

        assert oil["warm"] == [("kitchen", 21)]
        assert (await operator.dead_letters.list("House:main/Heating:first"))["letters"] == []
        assert agents_of(await operator.dead_letters.list()) == [
            "House:main",
            "Terrace:main/House:a",
            "Terrace:main/House:a/Heating:first",
        ]


async def test_what_fails_again_is_a_dead_letter_again(app: App) -> None:
    async with running(app) as world:
        operator = await broken(world)

        assert await operator.dead_letters.replay("Terrace:main", "all", below=True) == 2
        await world.clock.advance(SECOND)

        assert len((await operator.dead_letters.list("Terrace:main", below=True))["letters"]) == 2


async def test_deleted_ones_are_gone_for_good(app: App) -> None:
    async with running(app) as world:
        operator = await broken(world)

        assert await operator.dead_letters.delete("House:main", "all", below=True) == 2
        assert await operator.dead_letters.delete("Terrace:main", "all", below=True) == 2
        await world.clock.advance(SECOND)
        await world.crash()

        assert (await Admin(world.node).dead_letters.list())["letters"] == []
        assert world.node.alarms.with_dead_letters() == []


async def test_an_id_that_is_not_there_is_refused_with_those_that_are(app: App) -> None:
    async with running(app) as world:
        operator = await broken(world)
        (letter,) = (await operator.dead_letters.list("House:main"))["letters"]

        with pytest.raises(NotFound, match=f"House:main has no dead letter '7'. There are: {letter['id']}"):
            await operator.dead_letters.replay("House:main", "7")
        with pytest.raises(NotFound, match=r"Terrace:main has no dead letters\."):
            await operator.dead_letters.delete("Terrace:main", "all")


async def test_those_of_an_agent_that_was_deleted_are_gone_with_it(app: App) -> None:
    async with running(app) as world:
        operator = await broken(world)

        await (await world.get_agent(House, "main")).demolish("first")
        await (await world.get_agent(Terrace, "main")).vanish()

        assert agents_of(await operator.dead_letters.list()) == ["House:main"]


async def test_what_the_index_says_of_nobody_is_left_out(app: App) -> None:
    async with running(app) as world:
        operator = await broken(world)
        tree = world.node.loader.tree(MAIN)
        tree.root.execute("INSERT INTO sapwood_alarms VALUES ('House:main/Heating:ghost', NULL, 1)")

        assert "House:main/Heating:ghost" not in agents_of(await operator.dead_letters.list())


async def test_those_of_a_tree_in_quarantine_are_shown_too(app: App) -> None:
    async with running(app, strikes=1) as world:
        before = await (await broken(world)).dead_letters.list()
        (world.data / "strikes.jsonl").write_text(json.dumps({"root": str(MAIN), "at": 0.0}))
        await world.restart()

        found = await Admin(world.node).dead_letters.list()

        assert not found["unread"]
        assert agents_of(found) == agents_of(before)
        with pytest.raises(Quarantined):
            await Admin(world.node).dead_letters.replay(str(MAIN), "all")


@pytest.mark.slow
async def test_they_are_found_after_their_root_got_another_type_id(tmp_path: Path) -> None:
    async def letters(of: type[Heating], *, woken: bool) -> list[str]:
        async with running(App(agents=[of], deps={"broken": True}), data=str(tmp_path)) as world:
            if woken:
                await (await world.get_agent(of, "main")).heat("hall", 18)
                await world.clock.advance(SECOND)
            return agents_of(await Admin(world.node).dead_letters.list())

    @agent(type="stove")
    class Stove(Heating):
        pass

    assert await letters(Stove, woken=True) == ["stove:main"]
    del Stove
    gc.collect()

    @agent(type="oven", aliases=["stove"])
    class Oven(Heating):
        pass

    assert await letters(Oven, woken=False) == ["stove:main"], "nobody has come by yet"
    assert await letters(Oven, woken=True) == ["oven:main", "oven:main"]


@pytest.mark.slow
async def test_they_are_found_after_a_child_got_another_type_id(tmp_path: Path) -> None:
    async def letters(root: type[Any], *, fail: bool) -> list[str]:
        async with running(App(agents=[root], deps={"broken": True}), data=str(tmp_path)) as world:
            await (await world.get_agent(root, "main")).child(fail)
            await world.clock.advance(SECOND)
            return agents_of(await Admin(world.node).dead_letters.list())

    def program(type_: str, aliases: tuple[str, ...]) -> type[Any]:
        @agent(type=type_, aliases=aliases)
        class Oven(Heating):
            pass

        @agent(type="kitchen")
        class Kitchen(Agent):
            async def child(self, fail: bool) -> None:
                oven = await self.sub_agent(Oven, "a")
                if fail:
                    await oven.heat("hall", 18)

        return Kitchen

    assert await letters(program("first", ()), fail=True) == ["kitchen:main/first:a"]
    gc.collect()
    assert await letters(program("second", ("first",)), fail=False) == ["kitchen:main/second:a"]
