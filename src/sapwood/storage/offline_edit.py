"""Changes rows of a database that no process has open, such as that of a copy that is about to be restored."""

# apsw's own stubs name a type that Python has only from 3.12, so to 3.11 its values are unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from sapwood.errors import StoredDataError
from sapwood.storage.engine import CHECKED
from sapwood.storage.migrations import Schema


class OfflineEdit:
    """One transaction in a database."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, arguments).fetchall()

    def has(self, schema: Schema) -> bool:
        """Return whether these tables exist."""
        return bool(self.execute("SELECT 1 FROM sapwood_migrations WHERE owner = ?", schema.owner))

    def ensure(self, schema: Schema) -> None:
        """Create these tables if they do not exist."""
        for script in () if self.has(schema) else schema.scripts:
            self.execute(script.sql)
            self.execute("INSERT INTO sapwood_migrations VALUES (?, ?, ?)", script.owner, script.number, script.digest)


@contextmanager
def editing(path: Path) -> Generator[OfflineEdit, None, None]:
    """Open a database for one transaction. Takes a while: not for the event loop."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=CHECKED)
        try:
            with connection:
                yield OfflineEdit(connection)
        finally:
            connection.close(True)
    except apsw.Error as error:
        raise StoredDataError(f"The database {path.name} cannot be changed: {error}.") from error
