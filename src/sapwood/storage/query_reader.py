"""One long query on a thread, on the database as it was at one moment, while its agent reads and writes.

Right after a checkpoint the file holds every commit, and only the next checkpoint changes it: commits go to the
write-ahead log. So a connection that reads the file alone needs no copy of it, as long as no checkpoint runs.
It takes no locks. SQLite closes its descriptor together with the agent's own, because closing a descriptor of a file
drops the locks of the whole process on it.
"""

# apsw's own stubs name a type that Python has only from 3.12, so to 3.11 its values are unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from sapwood.errors import ForbiddenSql, SapwoodError, UsageError
from sapwood.storage.rows import Rows
from sapwood.storage.sql_errors import argument_error, opening_error, sql_error
from sapwood.storage.sql_permissions import no_use

PROGRESS_STEPS = 50_000


class QueryReader:
    """Runs one query. The file must not change before it ends."""

    __slots__ = ("_denied", "_description", "_path", "_reason", "_sql", "_vfs")

    def __init__(self, path: Path, vfs: str) -> None:
        self._path = path
        self._vfs = vfs
        self._sql = ""
        self._description: Any = ()
        self._denied: str | None = None
        self._reason: SapwoodError | None = None
        """Why the query must stop."""

    def cancel(self, reason: SapwoodError) -> None:
        """Stop the query, on whatever thread it runs; it raises `reason`. The file may change from now on."""
        self._reason = self._reason or reason

    def read(self, sql: str, arguments: Sequence[object] | dict[str, object]) -> Rows:
        """Run the query, for as long as it takes, and return all its rows. Blocks: call it on a thread.

        Raises `DatabaseDamage` if the file is damaged.
        """
        self._sql = sql
        try:
            connection = self._open()
        except apsw.Error as error:
            raise self._reason or opening_error(error, self._path) from error
        try:
            cursor = connection.cursor()
            cursor.exec_trace = self._before_statement
            rows: list[tuple[Any, ...]] = cursor.execute(sql, arguments).fetchall()  # pyright: ignore[reportArgumentType]
            if self._reason is not None:
                raise self._reason  # the file may have changed since
            return Rows(tuple([column[0] for column in self._description]), rows)
        except apsw.Error as error:
            raise self._reason or sql_error(error, self._denied, sql) from error
        except (TypeError, KeyError) as error:
            raise argument_error(error, sql) from None
        finally:
            connection.close(True)

    def _open(self) -> apsw.Connection:
        connection = apsw.Connection(
            f"file:{quote(str(self._path))}?immutable=1",
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOMUTEX,
            vfs=self._vfs,
        )
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.execute("PRAGMA temp_store = MEMORY").fetchall()
        connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        connection.authorizer = self._authorize
        connection.set_progress_handler(self._must_stop, PROGRESS_STEPS)
        return connection

    def _must_stop(self) -> bool:
        return self._reason is not None

    def _authorize(self, action: int, first: str | None, second: str | None, schema: str | None, by: str | None) -> int:
        self._denied = self._denied or no_use(action, first, second, by, self._sql)
        return apsw.SQLITE_OK if self._denied is None else apsw.SQLITE_DENY

    def _before_statement(self, cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        if not cursor.is_readonly:
            raise ForbiddenSql(f"read_sql() only reads. Use self.sql() to write. In: {sql}")
        # Here, because SQLite forgets the columns of a statement as soon as it has ended.
        columns = cursor.get_description()
        if columns and self._description:
            raise UsageError(f"Only one statement may return rows. In: {self._sql}")
        self._description = columns or self._description
        return True
