"""A file is read as it is, whatever state a crash left it in, and stays as it is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.helpers import a_database

from sapwood.errors import MigrationFailed, StoredDataError, Unavailable
from sapwood.storage.file_reader import reading
from sapwood.storage.image import empty_image
from sapwood.storage.migrations import Schema, Script, of_user

SHELF = of_user(["CREATE TABLE books (title TEXT)"])
TITLES = "SELECT title FROM books"


def beside(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in path.parent.iterdir()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a database whose rows are in its log."""
    path = tmp_path / "a.db"
    database = a_database(path)
    database.migrate(SHELF)
    database.run("INSERT INTO books VALUES ('Emma')", ())
    database.commit()
    database.close()
    return path


def test_what_is_only_in_the_log_is_read_and_stays_there(path: Path) -> None:
    before = beside(path)
    assert len(before["a.db-wal"]) > 0

    with reading(path) as file:
        assert list(file.rows(TITLES)) == [("Emma",)]

    assert beside(path) == before


def test_many_that_read_one_file_at_once_wait_for_each_other_and_not_for_ever(path: Path) -> None:
    def read(_: int) -> list[tuple[str]]:
        found: list[tuple[str]] = []
        for _ in range(100):
            with reading(path, busy_timeout=10.0) as file:
                found += file.rows(TITLES)
        return found

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(read, range(3))) == [[("Emma",)] * 100] * 3


def test_a_file_that_stays_open_elsewhere_is_refused_after_the_timeout(path: Path) -> None:
    with (
        reading(path),
        pytest.raises(Unavailable, match=r"a\.db is locked by another process"),
        reading(path, busy_timeout=0.01),
    ):
        pass


def test_without_a_log_nothing_appears_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(empty_image())

    with reading(path) as file:
        assert file.applied == []

    assert beside(path) == {"a.db": empty_image()}


@pytest.mark.parametrize("left", [b"", empty_image()[:512]])
def test_a_file_that_a_crash_cut_at_its_birth_is_read_and_not_mended(path: Path, left: bytes) -> None:
    path.write_bytes(left)
    before = beside(path)

    with reading(path) as file:
        assert list(file.rows(TITLES)) == [("Emma",)]

    assert beside(path) == before


def test_scripts_are_tried_on_a_copy(path: Path) -> None:
    before = beside(path)

    with reading(path) as file:
        assert file.apply(of_user(["", "ALTER TABLE books ADD COLUMN author TEXT"])[1:])
        assert list(file.rows("SELECT author FROM books")) == [(None,)]
        with pytest.raises(MigrationFailed, match="no such table"):
            file.apply(of_user(["INSERT INTO shelves VALUES (1)"]))

    assert beside(path) == before


class Grown(Schema):
    """Tables that have got another column since a file was written."""

    @property
    def scripts(self) -> tuple[Script, ...]:
        more = Script(self.owner, 2, "more", "ALTER TABLE books ADD COLUMN pages INTEGER NOT NULL DEFAULT 0")
        return (*SHELF, more)


def test_tables_of_an_older_version_are_read_as_the_newer_one_would_have_them(path: Path) -> None:
    before = beside(path)

    with reading(path) as file:
        assert file.has(Grown("", "user"))
        assert list(file.rows("SELECT title, pages FROM books")) == [("Emma", 0)]

    assert beside(path) == before


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"x" * 10_000)

    with pytest.raises(StoredDataError), reading(path):
        pass
