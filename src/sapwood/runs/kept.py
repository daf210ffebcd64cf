"""What an agent has stored of the runs it does: read by itself, and by its parent while it sleeps."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

SERVED = Schema("sapwood.runs", "served")
CHUNKS = Schema("sapwood.runs", "chunks")
ALL = (
    "SELECT number, id, status, input, stream, length, output, summary, error, reason, usage, progress,"
    " milestones, trace, started_at, ended_at FROM sapwood_served_runs "
)

PLACE = "before"
"""What is stored of a milestone and told to nobody: the number of the chunk it was told before."""

_segment = msgspec.json.Decoder(list[msgspec.Raw])


class Row(NamedTuple):
    """One run, as the agent that does it has stored it."""

    number: int
    id: str
    status: str
    input: str
    stream: int
    length: int | None
    output: str | None
    summary: str | None
    error: str | None
    reason: str | None
    usage: str
    progress: str | None
    milestones: str
    trace: str | None
    started_at: float
    ended_at: float | None


def find(database: Database, run: str) -> Row | None:
    """Return a run that an agent does or did, asleep or awake."""
    if not (database.exists and database.has(SERVED)):
        return None
    rows = database.execute(ALL + "WHERE id = ?", run)
    return Row(*rows[0]) if rows else None


def said(database: Database, row: Row, after: int = -1) -> list[tuple[int, bytes]]:
    """Return the chunks of a run beyond this number, each with its own, asleep or awake."""
    segments = database.execute("SELECT first, body FROM sapwood_chunks WHERE stream = ? ORDER BY first", row.stream)
    return [
        (first + at, bytes(text))
        for first, body in segments
        for at, text in enumerate(_segment.decode(body))
        if first + at > after and (row.length is None or first + at < row.length)
    ]


def length(database: Database, stream: int) -> int:
    """Return the number of a stream's next chunk."""
    rows = database.execute(
        "SELECT first, body FROM sapwood_chunks WHERE stream = ? ORDER BY first DESC LIMIT 1", stream
    )
    return rows[0][0] + len(_segment.decode(rows[0][1])) if rows else 0


def milestone_chunk(reached: dict[str, Any]) -> dict[str, Any]:
    """Return how clients are told of a milestone, as it is stored."""
    return {"type": "data-agent-milestone", "data": {name: one for name, one in reached.items() if name != PLACE}}
