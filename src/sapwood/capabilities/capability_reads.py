"""What operators read of the states and stored calls of an agent, without waking it."""

from __future__ import annotations

from sapwood.capabilities.call_rows import CALLS
from sapwood.kernel.ports.read_models import DeadLetterRow, has_table
from sapwood.storage.database import Database


def stored_state(database: Database) -> str | None:
    """Return the stored state as JSON; `None` if the agent has not set one."""
    if not has_table(database, "sapwood_state"):
        return None
    _, rows = database.look("SELECT value FROM sapwood_state", (), 1)
    return rows[0][0] if rows else None


def dead_letters(database: Database, most: int) -> list[DeadLetterRow]:
    """Return up to `most` dead letters, in order."""
    if not has_table(database, "sapwood_dead_letters"):
        return []
    _, rows = database.look(
        "SELECT number, method, arguments, code, error, attempts, occurrences, failed_at FROM sapwood_dead_letters"
        " ORDER BY number",
        (),
        most,
    )
    return [DeadLetterRow(*row) for row in rows]


def waiting_calls(database: Database, now: float, most: int) -> int | None:
    """Count the stored calls that are due or wait in a queue, up to a maximum; `None` if there are no tables."""
    if not database.has(CALLS):
        return None
    ((count,),) = database.execute(
        "SELECT count(*) FROM (SELECT 1 FROM sapwood_calls WHERE due_at <= ?1"
        " UNION ALL SELECT 1 FROM sapwood_calls WHERE queue IS NOT NULL AND due_at IS NULL LIMIT ?2)",
        now,
        most,
    )
    return count
