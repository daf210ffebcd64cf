"""What operators read of the turns of a conversation, without waking its agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sapwood.kernel.ports.read_models import LONGEST_INPUT, OpenTurn, has_table
from sapwood.kernel.ports.work_id import WorkId
from sapwood.storage.database import Database


def open_turns(database: Database, most: int) -> list[OpenTurn]:
    """Return up to `most` turns that are not over, in order."""
    if not has_table(database, "sapwood_turns"):
        return []
    _, rows = database.look(
        "SELECT id, status FROM sapwood_turns WHERE status IN ('queued', 'running', 'waiting') ORDER BY number",
        (),
        most,
    )
    return [OpenTurn(*row) for row in rows]


def turn_prompts(database: Database, works: Sequence[str]) -> dict[str, Any]:
    """Return the beginnings of the messages that turns answer, by the work of each turn."""
    if not has_table(database, "sapwood_turns"):
        return {}
    ids = WorkId.runs_in(works)
    _, rows = database.look(
        "SELECT turn.id, (SELECT substr(group_concat(part.value ->> 'text', ' '), 1, ?2)"
        "   FROM json_each(message.body, '$.parts') AS part WHERE part.value ->> 'type' = 'text')"
        " FROM sapwood_turns AS turn JOIN sapwood_messages AS message ON message.id = turn.prompt_ids ->> 0"
        " WHERE turn.id IN (SELECT value FROM json_each(?1))",
        (msgspec.json.encode([*ids]).decode(), LONGEST_INPUT),
        len(works),
    )
    return {ids[id]: text for id, text in rows if text}
