"""Migrations: a class's tables grow by scripts that run once, in order, before anything else happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conformance.worlds import Run

from sapwood import Agent, agent
from sapwood.errors import MigrationFailed, UsageError
from sapwood.testing import World

pytestmark = pytest.mark.storage

FIRST = "CREATE TABLE notes (text TEXT NOT NULL) STRICT"
SECOND = "ALTER TABLE notes ADD COLUMN stars INTEGER NOT NULL DEFAULT 0"
THIRD = "UPDATE notes SET stars = stars + 1; CREATE TABLE extra (x INTEGER)"


class Notes(Agent[int]):
    """Reads and writes whatever its table has."""

    initial_state = 0

    async def add(self, text: str) -> None:
        self.sql("INSERT INTO notes (text) VALUES (?)", text)

    async def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.sql("SELECT * FROM notes")]

    async def state_first(self) -> int:
        self.set_state(1)
        return self.sql("SELECT count(*) FROM notes").scalar(int)

    async def child_first(self) -> int:
        await self.sub_agent(Notes, "child")
        return self.sql("SELECT count(*) FROM notes").scalar(int)

    async def block_first(self) -> int:
        try:
            with self.transaction():
                self.sql("INSERT INTO notes (text) VALUES ('undone')")
                raise KeyError
        except KeyError:
            return self.sql("SELECT count(*) FROM notes").scalar(int)

    async def long_first(self) -> int:
        return (await self.read_sql("SELECT count(*) FROM notes")).scalar(int)

    async def version(self) -> int:
        return self.sql("SELECT count(*) FROM pragma_table_info('notes')").scalar(int)


def version(*scripts: str) -> type[Notes]:
    """Return the class as a version of the program with these migrations has it."""
    return agent(type="Notes")(type("Notes", (Notes,), {"migrations": scripts}))


class Library(Agent):
    """A root, so that its child's class may change from one version of the program to the next."""

    async def make(self) -> None:
        await self.sub_agent(known[-1], "n")


known: list[type[Notes]] = []


async def notes(world: World, *scripts: str) -> Notes:
    """Return the stub of one agent, after a restart with these migrations."""
    known.append(version(*scripts))
    await world.restart()
    await (await world.get_agent(Library, "l")).make()
    return await world.get_agent(Library, "l", sub=[(known[-1], "n")])


async def test_new_migrations_run_once_in_order_on_old_data(run: Run) -> None:
    async with run(Library) as world:
        old = await notes(world, FIRST)
        await old.add("kept")
        assert await old.rows() == [{"text": "kept"}]

        new = await notes(world, FIRST, SECOND, THIRD)
        assert await new.rows() == [{"text": "kept", "stars": 1}]
        again = await notes(world, FIRST, SECOND, THIRD)
        await again.add("new")

        assert await again.rows() == [{"text": "kept", "stars": 1}, {"text": "new", "stars": 0}]


@pytest.mark.parametrize("first", ["state_first", "child_first", "block_first", "long_first"])
async def test_the_tables_are_there_whatever_the_agent_does_first(run: Run, first: str) -> None:
    async with run(Library) as world:
        agent = await notes(world, FIRST, SECOND)

        assert await getattr(agent, first)() == 0
        await agent.add("works")
        assert await agent.rows() == [{"text": "works", "stars": 0}]


async def test_migrations_run_before_on_start(run: Run) -> None:
    class Early(Agent):
        migrations = (FIRST,)

        async def on_start(self) -> None:
            self.sql("INSERT INTO notes VALUES ('from the start')")

        async def count(self) -> int:
            return self.sql("SELECT count(*) FROM notes").scalar(int)

    async with run(Early) as world:
        assert await (await world.get_agent(Early, "e")).count() == 1
        await world.restart()
        assert await (await world.get_agent(Early, "e")).count() == 2


async def test_an_agent_that_writes_nothing_has_no_file(run: Run) -> None:
    async with run(Library) as world:
        await notes(world, FIRST)

        assert [path.stem for path in world.data.rglob("*.db")] == ["root"]


async def test_a_migration_that_was_edited_after_it_ran_is_refused(run: Run) -> None:
    async with run(Library) as world:
        await (await notes(world, FIRST, SECOND)).add("kept")

        edited = r": migration 1 \(migration 1\) was edited after it ran on this database.*add a new migration"
        with pytest.raises(MigrationFailed, match=edited):
            await notes(world, FIRST + " ", SECOND)

        assert await (await notes(world, FIRST, SECOND)).rows() == [{"text": "kept", "stars": 0}]


