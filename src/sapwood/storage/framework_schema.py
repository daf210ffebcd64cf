"""The tables, indexes and triggers that the framework makes in a database, and what a database has beside them."""

# apsw's own stubs name a type that Python has only from 3.12, so to 3.11 its values are unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import apsw

from sapwood.storage.migrations import USER, scripts_of

SchemaRow = tuple[str, str, str, str | None]
"""Of `sqlite_schema`: the type, the name, the table, and the SQL."""
READ = "SELECT type, name, tbl_name, sql FROM sqlite_schema"
PREFIX = "sapwood_"
PLAIN_TABLE = re.compile(rf"CREATE TABLE (?![\s/-])(?![\"'`\[]?{PREFIX})", re.IGNORECASE)
"""How the SQL of a table of the user begins, as SQLite stores it: with its name, and not with a comment."""


def foreign_rows(rows: Iterable[SchemaRow], versions: Mapping[str, int]) -> Iterator[SchemaRow]:
    """Yield what uses tables of the framework, and is not what it makes. `versions`: the scripts that were applied.

    SQLite believes the SQL of a row, and compares words without their case. So the type of a row says nothing.
    """
    made = _made(frozenset((owner, number) for owner, number in versions.items() if owner != USER))
    for row in rows:
        uses_ours = any(PREFIX in (text or "").lower() for text in row[1:])
        if uses_ours and row not in made and not _is_of_the_user(row):
            yield row


def _is_of_the_user(row: SchemaRow) -> bool:
    """Return whether this is a table that mentions ours, for example in a comment. It cannot act on them."""
    kind, name, table, sql = row
    is_ours = any(one.lower().startswith(PREFIX) for one in (name, table))
    return kind == "table" and not is_ours and PLAIN_TABLE.match(sql or "") is not None


@functools.lru_cache(maxsize=256)
def _made(versions: frozenset[tuple[str, int]]) -> frozenset[SchemaRow]:
    """Return what these scripts of the framework make."""
    memory = apsw.Connection(":memory:")
    try:
        memory.execute((Path(__file__).parent / "base.sql").read_text())
        for owner, number in sorted(versions):
            for script in scripts_of(owner)[:number]:
                memory.execute(script.sql)
        return frozenset((kind, name, table, sql) for kind, name, table, sql in memory.execute(READ))
    finally:
        memory.close()
