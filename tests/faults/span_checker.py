"""Reads the records that a dead process left of one agent, and says where they differ from what it has stored.

Both are written in the same commits, so at every death they agree: a record that is missing was lost, and one that is
there twice was doubled.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import apsw
import msgspec
from tests.faults.reading import has

OPEN = ("running", "waiting")
CLEARED = "cleared"


class Span(NamedTuple):
    """One record."""

    number: int
    work: str
    kind: str
    step: int | None
    attempt: int
    incarnation: int
    began_at: float
    ended_at: float | None
    status: str
    facts: dict[str, Any]

    @property
    def key(self) -> str:
        return str(self.facts.get("key", ""))


@dataclass(slots=True)
class Records:
    """What is recorded of one agent."""

    spans: list[Span] = field(default_factory=list[Span])
    incarnations: set[int] = field(default_factory=set[int])
    dangling: int = 0
    """How many requests, messages and texts belong to nothing, or are missing."""

    def of(self, kind: str, work: str | None = None) -> list[Span]:
        return [span for span in self.spans if span.kind == kind and work in (None, span.work)]

    def problems(self) -> list[str]:
        """Return what is wrong with the records as they are."""
        found: list[str] = []
        attempts = defaultdict[tuple[str, str, int | None, str], list[int]](list)
        for span in self.spans:
            if span.kind in ("step", "tool", "run"):
                attempts[span.work, span.kind, span.step if span.kind == "step" else None, span.key].append(
                    span.attempt
                )
            if span.incarnation not in self.incarnations:
                found.append(
                    f"the record {span.number} began in the incarnation {span.incarnation}, which is not known"
                )
        for name, numbers in attempts.items():
            if numbers != [*range(1, len(numbers) + 1)]:
                found.append(f"the attempts at {name} are recorded as {numbers}")
        opened = Counter(
            (one.work, one.kind, one.key) for one in self.spans if one.status in OPEN and one.kind != "step"
        )
        found += [f"{name} is recorded as open {times} times" for name, times in opened.items() if times > 1]
        works = Counter(span.work for span in self.of("turn"))
        found += [f"the turn {work} is recorded {times} times" for work, times in works.items() if times > 1]
        if self.dangling:
            found.append(f"{self.dangling} records of requests belong to nothing")
        return found

    def of_turns(self, turns: Iterable[Any], calls: Iterable[Any]) -> list[str]:
        """Return where the records of turns and their tool calls are not what is stored."""
        found: list[str] = []
        by_number = {turn.number: turn for turn in turns}
        for turn in by_number.values():
            if not turn.steps and turn.status not in ("running", "waiting", "completed"):
                continue  # one that was never begun has no record
            if CLEARED in (turn.cancelled, turn.reason) and not turn.is_open:
                continue  # its records were deleted with the conversation
            found += self._of_turn(turn)
        for call in calls:
            turn = by_number.get(call.turn)
            if turn is not None and turn.is_open and call.status in ("done", "failed"):
                ended = [
                    one for one in self.of("tool", f"run {turn.id}") if one.key == call.id and one.status not in OPEN
                ]
                over = [one for one in ended if one.status in ("completed", "failed")]
                if len(over) > 1 or not ended:
                    found.append(f"{call.id} is {call.status}, and recorded as {[one.status for one in ended]}")
        return found

    def _of_turn(self, turn: Any) -> list[str]:
        work, found = f"run {turn.id}", list[str]()
        status = [span.status for span in self.of("turn", work)]
        if status != [turn.status]:
            found.append(f"{turn.id} is {turn.status}, and recorded as {status}")
        completed = Counter(span.step for span in self.of("step", work) if span.status == "completed" and span.step)
        if completed != Counter(range(1, turn.steps + 1)):
            found.append(f"{turn.id} made {turn.steps} steps, and {dict(completed)} are recorded")
        return found

    def of_runs(self, runs: Iterable[Any]) -> list[str]:
        """Return where the records of the runs that the agent has started are not what is stored."""
        found: list[str] = []
        for run in runs:
            spans = [span for span in self.of("run") if span.key == run.id]
            last = spans[-1].status if spans else None
            if (last in OPEN) != run.is_open or (not run.is_open and last != run.status):
                found.append(f"the run {run.id} is {run.status}, and recorded as {[span.status for span in spans]}")
        return found

    def of_fibers(self, fibers: Sequence[tuple[int, str]]) -> list[str]:
        """Return where the records of fibers that have ended are not what is stored: each has its number and status."""
        found: list[str] = []
        for number, status in fibers:
            recorded = [span.status for span in self.of("fiber", f"fiber {number}")]
            if status == "completed" and recorded.count("completed") != 1:
                found.append(f"the fiber {number} is {status}, and recorded as {recorded}")
        return found


def read_records(database: apsw.Connection) -> Records:
    """Return what is recorded in one database."""
    records = Records()
    if not has(database, "sapwood_spans"):
        return records
    rows = database.execute(
        "SELECT number, work, kind, step, attempt, incarnation, began_at, ended_at, status, facts FROM sapwood_spans"
        " ORDER BY number"
    )
    for *values, facts in rows:
        records.spans.append(Span(*values, msgspec.json.decode(str(facts))))  # type: ignore[arg-type]
    records.incarnations = {
        int(str(number)) for (number,) in database.execute("SELECT number FROM sapwood_incarnations")
    }
    if has(database, "sapwood_model_requests"):
        for sql in DANGLING:
            ((number,),) = database.execute(sql)
            records.dangling += int(str(number))
    return records


DANGLING = (
    "SELECT count(*) FROM sapwood_model_requests WHERE span NOT IN (SELECT number FROM sapwood_spans)",
    (
        "SELECT count(*) FROM sapwood_model_requests"
        " WHERE last IS NOT NULL AND last NOT IN (SELECT number FROM sapwood_sent_messages)"
    ),
    "SELECT count(*) FROM sapwood_sent_messages WHERE previous NOT IN (SELECT number FROM sapwood_sent_messages)",
    "SELECT count(*) FROM sapwood_sent_messages WHERE text NOT IN (SELECT digest FROM sapwood_sent_texts)",
    (
        "SELECT count(*) FROM sapwood_model_requests, json_each(parts)"
        " WHERE type = 'array' AND value ->> 0 NOT IN (SELECT digest FROM sapwood_sent_texts)"
    ),
)
"""What counts the rows of which a part is missing, or which nothing needs."""
