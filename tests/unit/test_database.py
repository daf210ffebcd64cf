"""One agent's SQLite file: when it appears, what a block undoes, what a user's SQL may not do."""

# ruff: noqa: PT012 - what happens inside a block that raises is what is tested

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.unit.helpers import Owner, a_database

from sapwood.capabilities.state import STATE
from sapwood.errors import (
    ConstraintViolated,
    ForbiddenSql,
    MigrationFailed,
    NotFound,
    OverLimit,
    SapwoodError,
    SlowSql,
    SqlError,
    StoredDataError,
    Unavailable,
    UsageError,
)
from sapwood.kernel.actors.children_table import CHILDREN
from sapwood.storage.database import Database
from sapwood.storage.image import PAGE_SIZE, empty_image
from sapwood.storage.migrations import of_user
from sapwood.storage.rows import SqlValue

ENDLESS = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def db(tmp_path: Path, owner: Owner) -> Iterator[Database]:
    database = a_database(tmp_path / "agent.db", owner)
    yield database
    database.rollback()
    database.close()


@pytest.fixture
def table(db: Database) -> Database:
    """A database with a table `t (v)`, committed."""
    db.run("CREATE TABLE t (v UNIQUE)", ())
    db.commit()
    return db


def values(db: Database) -> list[SqlValue]:
    return [row["v"] for row in db.run("SELECT v FROM t ORDER BY rowid", ())]


def reopened(db: Database) -> Database:
    db.rollback()
    db.close()
    return a_database(db.path)


def test_sqlite_is_initialized_so_that_two_threads_may_use_it() -> None:
    # Only before it is initialized may it be configured. Then it has no mutexes, and two threads corrupt its memory.
    script = "import apsw, sapwood.storage.database; apsw.config(apsw.SQLITE_CONFIG_LOOKASIDE, 0, 0)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, text=True)

    assert "MisuseError" in ran.stderr


# The file


def test_there_is_no_file_until_something_is_written(db: Database) -> None:
    assert not db.has(STATE)
    assert not db.path.exists()

    db.ensure(STATE)

    assert db.path.exists()


def test_the_owner_may_refuse_a_file_before_it_appears(db: Database, owner: Owner) -> None:
    owner.before_create = lambda database: (_ for _ in ()).throw(OverLimit("No."))  # pyright: ignore[reportAttributeAccessIssue]

    with pytest.raises(OverLimit):
        db.run("CREATE TABLE t (v)", ())

    assert not db.path.exists()
    assert not db.exists


def test_a_new_file_is_in_wal_mode_from_its_first_byte(db: Database) -> None:
    db.run("CREATE TABLE t (v)", ())
    db.commit()

    header = db.path.read_bytes()[:100]
    assert header[18:20] == b"\x02\x02"
    assert int.from_bytes(header[16:18], "big") == PAGE_SIZE
    assert db.wal.stat().st_size > 0


@pytest.mark.parametrize("left", [0, 1, 100, PAGE_SIZE, PAGE_SIZE + 1, len(empty_image()) - 1])
def test_a_birth_that_was_cut_short_is_mended_and_nothing_in_the_wal_is_lost(table: Database, left: int) -> None:
    table.run("INSERT INTO t VALUES ('kept')", ())
    table.commit()
    table.close()
    with table.path.open("r+b") as file:
        file.truncate(left)

    again = a_database(table.path)

    assert values(again) == ["kept"]
    again.close()


def test_a_birth_whose_pages_never_reached_the_disk_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    path.write_bytes(bytes(len(empty_image())))

    db = a_database(path)
    db.run("CREATE TABLE t (v)", ())

    assert values(db) == []
    db.rollback()
    db.close()


def test_a_damaged_file_is_an_error_for_the_operator_and_is_not_written_over(table: Database) -> None:
    for number in range(60):
        table.run("INSERT INTO t VALUES (?)", (f"{number}" * 400,))
    table.commit()
    connection = table._connection  # pyright: ignore[reportPrivateUsage]
    assert connection is not None
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    table.close()
    table.wal.unlink(missing_ok=True)
    damaged = b"not a database at all" + table.path.read_bytes()[21:]
    table.path.write_bytes(damaged)

    again = a_database(table.path)
    with pytest.raises(StoredDataError):
        values(again)

    assert table.path.read_bytes() == damaged
    again.close()


