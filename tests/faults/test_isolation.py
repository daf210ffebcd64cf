"""Promise 5: no agent reads or writes another's database, and no mutable object is shared across a stub."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from sapwood import Agent, App, SapwoodError
from sapwood.errors import SqlError, UsageError, WrongThread
from sapwood.testing import World, running

SECRET = "the secret of another agent"

NAMES = [
    "../../x",
    "..",
    ".",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "C:\\x",
    "CON",
    "Alice",
    "alice",
    "ALICE",
    unicodedata.normalize("NFC", "Zoë"),
    unicodedata.normalize("NFD", "Zoë"),
    "ﬁ",
    "fi",
    "x" * 512,
    "x" * 511,
    "%00",
    "%2e%2e",
    "%",
    "_",
    "a%",
    "a_",
    "*",
    "?",
    "[a-z]",
    "' OR 1=1 --",
    '"; DROP TABLE notes; --',
    "🌲",
    "🌲" * 128,
    " ",
    "a ",
    " a",
    "a",
    "a\n",
    "a\tb",
    "\u202e",
    "\u200b",
    "root",
    "root.db",
    "destroyed",
    "address",
    "sapwood_children",
    "NULL",
    "0",
    "00",
    "-1",
]


class Page(Agent):
    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)

    async def note(self, text: str) -> None:
        self.sql("INSERT INTO notes VALUES (?)", text)
        self.set_state(None)

    async def notes(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM notes")]


class Book(Agent):
    migrations = Page.migrations

    async def note(self, text: str) -> None:
        self.sql("INSERT INTO notes VALUES (?)", text)

    async def notes(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM notes")]

    async def note_in(self, name: str, text: str) -> None:
        page = await self.sub_agent(Page, name)
        await page.note(text)

    async def notes_in(self, name: str) -> list[str]:
        page = await self.sub_agent(Page, name)
        return await page.notes()

    async def cut(self, name: str) -> None:
        await self.children.delete(Page, name)

    async def pages(self) -> list[str]:
        return [child.name for child in self.children.list()]

    async def has(self, name: str) -> bool:
        return self.children.has(Page, name)


class Burglar(Agent):
    """Runs whatever SQL it is told to."""

    async def prepare(self) -> None:
        self.set_state(None)
        for number in range(30):
            await self.sub_agent(Page, f"hidden-{number}")
        self.sql("CREATE TABLE mine (v)")

    async def run_sql(self, sql: str) -> str:
        try:
            return repr(list(self.sql(sql)))
        except SapwoodError as error:
            return f"{type(error).__name__}: {error}"

    async def run_read_sql(self, sql: str) -> str:
        try:
            return repr(list(await self.read_sql(sql)))
        except SapwoodError as error:
            return f"{type(error).__name__}: {error}"


def everything_below(folder: Path) -> set[Path]:
    return set(folder.parent.rglob("*"))


def tools(victim: Path) -> list[str]:
    """Return every statement we could think of that might reach another file, or the framework's tables."""
    return [
        f"ATTACH '{victim}' AS victim",
        f"ATTACH DATABASE 'file:{victim}?mode=ro' AS victim",
        f"ATTACH '{victim}' AS victim; SELECT * FROM victim.notes",
        f"/* */ ATTACH '{victim}' AS victim",
        f"EXPLAIN ATTACH '{victim}' AS victim",
        f"VACUUM INTO '{victim.with_name('copy.db')}'",
        f"VACUUM main INTO '{victim.with_name('copy.db')}'",
        f"SELECT load_extension('{victim}')",
        f"SELECT readfile('{victim}')",
        f"SELECT writefile('{victim}', 'x')",
        f"SELECT edit('{victim}')",
        f"SELECT * FROM fsdir('{victim.parent}')",
        f"CREATE VIRTUAL TABLE v USING csv(filename='{victim}')",
        f"CREATE VIRTUAL TABLE v USING zipfile('{victim}')",
        f"CREATE VIRTUAL TABLE v USING fts3tokenize('{victim}')",
        "SELECT * FROM dbstat",
        "SELECT * FROM sqlite_dbpage",
        "INSERT INTO sqlite_dbpage VALUES (1, zeroblob(2048))",
        f"PRAGMA temp_store_directory = '{victim.parent}'",
        f"PRAGMA data_store_directory = '{victim.parent}'",
        "PRAGMA database_list",
        "SELECT file FROM pragma_database_list",
        "PRAGMA writable_schema = 1",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA trusted_schema = 1",
        "PRAGMA module_list",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA wal_autocheckpoint = 1",
        "PRAGMA locking_mode = NORMAL",
        "UPDATE sqlite_schema SET sql = replace(sql, 'mine', 'sapwood_x')",
        "INSERT INTO sqlite_schema VALUES ('table', 'x', 'x', 2, 'CREATE TABLE x (y)')",
        "SELECT * FROM sapwood_children",
        "SELECT * FROM sapwood_state",
        "SELECT * FROM sapwood_migrations",
        "SELECT * FROM sapwood_ledger",
        "SELECT rowid FROM sapwood_children",
        "SELECT count(*) FROM sapwood_children",
        "SELECT max(rowid) FROM sapwood_children",
        "SELECT * FROM mine WHERE v IN sapwood_children",
        "SELECT * FROM (SELECT * FROM sapwood_children)",
        "VALUES ((SELECT name FROM sapwood_children))",
        "INSERT INTO mine SELECT name FROM sapwood_children",
        "CREATE TABLE copy AS SELECT * FROM sapwood_children",
        "CREATE TABLE sapwood_x (y)",
        "CREATE INDEX i ON sapwood_children (name)",
        "CREATE VIEW v AS SELECT * FROM sapwood_children; SELECT * FROM v",
        "CREATE TRIGGER t AFTER INSERT ON mine BEGIN DELETE FROM sapwood_children; END; INSERT INTO mine VALUES (1)",
        "CREATE TRIGGER t2 BEFORE DELETE ON sapwood_children BEGIN SELECT raise(ABORT, 'no'); END",
        "CREATE TEMP TRIGGER t3 BEFORE DELETE ON main.sapwood_children BEGIN SELECT raise(ABORT, 'no'); END",
        "CREATE TABLE f (x REFERENCES sapwood_children (generation)); INSERT INTO f VALUES (1)",
        "CREATE VIRTUAL TABLE ft USING fts5(name, content='sapwood_children'); SELECT * FROM ft",
        "CREATE VIRTUAL TABLE fv USING fts5vocab('sapwood_children', 'row'); SELECT * FROM fv",
        "UPDATE sapwood_children SET deleted_at = NULL",
        "INSERT INTO sapwood_children (type, name, created_at) VALUES ('Page', 'forged', 0)",
        "DELETE FROM sapwood_children",
        "DELETE FROM sapwood_children RETURNING *",
        "INSERT INTO mine VALUES (1) ON CONFLICT DO UPDATE SET v = (SELECT name FROM sapwood_children)",
        "UPDATE mine SET v = c.name FROM sapwood_children AS c",
        "UPDATE sqlite_sequence SET seq = 0",
        "DELETE FROM sqlite_sequence WHERE name = 'sapwood_children'",
        "DROP TABLE sapwood_children",
        "DROP INDEX sapwood_children_alive",
        "ALTER TABLE mine RENAME TO sapwood_x",
        "ALTER TABLE mine RENAME TO/**/sapwood_x",
        "ALTER TABLE sapwood_children RENAME TO mine2",
        "REINDEX sapwood_children",
        "ANALYZE sapwood_children; SELECT * FROM sqlite_stat4",
        "ANALYZE; SELECT * FROM sqlite_stat4",
        "BEGIN; SELECT * FROM sapwood_children",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT x",
    ]


