"""What operators read of the runs that methods of an agent execute: as spans, made of the tables that runs have anyway.

A run is a span of the kind `fiber`, or `remote` if another server does it. Its parts are its attempts, the steps and
sleeps of its code, its questions and its milestones. The records of the agent follow: what it started in the run, such
as other runs, is part of the run too.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from sapwood.capabilities.span_reads import recorded_incarnations, recorded_spans, recorded_works, timeline
from sapwood.capabilities.steps import STEP_TIMES, StepTimes
from sapwood.kernel.ports.read_models import Incarnation, Timespan, has_column
from sapwood.kernel.ports.work_id import RUN, WorkId
from sapwood.runs.tables.journal import MAX_ENTRIES, Attempt, Entry, Journal, entries_of, journal_in
from sapwood.runs.tables.own_questions import QUESTION_TIMES, QuestionTimes
from sapwood.storage.database import Database

Span = dict[str, Any]

FIRST = -(2**52)
PER_RUN = 5 * MAX_ENTRIES
"""Numbers of the spans of one run. They are below 0, so that they differ from those of records."""
LONGEST_TEXT = 500
RUNS_AT_ONCE = 50
BESIDE_RUNS = (
    "NOT EXISTS (SELECT 1 FROM sapwood_served_runs AS run WHERE run.journal IS NOT NULL"
    " AND sapwood_spans.work GLOB 'run *' AND run.id = substr(sapwood_spans.work, 5))"
)
"""Selects records that are not part of a run. It looks up one run for each record: there may be very many runs."""
COLUMNS = "number, id, status, error, reason, progress, milestones, journal, started_at, ended_at"


class ExecutedRun(NamedTuple):
    """What is stored of a run that a method executes."""

    number: int
    id: str
    status: str
    error: str | None
    reason: str | None
    progress: str | None
    milestones: str
    journal: str
    started_at: float
    ended_at: float | None

    @property
    def work(self) -> str:
        return str(WorkId.run(self.id))

    @property
    def root(self) -> int:
        """The number of its span."""
        return _root_of(self.number)


def _root_of(run: int) -> int:
    """Return the number of the span of a run."""
    return FIRST + run * PER_RUN


def _run_of(span: int) -> int:
    """Return the number of the run that a span is part of."""
    return (span - FIRST) // PER_RUN


def spans_of(database: Database, work: str | None, most: int) -> list[Span]:
    """Return up to `most` spans: those of one piece of work by their beginning, or the latest work."""
    if work is None:
        return works(database, None, most)
    found = _spans(database, Timespan(work), most)
    found += _under_runs(database, recorded_spans(database, work, most))
    return sorted(found, key=_order)[:most]


def works(database: Database, before: str | None, most: int) -> list[Span]:
    """Return up to `most` turns, calls, fibers and runs, the newest first: those before a cursor."""
    number, run = (None, None) if before is None else _numbers_in(before)
    runs = _runs(database, Timespan(), most, before=run)
    known = recorded_incarnations(database) if runs else []
    executed = [next(_spans_of(database, one, known)) for one in runs]
    recorded = recorded_works(database, number, most, where=BESIDE_RUNS if _has_journals(database) else "TRUE")
    # Merged and not sorted: a cursor is made of numbers, and times may be in another order if the clock was set.
    return list(islice(heapq.merge(executed, recorded, key=_order, reverse=True), most))


def work_cursor(rows: Sequence[Span], before: str | None) -> str:
    """Return the cursor of the page after these rows of `works`."""
    recorded, run = ("", "") if before is None else before.split(".")
    for row in rows:
        if row["number"] < 0:
            run = str(_run_of(row["number"]))
        else:
            recorded = str(row["number"])
    return f"{recorded}.{run}"


def spans_after(database: Database, which: Timespan, after: int | None, most: int) -> list[Span]:
    """Return up to `most` spans of a timespan by their beginning: those after a number, each page after the last."""
    found = _spans(database, which, most, after=after) if after is None or after < 0 else []
    if len(found) < most:
        rows = timeline(database, which, max(after or 0, 0), most - len(found))
        found += _under_runs(database, rows)
    return sorted(found, key=_order)


def _order(span: Span) -> tuple[float, int]:
    return span["began_at"], span["number"]


def _numbers_in(before: str) -> tuple[int | None, int | None]:
    recorded, run = (int(part) if part else None for part in before.split("."))
    return recorded, run


def _has_journals(database: Database) -> bool:
    return has_column(database, "sapwood_served_runs", "journal")


def _runs(database: Database, which: Timespan, most: int, *, since: int = 0, before: int | None = None) -> list[Any]:
    """Return up to `most` runs of a timespan: those since a number in order, or the newest before one."""
    if not _has_journals(database) or (which.work is not None and not which.work.startswith(RUN)):
        return []
    _, rows = database.look(
        f"SELECT {COLUMNS} FROM sapwood_served_runs WHERE journal IS NOT NULL AND number >= ?1"  # noqa: S608 - ours
        " AND (?2 IS NULL OR number < ?2) AND (?3 IS NULL OR id = ?3) AND (?4 IS NULL OR ended_at IS NULL OR"
        " ended_at >= ?4) AND (?5 IS NULL OR started_at <= ?5)"
        " AND (NOT ?6 OR status IN ('failed', 'interrupted') OR instr(journal, 'attempts'))"
        f" ORDER BY number {'' if since else 'DESC'}",
        (since, before, which.work and which.work.removeprefix(RUN), which.begins_at, which.ends_at, which.only_failed),
        most,
    )
    return [ExecutedRun(*row) for row in rows]


def _spans(database: Database, which: Timespan, most: int, *, after: int | None = None) -> list[Span]:
    """Return up to `most` spans of the runs of a timespan, in order: those after a number."""
    found: list[Span] = []
    known = recorded_incarnations(database) if _has_journals(database) else []
    since = 1 if after is None else max(1, _run_of(after))
    while len(found) < most:
        runs = _runs(database, which, RUNS_AT_ONCE, since=since)
        for run in runs:
            spans = [one for one in _spans_of(database, run, known) if after is None or one["number"] > after]
            found += [one for one in spans if not which.only_failed or _is_failed(one)]
            if len(found) >= most:
                break
        if len(runs) < RUNS_AT_ONCE:
            break
        since = runs[-1].number + 1
    return found[:most]


def _decoded(text: str) -> Any:
    """Return a stored JSON value, or the text itself if it is damaged."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _is_failed(span: Span) -> bool:
    return span["status"] in ("failed", "interrupted") or span["attempt"] > 1


