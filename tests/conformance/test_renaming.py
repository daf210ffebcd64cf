"""Type ids: what is stored instead of a class's name, so that classes can be renamed and moved."""

from __future__ import annotations

import gc
from datetime import timedelta
from pathlib import Path

import pytest
from tests.conformance.runtimes import running
from tests.conformance.worlds import Branch, Run

from sapwood import Agent, App, agent
from sapwood.errors import UnknownAgent, UsageError


class Ledger(Agent):
    migrations = ("CREATE TABLE entries (text TEXT NOT NULL) STRICT",)

    async def enter(self, text: str) -> list[str]:
        self.sql("INSERT INTO entries VALUES (?)", text)
        return [str(row["text"]) for row in self.sql("SELECT text FROM entries")]


@agent(type="books", aliases=("Ledger", "older-books"))
class Books(Agent):
    """What Ledger is called today."""

    migrations = Ledger.migrations

    async def enter(self, text: str) -> list[str]:
        self.sql("INSERT INTO entries VALUES (?)", text)
        return [str(row["text"]) for row in self.sql("SELECT text FROM entries")]

    async def path(self) -> str:
        return str(self.address)


class Office(Agent):
    async def enter(self, name: str, text: str) -> list[str]:
        return await (await self.sub_agent(Ledger, name)).enter(text)

    async def enter_today(self, name: str, text: str) -> list[str]:
        return await (await self.sub_agent(Books, name)).enter(text)

    async def has(self, name: str) -> bool:
        return self.children.has(Books, name)

    async def listed(self) -> list[str]:
        return [child.name for child in self.children.list(Books)]

    async def state_of(self, name: str) -> str:
        return self.children.status(Books, name).state

    async def delete(self, name: str) -> None:
        await self.children.delete(Books, name)


@pytest.mark.promise("B-10")
async def test_a_renamed_child_class_finds_its_children_under_the_alias(run: Run) -> None:
    async with run(Office) as world:
        office = await world.get_agent(Office, "o")
        await office.enter("a", "one")

        await world.restart()
        office = await world.get_agent(Office, "o")

        assert await office.has("a")
        assert await office.listed() == ["a"]
        assert await office.enter_today("a", "two") == ["one", "two"]
        assert await office.listed() == ["a"]


@pytest.mark.promise("B-10")
async def test_a_renamed_child_can_be_reached_from_outside_before_its_parent_asks_for_it(run: Run) -> None:
    async with run(Office) as world:
        office = await world.get_agent(Office, "o")
        await office.enter("a", "one")
        await world.restart()

        books = await world.get_agent(Office, "o", sub=[(Books, "a")])

        assert await books.enter("two") == ["one", "two"]
        assert await books.path() == "Office:o/books:a"


async def test_a_renamed_child_can_be_deleted(run: Run) -> None:
    async with run(Office) as world:
        office = await world.get_agent(Office, "o")
        await office.enter("a", "one")
        await world.restart()
        office = await world.get_agent(Office, "o")

        assert await office.state_of("a") == "sleeping"
        await office.delete("a")

        assert not await office.has("a")
        assert await office.enter_today("a", "new") == ["new"]


@pytest.mark.promise("B-10")
async def test_a_renamed_root_class_keeps_its_trees(run: Run) -> None:
    async with run(Ledger, Books) as world:
        assert await (await world.get_agent(Ledger, "l")).enter("one") == ["one"]

        await world.restart()

        books = await world.get_agent(Books, "l")
        assert await books.enter("two") == ["one", "two"]
        await world.restart()
        assert await (await world.get_agent(Books, "l")).enter("three") == ["one", "two", "three"]


async def test_a_class_with_a_type_of_its_own_is_stored_under_that(run: Run) -> None:
    async with run(Books) as world:
        books = await world.get_agent(Books, "b")

        assert await books.path() == "books:b"


def test_a_type_id_that_would_break_urls_is_refused() -> None:
    with pytest.raises(UsageError, match="'sub'"):
        agent(type="sub")
    with pytest.raises(UsageError, match="is not a valid type id"):
        agent(type="a/b")


def test_two_roots_that_would_share_a_url_are_refused_naming_both() -> None:
    @agent(type="my-books")
    class One(Agent): ...

    @agent(type="MyBooks")
    class Two(Agent): ...

    with pytest.raises(UsageError, match="One and Two have the same URL, /agents/my-books"):
        App(agents=[One, Two])


