"""Calls that happen later, and still happen if the process dies in between.

A call to come is a row in the database of the agent that wished it. Calling it moves the
row on, or removes it, in the commit of the last thing the method wrote: a method without
awaits happens exactly once, one with awaits at least once. What fails is tried again,
and in the end kept as a dead letter.
"""

from __future__ import annotations

import functools
import inspect
import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from sapwood import tracing
from sapwood.capabilities.steps import Steps, Work
from sapwood.errors import (
    GaveUp,
    InvalidArguments,
    NoSuchMethod,
    NotCopyable,
    SapwoodError,
    SignatureChanged,
    UsageError,
)
from sapwood.kernel.actor import CANCELLED_INSIDE, THE_END, Actor, row_id
from sapwood.kernel.classes import Method, is_callback
from sapwood.kernel.context import Call
from sapwood.kernel.crossing import describe, mistake
from sapwood.kernel.driving import driven
from sapwood.kernel.fitting import Misfit, Stored
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema
from sapwood.when import DEFAULT_RETRY, After, At, Cron, Every, Retry, When, from_stored

log = logging.getLogger(__name__)

CALLS = Schema("sapwood.capabilities", "calls")
ONCE = ('{"after"', '{"at"')
"""How the wishes begin, as they are stored, that nothing follows."""
AT_ONCE = 100
"""How many calls of one agent start before other agents get a turn."""
MOST_DEATHS = 5
"""How often the process may die while a call runs before the call is given up."""
PUT_OFF = 300.0
"""Seconds until to look again at a call whose times this machine cannot work out."""
ALL = (
    "SELECT number, due_at, method, arguments, schedule, dedup_key, queue, retry, failures, crashes,"
    " error, created_at, trace, occurrence FROM sapwood_calls "
)


