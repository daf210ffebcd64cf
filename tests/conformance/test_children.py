"""Sub-agents: made when first asked for, found again for ever after, each with its own data."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, Generic, TypeVar, cast

import pytest
from tests.conformance.worlds import Branch, Probe, Run

from sapwood import Agent, App, Refused
from sapwood.errors import UsageError
from sapwood.types import PathSegment

T = TypeVar("T")


class Tally(Agent):
    """Counts in memory and on disk, so that lives can be told apart."""

    deps: Probe
    migrations = ("CREATE TABLE counts (value INTEGER NOT NULL) STRICT",)

    async def on_start(self) -> None:
        self.memory = 0
        self.deps.log.append(f"start {self.name}")

    async def add(self) -> tuple[int, int]:
        self.memory += 1
        self.sql("INSERT INTO counts VALUES (1)")
        return self.memory, self.sql("SELECT count(*) FROM counts").scalar(int)


class Diary(Agent):
    """Has the same table as Tally, to show that both can be called alike."""

    migrations = Tally.migrations

    async def add(self) -> int:
        self.sql("INSERT INTO counts VALUES (1)")
        return self.sql("SELECT count(*) FROM counts").scalar(int)


class Fragile(Agent):
    deps: Probe

    async def on_start(self) -> None:
        self.set_state(None)
        if not self.deps.go.is_set():
            raise RuntimeError("not today")

    async def ping(self) -> str:
        return "pong"


class Shelf(Agent):
    """A root that does with its children what a test asks for."""

    migrations = Tally.migrations

    async def tally(self, name: str) -> tuple[int, int]:
        return await (await self.sub_agent(Tally, name)).add()

    async def diary(self, name: str) -> int:
        return await (await self.sub_agent(Diary, name)).add()

    async def many(self, names: list[str]) -> list[tuple[int, int]]:
        children = await asyncio.gather(*(self.sub_agent(Tally, name) for name in names))
        return await asyncio.gather(*(child.add() for child in children))

    async def abort_tally(self, name: str) -> None:
        self.children.abort(Tally, name, "stop")

    async def delete_tally(self, name: str) -> None:
        await self.children.delete(Tally, name)

    async def own(self) -> int:
        self.sql("INSERT INTO counts VALUES (1)")
        return self.sql("SELECT count(*) FROM counts").scalar(int)

    async def same(self, name: str) -> bool:
        return await self.sub_agent(Tally, name) == await self.sub_agent(Tally, name)

    async def fragile(self, name: str) -> str:
        return await (await self.sub_agent(Fragile, name)).ping()

    async def has(self, type: str, name: str) -> bool:
        cls = {"Tally": Tally, "Diary": Diary, "Fragile": Fragile}[type]
        by_class, by_id = self.children.has(cls, name), self.children.has(type, name)
        assert by_class == by_id
        return by_class

    async def listed(self, type: str | None = None, after: int = 0, limit: int = 1000) -> list[tuple[str, str]]:
        return [(child.type, child.name) for child in self.children.list(type, after=after, limit=limit)]

    async def listed_by_class(self) -> list[str]:
        return [child.name for child in self.children.list(Tally)]

    async def page(self, after: int, limit: int) -> list[int]:
        return [child.generation for child in self.children.list(after=after, limit=limit)]

    async def made_at(self) -> list[float]:
        return [child.created_at for child in self.children.list()]

    async def make(self, cls_name: str) -> None:
        await self.sub_agent(cast(Any, {"str": str, "App": App, "instance": 3, "Agent": Agent}[cls_name]), "x")

    async def call_it(self, name: Any) -> None:
        await self.sub_agent(Tally, name)


@pytest.mark.promise("A-1", "A-2", "A-225", "CF-1")
async def test_the_same_class_and_name_always_give_the_same_child(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")

        assert await shelf.tally("a") == (1, 1)
        assert await shelf.tally("a") == (2, 2)
        assert await shelf.same("a")
        assert await shelf.listed() == [("Tally", "a")]


@pytest.mark.promise("A-2", "A-25")
async def test_a_child_asked_for_many_times_at_once_is_made_once(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")

        counts = await shelf.many(["a"] * 20)

        assert sorted(counts) == [(n, n) for n in range(1, 21)]
        assert probe.log == ["start a"]


@pytest.mark.promise("A-4", "A-253", "CF-6")
async def test_two_classes_may_share_a_name_and_stay_apart(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")

        await shelf.tally("shared")
        await shelf.tally("shared")

        assert await shelf.diary("shared") == 1
        assert await shelf.listed() == [("Tally", "shared"), ("Diary", "shared")]


@pytest.mark.promise("A-53", "A-57", "A-63", "A-225", "CF-3", "CF-4")
async def test_parent_children_and_siblings_each_have_a_database_of_their_own(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")
        other = await world.get_agent(Shelf, "t")

        await shelf.own()
        await shelf.tally("a")
        await shelf.tally("a")

        assert await shelf.own() == 2
        assert await shelf.tally("b") == (1, 1)
        assert await other.tally("a") == (1, 1)
        assert await other.own() == 1
        assert len(list(world.data.rglob("*.db"))) == 5


@pytest.mark.promise("A-25", "A-26")
async def test_a_child_starts_at_its_first_use_and_not_because_its_parent_started(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")
        await shelf.tally("a")
        probe.log.clear()

        await world.restart()
        shelf = await world.get_agent(Shelf, "s")
        assert await shelf.listed() == [("Tally", "a")]

        assert probe.log == []
        assert await shelf.tally("a") == (1, 2)
        assert probe.log == ["start a"]


@pytest.mark.promise("A-25", "A-27")
async def test_on_start_runs_once_in_every_life(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")
        await shelf.tally("a")
        await shelf.tally("a")
        assert probe.log == ["start a"]

        world.sleep()
        await shelf.tally("a")

        assert probe.log == ["start a", "start a"]


@pytest.mark.promise("A-5", "A-10", "A-27", "CF-7")
async def test_a_child_knows_its_name_and_path_from_its_very_first_moment(run: Run) -> None:
    seen: list[object] = []

    class Early(Agent):
        async def on_start(self) -> None:
            seen.append((self.name, self.address.segments, self.address.segments[:-1], str(self.address)))

    class EarlyRoot(Agent):
        async def make(self) -> None:
            await self.sub_agent(Early, "child")

    async with run(EarlyRoot) as world:
        await (await world.get_agent(EarlyRoot, "root")).make()

    root, child = PathSegment("EarlyRoot", "root"), PathSegment("Early", "child")
    assert seen == [("child", (root, child), (root,), "EarlyRoot:root/Early:child")]


@pytest.mark.promise("A-6", "A-7", "A-9", "A-21", "A-225", "CF-27", "CF-34")
async def test_paths_list_every_ancestor_root_first(run: Run) -> None:
    names = ["a", "b", "c", "d", "e"]
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")

        await root.grow(*names)

        steps = tuple(PathSegment("Branch", name) for name in ["r", *names])
        assert await root.where() == ("r", steps[:1], ())
        for depth in range(1, 6):
            child = await world.get_agent(Branch, "r", sub=[(Branch, name) for name in names[:depth]])
            assert await child.where() == (names[depth - 1], steps[: depth + 1], steps[:depth])


@pytest.mark.promise("A-10", "CF-18", "CF-35")
async def test_the_path_of_a_nested_agent_survives_sleep_abort_and_restart(run: Run) -> None:
    sub = [(Branch, "a"), (Branch, "b"), (Branch, "c")]
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b", "c")
        before = await (await world.get_agent(Branch, "r", sub=sub)).where()

        world.sleep()
        assert await (await world.get_agent(Branch, "r", sub=sub)).where() == before
        await root.stop("a", "stop")
        await root.grow("a")
        assert await (await world.get_agent(Branch, "r", sub=sub)).where() == before
        await world.restart()
        assert await (await world.get_agent(Branch, "r", sub=sub)).where() == before
        await world.crash()
        assert await (await world.get_agent(Branch, "r", sub=sub)).where() == before


@pytest.mark.promise("A-1", "A-3", "A-58", "CF-28")
async def test_agents_of_one_name_in_different_places_are_different_agents(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "x")
        await root.grow("x", "x", "x")
        await root.grow("y", "x")

        places = [(), ("x",), ("x", "x"), ("x", "x", "x"), ("y", "x")]
        for place in places:
            agent = await world.get_agent(Branch, "x", sub=[(Branch, name) for name in place])
            assert await agent.note(f"in {place}") == 1

        for place in places:
            agent = await world.get_agent(Branch, "x", sub=[(Branch, name) for name in place])
            assert await agent.notes() == [f"in {place}"]


@pytest.mark.promise("A-5", "CF-31")
async def test_a_child_may_have_its_root_s_class_and_name(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "same")

        assert await root.note_below("same", "below") == 1

        assert await root.notes() == []
        assert await root.child_names() == ["same"]


@pytest.mark.promise("CF-2")
async def test_rows_of_children_survive_a_restart_and_a_crash(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        assert await root.note_below("a", "one") == 1

        await world.restart()
        root = await world.get_agent(Branch, "r")
        assert await root.note_below("a", "two") == 2
        await world.crash()

        child = await world.get_agent(Branch, "r", sub=[(Branch, "a")])
        assert await child.notes() == ["one", "two"]


async def test_a_first_start_that_fails_leaves_no_child(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")

        with pytest.raises(RuntimeError, match="not today"):
            await shelf.fragile("f")

        assert not await shelf.has("Fragile", "f")
        assert await shelf.listed() == []
        probe.go.set()
        assert await shelf.fragile("f") == "pong"
        assert await shelf.has("Fragile", "f")


async def test_a_later_start_that_fails_keeps_the_child(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")
        probe.go.set()
        await shelf.fragile("f")
        world.sleep()
        probe.go.clear()

        with pytest.raises(RuntimeError, match="not today"):
            await shelf.fragile("f")

        assert await shelf.has("Fragile", "f")
        probe.go.set()
        assert await shelf.fragile("f") == "pong"


async def test_a_child_that_fails_to_start_disturbs_no_sibling(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")

        failed, counted = await asyncio.gather(shelf.fragile("f"), shelf.tally("t"), return_exceptions=True)

        assert isinstance(failed, RuntimeError)
        assert counted == (1, 1)


@pytest.mark.promise("A-35", "A-40", "A-62", "A-63", "A-64", "A-254", "CF-32")
async def test_has_sub_agent_is_true_exactly_between_making_and_deleting(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        assert not await root.has("a")

        await root.grow("a")
        assert await root.has("a")
        await world.restart()
        root = await world.get_agent(Branch, "r")
        assert await root.has("a")
        await root.cut("a")

        assert not await root.has("a")


@pytest.mark.promise("A-64")
async def test_the_registry_tells_classes_apart_by_class_and_by_type_id(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")

        await shelf.tally("a")

        assert await shelf.has("Tally", "a")
        assert not await shelf.has("Diary", "a")
        assert not await shelf.has("Tally", "b")


@pytest.mark.promise("A-62", "A-65", "A-254", "CF-33")
async def test_children_are_listed_in_the_order_they_were_made(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")
        assert await shelf.listed() == []
        await shelf.tally("z")
        await shelf.diary("m")
        await world.clock.advance(5)
        await shelf.tally("a")
        await shelf.tally("z")

        everything = [("Tally", "z"), ("Diary", "m"), ("Tally", "a")]
        assert await shelf.listed() == everything
        assert await shelf.listed("Tally") == [everything[0], everything[2]]
        assert await shelf.listed("Diary") == [everything[1]]
        assert await shelf.listed("Nobody") == []
        assert await shelf.listed_by_class() == ["z", "a"]
        first, second, third = await shelf.made_at()
        assert first == second == third - 5 == world.clock.now() - 5


@pytest.mark.promise("A-65")
async def test_children_are_listed_page_by_page(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")
        await shelf.many([f"c{n}" for n in range(7)])
        seen: list[int] = []

        while page := await shelf.page(after=seen[-1] if seen else 0, limit=3):
            assert len(page) <= 3
            seen.extend(page)

        assert len(seen) == 7
        assert seen == sorted(set(seen))
        assert len(await shelf.listed("Tally", after=seen[4], limit=10)) == 2


@pytest.mark.promise("A-62")
async def test_the_registry_survives_a_crash(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")
        await shelf.many(["a", "b", "c"])

        await world.crash()

        shelf = await world.get_agent(Shelf, "s")
        assert await shelf.listed() == [("Tally", "a"), ("Tally", "b"), ("Tally", "c")]


@pytest.mark.promise("A-225", "CF-11")
@pytest.mark.parametrize("name", ["nul\0inside", "\0", "", "x" * 513, "é" * 257, "\ud800"])
async def test_a_name_that_cannot_be_stored_is_refused_with_a_sentence(run: Run, probe: Probe, name: str) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")

        with pytest.raises(Refused, match="name") as refused:
            await shelf.tally(name)
        with pytest.raises(Refused):
            await world.get_agent(Shelf, name)

        assert refused.value.code == "invalid_name"
        assert await shelf.listed() == []


async def test_a_name_that_is_no_text_is_refused_with_a_sentence(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")

        with pytest.raises(Refused, match="The name of an agent must be a string, got 3"):
            await shelf.call_it(3)


@pytest.mark.parametrize(
    "name",
    ["..", "../../etc/passwd", "a/b", "A", "a", "ä", "a\u0308", "🌳", " ", "x" * 512, "sub", "%2F", "root", "\n"],
)
async def test_any_other_text_is_a_name(run: Run, name: str) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, name)
        await root.grow(name)
        child = await world.get_agent(Branch, name, sub=[(Branch, name)])

        await child.note(name)
        await world.restart()

        child = await world.get_agent(Branch, name, sub=[(Branch, name)])
        assert await child.notes() == [name]
        assert (await child.where())[0] == name
        assert all(path.is_relative_to(world.data) for path in world.data.rglob("*"))


async def test_names_that_differ_only_in_case_or_unicode_form_are_different_children(run: Run) -> None:
    names = ["a", "A", "ä", "a\u0308", "ß", "ss"]
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")

        for name in names:
            assert await root.note_below(name, name) == 1

        assert await root.child_names() == names


@pytest.mark.promise("A-18", "CF-10")
@pytest.mark.parametrize("name", ["Sub", "SUB", "Sub_", "sub"])
def test_a_class_whose_url_form_is_sub_is_refused_at_its_creation(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name!r}.*'sub' separates agents in URLs"):
        type(name, (Agent,), {})


def test_a_class_whose_name_only_begins_with_sub_is_fine() -> None:
    assert [type(name, (Agent,), {}).__name__ for name in ("Subway", "SubAgent", "MySub")]


@pytest.mark.promise("A-14", "A-19", "A-20", "A-225", "CF-8")
@pytest.mark.parametrize(("given", "named"), [("str", "str"), ("App", "App"), ("instance", "3"), ("Agent", "Agent")])
async def test_what_is_no_agent_class_is_refused_by_name_before_anything_is_made(
    run: Run, probe: Probe, given: str, named: str
) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")

        with pytest.raises(
            UsageError, match=rf"^{named} is not an agent class\. Agent classes must extend sapwood\.Agent\."
        ):
            await shelf.make(given)

        assert await shelf.listed() == []
        assert list(world.data.rglob("*.db")) == []


@pytest.mark.promise("A-1", "A-16", "CF-29")
async def test_only_the_root_class_is_named_to_the_app_and_any_agent_class_can_be_a_child(run: Run) -> None:
    class Unheard(Agent, Generic[T]):
        async def hello(self) -> str:
            return f"hello from {self.name}"

    class Stated(Agent[dict[str, int]]):
        initial_state = {"n": 1}  # noqa: RUF012

        async def n(self) -> int:
            return self.state["n"]

    class Namer(Agent):
        async def ask(self) -> tuple[str, int]:
            unheard = await self.sub_agent(Unheard, "u")
            stated = await self.sub_agent(Stated, "s")
            return await unheard.hello(), await stated.n()

    async with run(Namer) as world:
        namer = await world.get_agent(Namer, "n")

        assert await namer.ask() == ("hello from u", 1)


@pytest.mark.promise("A-17", "CF-29")
async def test_a_class_the_app_does_not_name_cannot_be_a_root(run: Run, probe: Probe) -> None:
    class Reacher(Agent):
        async def reach(self) -> None:
            await self.get_agent(Tally, "t")

    async with run(Shelf, Reacher, deps=probe) as world:
        reacher = await world.get_agent(Reacher, "r")

        with pytest.raises(UsageError, match=r"Tally is not a root.*App\(agents=.*Roots: Shelf, Reacher"):
            await world.get_agent(Tally, "t")
        with pytest.raises(UsageError, match=r"Tally is not a root.*App\(agents=.*Roots: Shelf, Reacher"):
            await reacher.reach()

        assert probe.log == []


@pytest.mark.promise("A-55")
async def test_a_child_can_keep_counters_and_return_their_new_value(run: Run) -> None:
    class Counter(Agent):
        migrations = ("CREATE TABLE counters (id TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT",)

        async def increment(self, id: str) -> int:
            return self.sql(
                "INSERT INTO counters VALUES (?, 1) ON CONFLICT (id) DO UPDATE SET value = value + 1 RETURNING value",
                id,
            ).scalar(int)

    class Counters(Agent):
        async def increment(self, name: str, id: str) -> int:
            return await (await self.sub_agent(Counter, name)).increment(id)

    async with run(Counters) as world:
        counters = await world.get_agent(Counters, "c")

        assert [await counters.increment("a", "x") for _ in range(3)] == [1, 2, 3]
        assert await counters.increment("a", "y") == 1
        await world.crash()
        counters = await world.get_agent(Counters, "c")
        assert await counters.increment("a", "x") == 4
        assert await counters.increment("b", "x") == 1


@pytest.mark.promise("A-53", "A-56")
async def test_an_agent_s_sql_reaches_no_other_agent_s_data(run: Run) -> None:
    class Vault(Agent):
        migrations = ("CREATE TABLE secrets (text TEXT NOT NULL) STRICT",)

        async def keep(self, text: str) -> None:
            self.sql("INSERT INTO secrets VALUES (?)", text)

    class Keeper(Agent):
        async def keep(self, text: str) -> None:
            await (await self.sub_agent(Vault, "v")).keep(text)

        async def run(self, sql: str) -> None:
            self.sql(sql)

    async with run(Keeper) as world:
        keeper = await world.get_agent(Keeper, "k")
        await keeper.keep("secret")
        (vault,) = [path for path in world.data.rglob("*.db") if path.stem != "root"]

        with pytest.raises(UsageError, match="no such table: secrets"):
            await keeper.run("SELECT * FROM secrets")
        for sql in [
            f"ATTACH DATABASE '{vault}' AS other",
            "UPDATE sapwood_children SET name = 'mine'",
            "SELECT * FROM sapwood_children",
            f"VACUUM INTO '{vault}.copy'",
        ]:
            with pytest.raises(UsageError, match=r"reserved for the framework|ATTACH and VACUUM|cannot VACUUM"):
                await keeper.run(sql)


@pytest.mark.promise("A-253")
async def test_abort_and_delete_reach_the_child_of_that_class_and_name_only(run: Run, probe: Probe) -> None:
    async with run(Shelf, deps=probe) as world:
        shelf = await world.get_agent(Shelf, "s")
        await shelf.tally("same")
        await shelf.diary("same")
        diary = await world.get_agent(Shelf, "s", sub=[(Diary, "same")])

        await shelf.abort_tally("same")
        assert await diary.add() == 2
        await shelf.delete_tally("same")

        assert await diary.add() == 3
        assert await shelf.listed() == [("Diary", "same")]


@pytest.mark.promise("A-52")
async def test_a_child_lives_beside_its_parent_in_the_same_process_and_thread(run: Run) -> None:
    class Placed(Agent):
        async def place(self) -> tuple[int, int]:
            return os.getpid(), threading.get_ident()

        async def place_below(self) -> tuple[int, int]:
            return await (await self.sub_agent(Placed, "child")).place()

        async def rounds_of_the_loop(self, calls: int) -> float:
            """Return how many rounds of the event loop one call of a child takes."""
            child = await self.sub_agent(Placed, "child")
            rounds = 0

            async def count() -> None:
                nonlocal rounds
                while True:
                    rounds += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            for _ in range(calls):
                await child.place()
            counting.cancel()
            return rounds / calls

    async with run(Placed) as world:
        placed = await world.get_agent(Placed, "p")

        assert await placed.place() == await placed.place_below() == (os.getpid(), threading.get_ident())
        assert await placed.rounds_of_the_loop(100) <= 4
