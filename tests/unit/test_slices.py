"""The one open transaction of a tree: commits in the order of writes, and all that a replicated log needs of them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import loops
from tests.unit.helpers import Owner, RecordingGate, a_database, without_checksums

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.durability.slices import Slices
from sapwood.kernel.ports.durability import Commit
from sapwood.storage.database import Database
from sapwood.storage.image import PAGE_SIZE, empty_image
from sapwood.timings import DEFAULTS

ROOT = Address.root_of("Tree", "one")
CHECKPOINT_FRAMES = DEFAULTS.checkpoint_frames
WAL_HEADER = 32
FRAME_HEADER = 24


class SliceOwner(Owner):
    """Begins a slice at the first write, as a tree does."""

    def __init__(self, slices: Slices) -> None:
        super().__init__()
        self.slices = slices

    def before_write(self, database: Database, sql: str) -> None:
        super().before_write(database, sql)
        self.slices.begin(database)

    def lost(self, database: Database, error: BaseException) -> None:
        super().lost(database, error)
        self.slices.forget(database)


class LoggingGate(RecordingGate):
    """Keeps the pages of every commit, read out of the `-wal` file the moment the commit is reported."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, list[tuple[int, bytes]], int]] = []

    def committed(self, commit: Commit) -> None:
        super().committed(commit)
        pages: list[tuple[int, bytes]] = []
        size = 0
        with commit.database.wal.open("rb") as wal:
            for frame in range(commit.first_frame, commit.last_frame + 1):
                wal.seek(WAL_HEADER + (frame - 1) * (FRAME_HEADER + PAGE_SIZE))
                header, page = wal.read(FRAME_HEADER), wal.read(PAGE_SIZE)
                number, size = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:8], "big")
                pages.append((number, page))
        self.log.append((commit.database.path.name, pages, size))

    def replay(self, name: str) -> bytes:
        """Build a database from nothing but the empty image and the log."""
        image = bytearray(empty_image())
        for which, pages, size in self.log:
            if which == name:
                assert size > 0, "the last frame of a commit says how large the database is"
                image.extend(bytes(max(0, size * PAGE_SIZE - len(image))))
                for number, page in pages:
                    image[(number - 1) * PAGE_SIZE : number * PAGE_SIZE] = page
                del image[size * PAGE_SIZE :]
        return without_checksums(image)


def as_sqlite_sees_it(path: Path) -> bytes:
    """Return a database with its WAL folded in, from a copy."""
    copy = path.with_name("copy-" + path.name)
    shutil.copy(path, copy)
    shutil.copy(path.with_name(path.name + "-wal"), copy.with_name(copy.name + "-wal"))
    connection = apsw.Connection(str(copy))
    connection.execute("SELECT * FROM sqlite_schema").fetchall()  # notices the WAL
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
    return without_checksums(copy.read_bytes())


class Bench:
    """A tree's slices with a gate that records, and databases to write to."""

    def __init__(self, folder: Path, gate: RecordingGate) -> None:
        self.gate = gate
        self.slices = Slices(ROOT, gate, asyncio.get_running_loop())
        self.owner = SliceOwner(self.slices)
        self.folder = folder

    def database(self, name: str) -> Database:
        database = a_database(self.folder / f"{name}.db", self.owner)
        if not database.exists:
            database.run("CREATE TABLE t (v)", ())
        return database

    @property
    def order(self) -> list[str]:
        return [commit.database.path.stem for commit in self.gate.commits]


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, LoggingGate())


def write(database: Database, value: object) -> None:
    database.run("INSERT INTO t VALUES (?)", (value,))


async def test_everything_written_in_a_slice_lands_in_one_commit(bench: Bench) -> None:
    a = bench.database("a")
    for value in range(5):
        write(a, value)
    assert bench.order == []

    await asyncio.sleep(0)

    assert bench.order == ["a"]


async def test_a_slice_that_only_reads_commits_nothing(bench: Bench) -> None:
    a = bench.database("a")
    await asyncio.sleep(0)
    bench.gate.commits.clear()

    a.run("SELECT * FROM t", ())
    await asyncio.sleep(0)

    assert bench.order == []


