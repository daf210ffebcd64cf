"""Calls to come as they are stored: one row each, until they are over or cancelled."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from sapwood import tracing
from sapwood.capabilities.failing_calls import FailingCalls
from sapwood.capabilities.held_calls import HeldCall, TakenLetter
from sapwood.capabilities.steps import Steps
from sapwood.capabilities.stored_method import KEEP
from sapwood.capabilities.stored_rows import RowIds
from sapwood.errors import SignatureChanged, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.node.upgrade_check import Misfit, StoredAgent
from sapwood.kernel.ports.work_id import WorkId
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema
from sapwood.when import DEFAULT_RETRY, After, At, Cron, Every, Retry, When, from_stored

CALLS = Schema("sapwood.capabilities", "calls")
ONCE = ('{"after"', '{"at"')
"""How the schedules begin, as they are stored, that nothing follows."""
ALL = (
    "SELECT number, due_at, method, arguments, schedule, dedup_key, queue, retry, failures, crashes,"
    " error, created_at, trace, occurrence FROM sapwood_calls "
)
DEFAULT_TEXT = "[3,0.1,3.0]"
NOT_CALLED = "Repair this machine, or cancel the call. Until then it is not called."
to_text = msgspec.json.Encoder().encode


class CallRow(NamedTuple):
    """One call to come, as it is stored."""

    number: int
    due_at: float | None
    method: str
    arguments: bytes
    schedule: str | None
    dedup_key: str | None
    queue: str | None
    retry: str
    failures: int
    crashes: int
    error: str | None
    created_at: float
    trace: str | None
    occurrence: int = 0

    def when(self) -> After | At | Every | Cron:
        """Return when it was wished to be called; a queued call, at once."""
        return After(timedelta(0)) if self.schedule is None else from_stored(msgspec.json.decode(self.schedule))

    @property
    def work(self) -> WorkId:
        """What the steps and runs of this call are remembered by: however often it is tried, until it is over."""
        return WorkId.call(self.number, self.occurrence)

    @property
    def is_once(self) -> bool:
        """Whether nothing follows the call; False: that has to be worked out."""
        return self.schedule is None or self.schedule.startswith(ONCE)


class CallRows:
    """The rows of one agent's calls to come. Every change belongs to the open slice."""

    def __init__(self, actor: Actor, ids: RowIds) -> None:
        self._actor = actor
        self._db: Database = actor.database
        self.ids = ids

    @property
    def exist(self) -> bool:
        """Whether this agent ever had any."""
        return self._db.has(CALLS)

    def add(
        self,
        method: str,
        arguments: bytes,
        *,
        due: float | None,
        retry: Retry,
        wish: When | None = None,
        dedup_key: str | None = None,
        queue: str | None = None,
    ) -> CallRow:
        """Store a call to come, with what else this slice writes."""
        self._db.ensure(CALLS)
        stored = None if wish is None else to_text(wish.stored()).decode()
        now, attempts, trace = self._actor.host.clock.now(), _retry_text(retry), tracing.text()
        ((number,),) = self._db.execute(
            "INSERT INTO sapwood_calls"
            " (due_at, method, arguments, schedule, dedup_key, queue, retry, created_at, trace)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number",
            due,
            method,
            arguments,
            stored,
            dedup_key,
            queue,
            attempts,
            now,
            trace,
        )
        return CallRow(number, due, method, arguments, stored, dedup_key, queue, attempts, 0, 0, None, now, trace)

    def enqueue(self, method: str, arguments: bytes, queue: str, retry: Retry) -> CallRow:
        """Store a call behind those in its queue; it is due at once if there is none."""
        is_first = not self.find("WHERE queue = ? LIMIT 1", queue)
        due = self._actor.host.clock.now() if is_first else None
        return self.add(method, arguments, due=due, retry=retry, queue=queue)

    def add_held(self, letter: TakenLetter, held: HeldCall) -> float | None:
        """Store a call again that a fork has held, as it was; return when it is due.

        Its schedule is a new one if another call has its key by now.
        """
        key = held.dedup_key
        if key is not None and self.find("WHERE dedup_key = ?", key):
            key = None
        due = held.due_at
        if letter.queue is not None:
            due = None if self.find("WHERE queue = ? LIMIT 1", letter.queue) else self._actor.host.clock.now()
        self._db.execute(
            "INSERT INTO sapwood_calls (number, due_at, method, arguments, schedule, dedup_key, queue, retry, failures,"
            " created_at, trace, occurrence) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            held.number,
            due,
            letter.method,
            letter.arguments,
            letter.schedule,
            key,
            letter.queue,
            letter.retry,
            held.failures,
            letter.created_at,
            tracing.text(),
            held.occurrence,
        )
        return due

    def find(self, where: str, *arguments: Any) -> list[CallRow]:
        """Return rows."""
        if not self.exist:
            return []
        return [CallRow(*row) for row in self._db.execute(ALL + where, *arguments)]

    def release_key(self, number: int) -> None:
        """Let another call have the key of one that runs now."""
        self._db.execute("UPDATE sapwood_calls SET dedup_key = NULL WHERE number = ?", number)

    def remove(self, row: CallRow) -> float | None:
        """Forget a call to come; return when the next call of its queue is due."""
        self._actor.of(Steps).forget(row.work)
        self._delist(row.number)
        self._db.execute("DELETE FROM sapwood_calls WHERE number = ?", row.number)
        if row.queue is None or row.due_at is None:
            return None
        next_one = self._db.execute(
            "UPDATE sapwood_calls SET due_at = coalesce(due_at, ?) WHERE number ="
            " (SELECT number FROM sapwood_calls WHERE queue = ? ORDER BY number LIMIT 1)"
            " RETURNING due_at",
            self._actor.host.clock.now(),
            row.queue,
        )
        return next_one[0][0] if next_one else None

    def _delist(self, number: int) -> None:
        """List a call no more among those that fail and are retried."""
        failing = self._actor.host.shared(FailingCalls)
        if not failing.is_empty:
            failing.forget(str(self._actor.address), number)

    def first_due(self, after: float = float("-inf")) -> float | None:
        """Return when the first call is due after this time, those that run now included."""
        if not self.exist:
            return None
        rows = self._db.execute(
            "SELECT due_at FROM sapwood_calls WHERE due_at IS NOT NULL AND due_at > ? ORDER BY due_at LIMIT 1", after
        )
        return rows[0][0] if rows else None

    def due(self, now: float, most: int) -> list[int]:
        """Return the numbers of calls that are due, in order."""
        rows = self._db.execute(
            "SELECT number FROM sapwood_calls WHERE due_at IS NOT NULL AND due_at <= ? ORDER BY due_at, number LIMIT ?",
            now,
            most,
        )
        return [number for (number,) in rows]

    def read(self, numbers: Sequence[int]) -> list[CallRow]:
        """Return these calls in the order in which they are due."""
        which = "WHERE number IN (SELECT value FROM json_each(?)) ORDER BY due_at, number"
        return self.find(which, to_text(numbers).decode())

    def has(self, number: int) -> bool:
        """Return whether a call was not removed."""
        return bool(self._db.execute("SELECT 1 FROM sapwood_calls WHERE number = ?", number))

    def count_crashes(self, numbers: Sequence[int]) -> None:
        """The process ended while these calls may have been running."""
        self._db.begin()
        self._db.execute(
            "UPDATE sapwood_calls SET crashes = crashes + 1 WHERE number IN (SELECT value FROM json_each(?))",
            to_text(numbers).decode(),
        )

    def repeat(self, number: int, due: float) -> None:
        """A call is over, and its next occurrence is due then."""
        self._delist(number)
        self._db.execute(
            "UPDATE sapwood_calls SET due_at = ?, failures = 0, crashes = 0, error = NULL, occurrence = occurrence + 1"
            " WHERE number = ?",
            due,
            number,
        )

    def retry(self, number: int, due: float, failures: int, error: str) -> None:
        """A call failed, and is retried then."""
        self._db.begin()  # also where the database is full
        self._db.execute(
            # Whatever it is, it does not end the process.
            "UPDATE sapwood_calls SET due_at = ?, failures = ?, crashes = 0, error = ? WHERE number = ?",
            due,
            failures,
            error,
            number,
        )

    def make_due(self, number: int) -> float:
        """A call is due now; return the time."""
        now = self._actor.host.clock.now()
        self._db.execute("UPDATE sapwood_calls SET due_at = ? WHERE number = ? AND due_at > ?", now, number, now)
        return now

    def postpone(self, number: int, due: float, error: str) -> None:
        """A call is not made before then."""
        self._db.execute(
            "UPDATE sapwood_calls SET due_at = ?, crashes = 0, error = ? WHERE number = ?", due, error, number
        )