def test_a_removed_database_never_comes_back(table: Database) -> None:
    table.close()
    table.removed = True

    with pytest.raises(NotFound):
        table.run("SELECT 1", ())


def test_a_closed_database_opens_again_at_its_next_use(table: Database, owner: Owner) -> None:
    table.close()
    assert not table.is_open

    table.run("INSERT INTO t VALUES (1)", ())

    assert table.is_open
    assert len(owner.opened_) == 2


def test_closing_leaves_the_wal_where_it_is(table: Database) -> None:
    table.run("INSERT INTO t VALUES (1)", ())
    table.commit()
    before = table.path.read_bytes()

    table.close()

    assert table.wal.stat().st_size > 0
    assert table.path.read_bytes() == before == empty_image()


# Transactions


def test_the_first_write_begins_a_transaction_and_reading_does_not(table: Database, owner: Owner) -> None:
    owner.written.clear()
    values(table)
    assert not table.in_transaction

    table.run("INSERT INTO t VALUES (1)", ())
    table.run("INSERT INTO t VALUES (2)", ())

    assert table.in_transaction
    assert owner.written == ["INSERT INTO t VALUES (1)"]


def test_a_write_that_the_owner_refuses_does_not_happen(table: Database, owner: Owner) -> None:
    owner.refuse = OverLimit("Full.")

    with pytest.raises(OverLimit):
        table.run("INSERT INTO t VALUES (1)", ())

    owner.refuse = None
    assert not table.in_transaction
    assert values(table) == []


def test_a_failed_statement_undoes_itself_and_nothing_else(table: Database, owner: Owner) -> None:
    table.run("INSERT INTO t VALUES (1)", ())

    with pytest.raises(ConstraintViolated, match="UNIQUE"):
        table.run("INSERT INTO t VALUES (2), (1)", ())

    assert table.in_transaction
    assert values(table) == [1]
    assert owner.lost_ == []


def test_what_was_committed_is_in_the_wal_and_what_was_not_is_gone(table: Database) -> None:
    table.run("INSERT INTO t VALUES ('kept')", ())
    table.commit()
    table.run("INSERT INTO t VALUES ('lost')", ())

    again = reopened(table)

    assert values(again) == ["kept"]
    again.close()


def test_a_conflict_clause_that_rolls_back_loses_the_transaction_and_says_so(table: Database, owner: Owner) -> None:
    table.run("INSERT INTO t VALUES ('of another call')", ())
    table.run("INSERT INTO t VALUES ('dup')", ())

    with pytest.raises(Unavailable, match="rolled back the transaction"):
        table.run("INSERT OR ROLLBACK INTO t VALUES ('dup')", ())

    assert len(owner.lost_) == 1
    assert not table.in_transaction
    assert values(table) == []


def test_a_commit_that_fails_says_so_and_leaves_no_transaction(db: Database, owner: Owner) -> None:
    db.run("CREATE TABLE p (id INTEGER PRIMARY KEY)", ())
    db.run("CREATE TABLE c (p REFERENCES p (id) DEFERRABLE INITIALLY DEFERRED)", ())
    db.commit()
    db.run("INSERT INTO c VALUES (99)", ())

    with pytest.raises(Unavailable, match="FOREIGN KEY"):
        db.commit()

    assert len(owner.lost_) == 1
    assert not db.in_transaction
    assert db.run("SELECT count(*) FROM c", ()).scalar(int) == 0
    db.run("INSERT INTO p VALUES (1)", ())
    db.commit()


def test_a_full_database_refuses_and_is_no_larger_than_it_may_be(tmp_path: Path) -> None:
    db = a_database(tmp_path / "agent.db", max_bytes=64 * PAGE_SIZE)
    db.run("CREATE TABLE t (v)", ())
    db.commit()

    with pytest.raises(OverLimit) as caught:
        for _ in range(10_000):
            db.run("INSERT INTO t VALUES (?)", ("x" * 1000,))

    assert caught.value.limit == "database_bytes"
    assert db.used_bytes() <= 64 * PAGE_SIZE
    db.rollback()
    db.close()


def test_a_limit_that_changes_holds_for_an_open_database(table: Database) -> None:
    table.limit(16 * PAGE_SIZE)

    with pytest.raises(OverLimit):
        table.run("INSERT INTO t VALUES (?)", ("x" * 32 * PAGE_SIZE,))


