"""SQLite's errors as sapwood's own: the same for `sql` and `read_sql`."""

from __future__ import annotations

from pathlib import Path

import apsw

from sapwood.errors import (
    ConstraintViolated,
    ForbiddenSql,
    MigrationFailed,
    SapwoodError,
    SqlError,
    StoredDataError,
    Unavailable,
    UsageError,
)
from sapwood.storage.availability import StorageUnavailable, probe

DAMAGED_READS = (apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS)
"""Extended codes of reads whose checksum is wrong."""
OUT_OF_REACH = (
    apsw.BusyError,
    apsw.LockedError,
    apsw.CantOpenError,
    apsw.PermissionsError,
    apsw.ReadOnlyError,
    apsw.FullError,
    apsw.NoMemError,
)
"""The errors of SQLite that say nothing about the content of a file."""


class DatabaseDamage(Exception):
    """A database file is damaged; the text says how. Its owner makes of it what users get."""


def damage(error: apsw.Error) -> str | None:
    """Return how the file is damaged if that is what SQLite says, or `None` if it says something else."""
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return str(error)
    if isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) in DAMAGED_READS:
        return "a page does not match its checksum, because the storage or another program changed it"
    return None


def refusal_of(error: apsw.Error, folder: Path) -> StorageUnavailable | None:
    """Return the error to raise if the operating system refused something, or `None` if SQLite did."""
    if not isinstance(error, apsw.FullError | apsw.IOError | apsw.CantOpenError | apsw.ReadOnlyError):
        return None
    found = probe(folder)
    # Only an I/O error never is SQLite's own: other programs may have made room since.
    return found or (StorageUnavailable(f"The disk failed: {error}.") if isinstance(error, apsw.IOError) else None)


def opening_error(error: apsw.Error, path: Path) -> SapwoodError | DatabaseDamage:
    """Return the error to raise if the database at this path cannot be opened."""
    if isinstance(error, apsw.BusyError):
        return Unavailable(f"The database {path.name} is locked by another process.")
    if (how := damage(error)) is not None:
        return DatabaseDamage(how)
    if (refusal := refusal_of(error, path.parent)) is not None:
        return refusal
    return StoredDataError(f"The database {path.name} cannot be opened: {error}")


def sql_error(error: apsw.Error, denied: str | None, sql: str) -> Exception:
    """Return the error to raise for one of SQLite's. `denied` is the reason of the authorizer, if it refused."""
    if isinstance(error, apsw.AuthError) or denied is not None:
        return ForbiddenSql(f"{denied or error} In: {sql}")
    if (how := damage(error)) is not None:
        return DatabaseDamage(how)
    if isinstance(error, apsw.ConstraintError):
        return ConstraintViolated(f"{error}. In: {sql}")
    return SqlError(f"{error}. In: {sql}")


def is_damage(error: SapwoodError) -> bool:
    """Return whether an error means that the content of a database is wrong; not if it is in use or out of reach."""
    if isinstance(error, StoredDataError):
        return not isinstance(error.__cause__, OUT_OF_REACH)
    if isinstance(error, MigrationFailed) and isinstance(error.__cause__, SapwoodError):
        error = error.__cause__
    return isinstance(error, SqlError) and isinstance(error.__cause__, apsw.SQLError)  # the tables are not ours


def argument_error(error: TypeError | KeyError, sql: str) -> UsageError:
    """Return the error to raise for arguments that do not fit the statement."""
    if isinstance(error, KeyError):
        return UsageError(f"The argument {error} is missing. In: {sql}")
    return UsageError(
        "SQL arguments must be None, int, float, str or bytes, passed one by one after the "
        f"statement: {error}. In: {sql}"
    )
