"""All files of a tree as they are at one moment, read on another thread while agents work.

No file may be copied into by a checkpoint or removed during that, and nothing here closes a file that SQLite has
locked, except through SQLite: the locks of the process would go with it. Files are read in ranges, because a large one
would take its size in memory, and would stop the other threads while it is copied there.
"""

# apsw's own stubs name a type that Python has only from 3.12, so to 3.11 its values are unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw

from sapwood.errors import StoredDataError
from sapwood.storage.engine import CHECKED
from sapwood.storage.files import open_private
from sapwood.storage.image import PAGE_SIZE
from sapwood.storage.sql_errors import damage
from sapwood.storage.wal_frames import WalFrames, fold

RANGE = 1024
"""Pages that are read at once: 2 MB."""
NO_PAGES: Mapping[int, memoryview] = {}


class DatabaseImage(NamedTuple):
    """One database at one moment."""

    stem: str
    size: int
    """The number of its pages."""
    ranges: Iterator[bytes]
    """All its pages, in their order, up to `RANGE` of them at once."""


class TreeImages:
    """The databases of a tree at one moment."""

    def __init__(self, folder: Path, frames: dict[str, int | None]) -> None:
        """`frames`: the databases, and how long their logs are; `None` means that a database is not open."""
        self._folder = folder
        self._frames = frames
        self._lock = threading.Lock()

    def opened(self, stem: str, frames: int) -> None:
        """A database was opened: what is written to it from now on is behind these frames of its log."""
        with self._lock:
            if stem in self._frames and self._frames[stem] is None:
                self._frames[stem] = frames

    def read(self) -> Iterator[DatabaseImage]:
        """Yield each database. Its pages are read before the next one. Takes a while: not for the event loop."""
        for stem in sorted(self._frames):
            with ExitStack() as stack:
                yield DatabaseImage(stem, *self._pages(stem, stack))

    def _pages(self, stem: str, stack: ExitStack) -> tuple[int, Iterator[bytes]]:
        path = self._folder / f"{stem}.db"
        if self._found_frames(stem) is None:
            found: tuple[int, Iterator[bytes]] | None = None
            try:
                found = _closed(path, stack)
            except StoredDataError:
                if self._found_frames(stem) is None:
                    raise
            if found is not None and self._found_frames(stem) is None:
                return found  # if it is opened from now on, what is written to it is in its log
        return _open(path, self._found_frames(stem) or 0)

    def _found_frames(self, stem: str) -> int | None:
        with self._lock:
            return self._frames[stem]


def _checked_size(path: Path) -> int:
    """Return how many pages a file has itself, without its write-ahead log; `StoredDataError` if it is damaged."""
    try:
        connection = apsw.Connection(
            f"file:{quote(str(path))}?immutable=1",
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
            vfs=CHECKED,
        )
        try:
            ((found,),) = connection.execute("PRAGMA quick_check(1)")
            if found != "ok":
                raise StoredDataError(f"The database {path.name} is damaged: {found}")
            ((size,),) = connection.execute("PRAGMA page_count")
            return int(str(size))
        finally:
            connection.close(True)
    except apsw.Error as error:
        raise StoredDataError(f"The database {path.name} cannot be read: {damage(error) or error}") from error


def _ranges(path: Path, size: int, pages: Mapping[int, memoryview] = NO_PAGES) -> Iterator[bytes]:
    """Yield the pages of a file, and in place of some of them these."""
    # SQLite's own file: it keeps the descriptor open for as long as one of the process holds a lock on the file.
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        stored = file.xFileSize()
        for first in range(0, size, RANGE):
            begin, length = first * PAGE_SIZE, min(RANGE, size - first) * PAGE_SIZE
            content = file.xRead(min(length, stored - begin), begin) if begin < stored else b""
            changed = [number for number in range(first, first + length // PAGE_SIZE) if number + 1 in pages]
            if changed or len(content) < length:
                whole = bytearray(content.ljust(length, b"\0"))
                for number in changed:
                    place = (number - first) * PAGE_SIZE
                    whole[place : place + PAGE_SIZE] = pages[number + 1]
                content = bytes(whole)
            yield content
    except apsw.Error as error:
        raise StoredDataError(f"The database {path.name} cannot be read: {damage(error) or error}") from error
    finally:
        file.xClose()


def _open(path: Path, frames: int) -> tuple[int, Iterator[bytes]]:
    """Return a database that is open, with so many frames of its log."""
    size = _checked_size(path)
    if not frames:
        return size, _ranges(path, size)
    log = WalFrames(path.with_name(f"{path.name}-wal"))
    try:
        size, pages = log.read(1, frames)
    finally:
        log.close()
    return size, _ranges(path, size, pages)


def _closed(path: Path, stack: ExitStack) -> tuple[int, Iterator[bytes]]:
    """Return a database that is not open; SQLite finds out how much of its log counts, in a copy."""
    size = _checked_size(path)
    wal = path.with_name(f"{path.name}-wal")
    try:
        log = wal.read_bytes()
    except FileNotFoundError:
        log = b""
    if not log:
        return size, _ranges(path, size)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sapwood-"))
    copy = Path(folder, path.name)
    with open_private(copy, "xb") as file:
        for content in _ranges(path, size):
            file.write(content)
    copy.with_name(wal.name).write_bytes(log)
    fold(copy)
    size = _checked_size(copy)
    return size, _ranges(copy, size)