async def test_the_class_given_to_sub_agent_wins_over_another_of_the_same_type_id(run: Run) -> None:
    @agent(type="twin")
    class First(Agent):
        async def who(self) -> str:
            return "first"

    @agent(type="twin")
    class Second(Agent):
        async def who(self) -> str:
            return "second"

    class Pair(Agent):
        async def ask(self, name: str) -> str:
            return await (await self.sub_agent(First if name == "a" else Second, name)).who()

    async with run(Pair) as world:
        pair = await world.get_agent(Pair, "p")

        assert await pair.ask("a") == "first"
        assert await pair.ask("b") == "second"


async def test_two_classes_of_one_type_id_are_an_error_only_where_the_id_must_be_resolved(run: Run) -> None:
    @agent(type="either")
    class Left(Branch): ...

    @agent(type="either")
    class Right(Branch): ...

    class Fork(Agent):
        async def make(self) -> None:
            await (await self.sub_agent(Left, "l")).grow("leaf")

    async with run(Fork) as world:
        fork = await world.get_agent(Fork, "f")
        await fork.make()
        leaf = await world.get_agent(Fork, "f", sub=[(Left, "l"), (Branch, "leaf")])
        assert await leaf.note("known from use") == 1

        world.sleep()

        with pytest.raises(UsageError, match=r"The type 'either' is ambiguous: .*Left, .*Right"):
            await leaf.note("only the stored id is left")
        assert Right is not Left


@pytest.mark.slow
@pytest.mark.promise("A-19", "CF-8")
async def test_a_stored_type_that_no_class_has_is_a_typed_error_that_names_it(run: Run) -> None:
    @agent(type="gone-tomorrow")
    class Today(Branch): ...

    class Street(Agent):
        async def make(self) -> None:
            await (await self.sub_agent(Today, "t")).grow("leaf")

    async with run(Street) as world:
        street = await world.get_agent(Street, "s")
        await street.make()
        leaf = await world.get_agent(Street, "s", sub=[(Today, "t"), (Branch, "leaf")])

        agent(type="renamed")(Today)
        world.sleep()
        gc.collect()

        with pytest.raises(UnknownAgent, match=r"No agent class has the type 'gone-tomorrow'.*aliases") as unknown:
            await leaf.notes()
        assert unknown.value.code == "unknown_agent"


async def test_the_newest_class_of_one_module_and_name_wins(run: Run) -> None:
    def define(answer: str) -> type[Branch]:
        class Cell(Branch):
            async def notes(self) -> list[str]:
                return [answer]

        return Cell

    class Notebook(Agent):
        async def make(self) -> None:
            await (await self.sub_agent(old, "c")).grow("leaf")

    old = define("old")
    async with run(Notebook) as world:
        notebook = await world.get_agent(Notebook, "n")
        await notebook.make()
        leaf = await world.get_agent(Notebook, "n", sub=[(old, "c"), (Branch, "leaf")])
        new = define("new")
        world.sleep()

        assert await leaf.notes() == []

        cell = await world.get_agent(Notebook, "n", sub=[(new, "c")])
        assert await cell.notes() == ["new"]


async def test_an_alarm_wakes_the_apps_own_class_whichever_others_have_its_type_id(tmp_path: Path) -> None:
    @agent(type="Twin")
    class Before(Agent):
        migrations = ("CREATE TABLE rung (by TEXT NOT NULL) STRICT",)

        async def set(self) -> None:
            self.schedule(timedelta(hours=1), self.ring)

        async def ring(self) -> None:
            self.sql("INSERT INTO rung VALUES (?)", type(self).__name__)

        async def rung(self) -> list[str]:
            return [str(row["by"]) for row in self.sql("SELECT by FROM rung")]

    @agent(type="Twin")
    class After(Before):
        pass

    async with running(App(agents=[Before]), data=tmp_path) as world:
        await (await world.get_agent(Before, "a")).set()

    async with running(App(agents=[After]), data=tmp_path) as world:
        await world.clock.advance(timedelta(hours=1))

        assert await (await world.get_agent(After, "a")).rung() == ["After"]
