"""What the SQL of a user may not do, and why: transactions, files and the framework's tables are not its own."""

from __future__ import annotations

import re

import apsw

RESERVED = "sapwood_"
RENAMED_TO_RESERVED = re.compile(r"to(\s|/\*.*?\*/|--[^\n]*\n)*[\"'`\[]?sapwood_", re.IGNORECASE | re.DOTALL)
READABLE_PRAGMAS = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
    | {"data_version"}  # full-text tables ask for it themselves
    | {"quick_check"}  # so does ALTER TABLE, for a new column with a constraint
)
# What the authorizer is told about a table comes as its first argument, or as its
# second when the first is an index, a trigger or a schema.
TABLE_FIRST = frozenset(
    {
        apsw.SQLITE_INSERT,
        apsw.SQLITE_UPDATE,
        apsw.SQLITE_DELETE,
        apsw.SQLITE_READ,
        apsw.SQLITE_CREATE_TABLE,
        apsw.SQLITE_CREATE_VIEW,
        apsw.SQLITE_CREATE_VTABLE,
        apsw.SQLITE_DROP_TABLE,
        apsw.SQLITE_DROP_VIEW,
        apsw.SQLITE_DROP_VTABLE,
    }
)
WRITES = frozenset({apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE})
LOOKS = frozenset({apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE})
SEQUENCES = "sqlite_sequence"
TABLE_SECOND = frozenset(
    {
        apsw.SQLITE_ALTER_TABLE,
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_DROP_TRIGGER,
    }
)
NOTHING_TEMPORARY = (
    "Temporary tables are not allowed: a database may be closed between two calls, and they would be lost. "
    "Create a table."
)
FORBIDDEN = {
    apsw.SQLITE_TRANSACTION: "Transaction statements are not allowed: everything written between two awaits is "
    "committed together. Use `with self.transaction():` to roll back a part.",
    apsw.SQLITE_SAVEPOINT: "Savepoints are not allowed. Use `with self.transaction():`.",
    apsw.SQLITE_ATTACH: "ATTACH and VACUUM are not allowed: an agent has exactly one database, its own.",
    apsw.SQLITE_DETACH: "DETACH is not allowed: an agent has exactly one database, its own.",
    apsw.SQLITE_CREATE_TEMP_TABLE: NOTHING_TEMPORARY,
    apsw.SQLITE_CREATE_TEMP_VIEW: NOTHING_TEMPORARY,
    apsw.SQLITE_CREATE_TEMP_INDEX: NOTHING_TEMPORARY,
    apsw.SQLITE_CREATE_TEMP_TRIGGER: NOTHING_TEMPORARY,
}


def is_reserved(*names: str | None) -> bool:
    """Return whether a table with one of these names is the framework's."""
    return any(name is not None and name.lower().startswith(RESERVED) for name in names)


def no_look(action: int, first: str | None) -> str | None:
    """Return why a read-only statement may not do this, in terms of SQLite's authorizer, or `None` if it may."""
    if action in LOOKS or (action == apsw.SQLITE_PRAGMA and first in READABLE_PRAGMAS):
        return None
    return "Only reads are allowed here."


def no_use(action: int, first: str | None, second: str | None, by: str | None, sql: str) -> str | None:
    """Return why a statement of the user's may not do this, in terms of SQLite's authorizer, or `None` if it may."""
    if action == apsw.SQLITE_PRAGMA and first not in READABLE_PRAGMAS:
        return f"PRAGMA {first} is the framework's to set."
    if (
        (action in TABLE_FIRST and is_reserved(first))
        or (action in TABLE_SECOND and is_reserved(first, second))
        or (action == apsw.SQLITE_ALTER_TABLE and RENAMED_TO_RESERVED.search(sql))
    ):
        return f"Tables named {RESERVED}… are reserved for the framework."
    if action in WRITES and first == SEQUENCES and (by is not None or SEQUENCES in sql.lower()):
        # SQLite itself writes it when a table is dropped; a user would turn back the numbers of files.
        return f"{SEQUENCES} is reserved for SQLite and the framework."
    return FORBIDDEN.get(action)