# Blocks


def test_a_block_that_raises_undoes_what_it_wrote_and_nothing_before_it(table: Database) -> None:
    table.run("INSERT INTO t VALUES ('before')", ())

    with pytest.raises(ValueError, match="no"), table.block():
        table.run("INSERT INTO t VALUES ('inside')", ())
        raise ValueError("no")

    table.run("INSERT INTO t VALUES ('after')", ())
    table.commit()
    assert values(table) == ["before", "after"]


def test_a_block_that_ends_well_is_kept_with_the_rest(table: Database) -> None:
    with table.block():
        table.run("INSERT INTO t VALUES ('inside')", ())
    table.commit()

    assert values(reopened(table)) == ["inside"]


def test_an_inner_block_is_undone_alone(table: Database) -> None:
    with table.block():
        table.run("INSERT INTO t VALUES ('outer')", ())
        with pytest.raises(ValueError, match="inner"), table.block():
            table.run("INSERT INTO t VALUES ('inner')", ())
            raise ValueError("inner")
        table.run("INSERT INTO t VALUES ('outer still')", ())

    assert values(table) == ["outer", "outer still"]


def test_an_outer_block_undoes_the_inner_one_too(table: Database) -> None:
    with pytest.raises(ValueError, match="outer"), table.block():
        with table.block():
            table.run("INSERT INTO t VALUES ('inner')", ())
        raise ValueError("outer")

    assert values(table) == []


def test_tables_made_in_an_undone_block_are_made_again(table: Database) -> None:
    with pytest.raises(ValueError, match="no"), table.block():
        table.ensure(STATE)
        assert table.has(STATE)
        raise ValueError("no")

    assert not table.has(STATE)
    table.ensure(STATE)
    table.execute("INSERT INTO sapwood_state VALUES (1, 1, '1')")
    table.commit()
    assert reopened(table).has(STATE)


async def test_a_block_suspended_by_an_await_is_undone_and_nothing_of_others_with_it(table: Database) -> None:
    inside, others_wrote = asyncio.Event(), asyncio.Event()
    at: list[str] = []

    async def suspended() -> None:
        with table.block():
            table.run("INSERT INTO t VALUES ('suspended')", ())
            inside.set()
            await others_wrote.wait()
            at.append("resumed")
            with pytest.raises(UsageError, match="suspended by an await"):
                table.run("INSERT INTO t VALUES ('late')", ())
            at.append("told at the next statement")

    task = asyncio.create_task(suspended())
    await inside.wait()
    table.run("INSERT INTO t VALUES ('of another')", ())
    others_wrote.set()
    with pytest.raises(UsageError, match="suspended by an await"):
        await task

    table.commit()
    assert at == ["resumed", "told at the next statement"]
    assert values(table) == ["of another"]


async def test_after_a_suspended_block_has_ended_its_task_may_write_again(table: Database) -> None:
    async def suspended() -> None:
        with pytest.raises(UsageError), table.block():
            await asyncio.sleep(0)
        table.run("INSERT INTO t VALUES ('after')", ())

    task = asyncio.create_task(suspended())
    await asyncio.sleep(0)
    table.break_block()
    await task

    assert values(table) == ["after"]


async def test_two_suspended_blocks_are_both_told(table: Database) -> None:
    go = asyncio.Event()
    told: list[str] = []

    async def suspended(name: str) -> None:
        with pytest.raises(UsageError), table.block():
            table.run("INSERT INTO t VALUES (?)", (name,))
            await go.wait()
            try:
                table.run("INSERT INTO t VALUES (?)", (f"{name} late",))
            except UsageError:
                told.append(name)

    tasks = [asyncio.create_task(suspended(name)) for name in ("a", "b", "c")]
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*tasks)

    assert sorted(told) == ["a", "b", "c"]
    assert values(table) == []


async def test_a_suspended_block_inside_a_block_undoes_both(table: Database) -> None:
    async def suspended() -> None:
        with table.block():
            table.run("INSERT INTO t VALUES ('outer')", ())
            with table.block():
                table.run("INSERT INTO t VALUES ('inner')", ())
                await asyncio.sleep(0)

    task = asyncio.create_task(suspended())
    await asyncio.sleep(0)
    table.run("INSERT INTO t VALUES ('of another')", ())
    with pytest.raises(UsageError, match="suspended"):
        await task

    assert values(table) == ["of another"]


