"""An operator sees everybody, wakes nobody, and changes nothing by looking."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.conformance.worlds import happens
from tests.unit.admin_requests import ask, pages

from sapwood import After, Agent, App, NotFound, expose
from sapwood.admin.admin import Admin
from sapwood.cli.render import picture
from sapwood.errors import ForbiddenSql, Quarantined
from sapwood.testing import World, running
from sapwood.types import Address

DELETE = "DELETE FROM notes"


@dataclass(frozen=True)
class Stats:
    notes: int = 0


class Shelf(Agent[Stats]):
    initial_state = Stats()
    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)

    async def note(self, text: str) -> int:
        self.sql("INSERT INTO notes VALUES (?)", text)
        self.set_state(Stats(self.state.notes + 1))
        return self.state.notes

    async def clear(self) -> None:
        self.sql(DELETE)

    @expose
    async def read(self) -> list[str]:
        return [text for (text,) in self.sql("SELECT text FROM notes")]

    async def remind(self) -> None:
        self.schedule(After(timedelta(hours=1)), self.clear)
        for _ in range(2):
            self.enqueue(self.sleep)
        self.start_fiber("long", self.sleep)

    async def sleep(self) -> None:
        await asyncio.sleep(60)


class Library(Agent):
    async def shelf(self, name: str) -> int:
        return await (await self.sub_agent(Shelf, name)).note("a")

    async def remind(self, name: str) -> None:
        await (await self.sub_agent(Shelf, name)).remind()

    async def clear(self, name: str) -> None:
        await (await self.sub_agent(Shelf, name)).clear()

    async def lend(self, id: str, book: str) -> None:
        await self.run_agent(Reader, book, run_id=id)
        self.runs.pin(id)


class Reader(Agent):
    async def on_run(self, book: str) -> int:
        return len(book) if book else 1 // 0


async def library(world: World) -> Admin:
    main = await world.get_agent(Library, "main")
    await main.shelf("one")
    await main.shelf("two")
    return Admin(world.node)


async def test_the_tree_shows_who_is_awake_and_wakes_nobody() -> None:
    async with running(App(agents=[Library])) as world:
        operator = await library(world)
        awake = (await operator.tree())["roots"]

        world.sleep()
        asleep = (await operator.tree())["roots"]

        assert [awake[0]["status"], *(child["status"] for child in awake[0]["below"])] == ["live"] * 3
        assert [asleep[0]["status"], *(child["status"] for child in asleep[0]["below"])] == ["asleep"] * 3
        assert [child["address"] for child in asleep[0]["below"]] == [
            "Library:main/Shelf:one",
            "Library:main/Shelf:two",
        ]
        assert all(child["bytes"] > 0 for child in asleep[0]["below"])


async def test_the_tree_shows_queued_calls_runs_fibers_and_the_next_schedule() -> None:
    async with running(App(agents=[Library])) as world:
        operator = await library(world)
        main = await world.get_agent(Library, "main")
        await main.remind("one")
        shelf = (await operator.tree())["roots"][0]["below"][0]
        names = ("queued_calls", "runs", "fibers", "next_schedule_at")
        (line,) = [line for line in shown(await operator.tree()) if "Shelf:one" in line]
        world.sleep()
        asleep = (await operator.tree())["roots"][0]["below"][0]

        due = datetime.fromtimestamp(world.clock.now() + 3600, UTC).isoformat(timespec="seconds")
        assert [shelf[name] for name in names] == [2, 0, 1, due]
        assert "2 queued calls, 1 fiber, " in line
        assert f"next schedule {due}" in line
        assert asleep["next_schedule_at"] == due


def shown(tree: dict[str, Any]) -> list[str]:
    """Return the lines that `sapwood tree` prints."""
    console = Console(file=StringIO(), width=400)
    console.print(picture(tree))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


class Lectern(Agent):
    @expose
    async def read(self) -> str:
        return "read"


class ReadingRoom(Agent):
    async def make(self) -> None:
        await self.sub_agent(Lectern, "one")


async def test_the_methods_of_one_that_sleeps_are_listed_without_waking_it() -> None:
    async with running(App(agents=[ReadingRoom])) as world:
        await (await world.get_agent(ReadingRoom, "main")).make()
        operator = Admin(world.node)
        world.sleep()

        methods = json.loads(await operator.methods("ReadingRoom:main/Lectern:one"))["methods"]

        assert [method["name"] for method in methods] == ["read"]
        assert (await operator.tree())["roots"][0]["below"][0]["status"] == "asleep"
        assert json.loads(await operator.methods("ReadingRoom:main")) == {"methods": []}


async def test_what_is_too_much_to_show_is_counted() -> None:
    async with running(App(agents=[Library])) as world:
        operator = await library(world)

        (root,) = (await operator.tree(children=1))["roots"]

        assert (root["children"], len(root["below"])) == (2, 1)


async def test_the_state_of_one_that_sleeps_is_what_it_stored() -> None:
    async with running(App(agents=[Library])) as world:
        operator = await library(world)
        world.sleep()

        assert await operator.state("Library:main/Shelf:one") == {"notes": 1}
        assert await operator.state("Library:main") is None
        with pytest.raises(NotFound):
            await operator.state("Library:main/Shelf:three")
        with pytest.raises(NotFound):
            await operator.state("Library:other")


async def test_the_state_of_one_that_is_being_restored_is_the_restored_one(tmp_path: Path) -> None:
    async with running(App(agents=[Shelf])) as world:
        shelf = await world.get_agent(Shelf, "s")
        await shelf.note("a")
        await world.app.backup(tmp_path, Shelf, "s")
        await shelf.note("b")
        tree = world.node.loader.tree(Address.root_of("Shelf", "s"))
        with tree.kept_still():  # as by another backup: the restore waits
            restore = asyncio.create_task(world.app.restore(tmp_path, Shelf, "s"))
            await happens(lambda: tree.destroyed is not None)
            state = asyncio.create_task(Admin(world.node).state("Shelf:s"))
            await asyncio.sleep(0)

        assert await state == {"notes": 1}
        assert await restore == 1


async def test_who_does_not_exist_yet_is_said_in_words() -> None:
    async with running(App(agents=[Library])) as world:
        operator = await library(world)
        for number in range(5):
            await (await world.get_agent(Library, "full")).shelf(f"shelf-{number}")
        await (await world.get_agent(Library, "full")).shelf("last")
        await world.get_agent(Library, "empty")

        for address, words in [
            ("Library:other", "Library:other does not exist: it has not been created yet. The first page"),
            ("Library:other/Shelf:a", "Library:other/Shelf:a does not exist: Library:other has not been created yet"),
            ("Nobody:a", "Nobody:a does not exist: Nobody is not a root of this app. Roots: Library."),
            (
                "Library:main/Shelf:a",
                "Library:main has not created Shelf:a, or has deleted it. It has Shelf:one, Shelf:two.",
            ),
            ("Library:full/Shelf:a", "It has Shelf:shelf-0, Shelf:shelf-1, .*, Shelf:shelf-4 and 1 more."),
            ("Library:empty/Shelf:a", "It has no children."),
            ("Library:main/Shelf:one/Shelf:a", "Library:main/Shelf:one has not created Shelf:a"),
        ]:
            with pytest.raises(NotFound, match=words):
                await operator.state(address)
        assert not (await operator.tree("Library:empty"))["roots"][0]["children"]


@pytest.mark.parametrize(
    "sql",
    [
        DELETE,
        "DROP TABLE notes",
        "INSERT INTO notes VALUES ('x')",
        "SELECT 1; DELETE FROM notes",
        "PRAGMA query_only = OFF",
        "PRAGMA query_only = OFF; DELETE FROM notes",
        "PRAGMA user_version = 3",
        "BEGIN",
        "COMMIT",
        "ATTACH '/tmp/other.db' AS other",
        "VACUUM INTO '/tmp/stolen.db'",
        "CREATE TEMP TABLE t (a)",
        "WITH x AS (SELECT 1) DELETE FROM notes",
        "UPDATE sapwood_state SET value = '0'",
        "EXPLAIN DELETE FROM notes",
        "REINDEX",
        "ANALYZE",
    ],
)
async def test_looking_cannot_write(sql: str) -> None:
    async with running(App(agents=[Library])) as world:
        operator = await library(world)
        main = await world.get_agent(Library, "main")
        await main.shelf("one")
        await main.clear("two")  # the very statement has been prepared for a user by now

        for shelf in ("one", "two"):
            with pytest.raises(ForbiddenSql, match="Only reads"):
                await operator.sql(f"Library:main/Shelf:{shelf}", sql, [])

        found = await operator.sql("Library:main/Shelf:one", "SELECT count(*) AS n FROM notes", [])
        assert (found["columns"], found["rows"]) == (("n",), [[2]])
        assert await main.shelf("one") == 3


async def test_with_write_it_writes_and_keeps() -> None:
    async with running(App(agents=[Library])) as world:
        operator = await library(world)

        await operator.sql("Library:main/Shelf:one", "INSERT INTO notes VALUES (?)", ["b"], write=True)
        await world.crash()

        found = await Admin(world.node).sql("Library:main/Shelf:one", "SELECT text FROM notes", [])
        assert found["rows"] == [["a"], ["b"]]


async def test_the_frameworks_tables_can_be_read_and_not_written() -> None:
    async with running(App(agents=[Library])) as world:
        operator = await library(world)

        found = await operator.sql("Library:main", "SELECT name FROM sapwood_children ORDER BY 1", [])

        assert found["rows"] == [["one"], ["two"]]
        with pytest.raises(ForbiddenSql):
            await operator.sql("Library:main", "DELETE FROM sapwood_children", [], write=True)


async def test_a_public_method_can_be_called_and_no_other() -> None:
    async with running(App(agents=[Library])) as world:
        operator = await library(world)

        assert [item async for item in operator.call("Library:main/Shelf:one", "note", ["b"])] == [b"2"]
        with pytest.raises(Exception, match="is private to the agent"):
            _ = [item async for item in operator.call("Library:main", "destroy", [])]


async def test_the_runs_of_an_agent_are_shown_with_what_they_hold_and_nobody_is_woken() -> None:
    async with running(App(agents=[Library])) as world:
        main = await world.get_agent(Library, "main")
        none = await ask(world, "runs", address="Library:main")
        await main.lend("r1", "Walden")
        await main.lend("r2", "")
        world.sleep()

        found = await pages(world, "runs", address="Library:main", limit=1)
        failed = await ask(world, "runs", address="Library:main", status="failed")

        assert none == {"rows": [], "next": None}
        assert [[(run["id"], run["agent"], run["status"], run["pinned"]) for run in page] for page in found] == [
            [("r2", "Reader:r2", "failed", True)],
            [("r1", "Reader:r1", "completed", True)],
        ]
        assert all(run["bytes"] > 0 and run["ended_at"] >= run["started_at"] for page in found for run in page)
        assert [run["id"] for run in failed["rows"]] == ["r2"]
        assert not any(tree.actors for tree in world.node.trees.values())


async def test_a_tree_in_quarantine_can_be_looked_at_and_does_not_run() -> None:
    async with running(App(agents=[Library]), strikes=1) as world:
        await library(world)
        await world.restart()
        (before,) = (await Admin(world.node).tree())["roots"]
        (world.data / "strikes.jsonl").write_text(json.dumps({"root": "Library:main", "at": 0.0}))
        await world.restart()
        operator = Admin(world.node)

        (held,) = (await operator.tree())["roots"]

        assert (held["status"], held["bytes"], held["below"]) == ("quarantined", before["bytes"], before["below"])
        assert held["bytes"] > 0
        assert "`sapwood release Library:main`" in held["last_error"]
        assert await operator.state("Library:main/Shelf:one") == {"notes": 1}
        assert (await operator.sql("Library:main/Shelf:one", "SELECT text FROM notes", []))["rows"] == [["a"]]
        with pytest.raises(Quarantined):
            await operator.sql("Library:main/Shelf:one", DELETE, [], write=True)
        with pytest.raises(Quarantined):
            await world.get_agent(Library, "main")

        operator.release("Library:main")

        assert (await operator.tree())["roots"][0]["status"] == "asleep"
        assert await (await world.get_agent(Library, "main")).shelf("one") == 2