@pytest.mark.parametrize("method", ["run_sql", "run_read_sql"])
async def test_no_statement_reaches_another_file_or_the_frameworks_tables(method: str) -> None:
    async with running(App(agents=[Book, Burglar]), slow_slices="allow") as world:
        book = await world.get_agent(Book, "victim")
        await book.note(SECRET)
        burglar = await world.get_agent(Burglar, "b")
        await burglar.prepare()
        (victim,) = [
            file for file in world.data.rglob("root.db") if (file.parent / "address").read_text() == "Book:victim"
        ]
        before = {path.name for path in everything_below(world.data / "trees")}

        for sql in tools(victim):
            answer = await getattr(burglar, method)(sql)

            assert SECRET not in answer, sql
            assert "hidden" not in answer, (sql, answer)
            assert str(victim.parent) not in answer or str(victim.parent) in sql, sql

        await world.crash()
        assert await (await world.get_agent(Book, "victim")).notes() == [SECRET]
        page = await world.get_agent(Burglar, "b", sub=[(Page, "hidden-1")])
        await page.note("still works")
        assert await page.notes() == ["still works"]
        after = {path.name for path in everything_below(world.data / "trees")}
        assert {name for name in after - before if not name.endswith(("-wal", ".db", "-shm"))} == set()


PARENTS = ("..", "a")


async def _mark(world: World) -> None:
    """Write into every root its own name, and into the children of two of them theirs."""
    for name in NAMES:
        book = await world.get_agent(Book, name)
        await book.note(name)
        for child in NAMES if name in PARENTS else []:
            await book.note_in(child, f"{name}\0{child}")