async def test_a_migration_that_fails_leaves_the_version_before_it(run: Run) -> None:
    async with run(Library) as world:
        await (await notes(world, FIRST)).add("kept")

        with pytest.raises(MigrationFailed, match=r": migration 3 failed: .*nowhere"):
            await notes(world, FIRST, SECOND, "CREATE TABLE left_over (x); INSERT INTO nowhere VALUES (1)")

        fixed = await notes(world, FIRST, SECOND, "CREATE TABLE left_over (x)")
        assert await fixed.rows() == [{"text": "kept", "stars": 0}]


async def test_a_migration_that_fails_in_a_new_agent_fails_again_at_every_statement(run: Run) -> None:
    class Broken(Agent):
        migrations = (FIRST, "INSERT INTO nowhere VALUES (1)")

        async def add(self) -> None:
            self.sql("INSERT INTO notes VALUES ('x')")

    async with run(Broken) as world:
        broken = await world.get_agent(Broken, "b")

        for _ in range(2):
            with pytest.raises(MigrationFailed, match="migration 2"):
                await broken.add()


async def test_a_database_of_a_newer_version_of_the_program_is_refused(run: Run) -> None:
    async with run(Library) as world:
        await (await notes(world, FIRST, SECOND)).add("kept")

        with pytest.raises(MigrationFailed, match=r"2 migrations, but the class has only 1.*newer version"):
            await notes(world, FIRST)

        assert await (await notes(world, FIRST, SECOND)).rows() == [{"text": "kept", "stars": 0}]


async def test_migrations_may_be_a_folder_of_sql_files_in_the_order_of_their_names(run: Run, tmp_path: Path) -> None:
    (tmp_path / "0002_stars.sql").write_text(SECOND)
    (tmp_path / "0001_notes.sql").write_text(FIRST)
    (tmp_path / "readme.txt").write_text("not a migration")

    class Foldered(Notes):
        migrations = tmp_path

    async with run(Foldered) as world:
        foldered = await world.get_agent(Foldered, "f")

        await foldered.add("from a file")

        assert await foldered.rows() == [{"text": "from a file", "stars": 0}]


def test_migrations_given_as_one_text_are_refused() -> None:
    with pytest.raises(UsageError, match="must be a tuple of SQL scripts"):

        class Textual(Notes):
            migrations = FIRST  # pyright: ignore[reportAssignmentType]


async def test_removing_every_migration_is_noticed_like_removing_one(run: Run) -> None:
    async with run(Library) as world:
        await (await notes(world, FIRST, SECOND)).add("kept")

        with pytest.raises(MigrationFailed, match="2 migrations, but the class has only 0"):
            await notes(world)


async def test_a_migration_may_not_touch_the_framework_s_tables(run: Run) -> None:
    class Meddler(Agent):
        migrations = ("CREATE TABLE sapwood_mine (x)",)

        async def write(self) -> None:
            self.sql("SELECT 1")

    async with run(Meddler) as world:
        with pytest.raises(UsageError, match="sapwood_"):
            await (await world.get_agent(Meddler, "m")).write()


async def test_a_table_can_be_altered_in_every_way_sqlite_has(run: Run) -> None:
    class Altered(Agent):
        migrations = (
            "CREATE TABLE t (a INTEGER, b TEXT) STRICT; INSERT INTO t VALUES (1, 'x')",
            "ALTER TABLE t ADD COLUMN c INTEGER NOT NULL DEFAULT 3 CHECK (c > 0)",
            "ALTER TABLE t RENAME COLUMN b TO d",
            "ALTER TABLE t DROP COLUMN a",
            "ALTER TABLE t RENAME TO u",
            "CREATE INDEX by_c ON u (c); CREATE VIEW v AS SELECT * FROM u",
            "CREATE TRIGGER tr AFTER INSERT ON u BEGIN UPDATE u SET c = c + 1; END",
            "CREATE VIRTUAL TABLE words USING fts5(word); INSERT INTO words VALUES ('tree')",
        )

        async def rows(self) -> list[dict[str, Any]]:
            self.sql("INSERT INTO u VALUES ('y', 5)")
            assert self.sql("SELECT count(*) FROM words WHERE words MATCH 'tree'").scalar(int) == 1
            return [dict(row) for row in self.sql("SELECT * FROM v")]

    async with run(Altered) as world:
        assert await (await world.get_agent(Altered, "a")).rows() == [{"d": "x", "c": 4}, {"d": "y", "c": 6}]


async def test_one_migration_may_have_several_statements(run: Run) -> None:
    class Several(Notes):
        migrations = (f"{FIRST}; {SECOND}; INSERT INTO notes VALUES ('seed', 5);",)

    async with run(Several) as world:
        assert await (await world.get_agent(Several, "s")).rows() == [{"text": "seed", "stars": 5}]
