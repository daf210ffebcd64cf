"""The tables of users in two databases that are attached to one connection as `a` and `b`."""

from __future__ import annotations

import re
from typing import NamedTuple

import apsw

from sapwood.storage.sql_permissions import is_reserved

LOWER = {ord(upper): ord(upper) + 32 for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
FULL_TEXT = frozenset({"fts3", "fts4", "fts5"})
READABLE = FULL_TEXT | {"rtree", "rtree_i32", "geopoly"}
"""Modules of virtual tables that store rows. Others compute theirs from what is compared already."""
MODULE = re.compile(r"^CREATE\s+VIRTUAL\s+TABLE\s.*?\sUSING\s+[\"'`\[]?(\w+)", re.IGNORECASE | re.DOTALL)


class KeyColumn(NamedTuple):
    """A column of a primary key."""

    name: str
    type: str
    collation: str


class Table(NamedTuple):
    """A table of a user in one of the two databases."""

    schema: str
    """`a` or `b`."""
    name: str
    module: str | None
    """Of a virtual table."""
    columns: tuple[str, ...]
    """Without generated ones, which follow from the others."""
    key: tuple[KeyColumn, ...]
    """The columns of the primary key, in its order; empty without one."""

    @property
    def sql(self) -> str:
        """Its name in a statement."""
        return f"{self.schema}.{quoted(self.name)}"

    def value(self, column: str, row: str) -> str:
        """Return a column of a row in a statement. A column that the table lacks is NULL."""
        mine = next((one for one in self.columns if folded(one) == column), None)
        return "NULL" if mine is None else f"{row}.{quoted(mine)}"


def folded(name: str) -> str:
    """Return the same for all names that are one to SQLite, which ignores the case of A to Z only."""
    return name.translate(LOWER)


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def tables_of(connection: apsw.Connection, schema: str) -> dict[str, Table]:
    """Return the tables of the user by their names, as `folded` returns them.

    Left out are the tables of sapwood and of SQLite, those in which a virtual table keeps its index, and virtual tables
    that store no rows.
    """
    rows = connection.execute(
        "SELECT l.name, l.type, s.sql FROM pragma_table_list AS l"  # noqa: S608 - one of two words
        f" JOIN {schema}.sqlite_schema AS s ON s.type = 'table' AND s.name = l.name"
        " WHERE l.schema = ? AND l.type IN ('table', 'virtual') ORDER BY l.name",
        (schema,),
    ).fetchall()
    own = [
        (str(name), _module(str(sql)) if kind == "virtual" else None)
        for name, kind, sql in rows
        if not is_reserved(str(name)) and not str(name).lower().startswith("sqlite_")
    ]
    return {
        folded(name): _table(connection, schema, name, module)
        for name, module in own
        if module is None or module in READABLE
    }


def schema_of(connection: apsw.Connection, schema: str) -> dict[str, str]:
    """Return the statements that made the user's tables, indexes, views and triggers, by their types and names."""
    rows = connection.execute(
        "SELECT s.type, s.name, s.tbl_name, s.sql"  # noqa: S608 - one of two words
        f" FROM {schema}.sqlite_schema AS s LEFT JOIN pragma_table_list AS l ON l.schema = ? AND l.name = s.name"
        " WHERE s.sql IS NOT NULL AND l.type IS NOT 'shadow' ORDER BY 1, 2",
        (schema,),
    )
    return {
        f"{kind} {name}": str(sql)
        for kind, name, table, sql in rows
        if not is_reserved(str(name), str(table)) and not str(name).lower().startswith("sqlite_")
    }


def _module(sql: str) -> str:
    found = MODULE.match(sql)
    return found[1].lower() if found else "unknown"


def _table(connection: apsw.Connection, schema: str, name: str, module: str | None) -> Table:
    rows = connection.execute(
        "SELECT name, type, pk FROM pragma_table_xinfo(?, ?) WHERE hidden = 0 ORDER BY cid", (name, schema)
    ).fetchall()
    columns = tuple(str(column) for column, _, _ in rows)
    if module in FULL_TEXT:
        return Table(schema, name, module, ("rowid", *columns), ())
    collations = _collations(connection, schema, name)
    keys = sorted((int(str(place)), str(column), str(kind)) for column, kind, place in rows if place)
    key = tuple(KeyColumn(folded(column), kind.upper(), collations.get(column, "BINARY")) for _, column, kind in keys)
    return Table(schema, name, module, columns, key)


def _collations(connection: apsw.Connection, schema: str, name: str) -> dict[str, str]:
    rows = connection.execute(
        "SELECT c.name, c.coll FROM pragma_index_list(?1, ?2) AS i, pragma_index_xinfo(i.name, ?2) AS c"
        " WHERE i.origin = 'pk' AND c.key AND c.name IS NOT NULL",
        (name, schema),
    )
    return {str(column): str(collation) for column, collation in rows}