def test_a_lost_transaction_ends_the_block_without_a_further_error(table: Database) -> None:
    with pytest.raises(Unavailable), table.block():
        table.run("INSERT INTO t VALUES (1)", ())
        table.run("INSERT OR ROLLBACK INTO t VALUES (1)", ())

    with table.block():
        table.run("INSERT INTO t VALUES (2)", ())
    assert values(table) == [2]


# What a user's SQL may not do

FORBIDDEN = [
    "BEGIN",
    "BEGIN IMMEDIATE",
    "COMMIT",
    "END",
    "ROLLBACK",
    "SAVEPOINT s",
    "RELEASE s",
    "ROLLBACK TO s",
    "INSERT INTO t VALUES (1); COMMIT",
    "EXPLAIN COMMIT",
    "ATTACH ':memory:' AS other",
    "ATTACH '/tmp/x' AS other",
    "DETACH main",
    "PRAGMA foreign_keys = OFF",
    "PRAGMA writable_schema = ON",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA journal_mode",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = NORMAL",
    "PRAGMA max_page_count = 100000",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "PRAGMA user_version = 7",
    "PRAGMA query_only = 1",
    "PRAGMA temp_store_directory = '/tmp'",
    "PRAGMA database_list",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_journal_mode",
    "SELECT * FROM sapwood_state",
    "SELECT count(*) FROM sapwood_state",
    "SELECT 1 FROM sapwood_state",
    "SELECT * FROM SAPWOOD_State",
    'SELECT * FROM "sapwood_state"',
    "SELECT * FROM [sapwood_state]",
    "SELECT * FROM main.sapwood_state",
    "SELECT (SELECT value FROM sapwood_state)",
    "SELECT * FROM t WHERE EXISTS (SELECT 1 FROM sapwood_state)",
    "WITH s AS (SELECT * FROM sapwood_state) SELECT * FROM s",
    "SELECT * FROM t JOIN sapwood_state",
    "INSERT INTO t SELECT value FROM sapwood_state",
    "CREATE TABLE copy AS SELECT * FROM sapwood_state",
    "INSERT INTO sapwood_state VALUES (1, 1, '0')",
    "REPLACE INTO sapwood_state VALUES (1, 1, '0')",
    "UPDATE sapwood_state SET value = '0'",
    "DELETE FROM sapwood_state",
    "DROP TABLE sapwood_state",
    "DROP TABLE IF EXISTS sapwood_children",
    "DROP INDEX sapwood_children_alive",
    "ALTER TABLE sapwood_state ADD COLUMN mine",
    "ALTER TABLE sapwood_state RENAME TO mine",
    "ALTER TABLE sapwood_state RENAME COLUMN value TO mine",
    "ALTER TABLE sapwood_state DROP COLUMN version",
    "ALTER TABLE t RENAME TO sapwood_mine",
    "ALTER TABLE t RENAME TO 'sapwood_mine'",
    "ALTER TABLE t RENAME TO [sapwood_mine]",
    'ALTER TABLE t RENAME TO "SAPWOOD_mine"',
    "ALTER TABLE t RENAME TO/**/sapwood_mine",
    "ALTER TABLE t RENAME TO -- a comment\n sapwood_mine",
    "ALTER TABLE t RENAME/* */TO\n/* a\nb */`sapwood_mine`",
    "CREATE TABLE sapwood_mine (x)",
    "CREATE TABLE IF NOT EXISTS sapwood_fibers (x)",
    "CREATE TEMP TABLE sapwood_state (x)",
    "CREATE TEMP TABLE scratch (x)",
    "CREATE TEMP TRIGGER mine AFTER INSERT ON t BEGIN SELECT 1; END",
    "CREATE TEMP VIEW t AS SELECT 1 AS v",
    "CREATE TABLE temp.sapwood_state (x)",
    "CREATE VIEW sapwood_mine AS SELECT 1",
    "CREATE TEMP VIEW sapwood_state AS SELECT 1 AS singleton, 1 AS version, '0' AS value",
    "CREATE VIRTUAL TABLE sapwood_mine USING fts5(x)",
    "CREATE VIRTUAL TABLE sapwood USING fts5(x)",
    "CREATE INDEX mine ON sapwood_state (value)",
    "CREATE INDEX sapwood_mine ON t (v)",
    "CREATE TRIGGER mine AFTER INSERT ON sapwood_state BEGIN SELECT 1; END",
    "CREATE TEMP TRIGGER mine AFTER INSERT ON sapwood_state BEGIN SELECT 1; END",
    "CREATE TRIGGER sapwood_mine AFTER INSERT ON t BEGIN SELECT 1; END",
    "UPDATE sqlite_sequence SET seq = 0",
    "DELETE FROM sqlite_sequence",
    "INSERT INTO SQLITE_sequence VALUES ('sapwood_children', 0)",
    "SELECT load_extension('x')",
]
BY_SQLITE = [
    "VACUUM",
    "VACUUM INTO '/tmp/copy.db'",
    "UPDATE sqlite_master SET sql = ''",
    "DELETE FROM sqlite_schema",
    "SELECT * FROM sqlite_dbpage",
    "SELECT readfile('/etc/passwd')",
    "SELECT writefile('/tmp/x', 'y')",
    "SELECT fts3_tokenizer('x', x'00')",
    "CREATE VIRTUAL TABLE f USING csv(filename='/etc/passwd')",
]


