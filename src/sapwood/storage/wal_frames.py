"""What a commit wrote: the pages in its frames of the write-ahead log.

Read through a descriptor of our own: SQLite holds no lock on this file, so it is ours to
close. Only frames that SQLite said are committed may be asked for. Behind them lie
others that were never committed, or are left from an earlier generation of the log.
"""

# apsw's own stubs name a type that Python has only from 3.12, so to 3.11 its values are unknown.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

import apsw

from sapwood.errors import StoredDataError
from sapwood.storage.engine import CHECKED
from sapwood.storage.image import FRAME_HEADER, PAGE_SIZE, WAL_HEADER
from sapwood.storage.sql_errors import damage

MAGIC = (0x377F0682, 0x377F0683)
FRAME = FRAME_HEADER + PAGE_SIZE

_header = struct.Struct(">6I").unpack_from
_frame = struct.Struct(">4I").unpack_from


class Frames(NamedTuple):
    """The outcome of some frames."""

    size: int
    """How many pages the file has after them."""
    pages: dict[int, memoryview]
    """Each page they changed, as the last of them left it."""


class WalFrames:
    """Reads the write-ahead log of one database."""

    __slots__ = ("_descriptor", "_name", "_salts")

    def __init__(self, wal: Path) -> None:
        self._name = wal.name
        self._descriptor = os.open(wal, os.O_RDONLY)
        self._salts: tuple[int, int] | None = None
        """The salts of all frames since the log was last restarted, which is when its first frame is written."""

    def read(self, first: int, last: int) -> Frames:
        """Return what these frames hold, both included; the first of the file is 1, the last ends a commit."""
        if first == 1 or self._salts is None:
            self._salts = self._read_header()
        salt, other_salt = self._salts
        length = (last - first + 1) * FRAME
        raw = os.pread(self._descriptor, length, WAL_HEADER + (first - 1) * FRAME)
        if len(raw) < length:
            raise self._unfit(f"ends before frame {last}")
        view = memoryview(raw)
        size = 0
        pages: dict[int, memoryview] = {}
        for at in range(0, length, FRAME):
            number, size, one, two = _frame(raw, at)
            if one != salt or two != other_salt:
                raise self._unfit(f"has a frame of an earlier generation, {first + at // FRAME}")
            pages[number] = view[at + FRAME_HEADER : at + FRAME]
        if not size:
            raise self._unfit(f"has no commit at frame {last}")
        return Frames(size, pages)

    def _read_header(self) -> tuple[int, int]:
        header = os.pread(self._descriptor, WAL_HEADER, 0)
        if len(header) < WAL_HEADER:
            raise self._unfit("has no header")
        magic, _, page_size, _, salt, other_salt = _header(header)
        if magic not in MAGIC or page_size != PAGE_SIZE:
            raise self._unfit("has an unknown header")
        return salt, other_salt

    def _unfit(self, why: str) -> StoredDataError:
        return StoredDataError(f"The write-ahead log {self._name} {why}.")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


def whole_image(path: Path) -> bytes:
    """Return what a database holds, its write-ahead log included. No process may have it open."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=CHECKED)
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        # A page that cannot be read is zeros in what `serialize` returns.
        ((found,),) = connection.execute("PRAGMA quick_check(1)")
        if found != "ok":
            raise StoredDataError(f"The database {path.name} is damaged: {found}")
        return connection.serialize("main")
    except apsw.Error as error:
        raise StoredDataError(f"The database {path.name} cannot be read: {damage(error) or error}") from error
    finally:
        connection.close(True)


def fold(path: Path) -> None:
    """Have a database hold what its write-ahead log has, which goes. No process may have it open."""
    wal = path.with_name(f"{path.name}-wal")
    if not wal.exists():
        return
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=CHECKED)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = OFF").fetchall()
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.Error as error:
        raise StoredDataError(f"The database {path.name} cannot be read: {damage(error) or error}") from error
    finally:
        connection.close(True)
    wal.unlink(missing_ok=True)


def has_empty_log(path: Path) -> bool:
    """Return whether the file of a database has everything, and its write-ahead log not one byte."""
    wal = path.with_name(f"{path.name}-wal")
    return not wal.exists() or not wal.stat().st_size