async def _compare(world: World) -> None:
    for name in NAMES:
        book = await world.get_agent(Book, name)
        assert await book.notes() == [name]
        assert await book.pages() == (NAMES if name in PARENTS else [])
        for child in NAMES if name in PARENTS else []:
            assert await book.notes_in(child) == [f"{name}\0{child}"]


async def test_names_never_leave_their_folder_and_never_meet(tmp_path: Path) -> None:
    async with running(App(agents=[Book]), slow_slices="allow", data=tmp_path / "a" / "b" / "data") as world:
        await _mark(world)

        await _compare(world)
        world.sleep()
        await _compare(world)
        await world.restart()
        await _compare(world)
        await world.crash()
        await _compare(world)

        inside = [path.relative_to(world.data) for path in (world.data / "trees").rglob("*")]
        for path in inside:
            assert all(part.isascii() and part not in ("..", ".") for part in path.parts)
            assert len(path.name) < 100
        assert len([path for path in inside if path.name == "root.db"]) == len(NAMES)
        assert len([path for path in inside if path.suffix == ".db"]) == len(NAMES) * (len(PARENTS) + 1)
        assert _beside(world.data, tmp_path) == [tmp_path / "a", tmp_path / "a" / "b"]


def _beside(data: Path, folder: Path) -> list[Path]:
    """Return what there is in a folder and not in the data folder within it."""
    return sorted(path for path in folder.rglob("*") if not path.is_relative_to(data))


async def test_deleting_one_name_deletes_no_other() -> None:
    async with running(App(agents=[Book]), slow_slices="allow") as world:
        book = await world.get_agent(Book, "a")
        for name in NAMES:
            await book.note_in(name, name)

        for number, name in enumerate(NAMES):
            await book.cut(name)

            assert await book.pages() == NAMES[number + 1 :]
            assert not await book.has(name)
        assert len(list((world.data / "trees").rglob("*.db"))) == 1


async def test_a_child_that_was_made_again_finds_nothing_of_its_former_life() -> None:
    async with running(App(agents=[Book]), slow_slices="allow") as world:
        book = await world.get_agent(Book, "a")
        for _ in range(3):
            for name in NAMES[:10]:
                await book.note_in(name, SECRET)
                await book.cut(name)
            await world.crash()
            book = await world.get_agent(Book, "a")
            for name in NAMES[:10]:
                assert await book.notes_in(name) == []


# Nothing that can change is shared

leak: ContextVar[str] = ContextVar("leak", default="clean")


class Taker(Agent):
    initial_state: Any = {"list": []}  # noqa: RUF012 - what a user might well write

    async def take(self, items: list[str], extra: dict[str, list[str]] | None = None) -> list[str]:
        items.append("changed by the callee")
        if extra is not None:
            extra["list"].append("changed by the callee")
        self.kept = items
        return items

    async def see_kept(self) -> list[str]:
        return self.kept

    async def default(self, items: list[str] = []) -> list[str]:  # noqa: B006 - what a user might well write
        return items

    async def set_leak(self) -> str:
        before = leak.get()
        leak.set("leaked")
        return before

    async def get_leak(self) -> str:
        return leak.get()

    async def initial(self) -> Any:
        return self.state

    async def fail(self) -> None:
        error = ValueError(self.kept)
        error.kept = self.kept  # pyright: ignore[reportAttributeAccessIssue]
        raise error


class Giver(Agent):
    async def give(self) -> tuple[list[str], list[str]]:
        taker = await self.sub_agent(Taker, "t")
        mine = ["mine"]
        returned = await taker.take(mine)
        returned.append("changed by the caller")
        mine.append("changed after the call")
        return mine, await taker.see_kept()

    async def change_before_awaiting(self) -> list[str]:
        taker = await self.sub_agent(Taker, "t")
        mine = ["as it was when called"]
        call = taker.take(mine)
        mine.append("changed before it was awaited")
        await call
        return await taker.see_kept()

    async def catch(self) -> list[str]:
        taker = await self.sub_agent(Taker, "t")
        await taker.take(["kept"])
        try:
            await taker.fail()
        except ValueError as error:
            error.args[0].append("changed by the caller")
            error.kept.append("changed by the caller")  # pyright: ignore[reportAttributeAccessIssue]
        return await taker.see_kept()

    async def leaks(self) -> list[str]:
        taker = await self.sub_agent(Taker, "t")
        leak.set("of the caller")
        first = await taker.set_leak()
        second = await taker.set_leak()
        return [first, second, await taker.get_leak(), leak.get()]

    async def default_twice(self) -> list[str]:
        taker = await self.sub_agent(Taker, "t")
        first = await taker.default()
        first.append("changed by the caller")
        return await taker.default()


