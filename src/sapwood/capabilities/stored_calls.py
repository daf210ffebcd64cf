"""Calls that happen later, and still happen if the process dies in between.

A call to come is a row in the database of the agent that wished it. Calling it moves the
row on, or removes it, in the commit of the last thing the method wrote: a method without
awaits happens exactly once, one with awaits at least once. What fails is tried again,
and in the end kept as a dead letter.
"""

from __future__ import annotations

import inspect
import logging
from asyncio import CancelledError
from collections.abc import Callable

from sapwood import tracing
from sapwood.capabilities.call_rows import CallRow, CallRows, retry_of
from sapwood.capabilities.dead_letters import DeadLetters
from sapwood.capabilities.failing_calls import FailingCall, FailingCalls
from sapwood.capabilities.spans import Spans, code_of
from sapwood.capabilities.steps import Steps, Work
from sapwood.capabilities.stored_method import load
from sapwood.capabilities.stored_rows import RowIds
from sapwood.errors import GaveUp, SapwoodError, SignatureChanged, UsageError
from sapwood.kernel.actors.actor import CANCELLED_INSIDE, THE_END, Actor
from sapwood.kernel.aio import driven
from sapwood.kernel.marshal.call import Call
from sapwood.kernel.marshal.exceptions import describe, mistake
from sapwood.storage.database import Database
from sapwood.when import Every

log = logging.getLogger(__name__)

AT_ONCE = 100
"""How many calls of one agent start before other agents get a turn."""
MOST_DEATHS = 5
"""How often the process may die while a call runs before the call is given up."""
PUT_OFF = 300.0
"""Seconds until to look again at a call whose times this machine cannot work out."""


