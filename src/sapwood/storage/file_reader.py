"""Reads the file of an agent that sleeps, and leaves it as it is: no byte of it changes, and nothing appears beside it.

Only while no other process has the file open. What would have to be written to be read, such
as tables that an older version made, is written to a copy in memory.
"""

# apsw's own stubs name a type that Python has only from 3.12, so to 3.11 its values are unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from sapwood.errors import MigrationFailed, StoredDataError, Unavailable
from sapwood.storage.engine import CHECKED, NO_CHECKSUMS, has_checksums
from sapwood.storage.files import Files
from sapwood.storage.image import empty_image, is_cut
from sapwood.storage.marks import Marks, generation_of, loss, stored_version
from sapwood.storage.migrations import APPLIED, ROLL_BACK, Schema, Script, check_known
from sapwood.storage.rows import SqlValue
from sapwood.storage.sql_errors import damage

LARGEST_COPY = 256 * 1024 * 1024
"""How many bytes a database may have to be copied to memory."""


class FileReader:
    """One agent's database, to be read."""

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self.path = path
        """Its file."""
        self.stem = path.stem
        """The name of its file, without the suffix."""
        self._connection = connection
        found = self.rows("SELECT owner, max(number) FROM sapwood_migrations GROUP BY owner")
        self._versions: dict[str, int] = {str(owner): int(number) for owner, number in found}

    def rows(self, sql: str, *arguments: SqlValue) -> Iterator[tuple[Any, ...]]:
        """Return rows one by one."""
        try:
            yield from self._connection.execute(sql, arguments)
        except apsw.BusyError as error:
            raise Unavailable("The database is locked by another process.") from error
        except apsw.Error as error:
            raise StoredDataError(f"The database is damaged: {damage(error) or error}.") from error

    def has(self, schema: Schema) -> bool:
        """Return whether these tables exist, as the framework knows them now."""
        version = self._versions.get(schema.owner, 0)
        if version > len(schema.scripts):
            raise StoredDataError(
                f"The tables of {schema.owner!r} were written by a newer version of sapwood. {ROLL_BACK}"
            )
        if 0 < version < len(schema.scripts):
            self.apply(schema.scripts[version:])
        return version > 0

    def check_known(self) -> None:
        """Refuse a file that a newer version of the framework has written."""
        check_known(self._versions)

    @property
    def versions(self) -> Mapping[str, int]:
        """How many scripts of each owner it has seen."""
        return self._versions

    @property
    def frames(self) -> int:
        """How many frames of the write-ahead log can be read; 0 without a log."""
        return max(self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0], 0)

    @property
    def applied(self) -> list[tuple[int, bytes]]:
        """What this file has seen of the user's migrations."""
        return list(self.rows(APPLIED))  # pyright: ignore[reportReturnType]

    def apply(self, scripts: Sequence[Script]) -> bool:
        """Run scripts, on a copy in memory that is read from then on; False: it is too large for that."""
        if scripts:
            ((size,),) = self.rows("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
            if size > LARGEST_COPY:
                return False
            self._to_memory()
        for script in scripts:
            try:
                with self._connection:
                    self._connection.execute(script.sql)
            except apsw.Error as error:
                raise MigrationFailed(f"{script.name} failed: {error}") from error
            self._versions[script.owner] = script.number
        return True

    def _to_memory(self) -> None:
        if not self._connection.filename:
            return
        memory = apsw.Connection(":memory:")
        try:
            with memory.backup("main", self._connection, "main") as copying:
                while not copying.done:
                    copying.step()
        except apsw.Error as error:
            raise StoredDataError(f"The database is damaged: {damage(error) or error}.") from error
        memory.execute("PRAGMA foreign_keys = ON")
        self._connection.close(True)
        self._connection = memory

    def close(self) -> None:
        self._connection.close(True)


@contextlib.contextmanager
def reading(path: Path, busy_timeout: float = 0.0) -> Generator[FileReader, None, None]:
    """Open the database at `path` to read it; `StoredDataError` if that cannot be done.

    `busy_timeout`: seconds to wait for another process or thread that reads it; then `Unavailable`.
    """
    until = time.monotonic() + busy_timeout
    with contextlib.ExitStack() as stack:
        while (found := _opened(path, stack)) is None:
            if time.monotonic() >= until:
                raise Unavailable(f"The database {path.name} is locked by another process.")
            # Two that wait with their connections open would wait for each other.
            time.sleep(random.uniform(0.001, 0.05))
        yield found


def _opened(path: Path, stack: contextlib.ExitStack) -> FileReader | None:
    """Open the database at `path`; `None` if another process or thread has it open."""
    with contextlib.ExitStack() as attempt:
        try:
            version = stored_version(path)
            connection = _open(path, attempt)
            attempt.callback(connection.close, True)
            if not has_checksums(connection):
                raise StoredDataError(f"The database cannot be opened: {NO_CHECKSUMS}.")
            found = FileReader(connection, path)
            if (how := _loss(path, connection, version)) is not None:
                raise StoredDataError(f"The database is damaged: {how}.")
        except (apsw.BusyError, Unavailable):
            return None
        except (apsw.Error, OSError) as error:
            raise StoredDataError(f"The database cannot be opened: {error}.") from error
        attempt.callback(found.close)
        stack.push(attempt.pop_all())
        return found


def _loss(path: Path, connection: apsw.Connection, version: int) -> str | None:
    """Return what a file lacks of what its mark names, or `None` if it has no mark that counts."""
    files = Files()
    mark = Marks(path.parent, files).find(path.stem)
    if mark is None or not mark.counts(files.boot):
        return None
    frames = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
    frames = max(frames, 0)
    return loss(mark, path, generation_of(path, frames), frames, version, files.boot)


def _open(path: Path, stack: contextlib.ExitStack) -> apsw.Connection:
    wal = path.with_name(path.name + "-wal")
    has_wal = wal.exists() and wal.stat().st_size > 0
    cut = path.stat().st_size <= len(empty_image()) and is_cut(path.read_bytes())
    may_lock = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    if cut or (has_wal and not may_lock):
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sapwood-")))
        if cut:
            (folder / path.name).write_bytes(empty_image())
        else:
            shutil.copyfile(path, folder / path.name)
        if has_wal:
            shutil.copyfile(wal, folder / wal.name)
        path = folder / path.name
    if not has_wal:
        # Nothing is looked for beside the file then, and nothing is made there.
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        return apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags, vfs=CHECKED)
    # To read a log SQLite has to lock the file. With the lock for itself it keeps the log's index in memory, and
    # without a checkpoint at the end it writes nothing.
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=CHECKED)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE; PRAGMA query_only = ON").fetchall()
    return connection