async def test_a_write_in_another_database_commits_the_open_one_first(bench: Bench) -> None:
    a, b = bench.database("a"), bench.database("b")
    await asyncio.sleep(0)
    bench.gate.commits.clear()

    write(a, 1)
    write(b, 2)
    write(a, 3)
    write(a, 4)
    await asyncio.sleep(0)

    assert bench.order == ["a", "b", "a"]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.sampled_from("abc")),
            st.tuples(st.just("pause"), st.just("")),
        ),
        max_size=30,
    )
)
def test_commits_follow_the_order_of_writes_whatever_is_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    async def run() -> None:
        folder = tmp_path_factory.mktemp("slices")
        bench = Bench(folder, RecordingGate())
        databases = {name: bench.database(name) for name in "abc"}
        await asyncio.sleep(0)
        bench.gate.commits.clear()
        wanted: list[str] = []
        fresh = True
        for what, name in steps:
            if what == "pause":
                await asyncio.sleep(0)
                fresh = True
            else:
                if fresh or wanted[-1] != name:
                    wanted.append(name)
                fresh = False
                write(databases[name], 1)
        await asyncio.sleep(0)

        assert bench.order == wanted
        for database in databases.values():
            database.close()

    loops.play(run())


async def test_a_step_before_the_commit_lands_before_it(bench: Bench) -> None:
    a, index = bench.database("a"), bench.database("index")
    await asyncio.sleep(0)
    bench.gate.commits.clear()

    write(a, 1)
    bench.slices.before_commit("k", lambda: write(index, "a is due"))
    bench.slices.before_commit("k", lambda: write(index, "a is due, once"))
    await asyncio.sleep(0)

    assert bench.order == ["index", "a"]
    assert index.run("SELECT v FROM t", ()).scalar(str) == "a is due, once"


async def test_a_step_may_write_to_the_database_that_is_being_committed(bench: Bench) -> None:
    a = bench.database("a")
    await asyncio.sleep(0)
    bench.gate.commits.clear()

    write(a, 1)
    bench.slices.before_commit("k", lambda: write(a, 2))
    await asyncio.sleep(0)

    assert bench.order == ["a"]
    assert not a.in_transaction


