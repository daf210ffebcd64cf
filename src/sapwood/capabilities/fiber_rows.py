"""Fibers as they are stored: one row each, until they are over or, those with a key, until they are forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sapwood import tracing
from sapwood.capabilities.steps import is_msgpack
from sapwood.capabilities.stored_method import KEEP
from sapwood.capabilities.stored_rows import RowIds, shown, time_of
from sapwood.clock import Clock
from sapwood.errors import UsageError
from sapwood.kernel.marshal.call import current
from sapwood.kernel.node.upgrade_check import RESTORE, Misfit, StoredAgent
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

FIBERS = Schema("sapwood.capabilities", "fibers")
UNTIL_WOKEN = float("inf")
"""The due time of a fiber that waits until it is resumed."""
ALL = (
    "SELECT number, name, key, method, arguments, status, due_at, checkpoint, result, error, recoveries, failures,"
    " created_at, ended_at, trace FROM sapwood_fibers "
)
NO_ARGUMENTS = b"\x80"
OVER = ("completed", "failed", "cancelled", "interrupted")


@dataclass(frozen=True, slots=True)
class Fiber:
    """One fiber."""

    id: str
    """The id of the fiber. Methods that take an id also take the key."""
    name: str
    """The name of the fiber."""
    key: str | None
    """The key that it was started with."""
    status: str
    """`running`, `waiting`, `completed`, `failed`, `cancelled` or `interrupted`."""
    checkpoint: Any
    """The last checkpoint."""
    output: Any
    """What its method returned, as a msgpack value."""
    error: str | None
    """The last error message."""
    recoveries: int
    """The number of recoveries since its last progress."""
    created_at: datetime
    """When it was started."""
    ended_at: datetime | None
    """When it ended; `None` if it is unfinished."""

    @property
    def is_over(self) -> bool:
        """Whether the fiber has ended."""
        return self.status in OVER

    async def result(self) -> Any:
        """Wait for the end of the fiber and return its result. Call it in the agent that has the fiber.

        After a restart, use `fibers.result(key)`. Raises `FiberFailed` if the fiber did not complete.
        """
        call = current.get()
        if call is None:
            raise UsageError("fiber.result() must be called in the agent that has the fiber.")
        agent: Any = call.actor.agent
        return await agent.fibers.result(self.id)


class FiberRow(NamedTuple):
    number: int
    name: str
    key: str | None
    method: str | None
    arguments: bytes | None
    status: str
    due_at: float | None
    checkpoint: bytes | None = None
    result: bytes | None = None
    error: str | None = None
    recoveries: int = 0
    failures: int = 0
    created_at: float = 0.0
    ended_at: float | None = None
    trace: str | None = None

    @property
    def may_resume(self) -> bool:
        """Whether it has ended and can be resumed: it failed, or is held in a fork."""
        return self.status == "failed" or (self.status == "interrupted" and self.method is not None)


class FiberRows:
    """The rows of one agent's fibers. Every change belongs to the open slice."""

    def __init__(self, database: Database, clock: Clock, ids: RowIds) -> None:
        self._db = database
        self._clock = clock
        self._ids = ids

    @property
    def exist(self) -> bool:
        """Whether this agent ever had any."""
        return self._db.has(FIBERS)

    def add(self, name: str, key: str | None, method: str | None, arguments: bytes | None) -> FiberRow:
        """Store a fiber that is about to run."""
        self._db.ensure(FIBERS)
        now, trace = self._clock.now(), tracing.text()
        ((number,),) = self._db.execute(
            "INSERT INTO sapwood_fibers (name, key, method, arguments, status, due_at, created_at, trace)"
            " VALUES (?, ?, ?, ?, 'running', ?, ?, ?) RETURNING number",
            name,
            key,
            method,
            arguments,
            now,
            now,
            trace,
        )
        return FiberRow(number, name, key, method, arguments, "running", now, created_at=now, trace=trace)

    def get(self, number: int) -> FiberRow | None:
        rows = self._find("WHERE number = ?", number)
        return rows[0] if rows else None

    def named(self, fiber: str) -> FiberRow | None:
        """Return a fiber by its key or its id."""
        rows = self._find("WHERE key = ?", fiber)
        number = None if rows else self._ids.number_of(fiber)
        return rows[0] if rows else None if number is None else self.get(number)

    def _find(self, where: str, *arguments: Any) -> list[FiberRow]:
        if not self.exist:
            return []
        return [FiberRow(*row) for row in self._db.execute(ALL + where, *arguments)]

    def all(self, status: str | None, limit: int) -> list[FiberRow]:
        """Return fibers, oldest first."""
        return self._find("WHERE ?1 IS NULL OR status = ?1 ORDER BY number LIMIT ?2", status, limit)

    def due(self, now: float, most: int) -> list[FiberRow]:
        """Return those that have to be looked after by now, as many as this."""
        return self._find("WHERE due_at IS NOT NULL AND due_at <= ? ORDER BY due_at, number LIMIT ?", now, most)

    def first_due(self, after: float = float("-inf")) -> float | None:
        """Return when the first one is due after this time; those that run now are due, too."""
        if not self.exist:
            return None
        rows = self._db.execute(
            "SELECT due_at FROM sapwood_fibers WHERE due_at IS NOT NULL AND due_at > ? AND due_at < ?"
            " ORDER BY due_at LIMIT 1",
            after,
            UNTIL_WOKEN,
        )
        return rows[0][0] if rows else None

    def asleep(self, name: str, method: str) -> list[FiberRow]:
        """Return those of this name, that call this method, which sleep on."""
        now = self._clock.now()
        return self._find("WHERE status = 'waiting' AND due_at > ? AND name = ? AND method = ?", now, name, method)

    def is_under_way(self, name: str, method: str) -> bool:
        """Return whether a fiber of this name, that calls this method, is not over."""
        return bool(self._find("WHERE due_at IS NOT NULL AND name = ? AND method = ? LIMIT 1", name, method))

    def is_open(self, number: int) -> bool:
        """Return whether a fiber is not over."""
        return bool(self._find("WHERE number = ? AND due_at IS NOT NULL", number))

    def over(self, number: int | None, status: str | None) -> list[FiberRow]:
        """Return those that are over; only this one, or only of this status, if asked."""
        which = "WHERE due_at IS NULL AND (?1 IS NULL OR number = ?1) AND (?2 IS NULL OR status = ?2)"
        return self._find(which, number, status)

    def progressed(self, number: int, due: float) -> bool:
        """One got further since it was recovered, and is due then; return whether it had been."""
        return bool(
            self._db.execute(
                "UPDATE sapwood_fibers SET recoveries = 0, failures = 0, due_at = ?"
                " WHERE number = ? AND recoveries > 0 AND due_at IS NOT NULL RETURNING number",
                due,
                number,
            )
        )

    def sleep(self, number: int, until: float) -> None:
        """One sleeps until then."""
        self._db.execute("UPDATE sapwood_fibers SET status = 'waiting', due_at = ? WHERE number = ?", until, number)
        if until == UNTIL_WOKEN:  # it has come as far as it could
            self._db.execute("UPDATE sapwood_fibers SET recoveries = 0, failures = 0 WHERE number = ?", number)

    def wake(self, number: int, now: float) -> None:
        """One that sleeps is due now."""
        self._db.execute("UPDATE sapwood_fibers SET due_at = ? WHERE number = ?", now, number)

    def slept(self, number: int) -> None:
        """One that slept runs: from here on it can be interrupted like any other."""
        self._db.execute("UPDATE sapwood_fibers SET status = 'running' WHERE number = ? AND status = 'waiting'", number)

    def recovers(self, number: int, due: float, *, died: bool) -> None:
        """One is recovered, and again then if that ends the process, which `died` of it perhaps the last time."""
        self._db.execute(
            "UPDATE sapwood_fibers SET recoveries = recoveries + 1, failures = failures + ?, due_at = ?"
            " WHERE number = ?",
            int(not died),
            due,
            number,
        )

    def failed(self, number: int, error: str) -> None:
        """One could not be recovered."""
        self._db.execute("UPDATE sapwood_fibers SET failures = failures + 1, error = ? WHERE number = ?", error, number)

    def checkpoint(self, number: int, packed: bytes) -> None:
        """Keep where one is."""
        self._db.execute("UPDATE sapwood_fibers SET checkpoint = ? WHERE number = ?", packed, number)

    def end(self, number: int, status: str, result: bytes | None, error: str | None) -> bool:
        """One is over, unless it was before; return whether it was not."""
        return bool(
            self._db.execute(
                "UPDATE sapwood_fibers SET status = ?, due_at = NULL, result = ?, error = ?, ended_at = ?"
                " WHERE number = ? AND due_at IS NOT NULL RETURNING number",
                status,
                result,
                error,
                self._clock.now(),
                number,
            )
        )

    def resume(self, number: int, now: float) -> None:
        """Continue a fiber that failed."""
        self._db.execute(
            "UPDATE sapwood_fibers SET status = 'running', due_at = ?, ended_at = NULL, recoveries = 0, failures = 0"
            " WHERE number = ?",
            now,
            number,
        )

    def remove(self, number: int) -> None:
        """Nothing is left of one."""
        self._db.execute("DELETE FROM sapwood_fibers WHERE number = ?", number)

    def shown(self, row: FiberRow) -> Fiber:
        """Return a fiber as users see it."""
        return Fiber(
            id=self._ids.id_of(row.number),
            name=row.name,
            key=row.key,
            status=row.status,
            checkpoint=None if row.checkpoint is None else shown(row.checkpoint),
            output=None if row.result is None else shown(row.result),
            error=row.error,
            recoveries=row.recoveries,
            created_at=time_of(row.created_at),
            ended_at=None if row.ended_at is None else time_of(row.ended_at),
        )


def unfit(stored: StoredAgent) -> Iterator[Misfit]:
    """Read the fibers of an agent that sleeps, those that are not over, as if they were recovered now."""
    if not stored.file.has(FIBERS):
        return
    for number, key, method, arguments, checkpoint in stored.file.rows(
        "SELECT number, coalesce(key, name), method, arguments, checkpoint FROM sapwood_fibers WHERE due_at IS NOT NULL"
    ):
        stored.counts["fibers"] += 1
        wrong = None if method is None else stored.wrong_with(method, arguments or NO_ARGUMENTS)
        if wrong is not None:
            yield stored.misfit("fiber", wrong, f"{KEEP} Otherwise the fiber fails when it is resumed.", id=key)
        elif checkpoint is not None and not is_msgpack(checkpoint):
            yield stored.misfit("fiber", "Its checkpoint is damaged.", RESTORE, number=number)