def _under_runs(database: Database, rows: list[Span]) -> list[Span]:
    """Return records whose work is a run: they are part of it."""
    ids = WorkId.runs_in(row["work"] for row in rows if row["parent"] is None)
    if not ids or not _has_journals(database):
        return rows
    _, found = database.look(
        "SELECT id, number FROM sapwood_served_runs WHERE journal IS NOT NULL"
        " AND id IN (SELECT value FROM json_each(?))",
        (msgspec.json.encode(sorted(ids)).decode(),),
        len(ids),
    )
    roots = {ids[id]: _root_of(number) for id, number in found}
    return [
        row | {"parent": roots[row["work"]]} if row["parent"] is None and row["work"] in roots else row for row in rows
    ]


def _spans_of(database: Database, run: ExecutedRun, known: Sequence[Incarnation]) -> Iterator[Span]:
    """Yield the span of a run, and those of its parts."""
    journal = journal_in(run.journal) or Journal(0)
    attempts = _attempts(run, journal.attempts, known)
    entries = _entries(database, run, journal)
    is_open = run.ended_at is None
    status = "waiting" if is_open and _waits(entries) else run.status
    facts: dict[str, Any] = {"run": run.id, **(journal.remote or {})}
    if run.progress is not None:
        facts["progress"] = _decoded(run.progress)
    if run.reason is not None:
        facts["error" if run.status == "failed" else "reason"] = run.reason
    if run.error is not None:
        facts["message"] = run.error[:LONGEST_TEXT]
    number, parents = run.root, [run.root] * len(attempts)
    name = "on_run" if journal.remote is None else "remote run"
    kind = "fiber" if journal.remote is None else "remote"
    yield _span(run, number, None, kind, name, attempts[0].incarnation, run.started_at, run.ended_at, status, facts)
    if len(attempts) > 1:
        for at, attempt in enumerate(attempts):
            number += 1
            parents[at], is_last = number, at == len(attempts) - 1
            end, ending = (run.ended_at, status) if is_last else (None, "interrupted")
            span = _span(run, number, run.root, "attempt", name, attempt.incarnation, attempt.began_at, end, ending)
            yield span | {"attempt": at + 1}
    times = [attempt.began_at for attempt in attempts]
    for kind, name, began_at, ended_at, status, facts in sorted([*_parts(run, entries), *_milestones(run)], key=_began):
        at, number = max(bisect.bisect_right(times, began_at) - 1, 0), number + 1
        yield _span(run, number, parents[at], kind, name, attempts[at].incarnation, began_at, ended_at, status, facts)


