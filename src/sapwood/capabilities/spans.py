"""What an agent did and when: a row for each turn, step, tool call, wait, run, stored call and fiber.

Rows are collected in memory and written before the next commit of the agent, which happens anyway. A row is always
written whole, so one that a slice lost when it was undone is complete again with its next change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple, Protocol

import msgspec

from sapwood.errors import UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.retention import Retention
from sapwood.storage.migrations import Schema

SPANS = Schema("sapwood.capabilities", "spans")
COLUMNS = "number, parent, work, kind, name, step, attempt, incarnation, began_at, first_at, ended_at, status, facts"
IS_OPEN = "status IN ('running', 'waiting')"
"""As the index of open spans has it, so that it is used."""
OPEN = ("running", "waiting")
IN_MEMORY = ("step", "call", "fiber")
"""What ends with the process while it runs: it is begun again as another attempt."""
AT_ONCE = 20
"""Rows that one statement writes."""
SWEPT_AFTER = 64
"""How much work ends between two deletions of old records."""


class SpanRow(NamedTuple):
    """One row."""

    number: int
    parent: int | None
    work: str
    kind: str
    name: str
    step: int | None
    attempt: int
    incarnation: int
    began_at: float
    first_at: float | None = None
    ended_at: float | None = None
    status: str = "running"
    facts: str = "{}"

    @property
    def is_open(self) -> bool:
        return self.status in OPEN


class Recorded(Protocol):
    """What the class of an agent says about its records."""

    record_retention: Retention | None


class Spans:
    """The spans of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._database = actor.database
        agent: Recorded = actor.agent
        self.retention = agent.record_retention
        self._open: dict[int, SpanRow] | None = None
        """The open spans by number; `None`: they were not read."""
        self._changed: dict[int, SpanRow] = {}
        """Rows that are not written yet."""
        self._attempts: dict[tuple[str, str, str], int] = {}
        """The number of attempts of what is tried again, by work, kind and key, for the work that is open."""
        self._last = 0
        self._incarnation = 1
        self._is_noted = False
        """Whether the incarnation has its row."""
        self._ended_works = SWEPT_AFTER - 1
        """How much work has ended since old records were deleted."""
        self.after_sweep: list[Callable[[], None]] = []
        """Called, in the same slice, after old records were deleted."""

    @property
    def are_kept(self) -> bool:
        return self.retention is not None

    def begin(
        self,
        kind: str,
        work: str,
        name: str,
        *,
        key: str = "",
        step: int | None = None,
        attempt: int | None = None,
        **facts: Any,
    ) -> int:
        """Record that something begins; return its number. Spans with the same `key` are attempts at the same."""
        if not self.are_kept:
            return 0
        opened = self._read()
        parent = self._parent(opened, kind, work)
        attempt = self._next_attempt(work, kind, key or name) if attempt is None else attempt
        self._last += 1
        if key:
            facts["key"] = key
        row = SpanRow(
            self._last,
            parent,
            work,
            kind,
            name,
            step,
            attempt,
            self._incarnation,
            self._actor.host.clock.now(),
            facts=_json(facts),
        )
        self._put(row)
        return row.number

    def first_chunk(self, number: int) -> None:
        """Record that the first chunk of a response has arrived."""
        if number and (row := self._read().get(number)) is not None and row.first_at is None:
            self._put(row._replace(first_at=self._actor.host.clock.now()))

    def change(self, number: int, *, status: str | None = None, **facts: Any) -> None:
        """Record a change of what is open."""
        if number and (row := self._read().get(number)) is not None:
            self._put(row._replace(status=status or row.status, facts=_with(row.facts, facts)))

    def end(self, number: int, status: str, **facts: Any) -> None:
        """Record how something ended, unless that is recorded already."""
        if number and (row := self._read().get(number)) is not None:
            now = self._actor.host.clock.now()
            self._put(row._replace(status=status, ended_at=now, facts=_with(row.facts, facts)))

    def open(self, work: str, kind: str | None = None) -> list[SpanRow]:
        """Return the open spans of a piece of work, or those of one kind."""
        if not self.are_kept:
            return []
        return [row for row in self._read().values() if row.work == work and kind in (None, row.kind)]

    def is_from_before(self, row: SpanRow) -> bool:
        """Return whether a span began in an earlier incarnation."""
        return row.incarnation < self._incarnation

    @staticmethod
    def key_of(row: SpanRow) -> str:
        """Return what its attempts have in common."""
        return msgspec.json.decode(row.facts).get("key", row.name)

    def reopen(self, work: str, kind: str) -> int | None:
        """Continue the last span of this kind, though it had ended; return its number, or `None` if there is none."""
        if not self.are_kept or not self._database.has(SPANS):
            return None
        opened = self._read()
        self.write()
        rows = self._rows("WHERE work = ? AND kind = ? ORDER BY number DESC LIMIT 1", work, kind)
        if not rows:
            return None
        row = rows[0]._replace(status="running", ended_at=None)
        opened[row.number] = row
        self._put(row)
        return row.number

    def _parent(self, opened: dict[int, SpanRow], kind: str, work: str) -> int | None:
        """Return the open span of the work itself: a turn, a fiber or a call has steps, waits, tools and runs."""
        if kind in ("turn", "fiber", "call"):
            return None
        return next((row.number for row in opened.values() if row.work == work and row.parent is None), None)

    def _next_attempt(self, work: str, kind: str, key: str) -> int:
        name = (work, kind, key)
        self._attempts[name] = attempt = self._attempts.get(name, 0) + 1
        return attempt

    def _read(self) -> dict[int, SpanRow]:
        """Return the open spans; the first time in an incarnation, see which of them a crash interrupted."""
        if self._open is not None:
            return self._open
        self._open = {}
        if not self._database.has(SPANS):
            return self._open
        rows = self._rows(f"WHERE {IS_OPEN} ORDER BY number")
        self._open = {row.number: row for row in rows}
        self._last = self._maximum("sapwood_spans")
        self._incarnation = self._maximum("sapwood_incarnations") + 1
        for work in {row.work for row in rows}:
            self._count_attempts(work)
        for row in rows:
            if row.kind in IN_MEMORY and row.status == "running":
                self._put(row._replace(status="interrupted"))
        return self._open

    def _count_attempts(self, work: str) -> None:
        for row in self._rows("WHERE work = ?", work):
            name = (work, row.kind, self.key_of(row))
            self._attempts[name] = max(row.attempt, self._attempts.get(name, 0))

    def _maximum(self, table: str) -> int:
        ((number,),) = self._database.execute(f"SELECT ifnull(max(number), 0) FROM {table}")  # noqa: S608 - ours
        return number

    def _rows(self, where: str, *arguments: Any) -> list[SpanRow]:
        rows = self._database.execute(f"SELECT {COLUMNS} FROM sapwood_spans {where}", *arguments)  # noqa: S608 - ours
        return [SpanRow(*row) for row in rows]

    def _put(self, row: SpanRow) -> None:
        opened = self._read()
        if row.is_open:
            opened[row.number] = row
        else:
            opened.pop(row.number, None)
            if row.parent is None:
                self._ended_works += 1
                self._attempts = {name: count for name, count in self._attempts.items() if name[0] != row.work}
        self._changed[row.number] = row
        self._actor.home.slices.join_next_commit(self._database, f"spans {self._actor.stem}", self.write)

    def write(self) -> None:
        """Write what has changed, in this slice."""
        rows, self._changed = list(self._changed.values()), {}
        if not rows or self._actor.dropped is not None:
            return
        self._database.ensure(SPANS)
        if not self._is_noted:
            self._is_noted = True
            self._database.execute(
                "INSERT INTO sapwood_incarnations (number, began_at, version) VALUES (?, ?, ?)",
                self._incarnation,
                rows[0].began_at,
                _version(),
            )
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            self._database.execute(_upsert(len(some)), *(value for row in some for value in row))
        if self._ended_works >= SWEPT_AFTER:
            self._ended_works = 0
            self._sweep()

    def _sweep(self) -> None:
        """Delete the records of work that ended too long ago, or before too much other work."""
        rule, before, last = self.retention, 0.0, 0
        if rule is None:
            return
        if rule.age is not None:
            before = self._actor.host.clock.now() - rule.age.total_seconds()
        if rule.count is not None:
            rows = self._database.execute(
                f"SELECT number FROM sapwood_spans WHERE parent IS NULL AND NOT {IS_OPEN}"  # noqa: S608 - ours
                " ORDER BY number DESC LIMIT 1 OFFSET ?",
                rule.count,
            )
            last = rows[0][0] if rows else 0
        self._delete("(began_at < ? AND ifnull(ended_at, began_at) < ?) OR number <= ?", before, before, last)

    def delete_turns(self) -> None:
        """Delete the records of the turns that are over, in this slice."""
        self.write()
        if self._database.has(SPANS):
            self._delete("kind = 'turn'")

    def _delete(self, which: str, *arguments: Any) -> None:
        works = f"SELECT work FROM sapwood_spans WHERE parent IS NULL AND NOT {IS_OPEN} AND ({which})"  # noqa: S608 - ours
        gone = self._database.execute(
            f"DELETE FROM sapwood_spans WHERE work IN ({works}) AND NOT {IS_OPEN} RETURNING 1",  # noqa: S608 - ours
            *arguments,
        )
        if gone:
            for step in self.after_sweep:
                step()


