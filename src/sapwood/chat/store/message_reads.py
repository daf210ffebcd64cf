"""What operators read of a conversation, without waking its agent."""

from __future__ import annotations

from sapwood.kernel.ports.read_models import StoredMessage, has_table
from sapwood.storage.database import Database


def stored_messages(database: Database, before: int | None, most: int) -> list[StoredMessage]:
    """Return at most so many messages, the newest first: those before a position."""
    if not has_table(database, "sapwood_messages"):
        return []
    _, rows = database.look(
        "SELECT position, id, role, body, created_at FROM sapwood_messages WHERE ?1 IS NULL OR position < ?1"
        " ORDER BY position DESC",
        (before,),
        most,
    )
    return [StoredMessage(*row) for row in rows]


def message_count(database: Database) -> int:
    """Return the number of messages."""
    if not has_table(database, "sapwood_messages"):
        return 0
    return database.look("SELECT count(*) FROM sapwood_messages", (), 1)[1][0][0]
