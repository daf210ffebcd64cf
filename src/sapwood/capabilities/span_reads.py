"""What operators read of the records of an agent, without waking it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sapwood.capabilities.spans import COLUMNS, facts_of
from sapwood.kernel.ports.read_models import Incarnation, Timespan, has_column, has_table
from sapwood.storage.database import Database

INCARNATIONS = 1000
"""Incarnations that are shown at most."""


def recorded_spans(database: Database, work: str, most: int) -> list[dict[str, Any]]:
    """Return up to `most` spans of one piece of work, in order."""
    return _read(database, "work = ?1 ORDER BY number", (work,), most)


def recorded_works(database: Database, before: int | None, most: int, *, where: str) -> list[dict[str, Any]]:
    """Return up to `most` turns, calls and fibers, the newest first: those before a number.

    `where` is a condition that they meet.
    """
    which = f"parent IS NULL AND (?1 IS NULL OR number < ?1) AND {where} ORDER BY number DESC"
    return _read(database, which, (before,), most)


def timeline(database: Database, which: Timespan, after: int, most: int) -> list[dict[str, Any]]:
    """Return up to `most` spans that overlap with a timespan, in order: those after a number."""
    sql = (
        "number > ?1 AND (?2 IS NULL OR work = ?2) AND (?3 IS NULL OR ended_at IS NULL OR ended_at >= ?3)"
        " AND (?4 IS NULL OR began_at <= ?4)"
    )
    if which.only_failed:
        sql += " AND (status IN ('failed', 'interrupted') OR attempt > 1)"
    return _read(database, f"{sql} ORDER BY number", (after, which.work, which.begins_at, which.ends_at), most)


def recorded_incarnations(database: Database) -> list[Incarnation]:
    """Return the recorded incarnations, the latest of them, in order."""
    if not has_table(database, "sapwood_incarnations"):
        return []
    crashed_at = "crashed_at" if has_column(database, "sapwood_incarnations", "crashed_at") else "NULL"
    sql = f"SELECT number, began_at, version, {crashed_at} FROM sapwood_incarnations ORDER BY number DESC"  # noqa: S608 - ours
    return [Incarnation(*row) for row in database.look(sql, (), INCARNATIONS)[1][::-1]]


def _read(database: Database, which: str, arguments: Sequence[object], most: int) -> list[dict[str, Any]]:
    if not has_table(database, "sapwood_spans"):
        return []
    _, rows = database.look(f"SELECT {COLUMNS} FROM sapwood_spans WHERE {which}", arguments, most)  # noqa: S608 - ours
    names = COLUMNS.split(", ")
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [one | {"facts": facts_of(one["facts"])} for one in found]
