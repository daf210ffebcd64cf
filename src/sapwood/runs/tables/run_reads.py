"""What operators read of the runs, questions and decisions of an agent, without waking it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from sapwood.kernel.ports.read_models import LONGEST_INPUT, ListedRun, UnfinishedRun, has_table
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.tables.question import Question
from sapwood.runs.tables.work_column import stored_work
from sapwood.storage.database import Database

MOST_RUNS = 10_000


def listed_runs(database: Database, status: str | None, before: int | None, most: int) -> list[ListedRun]:
    """Return up to `most` runs, the newest first: all, or those of one status; those before a number."""
    if not has_table(database, "sapwood_runs"):
        return []
    _, rows = database.look(
        "SELECT number, id, type, name, status, started_at, ended_at, bytes, pinned FROM sapwood_runs"
        " WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR number < ?2) ORDER BY number DESC",
        (status, before),
        most,
    )
    return [ListedRun(*row) for row in rows]


def unfinished_runs(database: Database, turn: str | None, most: int) -> list[UnfinishedRun]:
    """Return up to `most` runs that are not over, in order: all, or those of one turn."""
    if not has_table(database, "sapwood_runs"):
        return []
    _, rows = database.look(
        "SELECT id, type, name FROM sapwood_runs"
        " WHERE status IN ('queued', 'running') AND (?1 IS NULL OR work = ?1) ORDER BY number",
        (None if turn is None else stored_work(WorkId.run(turn)),),
        most,
    )
    return [UnfinishedRun(*row) for row in rows]


class ToolCallRun(NamedTuple):
    """A run that a tool call has started."""

    tool_call: str
    id: str
    type: str
    name: str
    mode: str
    status: str


def runs_of_tool_calls(database: Database, turn: str) -> dict[str, list[ToolCallRun]]:
    """Return the runs that the tool calls of a turn have started, by the ids of the calls."""
    found: dict[str, list[ToolCallRun]] = {}
    if has_table(database, "sapwood_runs"):
        _, rows = database.look(
            "SELECT tool_call, id, type, name, mode, status FROM sapwood_runs"
            " WHERE work = ? AND tool_call IS NOT NULL ORDER BY number",
            (stored_work(WorkId.run(turn)),),
            MOST_RUNS,
        )
        for row in rows:
            found.setdefault(row[0], []).append(ToolCallRun(*row))
    return found


def run_inputs(database: Database, works: Sequence[str]) -> dict[str, Any]:
    """Return what an agent was given by those that use it, by the work of each run."""
    if not has_table(database, "sapwood_served_runs"):
        return {}
    ids = WorkId.runs_in(works)
    _, rows = database.look(
        "SELECT id, input FROM sapwood_served_runs"
        " WHERE id IN (SELECT value FROM json_each(?1)) AND length(input) <= ?2",
        (msgspec.json.encode([*ids]).decode(), LONGEST_INPUT),
        len(works),
    )
    found: dict[str, Any] = {}
    for id, input in rows:
        with suppress(msgspec.DecodeError):  # a damaged row is shown without what it was given
            found[ids[id]] = msgspec.json.decode(input)
    return found


def open_questions(database: Database, most: int) -> list[dict[str, Any]]:
    """Return up to `most` open questions that code asks."""
    if not has_table(database, "sapwood_own_questions"):
        return []
    sql = "SELECT body FROM sapwood_own_questions WHERE answer IS NULL ORDER BY number"
    return [msgspec.json.decode(body) for (body,) in database.look(sql, (), most)[1]]


def whole_question(row: dict[str, Any]) -> dict[str, Any]:
    """Return a stored question with all its fields, and with its digest."""
    one = msgspec.convert(row, Question)
    if not one.digest:
        one = Question.about(one.id, one.tool, one.arguments, one.kind)
    return msgspec.to_builtins(one)


def stored_decisions(database: Database, most: int) -> list[dict[str, Any]] | None:
    """Return up to `most` decisions about tool calls, in order; `None` if there was never one."""
    if not has_table(database, "sapwood_decisions"):
        return None
    columns, rows = database.look("SELECT * FROM sapwood_decisions ORDER BY number", (), most)
    return [dict(zip(columns, row, strict=True)) for row in rows]
