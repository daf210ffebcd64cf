"""Compares the rows of a table in two databases inside SQLite, so that no table has to fit into memory.

Rows are matched by their primary key, and are otherwise counted as often as they occur. Two values are equal if they
have the same type and the same bytes, whatever the collation of their column is.
"""

# apsw's own stubs name a type that Python has only from 3.12, so to 3.11 its values are unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import apsw
import msgspec

from sapwood.errors import StoredDataError
from sapwood.kernel.comparison.shown_values import MOST_BLOB_BYTES, MOST_BYTES, shown_blob, shown_number, shown_text
from sapwood.kernel.comparison.tables import Table, folded
from sapwood.kernel.comparison.tree_diff import Change, PartDiff, Place
from sapwood.storage.sql_errors import damage

MOST_COLUMNS = 200
"""SQLite limits how long a statement may be."""


class Both(NamedTuple):
    """A table that both databases may have."""

    a: Table | None
    b: Table | None

    @property
    def tables(self) -> list[Table]:
        return [one for one in self if one is not None]

    @property
    def columns(self) -> list[str]:
        """The columns of both, as `folded` returns them. One that a side lacks is NULL there."""
        return list(dict.fromkeys(folded(name) for table in self.tables for name in table.columns))


def compare_rows(connection: apsw.Connection, a: Table | None, b: Table | None, limit: int) -> PartDiff | None:
    """Return what differs between the rows of two tables, or `None` if nothing does."""
    both = Both(a, b)
    name = both.tables[0].name
    if (problem := _problem(both)) is not None:
        return PartDiff("table", name, 0, 0, 0, (), problem)
    try:
        keys: tuple[str, ...] = ()
        if a is not None and _is_keyed(connection, both):
            keys = tuple(column.name for column in a.key)
            counts, changes = _by_key(connection, both, limit)
        else:
            counts, changes = _by_content(connection, both, limit)
    except apsw.InterruptError:
        raise
    except apsw.Error as error:
        if (how := damage(error)) is not None:
            raise StoredDataError(f"The table {name!r} is damaged: {how}.") from error
        return PartDiff("table", name, 0, 0, 0, (), f"The rows of {name!r} cannot be read: {error}.")
    return PartDiff("table", name, *counts, changes=changes, key_columns=keys) if any(counts) else None


def _problem(both: Both) -> str | None:
    if (count := len(both.columns)) > MOST_COLUMNS:
        return f"{both.tables[0].name!r} has {count} columns. Tables with at most {MOST_COLUMNS} are compared."
    return None


def _is_keyed(connection: apsw.Connection, both: Both) -> bool:
    """Return whether the primary key matches rows: the same in both tables, and never NULL, which SQLite allows."""
    a, b = both
    if a is None or b is None or not a.key or a.key != b.key:
        return False
    return not any(_has_null_key(connection, table) for table in (a, b))


def _has_null_key(connection: apsw.Connection, table: Table) -> bool:
    nulls = " OR ".join(f"{table.value(one.name, 'x')} IS NULL" for one in table.key)
    return bool(_row(connection, f"SELECT EXISTS (SELECT 1 FROM {table.sql} AS x WHERE {nulls})")[0])  # noqa: S608 - names are quoted


def _by_key(connection: apsw.Connection, both: Both, limit: int) -> tuple[tuple[int, int, int], tuple[Change, ...]]:
    a, b = both
    assert a is not None
    assert b is not None
    matched = " AND ".join(f"{a.value(one.name, 'x')} = {b.value(one.name, 'y')}" for one in a.key)
    differs = " OR ".join(_differs(a.value(name, "x"), b.value(name, "y")) for name in both.columns)
    found: tuple[tuple[Place, str], ...] = (
        ("only_a", f"FROM {a.sql} AS x WHERE NOT EXISTS (SELECT 1 FROM {b.sql} AS y WHERE {matched})"),  # noqa: S608 - names are quoted
        ("only_b", f"FROM {b.sql} AS y WHERE NOT EXISTS (SELECT 1 FROM {a.sql} AS x WHERE {matched})"),  # noqa: S608 - names are quoted
        ("changed", f"FROM {a.sql} AS x CROSS JOIN {b.sql} AS y ON {matched} WHERE {differs}"),
    )
    counts: list[int] = []
    changes: list[Change] = []
    for kind, rows in found:
        counts.append(_row(connection, f"SELECT count(*) {rows}")[0])
        if counts[-1] and len(changes) < limit:
            changes += islice(_changed_rows(connection, both, kind, rows), limit - len(changes))
    return (counts[0], counts[1], counts[2]), tuple(changes)