Part = tuple[str, str, float, float | None, str, dict[str, Any]]
"""The kind, name, beginning, end, status and facts of a part of a run."""


def _began(part: Part) -> float:
    return part[2]


def _parts(run: ExecutedRun, entries: Sequence[Entry]) -> Iterator[Part]:
    for one in entries:
        is_over = one.ended_at is not None or run.ended_at is not None
        facts = {} if one.outcome is None else {"decision": one.outcome}
        status = "running"
        if is_over:
            status = "skipped" if one.outcome == "withdrawn" or one.ended_at is None else "completed"
        yield one.kind, one.name, one.began_at, one.ended_at or run.ended_at, status, facts


def _milestones(run: ExecutedRun) -> Iterator[Part]:
    try:
        milestones = msgspec.json.decode(run.milestones, type=list[dict[str, Any]])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return  # they are damaged
    for one in milestones[:MAX_ENTRIES]:
        at = one.get("at")
        if isinstance(at, int | float):
            facts = {name: value for name, value in one.items() if name not in ("at", "name", "seq")}
            yield "milestone", str(one.get("name")), at / 1000, at / 1000, "completed", facts


def _span(
    run: ExecutedRun,
    number: int,
    parent: int | None,
    kind: str,
    name: str,
    incarnation: int,
    began_at: float,
    ended_at: float | None,
    status: str,
    facts: dict[str, Any] | None = None,
) -> Span:
    return {
        "number": number,
        "parent": parent,
        "work": run.work,
        "kind": kind,
        "name": name,
        "step": None,
        "attempt": 1,
        "incarnation": incarnation,
        "began_at": began_at,
        "first_at": None,
        "ended_at": ended_at,
        "status": status,
        "facts": facts or {},
    }


def _attempts(run: ExecutedRun, later: Sequence[Attempt], known: Sequence[Incarnation]) -> list[Attempt]:
    """Return all attempts. The first was in the last incarnation that had begun by its end, if that is recorded."""
    before = later[0].incarnation if later else None
    end = run.ended_at if not later else later[0].began_at
    numbers = [
        one.number for one in known if (end is None or one.began_at <= end) and (before is None or one.number < before)
    ]
    return [Attempt(run.started_at, max(numbers, default=0)), *later]


def _entries(database: Database, run: ExecutedRun, journal: Journal) -> list[Entry]:
    """Return what the code of a run did: while it is open, from the tables of steps and questions."""
    if journal.entries is not None or run.ended_at is not None:
        return journal.entries or []
    work = str(WorkId.fiber(journal.fiber))
    steps, questions = list[StepTimes](), list[QuestionTimes]()
    if has_column(database, "sapwood_steps", "began_at"):
        steps = [StepTimes(*row) for row in database.look(STEP_TIMES, (work, MAX_ENTRIES), MAX_ENTRIES)[1]]
    if has_column(database, "sapwood_own_questions", "answered_at"):
        rows = database.look(QUESTION_TIMES, (work, MAX_ENTRIES), MAX_ENTRIES)[1]
        questions = [QuestionTimes(*row) for row in rows]
    return entries_of(steps, questions)


def _waits(entries: Sequence[Entry]) -> bool:
    """Return whether the code of an open run waits for an answer."""
    return any(one.kind == "wait" and one.ended_at is None for one in entries)
