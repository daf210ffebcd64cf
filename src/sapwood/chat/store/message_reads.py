"""What operators read of a conversation, without waking its agent."""

from __future__ import annotations

import msgspec

from sapwood.kernel.ports.read_models import StoredMessage, has_table
from sapwood.storage.database import Database

MOST_TURNS = 16
"""Turns of one message, such as an answer that was made again, that are read at most."""
RECENT = 1000
"""Turns that are looked through before all others: the newest messages are of these."""
BOUND = "(SELECT max(number) - ?2 FROM sapwood_turns)"


def stored_messages(database: Database, before: int | None, most: int) -> list[StoredMessage]:
    """Return up to `most` messages of the active path, the newest first: those before a position."""
    if not has_table(database, "sapwood_messages"):
        return []
    _, rows = database.look(
        "SELECT position, id, role, body, created_at FROM sapwood_messages"
        " WHERE is_active = 1 AND (?1 IS NULL OR position < ?1) ORDER BY position DESC",
        (before,),
        most,
    )
    turns = _turns(database, [row[1] for row in rows])
    return [StoredMessage(*row, turn=turns.get(row[1])) for row in rows]


def _turns(database: Database, messages: list[str]) -> dict[str, str]:
    """Return the ids of the turns that wrote these messages, or that answer them. The last of several counts."""
    if not messages or not has_table(database, "sapwood_turns"):
        return {}
    found: dict[str, str] = {}
    for numbers in (f"number > {BOUND}", f"number <= {BOUND}"):
        missing = [message for message in messages if message not in found]
        if not missing:
            break
        sql = (
            "WITH ids (id) AS MATERIALIZED (SELECT value FROM json_each(?1)) SELECT id, message, prompt_ids"  # noqa: S608 - ours
            f" FROM sapwood_turns WHERE {numbers} AND (message IN ids"
            " OR EXISTS (SELECT 1 FROM json_each(prompt_ids) AS asked WHERE asked.value IN ids)) ORDER BY number DESC"
        )
        _, rows = database.look(sql, (msgspec.json.encode(missing).decode(), RECENT), len(missing) * MOST_TURNS)
        for turn, answer, asked in rows:
            for message in (answer, *msgspec.json.decode(asked, type=list[str])):
                found.setdefault(message, turn)
    return found


def message_count(database: Database) -> int:
    """Return the number of messages of the active path."""
    if not has_table(database, "sapwood_messages"):
        return 0
    return database.look("SELECT count(*) FROM sapwood_messages WHERE is_active = 1", (), 1)[1][0][0]
