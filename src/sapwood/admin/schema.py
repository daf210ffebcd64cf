"""`schema`: the tables of an agent."""

from __future__ import annotations

from typing import Any

from sapwood.address import Address
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.chat.agent import ChatAgent
from sapwood.errors import UnknownAgent, UsageError
from sapwood.kernel.trees.tree import Tree
from sapwood.storage.database import Database

MOST = 1000
"""Tables that are shown at most."""
MOST_COUNTED = 2000
"""Rows of a table that are counted."""


async def _schema(call: AdminCall, params: OneAgent) -> Answer:
    tree, database = await call.read(address := Address.parse(params.address))
    is_chat = _is_chat(call, tree, address)
    if not database.exists:
        return {"bytes": 0, "tables": [], "is_chat": is_chat}
    sql = "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type IN ('table', 'virtual') ORDER BY name"
    _, found = database.look(sql, (), MOST)
    tables = [_table(database, name, is_rowless=bool(wr)) for name, wr in found if not name.startswith("sqlite_")]
    return {"bytes": _size(database), "tables": tables, "is_chat": is_chat}


def _is_chat(call: AdminCall, tree: Tree, address: Address) -> bool:
    """Return whether its class has a conversation, as far as this process knows the class."""
    try:
        kind = call.admin.lookup.kind(tree, address)
    except (UnknownAgent, UsageError):
        return False
    return issubclass(kind.cls, ChatAgent)


def _table(database: Database, name: str, *, is_rowless: bool) -> dict[str, Any]:
    _, columns = database.look('SELECT name, type, "notnull", pk FROM pragma_table_info(?)', (name,), MOST)
    _, indexes = database.look('SELECT name, "unique" FROM pragma_index_list(?)', (name,), MOST)
    return {
        "name": name,
        "rows": _rows(database, name, is_rowless=is_rowless),
        "is_own": not name.startswith("sapwood_"),
        "columns": [
            {"name": column, "type": kind, "not_null": bool(not_null), "primary_key": key}
            for column, kind, not_null, key in columns
        ],
        "indexes": [
            {"name": index, "unique": bool(unique), "columns": _columns_of(database, index)}
            for index, unique in indexes
        ],
    }


def _columns_of(database: Database, index: str) -> list[str]:
    _, rows = database.look("SELECT name FROM pragma_index_info(?)", (index,), MOST)
    return [name for (name,) in rows if name is not None]


def _rows(database: Database, table: str, *, is_rowless: bool) -> int | None:
    """Count a few rows. For a larger table, return an upper estimate, which reads one page."""
    quoted = table.replace('"', '""')
    some = f'SELECT count(*) FROM (SELECT 1 FROM "{quoted}" LIMIT {MOST_COUNTED + 1})'  # noqa: S608 - of this database
    if (count := database.look(some, (), 1)[1][0][0]) <= MOST_COUNTED:
        return count
    if is_rowless:
        return None
    ((most,),) = database.look(f'SELECT max(rowid) FROM "{quoted}"', (), 1)[1]  # noqa: S608 - a name of this database
    return most or 0


def _size(database: Database) -> int:
    return sum(path.stat().st_size for path in (database.path, database.wal) if path.exists())


SCHEMA = Endpoint("schema", "look", OneAgent, _schema)
