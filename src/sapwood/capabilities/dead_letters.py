"""Dead letters: scheduled and queued calls that failed and are not retried any more."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sapwood.capabilities.call_rows import CALLS, CallRow
from sapwood.capabilities.held_calls import TakenLetter
from sapwood.capabilities.stored_rows import RowIds, shown, time_of
from sapwood.errors import SapwoodError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.exceptions import describe
from sapwood.storage.database import Database

log = logging.getLogger(__name__)


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


class DeadLetters:
    """The dead letters of one agent."""

    def __init__(self, actor: Actor, ids: RowIds) -> None:
        self._actor = actor
        self._db: Database = actor.database
        self._ids = ids

    def add(self, row: CallRow, error: BaseException) -> None:
        """Store a call that was abandoned, until it is replayed or deleted."""
        code = error.code if isinstance(error, SapwoodError) else "crashed"
        self._db.execute(
            "INSERT INTO sapwood_dead_letters"
            " (origin, method, arguments, schedule, queue, retry, code, error, attempts, created_at, failed_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (origin) DO UPDATE SET occurrences = occurrences + 1,"
            " code = excluded.code, error = excluded.error, attempts = excluded.attempts,"
            " failed_at = excluded.failed_at, arguments = excluded.arguments",
            self._ids.id_of(row.number),
            row.method,
            row.arguments,
            row.schedule,
            row.queue,
            row.retry,
            code,
            str(error) if isinstance(error, SapwoodError) else describe(error),
            row.failures,
            row.created_at,
            self._actor.host.clock.now(),
        )
        log.error(
            "stored call is now a dead letter address=%s method=%s: %s",
            self._actor.address,
            row.method,
            describe(error),
            extra={"address": str(self._actor.address), "method": row.method, "code": code},
        )

    @property
    def exist(self) -> bool:
        """Whether this agent has dead letters."""
        return self._db.has(CALLS) and bool(self._db.execute("SELECT 1 FROM sapwood_dead_letters LIMIT 1"))

    def list(self) -> list[DeadLetter]:
        """Return the dead letters, oldest first."""
        if not self._db.has(CALLS):
            return []
        rows = self._db.execute(
            "SELECT number, method, arguments, code, error, attempts, occurrences, failed_at FROM sapwood_dead_letters"
            " ORDER BY number"
        )
        return [
            DeadLetter(
                self._ids.id_of(number),
                method,
                shown(arguments),
                code,
                error,
                attempts,
                occurrences,
                time_of(failed_at),
            )
            for number, method, arguments, code, error, attempts, occurrences, failed_at in rows
        ]

    def arguments(self, id: str) -> bytes | None:
        """Return the stored arguments of a dead letter. `None` if there is no such dead letter."""
        number = self._ids.number_of(id)
        if number is None or not self._db.has(CALLS):
            return None
        rows = self._db.execute("SELECT arguments FROM sapwood_dead_letters WHERE number = ?", number)
        return rows[0][0] if rows else None

    def take(self, id: str) -> TakenLetter | None:
        """Remove a dead letter, and return it."""
        number = self._ids.number_of(id)
        if number is None or not self._db.has(CALLS):
            return None
        rows = self._db.execute(
            "DELETE FROM sapwood_dead_letters WHERE number = ?"
            " RETURNING method, arguments, queue, retry, schedule, created_at, held",
            number,
        )
        return TakenLetter(*rows[0]) if rows else None