async def test_arguments_and_results_are_copies() -> None:
    async with running(App(agents=[Giver])) as world:
        giver = await world.get_agent(Giver, "a")

        mine, kept = await giver.give()

        assert mine == ["mine", "changed after the call"]
        assert kept == ["mine", "changed by the callee"]
        assert await giver.change_before_awaiting() == ["as it was when called", "changed by the callee"]
        assert await giver.catch() == ["kept", "changed by the callee"]


async def test_a_default_that_can_change_is_not_handed_to_the_caller() -> None:
    async with running(App(agents=[Giver])) as world:
        giver = await world.get_agent(Giver, "a")

        assert await giver.default_twice() == []


async def test_context_variables_do_not_cross_in_either_direction() -> None:
    async with running(App(agents=[Giver, Taker])) as world:
        giver = await world.get_agent(Giver, "a")

        assert await giver.leaks() == ["clean", "clean", "clean", "of the caller"]

        leak.set("of the test")
        taker = await world.get_agent(Taker, "b")
        assert await taker.get_leak() == "clean"
        await taker.set_leak()
        assert leak.get() == "of the test"
        leak.set("clean")


async def test_a_state_that_can_change_is_not_shared_by_the_instances_of_a_class() -> None:
    async with running(App(agents=[Taker])) as world:
        one, other = await world.get_agent(Taker, "one"), await world.get_agent(Taker, "other")

        first = await one.initial()
        first["list"].append("changed")

        assert await one.initial() == {"list": []}
        assert await other.initial() == {"list": []}


# Only on its own thread


class Threaded(Agent[int]):
    initial_state = 0

    async def from_a_thread(self, what: str) -> str:
        await self.sub_agent(Page, "p")
        acts: dict[str, Callable[[], Any]] = {
            "sql": lambda: self.sql("SELECT 1"),
            "state": lambda: self.state,
            "set_state": lambda: self.set_state(1),
            "transaction": lambda: self.transaction().__enter__(),
            "has_sub_agent": lambda: self.children.has(Page, "p"),
            "list_sub_agents": self.children.list,
            "sub_agent_status": lambda: self.children.status(Page, "p"),
            "abort_sub_agent": lambda: self.children.abort(Page, "p"),
            "sub_agent": lambda: asyncio.run(self.sub_agent(Page, "q")),
            "delete_sub_agent": lambda: asyncio.run(self.children.delete(Page, "p")),
            "parent_agent": lambda: asyncio.run(self.parent_agent(Page)),
            "root_agent": lambda: asyncio.run(self.root_agent(Threaded)),
            "ancestor": lambda: asyncio.run(self.ancestor(Threaded)),
            "get_agent": lambda: asyncio.run(self.get_agent(Threaded, "x")),
            "durable": lambda: asyncio.run(self.flush()),
            "subtree": lambda: asyncio.run(self.children.subtree()),
            "destroy": lambda: asyncio.run(self.destroy()),
            "read_sql": lambda: asyncio.run(self.read_sql("SELECT 1")),
        }
        seen: list[str] = []

        def work() -> None:
            try:
                seen.append(f"returned {acts[what]()!r}")
            except WrongThread:
                seen.append("WrongThread")
            except BaseException as error:  # noqa: BLE001 - shown by the assertion
                seen.append(repr(error))

        await asyncio.to_thread(work)
        return seen[0]


@pytest.mark.parametrize(
    "what",
    [
        "sql",
        "state",
        "set_state",
        "transaction",
        "has_sub_agent",
        "list_sub_agents",
        "sub_agent_status",
        "abort_sub_agent",
        "sub_agent",
        "delete_sub_agent",
        "parent_agent",
        "root_agent",
        "ancestor",
        "get_agent",
        "durable",
        "subtree",
        "destroy",
        "read_sql",
    ],
)
async def test_an_agent_cannot_be_used_from_another_thread(what: str) -> None:
    async with running(App(agents=[Threaded]), slow_slices="allow") as world:
        agent = await world.get_agent(Threaded, "a")

        assert await agent.from_a_thread(what) == "WrongThread"


async def test_a_stub_cannot_be_used_from_another_thread() -> None:
    async with running(App(agents=[Book]), slow_slices="allow") as world:
        book = await world.get_agent(Book, "a")

        def work() -> None:
            asyncio.run(book.notes())

        with pytest.raises(WrongThread):
            await asyncio.to_thread(work)


async def test_what_runs_in_a_thread_has_no_agent() -> None:
    class Lender(Agent):
        async def lend(self) -> str:
            return await self.in_thread(type, self)  # pyright: ignore[reportReturnType]

    async with running(App(agents=[Lender])) as world:
        lender = await world.get_agent(Lender, "a")

        with pytest.raises(UsageError, match="cannot be copied"):
            await lender.lend()


def test_forbidden_sql_is_a_usage_error() -> None:
    assert issubclass(SqlError, UsageError)
