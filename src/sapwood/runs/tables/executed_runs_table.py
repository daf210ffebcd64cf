"""What an agent has stored of the runs it executes: read by the agent, and by its parent while it sleeps."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

SERVED = Schema("sapwood.runs", "served")
CHUNKS = Schema("sapwood.runs", "chunks")
ALL = (
    "SELECT number, id, status, stream, length, output, summary, error, reason, usage, progress,"
    " milestones, cancelled, trace, started_at, ended_at FROM sapwood_served_runs "
)
PLACE = "seq"
"""The key of a stored milestone's position among the chunks; it is not sent."""

_segment = msgspec.json.Decoder(list[msgspec.Raw])


class ExecutedRunRow(NamedTuple):
    """One run, as the agent that does it has stored it; without its input, which may be large."""

    number: int
    id: str
    status: str
    stream: int
    length: int | None
    output: str | None
    summary: str | None
    error: str | None
    reason: str | None
    usage: str
    progress: str | None
    milestones: str
    cancelled: str | None
    trace: str | None
    started_at: float
    ended_at: float | None


def find(database: Database, run: str) -> ExecutedRunRow | None:
    """Return a run that an agent does or did, asleep or awake."""
    if not (database.exists and database.has(SERVED)):
        return None
    rows = database.execute(ALL + "WHERE id = ?", run)
    return ExecutedRunRow(*rows[0]) if rows else None


def input_of(database: Database, run: str) -> str:
    """Return what a run was given, as JSON."""
    ((text,),) = database.execute("SELECT input FROM sapwood_served_runs WHERE id = ?", run)
    return text


def numbers(database: Database, after: int) -> list[tuple[int, str]]:
    """Return the numbers and ids of the runs that an agent does or did, beyond this one."""
    if not (database.exists and database.has(SERVED)):
        return []
    return list(database.execute("SELECT number, id FROM sapwood_served_runs WHERE number > ? ORDER BY number", after))


class StoredChunk(NamedTuple):
    """One chunk that was said."""

    number: int
    at: float
    text: bytes


def said(
    database: Database, row: ExecutedRunRow, *, after: int = -1, length: int | None = None, segments: int = -1
) -> list[StoredChunk]:
    """Return the chunks of a run beyond this number, asleep or awake; not more than `length` of all."""
    ends = [one for one in (row.length, length) if one is not None]
    found = streamed(database, row.stream, after=after, segments=segments)
    return [one for one in found if not ends or one.number < min(ends)]


def streamed(database: Database, stream: int, *, after: int = -1, segments: int = -1) -> list[StoredChunk]:
    """Return the chunks of a turn beyond this number, asleep or awake; of so many segments at most."""
    found = database.execute(
        "SELECT first, at, body FROM sapwood_chunks WHERE stream = ?1 AND first >= coalesce("
        "(SELECT max(first) FROM sapwood_chunks WHERE stream = ?1 AND first <= ?2), 0) ORDER BY first LIMIT ?3",
        stream,
        after + 1,
        segments,
    )
    return [
        StoredChunk(first + place, at, bytes(text))
        for first, at, body in found
        for place, text in enumerate(_segment.decode(body))
        if first + place > after
    ]


def milestones(row: ExecutedRunRow) -> list[tuple[int, dict[str, Any]]]:
    """Return the milestones of a run, each with the number of the event that follows it."""
    found: list[tuple[int, dict[str, Any]]] = []
    for told in msgspec.json.decode(row.milestones):
        seq = told.pop(PLACE)
        found.append((seq, told))
    return found


def length(database: Database, stream: int) -> int:
    """Return the number of a stream's next chunk."""
    rows = database.execute(
        "SELECT first, body FROM sapwood_chunks WHERE stream = ? ORDER BY first DESC LIMIT 1", stream
    )
    return rows[0][0] + len(_segment.decode(rows[0][1])) if rows else 0


def milestone_chunk(told: dict[str, Any]) -> dict[str, Any]:
    """Return how clients are told of a milestone."""
    return {"type": "data-agent-milestone", "data": told}