def _changed_rows(connection: apsw.Connection, both: Both, kind: Place, rows: str) -> Iterator[Change]:
    a, b = both
    assert a is not None
    assert b is not None
    columns = both.columns
    sides = [(a, "x")] if kind == "only_a" else [(b, "y")] if kind == "only_b" else [(a, "x"), (b, "y")]
    read = [_read(table.value(name, row)) for table, row in sides for name in columns]
    if kind == "changed":
        read += [_differs(a.value(name, "x"), b.value(name, "y")) for name in columns]
    order = ", ".join(sides[0][0].value(one.name, sides[0][1]) for one in a.key)
    for row in connection.execute(f"SELECT {', '.join(read)} {rows} ORDER BY {order}"):
        width = len(columns)
        one = _values(columns, row)
        key = _key_text([one[column.name] for column in a.key])
        if kind == "only_a":
            yield Change(kind, key, _named(a, one), None)
        elif kind == "only_b":
            yield Change(kind, key, None, _named(b, one))
        else:
            other = _values(columns, row[3 * width :])
            differs = {name for name, flag in zip(columns, row[6 * width :], strict=True) if flag}
            yield Change(kind, key, _named(a, one, differs), _named(b, other, differs))


def _values(columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    return {name: _shown(*row[at * 3 : at * 3 + 3]) for at, name in enumerate(columns)}


def _by_content(connection: apsw.Connection, both: Both, limit: int) -> tuple[tuple[int, int, int], tuple[Change, ...]]:
    """Count the rows that one table has more often than the other."""
    columns = both.columns
    parts = [_signed(table, columns, sign) for table, sign in ((both.a, 1), (both.b, -1)) if table is not None]
    alike = ", ".join(f"c{at} COLLATE BINARY, typeof(c{at})" for at in range(len(columns)))
    names = ", ".join(f"c{at}" for at in range(len(columns)))
    more = f"SELECT {names}, sum(n) AS n FROM ({' UNION ALL '.join(parts)}) GROUP BY {alike} HAVING sum(n) <> 0"  # noqa: S608 - names are quoted
    if len(parts) == 1:  # nothing to match, so nothing has to be sorted
        more = parts[0]
    counted = f"SELECT ifnull(sum(n) FILTER (WHERE n > 0), 0), ifnull(-sum(n) FILTER (WHERE n < 0), 0) FROM ({more})"  # noqa: S608 - names are quoted
    only_a, only_b = _row(connection, counted)
    changes: list[Change] = []
    if only_a or only_b:
        read = ", ".join(_read(f"c{at}") for at in range(len(columns)))
        for row in connection.execute(f"SELECT {read}, n FROM ({more}) LIMIT ?", (limit,)):  # noqa: S608 - names are quoted
            values = _values(columns, row)
            count = int(row[-1])
            one = (
                Change("only_a", "", _named(both.a, values), None)
                if count > 0
                else Change("only_b", "", None, _named(both.b, values))
            )
            changes += [one] * min(abs(count), limit - len(changes))
    return (only_a, only_b, 0), tuple(changes)


def _signed(table: Table, columns: Sequence[str], sign: int) -> str:
    values = ", ".join(f"{table.value(name, 'x')} AS c{at}" for at, name in enumerate(columns))
    return f"SELECT {values}, {sign} AS n FROM {table.sql} AS x"  # noqa: S608 - names are quoted


def _row(connection: apsw.Connection, sql: str) -> tuple[Any, ...]:
    (row,) = connection.execute(sql).fetchall()
    return row


def _differs(a: str, b: str) -> str:
    return f"({a} IS NOT {b} COLLATE BINARY OR typeof({a}) <> typeof({b}))"


def _read(value: str) -> str:
    """Return three columns: the type of a value, its beginning, and its length in bytes."""
    return (
        f"typeof({value}), CASE typeof({value}) WHEN 'text' THEN substr(CAST({value} AS BLOB), 1, {MOST_BYTES})"
        f" WHEN 'blob' THEN substr({value}, 1, {MOST_BLOB_BYTES}) ELSE {value} END,"
        f" CASE WHEN typeof({value}) IN ('text', 'blob') THEN length(CAST({value} AS BLOB)) END"
    )


def _shown(kind: str, start: Any, size: int | None) -> Any:
    match kind:
        case "text":
            return shown_text(start or b"", size or 0)  # SQLite's part of nothing is NULL
        case "blob":
            return shown_blob(start or b"", size or 0)
        case _:
            return shown_number(start)


def _named(table: Table | None, values: dict[str, Any], only: set[str] | None = None) -> dict[str, Any]:
    """Return the values by the names that this table gives to its columns, and without those that it lacks."""
    assert table is not None
    return {name: values[folded(name)] for name in table.columns if only is None or folded(name) in only}


def _key_text(values: list[Any]) -> str:
    return msgspec.json.encode(values[0] if len(values) == 1 else values).decode()
