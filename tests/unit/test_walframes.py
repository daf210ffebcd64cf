"""What a commit wrote is read out of the write-ahead log, and nothing else."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from sapwood.errors import StoredDataError
from sapwood.storage.image import PAGE_SIZE, empty_image, wal_bytes
from sapwood.storage.wal_frames import WalFrames, whole_image


class Source:
    """A database in WAL mode, whose commits are counted in frames."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "a.db"
        self.path.write_bytes(empty_image())
        self.wal = folder / "a.db-wal"
        self.connection = apsw.Connection(str(self.path))
        self.connection.execute(
            "PRAGMA locking_mode=EXCLUSIVE; PRAGMA wal_autocheckpoint=0; PRAGMA cache_size=10; PRAGMA synchronous=OFF"
        ).fetchall()
        self.connection.set_wal_hook(self._note)
        self.frames = 0
        self.write("CREATE TABLE t (v)")
        self.reader = WalFrames(self.wal)

    def _note(self, connection: apsw.Connection, name: str, frames: int) -> int:
        self.frames = frames
        return apsw.SQLITE_OK

    def write(self, sql: str, *arguments: object) -> None:
        self.connection.execute(sql, arguments)  # pyright: ignore[reportArgumentType]

    def checkpoint(self) -> None:
        self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self.frames = 0

    def close(self) -> None:
        self.reader.close()
        self.connection.close(True)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def applied(image: bytes, size: int, pages: dict[int, memoryview]) -> bytes:
    """Return a file after these pages were written to it."""
    whole = bytearray(image.ljust(size * PAGE_SIZE, b"\0")[: size * PAGE_SIZE])
    for number, page in pages.items():
        whole[(number - 1) * PAGE_SIZE : number * PAGE_SIZE] = page
    return bytes(whole)


def test_the_pages_of_a_commit_bring_the_file_from_one_state_to_the_next(source: Source) -> None:
    before = source.connection.serialize("main")
    first = source.frames + 1

    source.write("INSERT INTO t VALUES (zeroblob(10000))")

    size, pages = source.reader.read(first, source.frames)
    assert applied(before, size, pages) == source.connection.serialize("main")
    source.close()


def test_of_a_page_that_was_written_several_times_the_last_image_counts(source: Source) -> None:
    before = source.connection.serialize("main")
    first = source.frames + 1

    for number in range(300):
        source.write("INSERT INTO t VALUES (?)", bytes([number % 256]) * 900)
    source.write("UPDATE t SET v = v || 'x'")  # more than the cache holds

    size, pages = source.reader.read(first, source.frames)
    assert source.frames - first + 1 > len(pages)
    assert applied(before, size, pages) == source.connection.serialize("main")
    source.close()


def test_what_was_spilled_and_undone_is_not_read(source: Source) -> None:
    source.write("BEGIN")
    for _ in range(300):
        source.write("INSERT INTO t VALUES (zeroblob(900))")
    source.write("ROLLBACK")
    before, first = source.connection.serialize("main"), source.frames + 1

    source.write("INSERT INTO t VALUES (1)")

    assert source.wal.stat().st_size > wal_bytes(source.frames)
    size, pages = source.reader.read(first, source.frames)
    assert applied(before, size, pages) == source.connection.serialize("main")
    source.close()


def test_a_log_that_began_anew_is_read_from_its_beginning(source: Source) -> None:
    source.write("INSERT INTO t VALUES (zeroblob(50000))")
    source.checkpoint()
    before = source.connection.serialize("main")

    source.write("INSERT INTO t VALUES (2)")

    size, pages = source.reader.read(1, source.frames)
    assert applied(before, size, pages) == source.connection.serialize("main")
    source.close()


def test_frames_left_from_before_the_log_began_anew_are_refused(source: Source) -> None:
    source.write("INSERT INTO t VALUES (zeroblob(50000))")
    long = source.frames
    source.checkpoint()
    source.write("INSERT INTO t VALUES (2)")

    with pytest.raises(StoredDataError, match="of an earlier generation"):
        source.reader.read(1, long)
    with pytest.raises(StoredDataError, match="ends before"):
        source.reader.read(1, long + 100)
    source.close()


def test_half_a_commit_is_refused(source: Source) -> None:
    first = source.frames + 1
    source.write("INSERT INTO t VALUES (zeroblob(50000))")

    with pytest.raises(StoredDataError, match="no commit at frame"):
        source.reader.read(first, source.frames - 1)
    source.close()


def test_a_file_that_shrank_says_so(source: Source) -> None:
    source.write("INSERT INTO t VALUES (zeroblob(50000))")
    source.write("DELETE FROM t")
    before, first = source.connection.serialize("main"), source.frames + 1

    source.write("VACUUM")

    size, pages = source.reader.read(first, source.frames)
    assert size < len(before) // PAGE_SIZE
    assert applied(before, size, pages) == source.connection.serialize("main")
    source.close()


def test_a_whole_database_is_its_file_and_its_log(source: Source) -> None:
    source.write("INSERT INTO t VALUES ('kept')")
    image = source.connection.serialize("main")
    source.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    source.close()

    assert whole_image(source.path) == image
    assert source.wal.stat().st_size > 0
