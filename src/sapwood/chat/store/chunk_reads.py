"""What operators read of what turns and runs streamed, without waking their agent."""

from __future__ import annotations

from typing import Any

from sapwood.kernel.ports.read_models import ChunkRange, StoredSegment, has_table
from sapwood.kernel.ports.work_id import RUN
from sapwood.storage.database import Database

WHICH = "stream = ?1 AND (?2 IS NULL OR at >= ?2) AND (?3 IS NULL OR at <= ?3)"
STREAMS = {
    "sapwood_served_runs": "SELECT stream FROM sapwood_served_runs WHERE id = ?",
    "sapwood_turns": "SELECT number FROM sapwood_turns WHERE id = ?",
}


def stored_chunks(database: Database, which: ChunkRange, after: int, most: int) -> list[StoredSegment]:
    """Return up to `most` segments of what a turn or run streamed, in order: those after a number."""
    if (stream := _stream(database, which.work)) is None:
        return []
    sql = f"SELECT first, at, body FROM sapwood_chunks WHERE {WHICH} AND first > ?4 ORDER BY first"  # noqa: S608 - ours
    _, rows = database.look(sql, (stream, which.begins_at, which.ends_at, after), most)
    return [StoredSegment(*row) for row in rows]


def chunk_count(database: Database, which: ChunkRange) -> int:
    """Count the segments of what a turn or run streamed."""
    if (stream := _stream(database, which.work)) is None:
        return 0
    arguments: tuple[Any, ...] = stream, which.begins_at, which.ends_at
    return database.look(f"SELECT count(*) FROM sapwood_chunks WHERE {WHICH}", arguments, 1)[1][0][0]  # noqa: S608 - ours


def _stream(database: Database, work: str) -> int | None:
    """Return what the chunks of a turn or run are stored by."""
    if not work.startswith(RUN) or not has_table(database, "sapwood_chunks"):
        return None
    for table, sql in STREAMS.items():
        if has_table(database, table) and (rows := database.look(sql, (work.removeprefix(RUN),), 1)[1]):
            return rows[0][0]
    return None
