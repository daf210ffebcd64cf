"""A long query beside an open database: what it sees, what it refuses, and what it leaves of the file and its locks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.helpers import Owner, a_database

from sapwood.errors import ForbiddenSql, SlowSql, SqlError, Unavailable, UsageError
from sapwood.storage.database import Database
from sapwood.storage.files import Files
from sapwood.storage.query_reader import QueryReader
from sapwood.storage.sql_errors import DatabaseDamage

ENDLESS = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


@pytest.fixture(params=[False, True], ids=["process", "disk"])
def db(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    database = a_database(tmp_path / "an agent?.db", synced=request.param)
    database.run("CREATE TABLE t (v)", ())
    add(database, 1)
    yield database
    database.rollback()
    database.close()


def add(db: Database, *values: int) -> None:
    for value in values:
        db.run("INSERT INTO t VALUES (?)", (value,))
    db.commit()


def reader_of(db: Database) -> QueryReader:
    reader = db.reader(may_checkpoint=True)
    assert reader is not None
    return reader


def count(reader: QueryReader) -> int:
    return reader.read("SELECT count(*) FROM t", ()).scalar(int)


def test_it_sees_what_was_committed_before_it_and_nothing_later(db: Database) -> None:
    reader = reader_of(db)
    add(db, 2, 3)

    assert count(reader) == 1
    db.readers.discard(reader)
    assert count(reader_of(db)) == 3


def test_it_runs_on_another_thread_while_the_database_is_written(db: Database) -> None:
    reader, found = reader_of(db), list[int]()
    long = ENDLESS.replace("FROM c)", "FROM c WHERE x < 300000)")
    thread = threading.Thread(target=lambda: found.append(reader.read(long, ()).scalar(int)))
    thread.start()
    add(db, *range(100))
    thread.join()

    assert found == [300_000]
    assert db.run("SELECT count(*) FROM t", ()).scalar(int) == 101


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1)",
        "INSERT INTO t VALUES (1) RETURNING v",
        "REPLACE INTO t VALUES (1)",
        "UPDATE t SET v = 2",
        "DELETE FROM t",
        "CREATE TABLE u (v)",
        "CREATE INDEX i ON t (v)",
        "DROP TABLE t",
        "ALTER TABLE t ADD COLUMN w",
        "REINDEX",
        "VACUUM",
        "VACUUM INTO 'copy.db'",
        "SELECT 1; DELETE FROM t",
    ],
)
def test_a_write_is_refused_in_one_sentence(db: Database, sql: str) -> None:
    with pytest.raises(ForbiddenSql, match=r"^read_sql\(\) only reads. Use self.sql\(\) to write. In: "):
        reader_of(db).read(sql, ())

    assert db.run("SELECT v FROM t", ()).scalar(int) == 1


@pytest.mark.parametrize(
    "sql",
    [
        "PRAGMA user_version = 3",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA query_only = OFF",
        "ATTACH ':memory:' AS m",
        "BEGIN",
        "CREATE TEMP TABLE u (v)",
        "SELECT * FROM sapwood_migrations",
    ],
)
def test_it_may_do_nothing_that_sql_may_not(db: Database, sql: str) -> None:
    reader = reader_of(db)
    with pytest.raises(ForbiddenSql) as refused:
        reader.read(sql, ())
    with pytest.raises(ForbiddenSql) as same:
        db.run(sql, ())

    assert str(refused.value) == str(same.value)


@pytest.mark.parametrize(
    ("sql", "arguments", "error"),
    [
        ("SELECT * FROM nothing", (), SqlError),
        ("SELECT ?", (object(),), UsageError),
        ("SELECT :a", {}, UsageError),
        ("SELECT 1; SELECT 2", (), UsageError),
    ],
)
def test_it_fails_as_sql_does(db: Database, sql: str, arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as failed:
        reader_of(db).read(sql, arguments)
    with pytest.raises(error) as same:
        db.run(sql, arguments)

    assert str(failed.value) == str(same.value)


def test_arguments_and_columns_are_those_of_sql(db: Database) -> None:
    assert list(reader_of(db).read("SELECT v AS a, :b AS b FROM t", {"b": "x"})) == [{"a": 1, "b": "x"}]
    assert list(reader_of(db).read("SELECT name FROM pragma_table_info('t')", ())) == [{"name": "v"}]


def test_two_run_at_a_time_if_nothing_was_written_between_them(db: Database) -> None:
    first, second = reader_of(db), reader_of(db)

    assert (count(first), count(second)) == (1, 1)


def test_one_after_a_write_waits_for_older_ones_and_for_a_backup(db: Database) -> None:
    first = reader_of(db)
    add(db, 2)

    assert db.reader(may_checkpoint=True) is None
    db.readers.discard(first)
    assert db.reader(may_checkpoint=False) is None
    assert count(reader_of(db)) == 2


def test_the_log_is_not_copied_into_the_file_during_it_and_is_after_it(tmp_path: Path) -> None:
    db = Database(
        tmp_path / "agent.db",
        Files(),
        Owner(),
        exists=False,
        synced=False,
        sql_timeout=1,
        max_bytes=1 << 30,
        checkpoint_frames=5,
    )
    db.run("CREATE TABLE t (v)", ())
    add(db, 1)
    reader = reader_of(db)
    for value in range(20):
        add(db, value)
        db.checkpoint_if_long()

    assert db.frames == 20
    assert count(reader) == 1
    db.readers.discard(reader)
    add(db, 99)
    db.checkpoint_if_long()
    assert db.frames == 0
    db.close()


def test_it_is_interrupted_when_the_log_grows_too_long(tmp_path: Path) -> None:
    db = Database(
        tmp_path / "agent.db",
        Files(),
        Owner(),
        exists=False,
        synced=False,
        sql_timeout=1,
        max_bytes=1 << 30,
        checkpoint_frames=5,
        reader_frames=10,
    )
    db.run("CREATE TABLE t (v)", ())
    add(db, 1)
    reader = reader_of(db)
    for value in range(20):
        add(db, value)
        db.checkpoint_if_long()

    assert db.frames < 10
    assert not db.readers
    with pytest.raises(SlowSql, match="the agent wrote 20752 bytes while it ran"):
        count(reader)
    db.close()


@pytest.mark.parametrize("sql", ["SELECT count(*) FROM t", ENDLESS])
def test_it_can_be_cancelled_before_it_begins(db: Database, sql: str) -> None:
    reader = reader_of(db)
    reader.cancel(Unavailable("enough"))

    with pytest.raises(Unavailable, match="enough"):
        reader.read(sql, ())


def test_closing_the_database_interrupts_it(db: Database) -> None:
    reader, raised = reader_of(db), list[BaseException]()
    began = threading.Event()

    def read() -> None:
        began.set()
        try:
            reader.read(ENDLESS, ())
        except Unavailable as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    began.wait()
    db.close()
    thread.join()

    assert [str(error) for error in raised] == ["The agent stopped while read_sql() ran."]


def test_a_damaged_file_is_named(db: Database) -> None:
    reader = reader_of(db)
    descriptor = os.open(db.path, os.O_WRONLY)  # not closed: that would drop the locks of the open database
    os.pwrite(descriptor, b"\xff" * 2000, 100)

    with pytest.raises(DatabaseDamage):
        reader.read("SELECT * FROM t", ())


def open_files(path: Path) -> int:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(link.readlink() == path for link in links if link.is_symlink())


@pytest.mark.skipif(sys.platform != "linux", reason="it counts descriptors in /proc")
def test_many_leave_one_descriptor_until_the_database_is_closed(db: Database) -> None:
    before = open_files(db.path)
    for value in range(20):
        add(db, value)
        reader = reader_of(db)
        count(reader)
        db.readers.discard(reader)

    assert open_files(db.path) <= before + 1
    db.close()
    assert open_files(db.path) == 0


def test_the_database_stays_locked_for_other_processes(db: Database) -> None:
    assert count(reader_of(db)) == 1

    script = "import apsw, sys; apsw.Connection(sys.argv[1]).execute('SELECT * FROM t').fetchall()"
    other = subprocess.run([sys.executable, "-c", script, str(db.path)], capture_output=True, check=False, text=True)
    assert "database is locked" in other.stderr
