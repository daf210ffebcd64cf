"""SQLite as every process sets it up before it opens a file: with page checksums, and without lookaside memory.

The last 8 bytes of each page of a database are its checksum. SQLite's own extension `cksumvfs` writes it with the page,
and compares it whenever the page is read from the file. The frames of a write-ahead log have checksums of their own.
"""

# apsw's own stubs name a type that Python has only from 3.12, so to 3.11 its values are unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import apsw
from apsw import sqlite_extra

CHECKED = "cksmvfs"
"""The VFS that computes and compares checksums. Every database is opened with it."""
CHECKSUM = 8
"""Bytes of each page that SQLite reserves for the checksum."""
NO_CHECKSUMS = "it has no page checksums, so this version of sapwood did not write it"
HEADER = 100


def _set_up() -> None:
    if not apsw.connections():
        # A setting of the whole library, so only while the process has no connection: lookaside memory would double
        # what an open database costs.
        apsw.shutdown()
        apsw.config(apsw.SQLITE_CONFIG_LOOKASIDE, 0, 0)
        apsw.initialize()  # apsw's SQLite does not do it automatically, and without it has no mutexes
    default = apsw.vfs_names()[0]
    memory = apsw.Connection(":memory:")
    try:
        sqlite_extra.load(memory, "cksumvfs")
    except (sqlite_extra.NotAvailable, LookupError, apsw.ExtensionLoadingError) as error:
        raise ImportError(
            "This build of apsw lacks the SQLite extension 'cksumvfs', which sapwood needs for page checksums. Install "
            f"apsw as a wheel: pip install --only-binary=apsw --force-reinstall apsw. ({error})"
        ) from error
    finally:
        memory.close()
    apsw.set_default_vfs(default)  # it puts itself first, also for files that are not sapwood's


_set_up()


def has_checksums(connection: apsw.Connection) -> bool:
    """Return whether SQLite compares the checksums of the file that it has open."""
    return connection.execute("PRAGMA checksum_verification").fetchall() == [("1",)]


def page_checksum(page: bytes | bytearray) -> bytes:
    """Return the checksum of a page, as the extension computes it. Slow: for the few pages of an empty database."""
    return struct.pack("<2I", *checksum(struct.iter_unpack("<2I", page[:-CHECKSUM])))


def checksum(pairs: Iterable[tuple[int, int]], before: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Return the checksum of pairs of words, as SQLite computes it for pages and for write-ahead logs.

    `before`: that of what the pairs follow.
    """
    one, two = before
    for even, odd in pairs:
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return one, two


def write_pages(path: Path, pages: Iterable[tuple[int, bytes | bytearray | memoryview]], length: int) -> None:
    """Write pages with their checksums into a database that no process has open, and set its length.

    Each comes with its place. A file that is empty gets its first page first.
    """
    flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE
    try:
        file = apsw.VFSFile(CHECKED, str(path.absolute()), [flags, 0])
        try:
            if file.xFileSize():
                file.xRead(HEADER, 0)  # the extension learns from the header that the pages have checksums
            for place, page in pages:
                file.xWrite(bytearray(page), place)  # a copy: the extension puts the checksum into it
            file.xTruncate(length)
        finally:
            file.xClose()
    except apsw.Error as error:
        raise OSError(f"{path.name} was not written: {error}") from error
