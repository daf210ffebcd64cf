"""What operators read of the records of an agent, without waking it."""

from __future__ import annotations

from typing import Any

from sapwood.capabilities.spans import COLUMNS, facts_of
from sapwood.kernel.ports.read_models import has_table
from sapwood.storage.database import Database


def recorded_spans(database: Database, work: str | None, most: int) -> list[dict[str, Any]]:
    """Return at most so many spans: those of one piece of work in order, or the latest turns, calls and fibers."""
    if not has_table(database, "sapwood_spans"):
        return []
    which = "work = ?1 ORDER BY number" if work is not None else "parent IS NULL AND ?1 IS NULL ORDER BY number DESC"
    _, rows = database.look(f"SELECT {COLUMNS} FROM sapwood_spans WHERE {which}", (work,), most)  # noqa: S608 - ours
    names = COLUMNS.split(", ")
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [one | {"facts": facts_of(one["facts"])} for one in found]
