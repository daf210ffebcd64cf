"""The errors that a statement raises, as sapwood's own: the same for `sql` and `read_sql`."""

from __future__ import annotations

import apsw

from sapwood.errors import ConstraintViolated, ForbiddenSql, SqlError, StoredDataError, UsageError


def sql_error(error: apsw.Error, denied: str | None, sql: str, file: str) -> Exception:
    """Return the error to raise for one of SQLite's. `denied` is the reason of the authorizer, if it refused."""
    if isinstance(error, apsw.AuthError) or denied is not None:
        return ForbiddenSql(f"{denied or error} In: {sql}")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoredDataError(f"The database {file} is damaged: {error}")
    if isinstance(error, apsw.ConstraintError):
        return ConstraintViolated(f"{error}. In: {sql}")
    return SqlError(f"{error}. In: {sql}")


def argument_error(error: TypeError | KeyError, sql: str) -> UsageError:
    """Return the error to raise for arguments that do not fit the statement."""
    if isinstance(error, KeyError):
        return UsageError(f"The argument {error} is missing. In: {sql}")
    return UsageError(
        "SQL arguments must be None, int, float, str or bytes, passed one by one after the "
        f"statement: {error}. In: {sql}"
    )
