"""What an agent stores of the runs of a sub-agent that is erased: the rows stay, and their content goes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import msgspec

from sapwood.capabilities.call_rows import CALLS
from sapwood.capabilities.spans import SPANS
from sapwood.kernel.ports.erasure import ErasedBelow
from sapwood.runs.tables.runs_table import RUNS
from sapwood.storage.database import Database

ERASED = "erased"
"""What stands for the name of the sub-agent."""
OF_AGENT = "type IN (SELECT value FROM json_each(?)) AND name = ?"
CONTENT = ("input", "output", "summary", "error", "display")


def knows_runs(database: Database, below: ErasedBelow) -> bool:
    """Return whether an agent has given runs to an erased sub-agent of its own."""
    path = below.paths[0]
    if len(path) != 1 or not database.has(RUNS):
        return False
    types = msgspec.json.encode(list(below.types)).decode()
    return bool(database.execute(f"SELECT 1 FROM sapwood_runs WHERE {OF_AGENT} LIMIT 1", types, path[0].name))  # noqa: S608 - ours


def erase_runs(database: Database, below: ErasedBelow) -> int:
    """Remove the content of the runs that an agent has given to an erased sub-agent of its own."""
    path = below.paths[0]
    if len(path) != 1 or not database.has(RUNS):
        return 0
    name, types = path[0].name, msgspec.json.encode(list(below.types)).decode()
    runs = database.execute(f"SELECT id, tool_call FROM sapwood_runs WHERE {OF_AGENT}", types, name)  # noqa: S608 - ours
    database.execute(
        "UPDATE sapwood_runs SET name = ?1, input = 'null', output = NULL, summary = NULL, error = NULL,"  # noqa: S608 - ours
        " reason = CASE WHEN reason IS NOT NULL THEN ?1 END, cancelled = CASE WHEN cancelled IS NOT NULL THEN ?1 END,"
        f" display = NULL, trace = NULL WHERE {OF_AGENT}",
        ERASED,
        types,
        name,
    )
    ids = {id for id, _ in runs}
    keys = ids | {tool_call for _, tool_call in runs if tool_call is not None}
    return len(runs) + _erase_spans(database, types, name, keys) + _erase_reports(database, ids)


def _erase_spans(database: Database, types: str, name: str, keys: Collection[str]) -> int:
    """Remove the facts of the spans of these runs, and of the tool calls that started them."""
    if not database.has(SPANS):
        return 0
    return len(
        database.execute(
            "UPDATE sapwood_spans SET facts = '{}' WHERE facts <> '{}' AND json_valid(facts) AND ("
            " facts ->> 'key' IN (SELECT value FROM json_each(?))"
            " OR (kind = 'run' AND name IN (SELECT value FROM json_each(?)) AND facts ->> 'child' = ?)) RETURNING 1",
            msgspec.json.encode(sorted(keys)).decode(),
            types,
            name,
        )
    )


def _erase_reports(database: Database, ids: Collection[str]) -> int:
    """Remove the content of these runs from the calls that report their end, and from dead letters of such calls."""
    if not database.has(CALLS):
        return 0
    queues = msgspec.json.encode([f"{kind} {id}" for id in sorted(ids) for kind in ("run", "hook run")]).decode()
    count = 0
    for table in ("sapwood_calls", "sapwood_dead_letters"):
        rows = database.execute(
            f"SELECT number, arguments FROM {table} WHERE queue IN (SELECT value FROM json_each(?))",  # noqa: S608 - ours
            queues,
        )
        for number, packed in rows:
            arguments = msgspec.msgpack.encode(_without_content(msgspec.msgpack.decode(packed), ids))
            database.execute(f"UPDATE {table} SET arguments = ? WHERE number = ?", arguments, number)  # noqa: S608 - ours
        if table == "sapwood_dead_letters" and rows:
            numbers = msgspec.json.encode([number for number, _ in rows]).decode()
            database.execute(
                "UPDATE sapwood_dead_letters SET error = ? WHERE number IN (SELECT value FROM json_each(?))",
                ERASED,
                numbers,
            )
        count += len(rows)
    return count


def _without_content(value: Any, ids: Collection[str]) -> Any:
    """Return arguments in which the runs with these ids have no content."""
    if isinstance(value, list):
        return [_without_content(one, ids) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    found = {key: _without_content(one, ids) for key, one in cast("dict[Any, Any]", value).items()}
    if found.get("id") in ids:
        found |= {key: "" if key == "summary" else None for key in CONTENT if key in found}
    return found
