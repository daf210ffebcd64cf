"""Unfinished work that an agent has stored, read from its database without waking it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sapwood.storage.database import Database


@dataclass(frozen=True, slots=True)
class PendingWork:
    """Unfinished work of one agent."""

    queued_calls: int = 0
    runs: int = 0
    fibers: int = 0
    next_schedule_at: float | None = None


def pending_work(database: Database) -> PendingWork:
    """Return the unfinished work in a database. Every count reads an index of unfinished work only."""

    def value(owner: str, sql: str) -> Any:
        rows = database.execute(sql) if database.version(owner) else []
        return rows[0][0] if rows else None

    if not database.exists:
        return PendingWork()
    return PendingWork(
        queued_calls=value("calls", "SELECT count(*) FROM sapwood_calls WHERE queue IS NOT NULL") or 0,
        runs=value("runs", "SELECT count(*) FROM sapwood_runs WHERE status IN ('queued', 'running')") or 0,
        fibers=value("fibers", "SELECT count(*) FROM sapwood_fibers WHERE due_at IS NOT NULL") or 0,
        next_schedule_at=value(
            "calls",
            "SELECT due_at FROM sapwood_calls WHERE due_at IS NOT NULL AND schedule IS NOT NULL"
            " ORDER BY due_at LIMIT 1",
        ),
    )