class StoredCalls:
    """The calls one agent has to come."""

    def __init__(self, actor: Actor, ended: Callable[[float | None], None]) -> None:
        self._actor = actor
        self._db: Database = actor.database
        ids = RowIds(actor)
        self.rows = CallRows(actor, ids)
        self.dead_letters = DeadLetters(actor, ids)
        self._ended = ended
        """Told of the end of every call, with when it is due again."""
        self._running: dict[int, Call] = {}
        """What runs now, by its number."""
        self._queues: set[str] = set()
        """The queues in which something runs now."""

    def is_running(self, number: int) -> bool:
        return number in self._running

    def begin_due(self, now: float) -> float | None:
        """Begin what is due; return when there is more. What runs already is never begun a second time."""
        if not self.rows.exist:
            return None
        most = AT_ONCE + len(self._running)
        due = self.rows.due(now, most)
        new = [number for number in due if number not in self._running]
        if new:
            # Only these are read whole: what runs already may be much, and for long.
            found = [row for row in self.rows.read(new) if self._enters(row.queue)]
            rows, counted = self._count_deaths(found)
            for row in rows:
                call = self._running[row.number] = Call(self._actor, row.method, None)
                call.work = Work(row.work, row.created_at)
                self._actor.spawn(call, self._run(call, row, counted))
        return now if len(due) == most else self.rows.first_due(now)

    def _enters(self, queue: str | None) -> bool:
        """Return whether a queue lets the next one begin: one taken out of it while it ran is still in the way."""
        if queue is None:
            return True
        if queue in self._queues:
            return False
        self._queues.add(queue)
        return True

    async def _run(self, call: Call, row: CallRow, counted: bool) -> None:
        call.enter()
        again: float | None = None
        try:
            try:
                if counted:
                    await self._actor.leave()
                await self._actor.until_leased()
                if self._is_wished(row):
                    name, who = f"{self._actor.kind.type}.{row.method}", str(self._actor.address)
                    kind = "schedule" if row.queue is None else "queue"
                    # Each call has its own trace: a schedule may run for years.
                    with tracing.span(f"{kind} {name}", is_new=True, links=[row.trace], sapwood__address=who):
                        again = await self._attempt(row)
            except CancelledError:
                raise
            except SapwoodError:
                if not self._actor.detached:
                    raise
        except Exception as error:  # noqa: BLE001 - it is reported, and tried again
            text, who = "cannot end a stored call address=%s method=%s", self._actor.address
            failures = self._actor.host.failures
            failures.report(log, logging.ERROR, text, who, row.method, error=error, about=who, traceback=error)
            self._db.undo()
            self._actor.host.alarms.look_again(self._actor.address.root)
        finally:
            del self._running[row.number]
            if row.queue is not None:
                self._queues.discard(row.queue)
            self._actor.finished(call)
            self._ended(again)

    def _is_wished(self, row: CallRow) -> bool:
        """Return whether it was not cancelled, nor its agent deleted, while it waited to begin."""
        return self.rows.has(row.number) and not self._actor.detached

    def _count_deaths(self, rows: list[CallRow]) -> tuple[list[CallRow], bool]:
        """Some may have been what ended the process before this one: note it, so that none can do so for ever.

        Returns whether that has to be kept before they are begun.
        """
        taken = self._actor.host.crashed_before(self._actor.address.root)
        old = {row.number for row in rows if taken is not None and row.due_at is not None and row.due_at <= taken}
        if not old:
            return rows, False
        self.rows.count_crashes(sorted(old))
        return [row._replace(crashes=row.crashes + 1) if row.number in old else row for row in rows], True

    async def _attempt(self, row: CallRow) -> float | None:
        """Call a method; return when it is due again."""
        actor = self._actor
        try:
            _, function = load(actor, row.method, row.arguments)
        except SignatureChanged as error:
            return self._give_up(row, error)
        try:
            if not row.is_once:
                row.when()
        except UsageError as error:
            return self._put_off(row, error)
        if row.crashes > MOST_DEATHS:
            error = GaveUp(f"The process ended {MOST_DEATHS} times during {row.method}().")
            return self._give_up(row._replace(failures=row.failures + MOST_DEATHS), error)
        actor.check_live()
        spans = actor.of(Spans)
        span = spans.begin("call", str(row.work), row.method, attempt=1 + row.failures + row.crashes, queue=row.queue)
        try:
            actor.user_database()  # the tables of the user are not undone with what a call wrote
            self._db.attempt()
            value = function()
            if inspect.iscoroutine(value):
                await driven(value, self._db.keep)
            actor.check_live()
            for check in actor.after_call:
                check()
        except CancelledError:
            if actor.dropped is not None:
                raise
            self._db.undo()
            spans.end(span, "failed", error=CANCELLED_INSIDE)
            return self._failed(row, RuntimeError(CANCELLED_INSIDE))
        except THE_END:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            self._db.undo()
            actor.check_live()
            spans.end(span, "failed", error=code_of(error))
            return self._failed(row, error)
        spans.end(span, "completed")
        return self._done(row)

    def _done(self, row: CallRow) -> float | None:
        following = self._move_on(row)
        self._db.keep()
        return following

    def _move_on(self, row: CallRow) -> float | None:
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
            return self.rows.remove(row)
        self.rows.repeat(row.number, following)
        return following

    def _failed(self, row: CallRow, error: BaseException) -> float | None:
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
        if not self.rows.has(row.number):
            return self._move_on(row)  # it was cancelled since
        if failed >= retry.max_attempts:
            return self._give_up(row._replace(failures=failed), error)
        due = actor.host.clock.now() + retry.wait(failed, actor.host.random)
        self.rows.retry(row.number, due, failed, text)
        actor.host.shared(FailingCalls).note(row.number, FailingCall(str(actor.address), row.method, failed, due))
        return due

    def _put_off(self, row: CallRow, error: UsageError) -> float:
        """This machine cannot compute when the next call is due, so none is made: once it can, this continues."""
        due = self._actor.host.clock.now() + PUT_OFF
        log.error(
            "stored call postponed address=%s method=%s seconds=%.0f: %s",
            self._actor.address,
            row.method,
            PUT_OFF,
            error,
            extra={"address": str(self._actor.address), "method": row.method},
        )
        self.rows.postpone(row.number, due, str(error))
        return due

    def _give_up(self, row: CallRow, error: BaseException) -> float | None:
        self._db.begin()
        self.dead_letters.add(row, error)
        if isinstance(error, SignatureChanged):
            return self.rows.remove(row)  # it would not fit the next time either
        return self._move_on(row)