@pytest.fixture
def guarded(table: Database) -> Database:
    """A database with tables of the framework in it."""
    table.ensure(STATE)
    table.ensure(CHILDREN)
    table.execute("INSERT INTO sapwood_state VALUES (1, 1, '\"secret\"')")
    table.execute("INSERT INTO sapwood_children (type, name, created_at) VALUES ('T', 'n', 0)")
    table.run("INSERT INTO t VALUES ('mine')", ())
    table.commit()
    return table


def of_the_framework(db: Database) -> list[object]:
    return [
        db.execute("SELECT * FROM sapwood_state"),
        db.execute("SELECT * FROM sapwood_children"),
        db.execute("SELECT * FROM sqlite_sequence"),
        db.execute("SELECT * FROM sqlite_schema WHERE name GLOB 'sapwood_*'"),
        db.execute("PRAGMA foreign_keys"),
        db.execute("PRAGMA journal_mode"),
    ]


@pytest.mark.parametrize("sql", FORBIDDEN)
def test_a_users_sql_may_not(guarded: Database, sql: str) -> None:
    before = of_the_framework(guarded)

    with pytest.raises(SqlError) as caught:
        guarded.run(sql, ())

    assert isinstance(caught.value, ForbiddenSql) or "load_extension" in sql or "pragma_journal" in sql
    assert of_the_framework(guarded) == before


@pytest.mark.parametrize("sql", BY_SQLITE)
def test_sqlite_itself_refuses(guarded: Database, sql: str) -> None:
    with pytest.raises(SqlError):
        guarded.run(sql, ())


def test_a_forbidden_statement_undoes_nothing_that_was_written_before_it(guarded: Database) -> None:
    guarded.run("INSERT INTO t VALUES ('more')", ())

    with pytest.raises(ForbiddenSql):
        guarded.run("COMMIT", ())

    assert guarded.in_transaction
    guarded.commit()
    assert values(guarded) == ["mine", "more"]


def test_a_view_of_the_frameworks_tables_cannot_be_read(guarded: Database) -> None:
    guarded.run("CREATE VIEW v AS SELECT value FROM sapwood_state", ())

    with pytest.raises(ForbiddenSql):
        guarded.run("SELECT * FROM v", ())


def test_a_trigger_cannot_reach_the_frameworks_tables(guarded: Database) -> None:
    guarded.run("CREATE TRIGGER a AFTER INSERT ON t BEGIN UPDATE sapwood_state SET value = '0'; END", ())
    with pytest.raises(ForbiddenSql):
        guarded.run("INSERT INTO t VALUES (1)", ())
    guarded.run("DROP TRIGGER a", ())
    guarded.run("CREATE TRIGGER b AFTER INSERT ON t BEGIN UPDATE sqlite_sequence SET seq = 0; END", ())
    with pytest.raises(ForbiddenSql):
        guarded.run("INSERT INTO t VALUES (1)", ())

    assert guarded.execute("SELECT value FROM sapwood_state") == [('"secret"',)]
    assert guarded.execute("SELECT seq FROM sqlite_sequence") == [(1,)]


