"""A disk that is full from a given write on, below SQLite and below sapwood's own files."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from sapwood.kernel.durability import storage_state
from sapwood.storage import sql_errors
from sapwood.storage.availability import StorageUnavailable, refused_by
from sapwood.storage.engine import CHECKED
from sapwood.storage.files import Files

NUMBERS = itertools.count(1)


class FullDisk:
    """Refuses writes as long as it is full. `fill_at` lets it be full from that commit on, for so many writes."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.is_full = False
        self.writes = 0
        """How many transactions and files were written, or tried to be."""
        self.refused = 0
        self._fill_at = 0
        self._refusals = 0

    def fill_at(self, write: int, refusals: int) -> None:
        """Be full at the n-th write from now on, until so many writes were refused."""
        self._fill_at, self._refusals = self.writes + write, self.refused + refusals

    def write(self) -> None:
        """Count a write; raise what the operating system says if it is refused."""
        self.writes += 1
        if self._fill_at and self.writes >= self._fill_at:
            self.is_full = True
        if self.is_full:
            self.refused += 1
            if self._fill_at and self.refused >= self._refusals:
                self.is_full, self._fill_at = False, 0
            raise OSError(self.code, os.strerror(self.code))

    def why(self) -> StorageUnavailable | None:
        return refused_by(OSError(self.code, "")) if self.is_full else None


class FullVfs(apsw.VFS):
    """SQLite's way to such a disk."""

    def __init__(self, name: str, disk: FullDisk) -> None:
        super().__init__(name, CHECKED)
        self._disk = disk

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return FullFile(self._disk, name, flags)


class FullFile(apsw.VFSFile):
    """One open file of SQLite's. The first write of a commit to the log counts."""

    def __init__(self, disk: FullDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._is_log = bool(flags[0] & apsw.SQLITE_OPEN_WAL)
        super().__init__(CHECKED, name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        if self._is_log and len(data) > 100:  # a page, not the header of a frame
            try:
                self._disk.write()
            except OSError:
                raise apsw.FullError("database or disk is full") from None
        super().xWrite(data, offset)


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOSPC) -> Iterator[FullDisk]:
    """Have every data folder lie on a disk that can be full."""
    disk, name, create = FullDisk(code), f"sapwood-full-{next(NUMBERS)}", Files.create
    vfs = FullVfs(name, disk)

    def created(self: Files, path: Path, content: bytes) -> int:
        disk.write()
        return create(self, path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Files, "vfs", name)
        patched.setattr(Files, "create", created)
        # SQLite says only that a write was refused, and this disk refuses for one reason.
        patched.setattr(sql_errors, "probe", lambda folder: refused_by(OSError(code, "")))
        patched.setattr(storage_state, "probe", lambda folder: disk.why())
        yield disk
    vfs.unregister()
