"""What operators read of scheduled calls, queued calls and fibers that are not over, without waking their agent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from sapwood.capabilities.call_rows import ONCE
from sapwood.capabilities.fiber_rows import UNTIL_WOKEN
from sapwood.kernel.ports.read_models import LONGEST_INPUT, UnfinishedWork, has_table
from sapwood.kernel.ports.work_id import WorkId
from sapwood.storage.database import Database

OF_THE_APP = "coalesce(substr(method, 1, 9), '') <> '_sapwood_'"
"""Work that a turn or a run consists of is left out: methods of the framework begin like this."""
WHICH = {"schedule": "queue IS NULL", "queued": "queue IS NOT NULL"}


def unfinished_work(database: Database, kind: str, after: int, most: int) -> list[UnfinishedWork]:
    """Return up to `most` calls or fibers that are not over, in order: those of one kind after a number."""
    return _fibers(database, after, most) if kind == "fiber" else _calls(database, kind, after, most)


def call_arguments(database: Database, works: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of stored calls that are not over, by the work of each call."""
    if not has_table(database, "sapwood_calls"):
        return {}
    numbers = {work: WorkId.parse(work).number for work in works if work.startswith("call ")}
    _, rows = database.look(
        "SELECT number, arguments FROM sapwood_calls"
        " WHERE number IN (SELECT value FROM json_each(?1)) AND length(arguments) <= ?2",
        (msgspec.json.encode([*numbers.values()]).decode(), LONGEST_INPUT),
        len(works),
    )
    found: dict[int, Any] = {}
    for number, arguments in rows:
        with suppress(msgspec.DecodeError):  # a damaged call is shown without them
            found[number] = msgspec.msgpack.decode(arguments)
    return {
        work: msgspec.to_builtins(found[number], str_keys=True, enc_hook=repr)
        for work, number in numbers.items()
        if number in found
    }


def _calls(database: Database, kind: str, after: int, most: int) -> list[UnfinishedWork]:
    if not has_table(database, "sapwood_calls"):
        return []
    _, rows = database.look(
        "SELECT number, method, arguments, due_at, queue, schedule, failures, error, created_at FROM sapwood_calls"  # noqa: S608 - ours
        f" WHERE number > ? AND {WHICH[kind]} AND {OF_THE_APP} ORDER BY number",
        (after,),
        most,
    )
    return [
        UnfinishedWork(
            kind,
            number,
            method,
            arguments,
            due_at,
            queue,
            schedule is not None and not schedule.startswith(ONCE),
            failures,
            error,
            created_at,
            None,
        )
        for number, method, arguments, due_at, queue, schedule, failures, error, created_at in rows
    ]


def _fibers(database: Database, after: int, most: int) -> list[UnfinishedWork]:
    if not has_table(database, "sapwood_fibers"):
        return []
    _, rows = database.look(
        "SELECT number, name, arguments, due_at, failures, error, created_at, status FROM sapwood_fibers"  # noqa: S608 - ours
        f" WHERE number > ? AND status IN ('running', 'waiting', 'failed') AND {OF_THE_APP} ORDER BY number",
        (after,),
        most,
    )
    return [
        UnfinishedWork(
            "fiber",
            number,
            name,
            arguments,
            None if due_at == UNTIL_WOKEN else due_at,
            None,
            repeats=False,
            failures=failures,
            error=error,
            created_at=created_at,
            status=status,
        )
        for number, name, arguments, due_at, failures, error, created_at, status in rows
    ]