class Row(NamedTuple):
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
    def work(self) -> str:
        """What the steps and runs of this call are remembered by: however often it is tried, until it is over."""
        return f"call {self.number}" if self.occurrence == 0 else f"call {self.number}.{self.occurrence}"

    @property
    def is_once(self) -> bool:
        """Whether nothing follows the call; False: that has to be worked out."""
        return self.schedule is None or self.schedule.startswith(ONCE)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A scheduled or queued call that failed and is not retried any more."""

    id: str
    """The id for `self.dead_letters.replay` and `delete`."""
    method: str
    """The method that was called."""
    arguments: dict[str, Any]
    """The arguments of the call."""
    code: str
    """The code of the last error."""
    error: str
    """The last error message."""
    attempts: int
    """The number of attempts."""
    occurrences: int
    """The number of occurrences whose attempts all failed. It is 1, except for a repeating call."""
    failed_at: datetime
    """When the last attempt failed."""


class StoredCalls:
    """The calls one agent has to come."""

    def __init__(self, actor: Actor, ended: Callable[[float | None], None]) -> None:
        self._actor = actor
        self._db: Database = actor.database
        self._ended = ended
        """Told of the end of every call, with when it is due again."""
        self._running: dict[int, Call] = {}
        """What runs now, by its number."""
        self._queues: set[str] = set()
        """The queues in which something runs now."""
        self._tag = row_id(0, actor.address, actor.stem).removeprefix("0")

    @property
    def exist(self) -> bool:
        """Whether this agent ever had any."""
        return self._db.has(CALLS)

    def id_of(self, number: int) -> str:
        """Return how a row is called outside: no two agents use one id."""
        return f"{number}{self._tag}"

    def number_of(self, id: str) -> int | None:
        """Return the row an id means; None if it is not one of this agent's."""
        number, dash, tag = id.partition("-")
        return int(number) if dash + tag == self._tag and number.isdecimal() and len(number) < 19 else None

    def method_of(self, method: Callable[..., Any], what: str) -> Method:
        """Return the agent's own method that a user means."""
        agent = self._actor.agent
        if inspect.iscoroutine(method):
            method.close()
            raise UsageError(
                f"{what} expects a method, got the result of {method.__qualname__}(). Pass the method without "
                "parentheses, followed by its arguments."
            )
        if isinstance(method, str):
            raise UsageError(
                f"{what} expects a method, such as self.remind, got the string {method!r}. For a named "
                f"queue, write self.queues[{method!r}].add(…)."
            )
        if getattr(method, "__self__", None) is not agent:
            name = getattr(method, "__qualname__", repr(method))
            raise UsageError(
                f"{what} expects a method of this agent, such as self.remind, got {name}. The method is stored by "
                "name, so a function or a method of another agent cannot be used."
            )
        found = self._actor.kind.own(method.__name__)
        if found.streams:
            raise UsageError(f"{what} cannot call {found.full_name}(): it is a generator. Return instead of yielding.")
        return found

    def pack(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return arguments as they are stored, checked against the method's annotations."""
        for value in (*args, *kwargs.values()):
            if is_callback(value):
                raise NotCopyable(
                    f"{method.full_name}() is called later: its arguments are stored, and a function cannot be stored."
                )
        return method.signature.pack(args, kwargs, self._actor.limits.payload_bytes)

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
    ) -> Row:
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
        return Row(number, due, method, arguments, stored, dedup_key, queue, attempts, 0, 0, None, now, trace)

    def enqueue(self, method: str, arguments: bytes, queue: str, retry: Retry) -> Row:
        """Store a call behind those in its queue; it is due at once if there is none."""
        is_first = not self.find("WHERE queue = ? LIMIT 1", queue)
        due = self._actor.host.clock.now() if is_first else None
        return self.add(method, arguments, due=due, retry=retry, queue=queue)

    def find(self, where: str, *arguments: Any) -> list[Row]:
        """Return rows."""
        if not self.exist:
            return []
        return [Row(*row) for row in self._db.execute(ALL + where, *arguments)]

    def is_running(self, number: int) -> bool:
        return number in self._running

    def release_key(self, number: int) -> None:
        """Let another call have the key of one that runs now."""
        self._db.execute("UPDATE sapwood_calls SET dedup_key = NULL WHERE number = ?", number)

    def remove(self, row: Row) -> float | None:
        """Forget a call to come; return when the next call of its queue is due."""
        self._actor.of(Steps).forget(row.work)
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

    def first_due(self) -> float | None:
        """Return when the first call is due, those that run now included."""
        if not self.exist:
            return None
        rows = self._db.execute("SELECT due_at FROM sapwood_calls WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1")
        return rows[0][0] if rows else None

    def begin_due(self, now: float) -> float | None:
        """Begin what is due; return when there is more. What runs already is never begun a second time."""
        if not self.exist:
            return None
        most = AT_ONCE + len(self._running)
        due = self._db.execute(
            "SELECT number FROM sapwood_calls WHERE due_at IS NOT NULL AND due_at <= ? ORDER BY due_at, number LIMIT ?",
            now,
            most,
        )
        new = [number for (number,) in due if number not in self._running]
        if new:
            # Only these are read whole: what runs already may be much, and for long.
            listed = "WHERE number IN (SELECT value FROM json_each(?)) ORDER BY due_at, number"
            found = [row for row in self.find(listed, to_text(new).decode()) if self._enters(row.queue)]
            rows, counted = self._count_deaths(found)
            for row in rows:
                call = self._running[row.number] = Call(self._actor, row.method, None)
                call.work = Work(row.work)
                self._actor.spawn(call, self._run(call, row, counted))
        if len(due) == most:
            return now
        later = self._db.execute(
            "SELECT due_at FROM sapwood_calls WHERE due_at IS NOT NULL AND due_at > ? ORDER BY due_at LIMIT 1", now
        )
        return later[0][0] if later else None

    def _enters(self, queue: str | None) -> bool:
        """Return whether a queue lets the next one begin: one taken out of it while it ran is still in the way."""
        if queue is None:
            return True
        if queue in self._queues:
            return False
        self._queues.add(queue)
        return True

    async def _run(self, call: Call, row: Row, counted: bool) -> None:
        call.enter()
        again: float | None = None
        try:
            try:
                if counted:
                    await self._actor.leave()
                if self._is_wished(row):
                    name, who = f"{self._actor.kind.type}.{row.method}", str(self._actor.address)
                    kind = "schedule" if row.queue is None else "queue"
                    # What comes of a wish has a trace of its own: a wish may come true for years.
                    with tracing.span(f"{kind} {name}", is_new=True, links=[row.trace], sapwood__address=who):
                        again = await self._attempt(row)
            except CancelledError:
                raise
            except SapwoodError:
                if not self._actor.detached:
                    raise
        except Exception:
            log.exception("cannot end a stored call address=%s method=%s", self._actor.address, row.method)
            self._db.undo()
            self._actor.host.alarms.look_again(self._actor.address.root)
        finally:
            del self._running[row.number]
            if row.queue is not None:
                self._queues.discard(row.queue)
            self._actor.finished(call)
            self._ended(again)

    def _is_wished(self, row: Row) -> bool:
        """Return whether nobody cancelled it, or deleted its agent, while it waited to begin."""
        here = self._db.execute("SELECT 1 FROM sapwood_calls WHERE number = ?", row.number)
        return bool(here) and not self._actor.detached

    def _count_deaths(self, rows: list[Row]) -> tuple[list[Row], bool]:
        """Some may have been what ended the process before this one: note it, so that none can do so for ever.

        Returns whether that has to be kept before they are begun.
        """
        taken = self._actor.host.crashed_before(self._actor.address.root)
        old = {row.number for row in rows if taken is not None and row.due_at is not None and row.due_at <= taken}
        if not old:
            return rows, False
        self._db.begin()
        self._db.execute(
            "UPDATE sapwood_calls SET crashes = crashes + 1 WHERE number IN (SELECT value FROM json_each(?))",
            to_text(sorted(old)).decode(),
        )
        return [row._replace(crashes=row.crashes + 1) if row.number in old else row for row in rows], True

    async def _attempt(self, row: Row) -> float | None:
        """Call a method; return when it is due again."""
        actor = self._actor
        try:
            method = actor.kind.own(row.method)
            args, kwargs = method.signature.unpack(row.arguments)
        except (NoSuchMethod, InvalidArguments, UsageError) as error:
            return self._give_up(row, SignatureChanged(f"The stored call no longer matches the program: {error}"))
        try:
            if not row.is_once:
                row.when()
        except UsageError as error:
            return self._put_off(row, error)
        if row.crashes > MOST_DEATHS:
            error = GaveUp(f"The process ended {MOST_DEATHS} times during {row.method}().")
            return self._give_up(row._replace(failures=row.failures + MOST_DEATHS), error)
        actor.check_live()
        try:
            actor.user_database()  # the tables of the user are not undone with what a call wrote
            self._db.attempt()
            value = method.function(actor.agent, *args, **kwargs)
            if inspect.iscoroutine(value):
                await driven(value, self._db.keep)
            actor.check_live()
            for check in actor.after_call:
                check()
        except CancelledError:
            if actor.dropped is not None:
                raise
            self._db.undo()
            return self._failed(row, RuntimeError(CANCELLED_INSIDE))
        except THE_END:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            self._db.undo()
            actor.check_live()
            return self._failed(row, error)
        return self._done(row)

    def _done(self, row: Row) -> float | None:
        following = self._move_on(row)
        self._db.keep()
        return following

    def _move_on(self, row: Row) -> float | None:
        """This call is over; return when the next one of the same row, or of the same queue, is due."""
        now = self._actor.host.clock.now()
        self._actor.of(Steps).forget(row.work)
        following = None
        if not row.is_once:
            wish = row.when()
            # When a call was tried again it was late on purpose: the next one keeps to the beat of the first.
            since = row.created_at if row.failures and isinstance(wish, Every) else row.due_at or now
            following = wish.next(since, now)
        if following is None:
            return self.remove(row)
        self._db.execute(
            "UPDATE sapwood_calls SET due_at = ?, failures = 0, crashes = 0, error = NULL, occurrence = occurrence + 1"
            " WHERE number = ?",
            following,
            row.number,
        )
        return following

    def _failed(self, row: Row, error: BaseException) -> float | None:
        actor, text = self._actor, describe(error)
        actor.last_error = text
        retry = retry_of(row.retry)
        failed = row.failures + 1
        log.warning(
            "stored call failed address=%s method=%s attempt=%d of %d: %s",
            actor.address,
            row.method,
            failed,
            retry.max_attempts,
            text,
            extra={"address": str(actor.address), "method": row.method},
            exc_info=mistake(error),
        )
        if not self.find("WHERE number = ?", row.number):
            return self._move_on(row)  # it was cancelled meanwhile: nobody wishes it any more
        if failed >= retry.max_attempts:
            return self._give_up(row._replace(failures=failed), error)
        due = actor.host.clock.now() + retry.wait(failed)
        self._db.begin()  # also where the database is full
        self._db.execute(
            # Whatever it is, it does not end the process.
            "UPDATE sapwood_calls SET due_at = ?, failures = ?, crashes = 0, error = ? WHERE number = ?",
            due,
            failed,
            text,
            row.number,
        )
        return due

    def _put_off(self, row: Row, error: UsageError) -> float:
        """Nobody here can say when the next call would be, so none is made: once the machine can, it goes on."""
        due = self._actor.host.clock.now() + PUT_OFF
        log.error(
            "stored call postponed address=%s method=%s seconds=%.0f: %s",
            self._actor.address,
            row.method,
            PUT_OFF,
            error,
            extra={"address": str(self._actor.address), "method": row.method},
        )
        self._db.execute(
            "UPDATE sapwood_calls SET due_at = ?, crashes = 0, error = ? WHERE number = ?", due, str(error), row.number
        )
        return due

    def _give_up(self, row: Row, error: BaseException) -> float | None:
        self._db.begin()
        self.bury(
            self.id_of(row.number),
            row.method,
            row.arguments,
            error,
            attempts=row.failures,
            schedule=row.schedule,
            queue=row.queue,
            retry=row.retry,
            created_at=row.created_at,
        )
        if isinstance(error, SignatureChanged):
            return self.remove(row)  # it would not fit the next time either
        return self._move_on(row)

    def bury(
        self,
        origin: str,
        method: str,
        arguments: bytes,
        error: BaseException,
        *,
        attempts: int,
        created_at: float,
        schedule: str | None = None,
        queue: str | None = None,
        retry: str = "",
    ) -> None:
        """Store a call that was abandoned, until it is replayed or deleted."""
        self._db.ensure(CALLS)
        code = error.code if isinstance(error, SapwoodError) else "crashed"
        self._db.execute(
            "INSERT INTO sapwood_dead_letters"
            " (origin, method, arguments, schedule, queue, retry, code, error, attempts, created_at, failed_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (origin) DO UPDATE SET occurrences = occurrences + 1,"
            " code = excluded.code, error = excluded.error, attempts = excluded.attempts,"
            " failed_at = excluded.failed_at, arguments = excluded.arguments",
            origin,
            method,
            arguments,
            schedule,
            queue,
            retry or _retry_text(DEFAULT_RETRY),
            code,
            str(error) if isinstance(error, SapwoodError) else describe(error),
            attempts,
            created_at,
            self._actor.host.clock.now(),
        )
        log.error(
            "stored call is now a dead letter address=%s method=%s: %s",
            self._actor.address,
            method,
            describe(error),
            extra={"address": str(self._actor.address), "method": method, "code": code},
        )

    def has_dead(self) -> bool:
        """Return whether this agent has dead letters."""
        return self.exist and bool(self._db.execute("SELECT 1 FROM sapwood_dead_letters LIMIT 1"))

    def dead_letters(self) -> list[DeadLetter]:
        """Return the calls that were given up, oldest first."""
        if not self.exist:
            return []
        rows = self._db.execute(
            "SELECT number, method, arguments, code, error, attempts, occurrences, failed_at FROM sapwood_dead_letters"
            " ORDER BY number"
        )
        return [
            DeadLetter(
                self.id_of(number), method, shown(arguments), code, error, attempts, occurrences, time_of(failed_at)
            )
            for number, method, arguments, code, error, attempts, occurrences, failed_at in rows
        ]

    def take_dead_letter(self, id: str) -> tuple[str, bytes, str | None, str] | None:
        """Remove a dead letter; return its method, arguments, queue and retry."""
        number = self.number_of(id)
        if number is None or not self.exist:
            return None
        rows = self._db.execute(
            "DELETE FROM sapwood_dead_letters WHERE number = ? RETURNING method, arguments, queue, retry", number
        )
        return rows[0] if rows else None


def unfit(stored: Stored) -> Iterator[Misfit]:
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


NOT_CALLED = "Repair this machine, or cancel the call. Until then it is not called."
KEEP = "Keep a method of this name that accepts the stored arguments."


shown: Callable[[bytes], Any] = msgspec.msgpack.Decoder().decode
"""Return stored bytes as plain msgpack values, for display."""
to_text = msgspec.json.Encoder().encode


def time_of(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _retry_text(retry: Retry) -> str:
    if retry is DEFAULT_RETRY:
        return DEFAULT_TEXT
    delays = [retry.initial_delay.total_seconds(), retry.max_delay.total_seconds()]
    return msgspec.json.encode([retry.max_attempts, *delays]).decode()


def retry_of(text: str) -> Retry:
    attempts, first, last = msgspec.json.decode(text)
    return Retry(max_attempts=attempts, initial_delay=timedelta(seconds=first), max_delay=timedelta(seconds=last))


DEFAULT_TEXT = "[3,0.1,3.0]"
