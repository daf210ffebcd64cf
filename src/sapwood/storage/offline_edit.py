"""Changes rows of a database that no process has open, such as that of a copy that is about to be restored."""

# apsw's own stubs name a type that Python has only from 3.12, so to 3.11 its values are unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from sapwood.errors import SapwoodError, StoredDataError
from sapwood.storage.engine import CHECKED
from sapwood.storage.migrations import Schema, check_known
from sapwood.storage.sql_errors import damage, refusal_of

UNSHARED = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = OFF; PRAGMA temp_store = MEMORY"
"""Settings of a connection to a file that no other connection has open: it needs no index of the log on the disk."""


class OfflineEdit:
    """One transaction in a database. It can be used like a `Database` where only rows are read and written."""

    undone = 0
    """How often a transaction was undone: the first error ends the edit."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        found = self.execute("SELECT owner, max(number) FROM sapwood_migrations GROUP BY owner")
        self._versions: dict[str, int] = dict(found)
        check_known(self._versions)

    def execute(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, arguments).fetchall()

    def has(self, schema: Schema) -> bool:
        """Return whether these tables exist, and bring them up to date if they do."""
        if not (version := self._versions.get(schema.owner, 0)):
            return False
        if version < len(schema.scripts):
            self._apply(schema, version)
        return True

    def ensure(self, schema: Schema) -> None:
        """Bring these tables up to date, creating them if they do not exist."""
        if not self.has(schema):
            self._apply(schema, 0)

    def _apply(self, schema: Schema, version: int) -> None:
        for script in schema.scripts[version:]:
            self.execute(script.sql)
            self.execute("INSERT INTO sapwood_migrations VALUES (?, ?, ?)", script.owner, script.number, script.digest)
            self._versions[script.owner] = script.number


@contextmanager
def editing(path: Path) -> Generator[OfflineEdit, None, None]:
    """Open a database for one transaction. Takes a while: not for the event loop."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=CHECKED)
        try:
            # No crash is survived half done: who edits a copy makes it durable as a whole, or removes it.
            connection.execute(UNSHARED).fetchall()
            with connection:
                yield OfflineEdit(connection)
        finally:
            connection.close(True)
    except apsw.Error as error:
        raise _of(error, path) from error


def compact(path: Path) -> None:
    """Rewrite a database without its free pages, and without its write-ahead log. Takes a while."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=CHECKED)
        try:
            connection.execute(UNSHARED).fetchall()
            connection.execute("VACUUM")
        finally:
            connection.close(True)
    except apsw.Error as error:
        raise _of(error, path) from error


def _of(error: apsw.Error, path: Path) -> SapwoodError:
    """Return the error to raise: a full disk is no damage."""
    if (how := damage(error)) is not None:
        return StoredDataError(f"The database {path.name} is damaged: {how}.")
    refused = refusal_of(error, path.parent)
    return refused or StoredDataError(f"The database {path.name} cannot be changed: {error}.")
