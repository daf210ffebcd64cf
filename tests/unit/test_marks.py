"""Marks: what they name is found again, and a file of marks that is damaged harms nothing."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest
from tests.unit.helpers import Owner

from sapwood.errors import StoredDataError
from sapwood.storage import files
from sapwood.storage.copy_marks import mark_copies
from sapwood.storage.database import Database
from sapwood.storage.files import Files
from sapwood.storage.image import FRAME_HEADER, WAL_HEADER
from sapwood.storage.integrity import damage_in
from sapwood.storage.marks import MARKS, SMALLEST, Mark, Marks
from sapwood.storage.wal_frames import FRAME

BOOT = 7


def a_mark(number: int) -> Mark:
    return Mark(number, number + 1, number + 2, number + 3, BOOT, number % 2 == 0)


def test_every_mark_is_found_however_many_there_are(tmp_path: Path) -> None:
    marks = Marks(tmp_path, Files())
    count = SMALLEST * 8

    for number in range(count):
        marks.write(f"agent-{number}", a_mark(number))
    for number in range(0, count, 3):
        marks.write(f"agent-{number}", a_mark(number + 1000))

    again = Marks(tmp_path, Files())
    assert again.find("agent-none") is None
    for number in range(count):
        assert again.find(f"agent-{number}") == a_mark(number if number % 3 else number + 1000)


def test_agents_that_come_and_go_do_not_fill_it(tmp_path: Path) -> None:
    marks = Marks(tmp_path, Files())
    marks.write("stays", a_mark(1))

    for number in range(SMALLEST * 20):
        marks.write(f"agent-{number}", a_mark(number))
        marks.remove(f"agent-{number}")

    assert marks.find("stays") == a_mark(1)
    assert marks.find("agent-3") is None
    assert (tmp_path / MARKS).stat().st_size <= 2 * SMALLEST * 32


@pytest.mark.parametrize("left", [b"", b"x" * 31, bytes(512), b"\xff" * 512])
def test_a_file_that_is_damaged_is_as_if_there_was_none_and_is_written_again(
    tmp_path: Path, left: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / MARKS).write_bytes(left)
    marks = Marks(tmp_path, Files())

    with caplog.at_level(logging.WARNING):
        assert marks.find("agent") is None
        assert marks.find("agent") is None
    marks.write("agent", a_mark(1))

    assert len(caplog.records) == 1
    assert Marks(tmp_path, Files()).find("agent") == a_mark(1)


@pytest.mark.parametrize("agents", [4, SMALLEST])
def test_a_file_of_which_a_loss_of_power_kept_the_begin_is_as_if_there_was_none(tmp_path: Path, agents: int) -> None:
    marks = Marks(tmp_path, Files())
    for number in range(agents):
        marks.write(f"agent-{number}", a_mark(number))
    content = (tmp_path / MARKS).read_bytes()

    for length in range(0, len(content), 16):
        (tmp_path / MARKS).write_bytes(content[:length])
        cut = Marks(tmp_path, Files())
        assert cut.find("agent-1") is None
        cut.write("agent-1", a_mark(1))
        assert Marks(tmp_path, Files()).find("agent-1") == a_mark(1)


def test_one_damaged_mark_harms_no_other(tmp_path: Path) -> None:
    marks = Marks(tmp_path, Files())
    for number in range(4):
        marks.write(f"agent-{number}", a_mark(number))
    content = (tmp_path / MARKS).read_bytes()

    for place in range(32, len(content), 5):
        (tmp_path / MARKS).write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        found = [Marks(tmp_path, Files()).find(f"agent-{number}") for number in range(4)]
        assert all(mark in (None, a_mark(number)) for number, mark in enumerate(found))
        assert found.count(None) <= 1

    assert marks.find("agent-2") == a_mark(2)


def test_a_disk_that_takes_no_marks_stops_nothing(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "missing", Files())

    marks.write("agent", a_mark(1))

    assert marks.find("agent") is None


def open_database(path: Path) -> Database:
    marks = Marks(path.parent, Files())
    database = Database(
        path, Files(), Owner(), exists=path.exists(), synced=False, sql_timeout=1.0, max_bytes=1 << 30, marks=marks
    )
    database.run("SELECT count(*) FROM sqlite_schema", ())
    return database


@pytest.mark.parametrize("marks", ["of an earlier boot", "none", "of a copy"])
def test_what_a_loss_of_power_left_behind_the_end_of_a_log_is_no_damage_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: str
) -> None:
    path = tmp_path / "root.db"
    first = open_database(path)
    first.run("CREATE TABLE notes (text TEXT)", ())
    first.commit()
    first.mark()
    for number in range(20):
        first.run("INSERT INTO notes VALUES (?)", (f"note {number}" * 100,))
        first.commit()
    first.close()
    log = path.with_name("root.db-wal")
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0xFF  # of this frame, the disk had not all; of those behind it, it had
    log.write_bytes(content)
    if marks == "of an earlier boot":
        monkeypatch.setattr(files, "boot_of_machine", lambda: 99)
    else:
        (tmp_path / MARKS).unlink()
    if marks == "of a copy":
        mark_copies(tmp_path, is_durable=True)
        assert damage_in(tmp_path, [], None) == []

    second = open_database(path)
    kept = second.run("SELECT count(*) FROM notes", ()).scalar(int)
    second.mark()
    second.close()
    third = open_database(path)

    assert 0 < kept < 20
    assert third.run("SELECT count(*) FROM notes", ()).scalar(int) == kept
    third.close()


def write_notes(database: Database, *lengths: int) -> None:
    for length in lengths:
        database.run("INSERT INTO notes VALUES (?)", ("x" * length,))
        database.commit()


def killed_after(folder: Path, copy: Path, *lengths: int) -> Path:
    """Write a note of each length in a commit of its own; return a copy of the database as a killed process leaves it.

    Its mark names the first commit only.
    """
    folder.mkdir()
    database = open_database(folder / "root.db")
    database.run("CREATE TABLE notes (text TEXT)", ())
    database.commit()
    database.mark()
    write_notes(database, *lengths)
    shutil.copytree(folder, copy)
    database.close()
    return copy / "root.db"


def counted(path: Path) -> int:
    """Open a database; return the number of its notes, or raise if it is damaged."""
    database = open_database(path)
    try:
        return database.run("SELECT count(*) FROM notes", ()).scalar(int)
    finally:
        database.close()


LONG = 9000
"""Characters of a note of several pages."""


def test_a_commit_that_a_kill_cut_at_any_write_is_no_damage_then_or_later(tmp_path: Path) -> None:
    path = killed_after(tmp_path / "alive", tmp_path / "dead", 10, 10)
    before = path.with_name("root.db-wal").stat().st_size
    path = killed_after(tmp_path / "alive again", tmp_path / "dead again", 10, 10, LONG)
    log = path.with_name("root.db-wal")
    frames = range(before, log.stat().st_size, FRAME)
    assert len(frames) > 4
    for begin in frames:
        for cut in (begin, begin + FRAME_HEADER, begin + FRAME - 1):  # SQLite writes a header, and then its page
            torn = tmp_path / f"torn at {cut}"
            shutil.copytree(path.parent, torn)
            os.truncate(torn / log.name, cut)
            assert counted(torn / path.name) == 2, cut

            shutil.rmtree(torn)
            shutil.copytree(path.parent, torn)
            os.truncate(torn / log.name, cut)
            database = open_database(torn / path.name)
            write_notes(database, 10)  # shorter than what was cut: the rest of that is still behind it
            shutil.copytree(torn, later := tmp_path / f"later than {cut}")
            database.close()
            assert counted(later / path.name) == 3, cut


@pytest.mark.parametrize("back", [2, 3])
@pytest.mark.parametrize("notes", [(10, 10, 10, 10), (10, LONG, LONG, 10), (10, LONG, LONG, LONG)], ids=str)
@pytest.mark.parametrize("place", [0, 4, 8, 12, 16, 20, FRAME_HEADER, FRAME_HEADER + 1000, FRAME - 1])
def test_a_frame_that_is_damaged_before_intact_commits_is_noticed(
    tmp_path: Path, notes: tuple[int, ...], place: int, back: int
) -> None:
    path = killed_after(tmp_path / "alive", tmp_path / "dead", *notes)
    log = path.with_name("root.db-wal")
    content = bytearray(log.read_bytes())
    ends = [at for at in range(WAL_HEADER, len(content), FRAME) if any(content[at + 4 : at + 8])]
    content[ends[-back] + place] ^= 0x10
    log.write_bytes(content)
    with pytest.raises(StoredDataError, match="intact commits follow"):
        counted(path)


def test_a_durable_mark_is_gone_before_a_database_is_written_that_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "root.db"
    first = open_database(path)
    first.run("CREATE TABLE notes (text TEXT)", ())
    first.commit()
    first.close()
    mark_copies(tmp_path, is_durable=True)
    synced: list[bytes] = [(tmp_path / MARKS).read_bytes()]

    def sync(_: Files, path: Path) -> None:
        synced.append(path.read_bytes())

    monkeypatch.setattr(Files, "sync_file", sync)

    second = open_database(path)
    second.run("INSERT INTO notes VALUES ('lost')", ())
    second.commit()
    second.empty_log()
    second.close()
    (tmp_path / MARKS).write_bytes(synced[-1])  # the power is cut: the disk has no later marks
    monkeypatch.setattr(files, "boot_of_machine", lambda: 99)

    third = open_database(path)
    assert third.run("SELECT count(*) FROM notes", ()).scalar(int) == 1
    third.close()
