"""What operators read of the tool calls of a chat agent, without waking it."""

from __future__ import annotations

from typing import Any

import msgspec

from sapwood.kernel.ports.read_models import has_table
from sapwood.storage.database import Database


def unanswered_tool_calls(database: Database, most: int) -> list[dict[str, Any]]:
    """Return up to `most` questions about tool calls: a turn waits for each."""
    if not has_table(database, "sapwood_tool_calls"):
        return []
    _, calls = database.look(
        "SELECT id, name, input, answerer FROM sapwood_tool_calls WHERE answer IS NULL"
        " AND answerer IN ('approval', 'client')"
        " AND turn IN (SELECT number FROM sapwood_turns WHERE status = 'waiting')",
        (),
        most,
    )
    return [
        {"id": id, "tool": name, "arguments": msgspec.json.decode(arguments), "kind": kind}
        for id, name, arguments, kind in calls
    ]