def test_a_foreign_key_cannot_feel_for_the_frameworks_rows(guarded: Database) -> None:
    guarded.run("CREATE TABLE feeler (x REFERENCES sapwood_children (generation) ON DELETE CASCADE)", ())

    with pytest.raises(ForbiddenSql):
        guarded.run("INSERT INTO feeler VALUES (1)", ())

    guarded.execute("DELETE FROM sapwood_children")


def test_an_index_of_fts_over_the_frameworks_tables_reads_nothing(guarded: Database) -> None:
    guarded.run("CREATE VIRTUAL TABLE f USING fts5(value, content='sapwood_state', content_rowid='singleton')", ())

    with pytest.raises(SqlError):
        guarded.run("SELECT * FROM f", ())
    with pytest.raises(SqlError):
        guarded.run("INSERT INTO f (f) VALUES ('rebuild')", ())


def test_statistics_hold_no_samples_of_the_frameworks_tables(guarded: Database) -> None:
    guarded.run("CREATE INDEX i ON t (v)", ())

    guarded.run("ANALYZE", ())

    assert [row["tbl"] for row in guarded.run("SELECT DISTINCT tbl FROM sqlite_stat4", ())] == ["t"]


def test_the_text_of_a_statement_the_framework_prepared_does_not_open_it_to_a_user(guarded: Database) -> None:
    sql = "SELECT value FROM sapwood_state"
    for _ in range(3):  # in the cache of prepared statements by now
        assert guarded.execute(sql) == [('"secret"',)]

    with pytest.raises(ForbiddenSql):
        guarded.run(sql, ())

    assert guarded.execute(sql) == [('"secret"',)]
    with pytest.raises(ForbiddenSql):
        guarded.run("COMMIT", ())


def test_a_statement_that_a_user_prepared_first_still_serves_the_framework(guarded: Database) -> None:
    sql = "DELETE FROM sapwood_children WHERE generation = 7"

    with pytest.raises(ForbiddenSql):
        guarded.run(sql, ())

    assert guarded.execute(sql) == []


def test_a_table_that_only_looks_like_the_frameworks_is_the_users(guarded: Database) -> None:
    guarded.run("CREATE TABLE sapwoodish (sapwood_column)", ())
    guarded.run("INSERT INTO sapwoodish VALUES ('sapwood_state')", ())
    guarded.run("ALTER TABLE sapwoodish RENAME COLUMN sapwood_column TO c", ())
    guarded.run("ALTER TABLE sapwoodish RENAME TO mine", ())

    assert guarded.run("SELECT c FROM mine", ()).scalar(str) == "sapwood_state"


def test_an_autoincrement_table_of_the_users_works_and_can_be_dropped(guarded: Database) -> None:
    guarded.run("CREATE TABLE a (id INTEGER PRIMARY KEY AUTOINCREMENT, v)", ())
    guarded.run("INSERT INTO a (v) VALUES (1), (2)", ())
    guarded.run("DELETE FROM a", ())
    assert guarded.run("INSERT INTO a (v) VALUES (3) RETURNING id", ()).scalar(int) == 3

    guarded.run("DROP TABLE a", ())

    assert guarded.execute("SELECT name FROM sqlite_sequence") == [("sapwood_children",)]


def test_the_shape_of_tables_may_be_asked_for(guarded: Database) -> None:
    assert [row["name"] for row in guarded.run("SELECT name FROM pragma_table_info('t')", ())] == ["v"]
    assert guarded.run("PRAGMA table_info(t)", ()).one()["name"] == "v"
    assert guarded.run("PRAGMA index_list(t)", ())


def test_user_tables_of_many_kinds_work(guarded: Database) -> None:
    guarded.run("CREATE VIRTUAL TABLE notes USING fts5(text)", ())
    guarded.run("INSERT INTO notes VALUES ('the quick brown fox')", ())
    guarded.run("CREATE TABLE log (v)", ())
    guarded.run("CREATE TRIGGER tr AFTER INSERT ON t BEGIN INSERT INTO log VALUES (new.v); END", ())
    guarded.run("INSERT INTO t VALUES ('logged')", ())

    assert guarded.run("SELECT text FROM notes WHERE notes MATCH 'quick'", ()).scalar(str) == "the quick brown fox"
    assert guarded.run("SELECT v FROM log", ()).scalar(str) == "logged"
    assert guarded.run("""SELECT json_extract('{"a": 1}', '$.a')""", ()).scalar(int) == 1