async def test_a_step_that_fails_takes_the_slice_with_it(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    # Otherwise the transaction would stay open, and later slices would be acknowledged without a commit.
    a = bench.database("a")
    await asyncio.sleep(0)
    bench.gate.commits.clear()

    def refuse() -> None:
        raise Unavailable("The index is busy.")

    write(a, "undone")
    bench.slices.before_commit("k", refuse)
    await asyncio.sleep(0)

    assert bench.order == []
    assert not a.in_transaction
    assert [str(error) for error in bench.owner.lost_] == ["The index is busy."]
    assert "commit failed" in caplog.text
    write(a, "kept")
    await asyncio.sleep(0)
    assert bench.order == ["a"]
    assert a.run("SELECT v FROM t", ()).scalar(str) == "kept"


async def test_a_commit_that_fails_is_logged_and_the_next_slice_works(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = bench.database("a"), bench.database("b")
    a.run("CREATE TABLE p (id INTEGER PRIMARY KEY)", ())
    a.run("CREATE TABLE c (p REFERENCES p (id) DEFERRABLE INITIALLY DEFERRED)", ())
    await asyncio.sleep(0)
    bench.gate.commits.clear()

    a.run("INSERT INTO c VALUES (99)", ())
    write(b, 1)
    await asyncio.sleep(0)

    assert bench.order == ["b"]
    assert "FOREIGN KEY" in str(bench.owner.lost_[0])
    assert "commit failed" in caplog.text


async def test_a_forgotten_slice_leaves_nothing_behind(bench: Bench) -> None:
    a = bench.database("a")
    await asyncio.sleep(0)
    bench.gate.commits.clear()
    ran: list[str] = []

    write(a, 1)
    bench.slices.before_commit("k", lambda: ran.append("step"))
    bench.slices.forget(a)
    await asyncio.sleep(0)
    write(a, 2)
    await asyncio.sleep(0)

    assert ran == []
    assert a.run("SELECT v FROM t", ()).scalar(int) == 2


async def test_frames_follow_each_other_without_a_gap(bench: Bench) -> None:
    a = bench.database("a")
    await asyncio.sleep(0)
    for value in range(10):
        write(a, "x" * 3000 * value)
        await asyncio.sleep(0)

    last = 0
    for commit in bench.gate.commits:
        assert commit.root == ROOT
        assert commit.first_frame == last + 1
        last = commit.last_frame
    assert last == a.frames


async def churn(database: Database, rounds: int, *, before: Callable[[int], Any] = lambda _: None) -> None:
    for number in range(rounds):
        before(number)
        write(database, f"{number} " * 200)
        if number % 3 == 0:
            database.run("UPDATE t SET v = v || 'x' WHERE rowid % 7 = ?", (number % 7,))
        if number % 11 == 0:
            database.run("DELETE FROM t WHERE rowid % 5 = ?", (number % 5,))
        await asyncio.sleep(0)


async def test_the_reported_frames_alone_rebuild_the_database_byte_by_byte(bench: Bench) -> None:
    a, b = bench.database("a"), bench.database("b")
    await churn(a, 40, before=lambda number: write(b, number))
    a.close()
    b.close()

    gate = bench.gate
    assert isinstance(gate, LoggingGate)
    assert gate.replay("a.db") == as_sqlite_sees_it(a.path)
    assert gate.replay("b.db") == as_sqlite_sees_it(b.path)


async def test_the_reported_frames_rebuild_it_after_checkpoints_and_a_restarted_wal(bench: Bench) -> None:
    a = bench.database("a")
    commits_before_restart = 0
    restarted = 0
    while restarted < 3:
        frames = a.frames
        await churn(a, 20)
        if a.frames < frames:
            restarted += 1
        commits_before_restart += 20
        assert commits_before_restart < 20 * CHECKPOINT_FRAMES
    await churn(a, 5)
    a.close()

    gate = bench.gate
    assert isinstance(gate, LoggingGate)
    assert a.wal.stat().st_size < 3 * CHECKPOINT_FRAMES * PAGE_SIZE
    assert gate.replay("a.db") == as_sqlite_sees_it(a.path)


async def test_the_reported_frames_rebuild_it_after_it_was_closed_and_opened_again(bench: Bench) -> None:
    a = bench.database("a")
    for rounds in (3, 1, 400, 2):
        await churn(a, rounds)
        a.close()
    await churn(a, 3)
    a.close()
    # A new object, as after a restart of the process.
    again = bench.database("a")
    await churn(again, 300)
    again.close()

    gate = bench.gate
    assert isinstance(gate, LoggingGate)
    assert gate.replay("a.db") == as_sqlite_sees_it(a.path)


async def test_the_reported_frames_rebuild_it_after_a_slice_larger_than_the_cache(bench: Bench) -> None:
    # SQLite then writes pages to the WAL before the commit, some of them more than once.
    a = bench.database("a")
    for number in range(6000):
        write(a, f"{number} " * 200)
        if number % 500 == 0:
            a.run("UPDATE t SET v = v || 'x' WHERE rowid < ?", (number,))
    await asyncio.sleep(0)
    await churn(a, 3)
    a.close()

    gate = bench.gate
    assert isinstance(gate, LoggingGate)
    assert gate.replay("a.db") == as_sqlite_sees_it(a.path)


async def test_a_step_that_fails_in_any_way_undoes_the_transaction_and_leaves_none_open(bench: Bench) -> None:
    a = bench.database("a")
    await asyncio.sleep(0)
    bench.gate.commits.clear()

    def step() -> None:
        raise OSError(24, "Too many open files")

    write(a, 1)
    bench.slices.before_commit("k", step)
    bench.slices.commit()

    assert not a.in_transaction
    assert bench.slices.open is None
    assert [str(error) for error in bench.owner.lost_] == ["[Errno 24] Too many open files"]
    write(a, 2)
    await asyncio.sleep(0)
    assert bench.order == ["a"]
    assert a.run("SELECT v FROM t", ()).scalar(int) == 2


async def test_a_checkpoint_that_fails_is_tried_again_and_fails_no_commit(bench: Bench) -> None:
    class NoRoom:
        """The connection of a database, on a disk that has room for the log only."""

        def __init__(self, below: Any) -> None:
            self.below = below
            self.tried = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.below, name)

        def wal_checkpoint(self, **_: object) -> tuple[int, int]:
            self.tried += 1
            raise apsw.FullError("database or disk is full")

    a = bench.database("a")
    await asyncio.sleep(0)
    connection = a._connection
    full = NoRoom(connection)
    a._connection = full  # pyright: ignore[reportAttributeAccessIssue]

    write(a, bytes(PAGE_SIZE * CHECKPOINT_FRAMES))
    bench.slices.commit()
    write(a, 2)
    bench.slices.commit()

    assert full.tried == 2
    assert a.frames >= CHECKPOINT_FRAMES
    a._connection = connection
    write(a, 3)
    bench.slices.commit()
    assert a.frames == 0
    assert a.run("SELECT count(*) FROM t", ()).scalar(int) == 3
