"""All files of a tree as they are at one moment, read on another thread while agents work.

No file may be copied into by a checkpoint or removed during that, and nothing here closes a file that SQLite has
locked: the locks of the process would go with it.
"""

# apsw's own stubs name a type that Python has only from 3.12, so to 3.11 its values are unknown.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import apsw

from sapwood.errors import StoredDataError
from sapwood.storage.engine import CHECKED
from sapwood.storage.files import Files
from sapwood.storage.image import PAGE_SIZE
from sapwood.storage.sql_errors import damage
from sapwood.storage.wal_frames import WalFrames, whole_image


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

    def read(self) -> Iterator[tuple[str, bytes | bytearray]]:
        """Yield each database with its content. Takes a while: not for the event loop."""
        for stem in sorted(self._frames):
            path = self._folder / f"{stem}.db"
            with self._lock:
                frames = self._frames[stem]
            if frames is None:
                content: bytes | bytearray | None = None
                try:
                    content = _closed(path)
                except StoredDataError:
                    if not self._is_open(stem):
                        raise
                if not self._is_open(stem) and content is not None:
                    yield stem, content
                    continue
                with self._lock:
                    frames = self._frames[stem]
            yield stem, _open(path, frames or 0)

    def _is_open(self, stem: str) -> bool:
        with self._lock:
            return self._frames[stem] is not None


def _below_log(path: Path) -> bytes:
    """Return what a file has itself, without its write-ahead log."""
    try:
        connection = apsw.Connection(
            f"file:{quote(str(path))}?immutable=1",
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
            vfs=CHECKED,
        )
        try:
            # A page that cannot be read is zeros in what `serialize` returns.
            ((found,),) = connection.execute("PRAGMA quick_check(1)")
            if found != "ok":
                raise StoredDataError(f"The database {path.name} is damaged: {found}")
            return connection.serialize("main")
        finally:
            connection.close(True)
    except apsw.Error as error:
        raise StoredDataError(f"The database {path.name} cannot be read: {damage(error) or error}") from error


def _open(path: Path, frames: int) -> bytes | bytearray:
    """Return a database that is open, with so many frames of its log."""
    content = _below_log(path)
    if not frames:
        return content
    log = WalFrames(path.with_name(f"{path.name}-wal"))
    try:
        size, pages = log.read(1, frames)
    finally:
        log.close()
    whole = bytearray(content[: size * PAGE_SIZE])
    whole.extend(bytes(size * PAGE_SIZE - len(whole)))
    for number, page in pages.items():
        if number <= size:
            whole[(number - 1) * PAGE_SIZE : number * PAGE_SIZE] = page
    return whole


def _closed(path: Path) -> bytes:
    """Return a database that is not open; SQLite finds out how much of its log counts, in a copy."""
    content = _below_log(path)
    wal = path.with_name(f"{path.name}-wal")
    try:
        log = wal.read_bytes()
    except FileNotFoundError:
        log = b""
    if not log:
        return content
    with tempfile.TemporaryDirectory(prefix="sapwood-") as folder:
        copy = Path(folder, path.name)
        Files().create_database(copy, content)
        copy.with_name(wal.name).write_bytes(log)
        return whole_image(copy)