# Time


def test_a_statement_that_runs_too_long_is_interrupted(tmp_path: Path) -> None:
    db = a_database(tmp_path / "agent.db", sql_timeout=0.05)

    started = time.thread_time()
    with pytest.raises(SlowSql, match="read_sql"):
        db.run(ENDLESS, ())

    assert time.thread_time() - started < 0.5
    assert db.run("SELECT 1 AS v", ()).scalar(int) == 1
    db.close()


def test_a_write_that_runs_too_long_says_so_and_that_its_transaction_is_lost(tmp_path: Path, owner: Owner) -> None:
    db = a_database(tmp_path / "agent.db", owner, sql_timeout=0.05)
    db.run("CREATE TABLE t (v)", ())

    with pytest.raises(SlowSql):
        db.run(f"INSERT INTO t {ENDLESS}", ())

    assert len(owner.lost_) == 1
    assert not db.in_transaction
    db.close()


def test_the_time_of_a_write_is_counted_though_the_owner_asks_the_database_before_it(tmp_path: Path) -> None:
    owner = Owner()
    db = a_database(tmp_path / "agent.db", owner, sql_timeout=0.05)
    db.run("CREATE TABLE t (v)", ())
    db.commit()
    owner.before_write = lambda database, sql: database.used_bytes()  # pyright: ignore[reportAttributeAccessIssue]

    with pytest.raises(SlowSql):
        db.run(f"INSERT INTO t {ENDLESS}", ())
    db.close()


@pytest.mark.slow
def test_an_old_deadline_never_interrupts_a_commit_or_a_block(table: Database) -> None:
    # SQLite counts the steps of a cached statement over all its uses, and asks for the time once in a while.
    for _ in range(15_000):
        with table.block():
            pass
        table.commit()


# Statements and rows


def test_rows_come_by_name_with_the_arguments_bound(table: Database) -> None:
    table.run("INSERT INTO t VALUES (?)", (b"bytes",))
    table.run("INSERT INTO t VALUES (:v)", {"v": None})

    assert values(table) == [b"bytes", None]
    assert table.run("SELECT 1 AS a, 'x' AS b", ()).one() == {"a": 1, "b": "x"}
    assert table.run("INSERT INTO t VALUES (1.5) RETURNING v AS new", ()).one() == {"new": 1.5}


def test_a_statement_without_rows_returns_none(table: Database) -> None:
    table.run("SELECT 1 AS before", ())

    assert list(table.run("INSERT INTO t VALUES (1)", ())) == []
    assert list(table.run("", ())) == []


def test_an_argument_sqlite_cannot_hold_is_refused_with_the_statement(table: Database) -> None:
    with pytest.raises(UsageError, match="INSERT INTO t"):
        table.run("INSERT INTO t VALUES (?)", (object(),))


