"""What operators read of the turns of a conversation, without waking its agent."""

from __future__ import annotations

from sapwood.kernel.ports.read_models import OpenTurn, has_table
from sapwood.storage.database import Database


def open_turns(database: Database, most: int) -> list[OpenTurn]:
    """Return at most so many turns that are not over, in order."""
    if not has_table(database, "sapwood_turns"):
        return []
    _, rows = database.look(
        "SELECT id, status FROM sapwood_turns WHERE status IN ('queued', 'running', 'waiting') ORDER BY number",
        (),
        most,
    )
    return [OpenTurn(*row) for row in rows]
