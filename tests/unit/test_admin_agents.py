"""Lists, searches and streams of agents: exact pages, live changes, and no agent is woken."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from typing import Any

import pytest
from tests.unit.admin_requests import LOOK, ask, pages, stream

from sapwood import Agent, App, NotFound, Refused, Retry
from sapwood.admin import root_names
from sapwood.admin.access import Access, Scope
from sapwood.admin.admin import Admin
from sapwood.admin.walk import PAGE, walk
from sapwood.errors import InvalidArguments, StoredDataError
from sapwood.testing import World, running
from sapwood.types import Address

STARTS: list[str] = []
ENDED = asyncio.Event()


class AdminLeaf(Agent[dict[str, int] | None]):
    initial_state = None

    async def on_start(self) -> None:
        STARTS.append(str(self.address))

    async def put(self) -> None:
        self.set_state({"n": 1})

    async def grow(self, name: str) -> None:
        await (await self.sub_agent(AdminLeaf, name)).put()

    async def fail(self) -> None:
        raise ValueError("no")

    async def fail_later(self) -> None:
        self.queues.default.with_retry(Retry(max_attempts=1)).add(self.fail)


class AdminRoot(Agent):
    async def on_start(self) -> None:
        STARTS.append(str(self.address))

    async def grow(self, *names: str) -> None:
        for name in names:
            await (await self.sub_agent(AdminLeaf, name)).put()

    async def copy_children(self, count: int) -> None:
        """Have so many children: only their rows are made."""
        for number in range(1, count + 1):
            self._actor.registry.add("AdminLeaf", str(number), trace=None)

    async def grow_below(self, name: str, below: str) -> None:
        await (await self.sub_agent(AdminLeaf, name)).grow(below)

    async def drop(self, name: str) -> None:
        await self.children.delete(AdminLeaf, name)

    async def end(self) -> None:
        await self.destroy()

    async def end_slowly(self) -> None:
        await self.destroy()
        await ENDED.wait()

    async def fail_in(self, name: str) -> None:
        await (await self.sub_agent(AdminLeaf, name)).fail_later()


def app() -> App:
    return App(agents=[AdminRoot])


async def grown(world: World, name: str, *children: str) -> Any:
    root = await world.get_agent(AdminRoot, name)
    await root.grow(*children)
    return root


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


async def test_roots_are_listed_by_pages_sorted_and_none_is_woken() -> None:
    async with running(app()) as world:
        for name in ("c", "a", "e", "b", "d"):
            await grown(world, name, "x")
        await world.restart()
        STARTS.clear()

        found = await pages(world, "agents", limit=2)

        assert [names(page) for page in found] == [["a", "b"], ["c", "d"], ["e"]]
        assert {row["status"] for page in found for row in page} == {"asleep"}
        assert (await ask(world, "agents", limit=1))["total"] == 5
        assert STARTS == []
        assert not any(tree.actors for tree in world.node.trees.values())


async def test_a_page_that_is_exactly_full_is_the_last_one() -> None:
    async with running(app()) as world:
        await grown(world, "a", "x", "y")

        assert len(await pages(world, "agents", limit=1)) == 1
        assert len(await pages(world, "agents", address="AdminRoot:a", limit=2)) == 1


async def test_children_are_listed_in_the_order_of_their_creation_while_others_come_and_go() -> None:
    async with running(app()) as world:
        root = await grown(world, "a", "z", "y", "x", "w")

        first = await ask(world, "agents", address="AdminRoot:a", limit=2)
        await root.drop("z")
        await root.drop("x")
        await root.grow("v")
        rest = await ask(world, "agents", address="AdminRoot:a", limit=5, after=first["next"])

        assert names(first["rows"]) == ["z", "y"]
        assert names(rest["rows"]) == ["w", "v"]
        assert rest["next"] is None
        assert rest["total"] == 3
        assert all(row["created_at"] > 0 and row["status"] == "live" for row in rest["rows"])


async def test_a_list_shows_a_root_that_came_and_not_one_that_was_destroyed() -> None:
    async with running(app()) as world:
        await grown(world, "a")
        await grown(world, "b")
        assert [names(page) for page in await pages(world, "agents")] == [["a", "b"]]

        await grown(world, "c")
        await (await world.get_agent(AdminRoot, "a")).end()

        assert [names(page) for page in await pages(world, "agents")] == [["b", "c"]]


async def test_a_root_that_was_destroyed_is_not_counted_while_its_last_call_ends() -> None:
    ENDED.clear()
    async with running(app()) as world:
        await grown(world, "a")
        await grown(world, "b")
        root = await world.get_agent(AdminRoot, "a")
        ending = asyncio.ensure_future(root.end_slowly())
        await world.until(lambda: world.node.trees[Address.parse("AdminRoot:a")].destroyed is not None)

        told = await ask(world, "agents")

        assert (names(told["rows"]), told["total"]) == (["b"], 1)
        ENDED.set()
        await ending


async def test_a_row_counts_dead_letters_at_and_below_an_agent() -> None:
    async with running(app()) as world:
        root = await grown(world, "a", "x", "y")
        await root.fail_in("x")
        await world.settled()

        (row,) = (await ask(world, "agents"))["rows"]
        below = (await ask(world, "agents", address="AdminRoot:a"))["rows"]

        assert row["dead"] == 1
        assert [(one["name"], one["dead"]) for one in below] == [("x", 1), ("y", 0)]


@pytest.mark.parametrize("limit", [0, 501, -1])
async def test_a_limit_out_of_range_is_refused(limit: int) -> None:
    async with running(app()) as world:
        with pytest.raises(InvalidArguments, match="from 1 to 500"):
            await ask(world, "agents", limit=limit)


async def test_a_cursor_that_is_none_and_an_agent_that_does_not_exist_are_refused() -> None:
    async with running(app()) as world:
        await grown(world, "a")
        with pytest.raises(InvalidArguments, match="next"):
            await ask(world, "agents", address="AdminRoot:a", after="x")
        with pytest.raises(NotFound):
            await ask(world, "agents", address="AdminRoot:a/AdminLeaf:none")


async def test_a_limited_token_sees_only_its_agent() -> None:
    async with running(app()) as world:
        await grown(world, "a", "x")
        await grown(world, "b")
        access = Access("ann", frozenset[Scope](["look"]), Address.parse("AdminRoot:a"))

        assert names((await ask(world, "agents", access))["rows"]) == ["x"]
        with pytest.raises(Refused):
            await ask(world, "agents", access, address="AdminRoot:b")
        with pytest.raises(Refused):
            await ask(world, "top", access)
        with pytest.raises(Refused):
            await anext(stream(world, "watch", access, addresses=["AdminRoot:a", "AdminRoot:b"]))


async def test_a_stream_tells_what_changes_on_the_screen_and_nothing_else() -> None:
    async with running(app()) as world:
        root = await grown(world, "a", "x", "y")
        await grown(world, "b")
        addresses = ["AdminRoot:a", "AdminRoot:a/AdminLeaf:x", "AdminRoot:none"]
        events = stream(world, "watch", LOOK, addresses=addresses)

        _, first = await anext(events)
        await root.drop("x")
        _, second = await anext(events)

        assert [(row["address"], row["status"], row["children"]) for row in first["rows"]] == [
            ("AdminRoot:a", "live", 2),
            ("AdminRoot:a/AdminLeaf:x", "live", 0),
            ("AdminRoot:none", "gone", None),
        ]
        assert [(row["address"], row["status"], row["children"]) for row in second["rows"]] == [
            ("AdminRoot:a", "live", 1),
            ("AdminRoot:a/AdminLeaf:x", "gone", None),
        ]


async def test_an_agent_that_is_created_again_is_watched_on() -> None:
    async with running(app()) as world:
        root = await grown(world, "a", "x")
        events = stream(world, "watch", LOOK, addresses=["AdminRoot:a/AdminLeaf:x"])
        await anext(events)
        await root.drop("x")
        await anext(events)

        await root.grow_below("x", "deep")
        _, told = await anext(events)

        (row,) = told["rows"]
        assert (row["status"], row["children"]) == ("live", 1)


async def test_watching_wakes_no_agent() -> None:
    async with running(app()) as world:
        root = await grown(world, "a", "x")
        await root.grow_below("x", "deep")
        await world.restart()
        STARTS.clear()
        events = stream(world, "watch", LOOK, addresses=["AdminRoot:a", "AdminRoot:a/AdminLeaf:x"])

        _, first = await anext(events)
        assert [(row["status"], row["children"]) for row in first["rows"]] == [("asleep", 1), ("asleep", 1)]
        assert STARTS == []

        await (await world.get_agent(AdminRoot, "a")).grow("y")
        _, second = await anext(events)
        assert [(row["address"], row["status"], row["children"]) for row in second["rows"]] == [
            ("AdminRoot:a", "live", 2)
        ]


@pytest.mark.parametrize("count", [0, 301])
async def test_a_screen_has_at_most_300_agents(count: int) -> None:
    async with running(app()) as world:
        with pytest.raises(InvalidArguments, match="1 to 300"):
            await anext(stream(world, "watch", addresses=["AdminRoot:a"] * count))


async def test_agents_are_found_by_their_names_in_all_trees() -> None:
    async with running(app()) as world:
        root = await grown(world, "a", "Paris", "x")
        await root.grow_below("x", "paris-2")
        await grown(world, "paris-3", "x")
        await world.restart()
        STARTS.clear()

        async def found(**params: Any) -> tuple[list[str], dict[str, Any]]:
            told = [event async for event in stream(world, "find", LOOK, **params)]
            return sorted(row["address"] for name, data in told if name == "rows" for row in data["rows"]), told[-1][1]

        rows, end = await found(text="paris")
        assert rows == ["AdminRoot:a/AdminLeaf:Paris", "AdminRoot:a/AdminLeaf:x/AdminLeaf:paris-2", "AdminRoot:paris-3"]
        assert (end["more"], end["searched"]) == (False, 6)
        assert (await found(text="paris", type="AdminLeaf"))[0] == rows[:2]
        assert (await found(text="paris", address="AdminRoot:a/AdminLeaf:x"))[0] == rows[1:2]
        assert (await found(text="x/AdminLeaf"))[0] == rows[1:2]
        assert (await found(text="", status="live"))[0] == []
        one, end = await found(text="paris", limit=1)
        assert (len(one), end["more"]) == (1, True)
        assert STARTS == []


def count(branches: list[dict[str, Any]]) -> int:
    return sum(1 + count(branch["below"]) for branch in branches)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 8])
async def test_a_tree_has_exactly_as_many_agents_as_were_asked_for(most: int) -> None:
    async with running(app()) as world:
        for name in ("a", "b", "c"):
            await grown(world, name, "x", "y")

        told = await ask(world, "tree", agents=most)

        assert (count(told["roots"]), told["count"]) == (most, 3)


async def test_a_list_that_a_client_did_not_wait_for_is_read_to_its_end_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(root_names, "READ_AT_ONCE", 1)
    async with running(app()) as world:
        wanted = ["a", "b", "c", "d", "e", "f"]
        for name in reversed(wanted):
            await grown(world, name, "x")
        await world.restart()
        os.utime(world.data / "trees", (1, 1))  # long ago: what was listed since then is all of it
        for turns in range(12):
            listed = root_names.RootNames(world.node.settings, world.clock)
            reading = asyncio.create_task(listed.sorted_after(world.node, None))
            for _ in range(turns):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait({reading})
            found, _ = await listed.sorted_after(world.node, None)
            assert [name.partition(":")[2] for name in found] == wanted, turns


async def test_a_tree_that_is_damaged_is_listed_with_all_others() -> None:
    async with running(app()) as world:
        await grown(world, "a", "x")
        await grown(world, "b", "x")
        world.node.trees[Address.root_of("AdminRoot", "b")].root.damage = StoredDataError("Its file is damaged.")

        rows = (await ask(world, "agents"))["rows"]
        found = [event async for event in stream(world, "find", text="adminroot")]

        assert [(row["name"], row["last_error"]) for row in rows] == [("a", None), ("b", "Its file is damaged.")]
        assert [name for name, _ in found] == ["rows", "end"]
        assert names(found[0][1]["rows"]) == ["a", "b"]


async def test_other_agents_have_their_turn_while_very_many_children_are_searched() -> None:
    async with running(App(agents=[AdminRoot])) as world:
        root = await world.get_agent(AdminRoot, "r")
        await root.grow("a")
        await root.copy_children(3 * PAGE)
        ticks, is_over = 0, False

        async def others() -> None:
            nonlocal ticks
            while not is_over:
                ticks += 1
                await asyncio.sleep(0)

        waiting = asyncio.create_task(others())
        async with aclosing(walk(Admin(world.node).lookup, Address.parse("AdminRoot:r"))) as visited:
            names = [str(one.address) async for one in visited]
        is_over = True
        await waiting

        assert names[1:] == [f"AdminRoot:r/AdminLeaf:{name}" for name in ("a", *map(str, range(1, 3 * PAGE + 1)))]
        assert ticks >= len(names) + 3