@pytest.mark.parametrize(
    ("sql", "arguments"),
    [("SELEKT 1", ()), ("SELECT * FROM nothing", ()), ("SELECT ?", ()), ("SELECT 1", (1,)), ("SELECT :a", {"b": 1})],
)
def test_a_wrong_statement_is_a_usage_error(table: Database, sql: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(UsageError):
        table.run(sql, arguments).scalar(str)


def test_two_columns_of_one_name_are_not_dropped_silently(table: Database) -> None:
    with pytest.raises(UsageError, match="two columns named 'v'"):
        table.run("SELECT 1 AS v, 2 AS v", ()).one()


# Migrations


def test_migrations_run_once_in_order(tmp_path: Path) -> None:
    scripts = of_user(["CREATE TABLE t (v); INSERT INTO t VALUES (1)", "INSERT INTO t SELECT v + 1 FROM t"])
    db = a_database(tmp_path / "agent.db")
    db.migrate(scripts[:1])
    db.migrate(scripts)
    db.migrate(scripts)
    db.commit()

    again = reopened(db)
    again.migrate(scripts)

    assert values(again) == [1, 2]
    again.rollback()
    again.close()


def test_a_failing_migration_leaves_the_version_before_it(tmp_path: Path) -> None:
    db = a_database(tmp_path / "agent.db")

    with pytest.raises(MigrationFailed, match="migration 2"):
        db.migrate(of_user(["CREATE TABLE t (v)", "INSERT INTO t VALUES (1); INSERT INTO nothing VALUES (1)"]))

    assert values(db) == []
    db.migrate(of_user(["CREATE TABLE t (v)", "INSERT INTO t VALUES (2)"]))
    assert values(db) == [2]
    db.rollback()
    db.close()


def test_an_edited_migration_is_refused(tmp_path: Path) -> None:
    db = a_database(tmp_path / "agent.db")
    db.migrate(of_user(["CREATE TABLE t (v)"]))

    with pytest.raises(MigrationFailed, match="was edited after it ran"):
        db.migrate(of_user(["CREATE TABLE t (v, w)"]))
    with pytest.raises(MigrationFailed, match="newer version"):
        db.migrate(())
    db.rollback()
    db.close()


def test_a_migration_may_do_no_more_than_any_sql_of_the_user(tmp_path: Path) -> None:
    db = a_database(tmp_path / "agent.db")

    for sql in ("CREATE TABLE sapwood_x (v)", "COMMIT", "PRAGMA user_version = 1"):
        with pytest.raises(MigrationFailed) as caught:
            db.migrate(of_user([sql]))
        assert isinstance(caught.value.__cause__, ForbiddenSql)
    db.rollback()
    db.close()


def test_every_error_of_a_database_is_one_of_sapwoods(guarded: Database) -> None:
    for sql in (*FORBIDDEN, *BY_SQLITE, "SELEKT", "INSERT INTO t VALUES ('mine')"):
        with pytest.raises(SapwoodError):
            guarded.run(sql, ())


# What a lost transaction takes with it


def test_a_table_of_the_framework_that_sqlite_rolled_back_is_made_again(table: Database, owner: Owner) -> None:
    table.run("INSERT INTO t VALUES (1)", ())
    table.commit()
    table.ensure(STATE)

    with pytest.raises(Unavailable):
        table.run("INSERT OR ROLLBACK INTO t VALUES (1)", ())

    assert len(owner.lost_) == 1
    table.run("SELECT 1", ())
    assert not table.has(STATE)
    table.ensure(STATE)
    assert table.execute("SELECT count(*) FROM sapwood_state") == [(0,)]
    table.commit()
    assert reopened(table).has(STATE)


def test_a_table_of_the_framework_that_was_rolled_back_is_made_again(table: Database) -> None:
    table.ensure(STATE)

    table.rollback()

    table.ensure(STATE)
    assert table.execute("SELECT count(*) FROM sapwood_state") == [(0,)]


@pytest.mark.slow
def test_a_damaged_file_can_be_tried_any_number_of_times_without_using_up_descriptors(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    path.write_bytes(b"garbage" * 4000)
    database = a_database(path, synced=True)
    gc.collect()  # what earlier tests left open would be closed meanwhile
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - it lists itself, too

    for _ in range(5):
        with pytest.raises(StoredDataError, match=r"agent\.db: file is not a database"):
            database.run("SELECT 1", ())

    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT CAST(x'ff' AS TEXT); SELECT 2",
        "INSERT INTO t VALUES (5), (6) RETURNING CAST(x'ff' AS TEXT)",
        "SELECT CAST(x'ff' AS TEXT) UNION ALL SELECT v FROM t",
    ],
)
def test_a_row_that_cannot_be_read_leaves_nothing_behind(table: Database, sql: str) -> None:
    table.run("INSERT INTO t VALUES (1)", ())

    with pytest.raises(UnicodeDecodeError):
        table.run(sql, ())

    table.run("INSERT INTO t VALUES (2)", ())
    table.commit()
    assert {1, 2} <= set(values(table))


def test_an_opening_that_fails_late_can_be_tried_again(table: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    table.close()

    class Failing(apsw.Connection):
        def wal_checkpoint(self, *_: object, **__: object) -> tuple[int, int]:
            raise apsw.IOError("disk I/O error")

    with monkeypatch.context() as broken:
        broken.setattr(apsw, "Connection", Failing)
        with pytest.raises(Unavailable, match="The disk failed"):
            table.run("SELECT 1", ())

    assert values(table) == []
