"""Page checksums: a changed bit of a database file is noticed when its page is read, wherever it is read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from tests.unit.helpers import Owner, a_database

from sapwood.errors import StoredDataError
from sapwood.storage.engine import CHECKED, CHECKSUM, page_checksum, write_pages
from sapwood.storage.file_reader import reading
from sapwood.storage.files import Files
from sapwood.storage.image import PAGE_SIZE, empty_image
from sapwood.storage.query_reader import QueryReader
from sapwood.storage.sql_errors import DatabaseDamage
from sapwood.storage.wal_frames import fold, whole_image

ALL = "SELECT sum(length(text)) FROM notes"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of several pages, all of them in its file."""
    path = tmp_path / "agent.db"
    database = a_database(path)
    database.run("CREATE TABLE notes (text TEXT)", ())
    for number in range(12):
        database.run("INSERT INTO notes VALUES (?)", (str(number % 10) * 500,))
    database.commit()
    database.close()
    fold(path)
    return path


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0b100
    path.write_bytes(content)


def pages_of(content: bytes | bytearray) -> list[bytes]:
    return [bytes(content[at : at + PAGE_SIZE]) for at in range(0, len(content), PAGE_SIZE)]


def is_checked(page: bytes) -> bool:
    return page[-CHECKSUM:] == page_checksum(page)


def test_every_page_of_a_file_has_its_checksum_from_the_first_byte_on(path: Path) -> None:
    assert all(map(is_checked, pages_of(empty_image())))
    assert len(pages_of(path.read_bytes())) > 4
    assert all(map(is_checked, pages_of(path.read_bytes())))


@pytest.mark.parametrize("place", [20, 24, 100, PAGE_SIZE - 1, PAGE_SIZE + 1, 2 * PAGE_SIZE - 1, 3 * PAGE_SIZE + 1000])
def test_one_flipped_bit_is_an_error_that_names_the_file(path: Path, place: int) -> None:
    flip(path, place)
    database = a_database(path)

    with pytest.raises(StoredDataError, match=r"agent\.db"):
        database.run(ALL, ())

    database.close()


def test_a_flipped_bit_in_a_byte_that_holds_nothing_is_noticed(path: Path) -> None:
    pages = pages_of(path.read_bytes())
    place = pages[1].rindex(bytes(64), 0, -CHECKSUM) + PAGE_SIZE + 32
    flip(path, place)
    database = a_database(path)

    with pytest.raises(StoredDataError, match="checksum"):
        database.run("SELECT * FROM sqlite_schema", ())

    database.close()


def test_a_long_query_an_offline_look_and_a_copy_notice_it(path: Path) -> None:
    flip(path, 3 * PAGE_SIZE + 1000)

    with pytest.raises(DatabaseDamage, match="checksum"):
        QueryReader(path, CHECKED).read(ALL, ())
    with pytest.raises(StoredDataError, match="checksum"), reading(path) as file:
        list(file.rows(ALL))
    with pytest.raises(StoredDataError, match=r"agent\.db"):
        whole_image(path)


def test_a_file_without_checksums_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    plain = apsw.Connection(str(path))
    plain.execute("PRAGMA page_size = 2048; PRAGMA journal_mode = WAL; CREATE TABLE sapwood_migrations (owner, number)")
    plain.close()
    database = a_database(path)

    with pytest.raises(StoredDataError, match="no page checksums"):
        database.run("SELECT 1", ())
    with pytest.raises(StoredDataError, match="no page checksums"), reading(path):
        pass

    database.close()


def test_a_file_that_is_known_to_be_damaged_takes_no_more_writes(path: Path) -> None:
    flip(path, 3 * PAGE_SIZE + 1000)
    owner = Owner()
    database = a_database(path, owner)
    database.run("CREATE TABLE later (text TEXT)", ())
    with pytest.raises(StoredDataError):
        database.run(ALL, ())

    if database.in_transaction:  # what was written before the damage was noticed
        with pytest.raises(StoredDataError):
            database.commit()
    with pytest.raises(StoredDataError):
        database.run("INSERT INTO notes VALUES ('new')", ())

    assert len(owner.lost_) == 1
    database.close()
    assert list(a_database(path).run("SELECT name FROM sqlite_schema WHERE name = 'later'", ())) == []
    database.close()


def test_pages_that_are_written_beside_sqlite_get_their_checksums(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    bare = b"".join(page[:-CHECKSUM] + os.urandom(CHECKSUM) for page in pages_of(content))
    copy = tmp_path / "copy.db"

    Files().create_database(copy, bare)

    assert copy.read_bytes() == content
    page = bytearray(content[PAGE_SIZE : 2 * PAGE_SIZE])
    page[-CHECKSUM:] = bytes(CHECKSUM)
    given = bytes(page)

    write_pages(copy, [(PAGE_SIZE, memoryview(given))], 2 * PAGE_SIZE)

    assert copy.read_bytes() == content[: 2 * PAGE_SIZE]
    assert given == page  # what was passed is not changed


def test_other_files_of_the_process_are_opened_as_before() -> None:
    script = "import apsw; before = apsw.vfs_names()[0]; import sapwood; assert apsw.vfs_names()[0] == before"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