def unfit(stored: StoredAgent) -> Iterator[Misfit]:
    """Read the calls to come of an agent that sleeps, and its dead letters, as if they were due now."""
    if not stored.file.has(CALLS):
        return
    for number, method, arguments, schedule, queue, retry in stored.file.rows(
        "SELECT number, method, arguments, schedule, queue, retry FROM sapwood_calls ORDER BY number"
    ):
        what = "scheduled call" if queue is None else "queued call"
        stored.counts[f"{what}s"] += 1
        if (wrong := stored.wrong_with(method, arguments)) is not None:
            yield stored.misfit(
                what, wrong, f"{KEEP} Otherwise the call becomes a dead letter when it is due.", number=number
            )
        elif (wrong := _wrong_time(schedule, retry)) is not None:
            yield stored.misfit(what, f"{method}(): {wrong}", NOT_CALLED, number=number)
    for number, method, arguments, code in stored.file.rows(
        "SELECT number, method, arguments, code FROM sapwood_dead_letters ORDER BY number"
    ):
        stored.counts["dead letters"] += 1
        wrong = stored.wrong_with(method, arguments)
        if wrong is not None and code != SignatureChanged.code:  # of those it is known
            yield stored.misfit(
                "dead letter", wrong, f"{KEEP} Or delete the dead letter: it cannot be replayed.", number=number
            )


@functools.lru_cache(maxsize=1000)  # most are like those of the agent before
def _wrong_time(wish: str | None, retry: str) -> str | None:
    try:
        retry_of(retry)
        if wish is not None:
            from_stored(msgspec.json.decode(wish))
    except UsageError as error:
        return str(error)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        return f"The stored schedule is damaged: {error}."
    return None


def _retry_text(retry: Retry) -> str:
    if retry is DEFAULT_RETRY:
        return DEFAULT_TEXT
    delays = [retry.initial_delay.total_seconds(), retry.max_delay.total_seconds()]
    return msgspec.json.encode([retry.max_attempts, *delays]).decode()


def retry_of(text: str) -> Retry:
    attempts, first, last = msgspec.json.decode(text)
    return Retry(max_attempts=attempts, initial_delay=timedelta(seconds=first), max_delay=timedelta(seconds=last))