@functools.cache
def _upsert(rows: int) -> str:
    """Return the statement that writes so many rows."""
    names = COLUMNS.split(", ")
    values = ", ".join([f"({', '.join('?' * len(names))})"] * rows)
    news = ", ".join(f"{name} = excluded.{name}" for name in ("first_at", "ended_at", "status", "facts"))
    return f"INSERT INTO sapwood_spans ({COLUMNS}) VALUES {values} ON CONFLICT (number) DO UPDATE SET {news}"  # noqa: S608 - ours


@functools.cache
def _version() -> str:
    return version("sapwood")


def _with(facts: str, more: dict[str, Any]) -> str:
    known = {name: value for name, value in more.items() if value is not None}
    return _json(msgspec.json.decode(facts) | known) if known else facts


def _json(facts: dict[str, Any]) -> str:
    return msgspec.json.encode({name: value for name, value in facts.items() if value is not None}).decode()


def check_record_retention(name: str, value: object) -> None:
    """Raise `UsageError` if `record_retention` of a class is invalid."""
    if value is None:
        return
    if not isinstance(value, Retention):
        raise UsageError(f"{name}.record_retention must be Retention(…) or None, got a {type(value).__name__}.")
    if value.bytes is not None or value.last:
        raise UsageError(f"{name}.record_retention supports `age` and `count` only.")


def code_of(error: BaseException) -> str:
    """Return what a record says of an error: its code, or its class. The text may hold what must not be stored."""
    return getattr(error, "code", None) or type(error).__name__
