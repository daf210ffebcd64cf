"""What an agent did and when: a row for each turn, step, tool call, wait, run, stored call and fiber.

Rows are collected in memory and written before the next commit of the agent, which happens anyway. What an undone
block or attempt changed is taken back in memory.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple, Protocol

import msgspec

from sapwood import tracing
from sapwood.errors import UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.retention import Retention
from sapwood.storage.migrations import Schema

log = logging.getLogger(__name__)

SPANS = Schema("sapwood.capabilities", "spans")
COLUMNS = "number, parent, work, kind, name, step, attempt, incarnation, began_at, first_at, ended_at, status, facts"
IS_OPEN = "status IN ('running', 'waiting')"
"""As the index of open spans has it, so that it is used."""
OPEN = ("running", "waiting")
IN_MEMORY = ("step", "call", "fiber")
"""What ends with the process while it runs: it is begun again as another attempt."""
AT_ONCE = 20
"""Rows that one statement writes."""
KEPT_FREE, LEAST_FREE = 8, 32 * 1024
"""Records leave an eighth of the database's limit to the agent, and at least so many bytes."""
SELDOM, SMALL = 16, 16 * 1024
"""While there is room for so many writes of so many bytes, the database is not measured before each of them."""
SHORTEST_WAIT = 0.001
"""Seconds that a request waits and that are recorded."""
SWEPT_AFTER = 64
"""How much work ends between two deletions of old records."""


Name = tuple[str, str, str]
"""What is attempted: its work, kind and key."""


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
    facts: Mapping[str, Any] = {}

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
        self._attempts: dict[Name, int] = {}
        """The number of attempts of what may be tried again, for the work that is open."""
        self._names: dict[int, Name] = {}
        """What the open spans are attempts at."""
        self._numbers: dict[Name, int] = {}
        """The last open span of each; a run is found whatever work it is part of by now."""
        self._last = 0
        self._incarnation = 1
        self._is_noted = False
        """Whether the incarnation has its row."""
        self._is_full = False
        """Whether the log has that records are left out."""
        self._unmeasured = 0
        """How often records may still be written before the database is measured again."""
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
        named = (work, kind, key or name)
        attempt = self._next_attempt(named) if attempt is None else attempt
        self._last += 1
        if key:
            facts["key"] = key
        if tracing.tracer is not None:
            facts["trace"] = tracing.text()
        self._names[self._last] = named
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
            facts=_known(facts),
        )
        self._put(row)
        return row.number

    def asked(self, number: int) -> None:
        """Record how long a request has waited for its turn at the provider, if that is a millisecond or more."""
        if number and (row := self._read().get(number)) is not None:
            waited = self._actor.host.clock.now() - row.began_at
            if waited >= SHORTEST_WAIT:
                self.change(number, waited=round(waited, 3))

    def first_chunk(self, number: int) -> None:
        """Record that the first chunk of a response has arrived."""
        if number and (row := self._read().get(number)) is not None and row.first_at is None:
            self._put(row._replace(first_at=self._actor.host.clock.now()))

    def change(self, number: int, *, status: str | None = None, **facts: Any) -> None:
        """Record a change of what is open."""
        if number and (row := self._read().get(number)) is not None:
            self._put(row._replace(status=status or row.status, facts={**row.facts, **_known(facts)}))

    def end(self, number: int, status: str, **facts: Any) -> None:
        """Record how something ended, unless that is recorded already."""
        if number and (row := self._read().get(number)) is not None:
            now = self._actor.host.clock.now()
            self._put(row._replace(status=status, ended_at=now, facts={**row.facts, **_known(facts)}))

    def open(self, work: str, kind: str | None = None) -> list[SpanRow]:
        """Return the open spans of a piece of work, or those of one kind."""
        if not self.are_kept:
            return []
        opened = self._read()
        return [row for row in opened.values() if row.work == work and kind in (None, row.kind)] if opened else []

    def find(self, work: str, kind: str, key: str) -> SpanRow | None:
        """Return the open span with this key, if there is one."""
        if not self.are_kept:
            return None
        opened = self._read()
        number = self._numbers.get(_found_by((work, kind, key)))
        return None if number is None else opened.get(number)

    def attempts(self, work: str, kind: str, key: str) -> int:
        """Return how often something was attempted, though the work that it is part of may be over."""
        self._read()
        rows = self._rows("WHERE work = ? AND kind = ?", work, kind) if self._database.has(SPANS) else []
        found = [row for row in (*rows, *self._changed.values()) if _name_of(row) == (work, kind, key)]
        return max((row.attempt for row in found), default=0)

    def is_from_before(self, row: SpanRow) -> bool:
        """Return whether a span began in an earlier incarnation."""
        return row.incarnation < self._incarnation

    def reopen(self, work: str, kind: str, key: str | None = None) -> int | None:
        """Continue the last span of this kind, though it had ended; return its number, or `None` if there is none."""
        if not self.are_kept or not self._database.has(SPANS):
            return None
        self._read()
        self.write()
        found = self._last_of(work, kind, key)
        if found is None:
            return None
        self._names[found.number] = _name_of(found)
        self._count_attempts(found.work)
        self._put(found._replace(status="running", ended_at=None))
        return found.number

    def _last_of(self, work: str, kind: str, key: str | None) -> SpanRow | None:
        """Return the last span of this kind in a piece of work; a run may have been part of other work."""
        if kind == "run" and key is not None:
            rows = self._rows(
                "WHERE kind = 'run' AND json_valid(facts) AND facts ->> 'key' = ? ORDER BY number DESC LIMIT 1", key
            )
            return next(iter(rows), None)
        rows = self._rows("WHERE work = ? AND kind = ? ORDER BY number DESC", work, kind)
        return next((row for row in rows if key in (None, _name_of(row)[2])), None)

    def _parent(self, opened: dict[int, SpanRow], kind: str, work: str) -> int | None:
        """Return the span of the work itself: a turn, a fiber or a call has steps, waits, tools and runs."""
        if kind in ("turn", "fiber", "call"):
            return None
        found = next((row.number for row in opened.values() if row.work == work and row.parent is None), None)
        return self._ended_turn(work) if found is None and kind == "step" else found

    def _ended_turn(self, work: str) -> int | None:
        """Return the span of a turn that has ended: the conversation is compacted after it."""
        self.write()
        if not self._database.has(SPANS):
            return None
        rows = self._rows("WHERE work = ? AND kind = 'turn' ORDER BY number DESC LIMIT 1", work)
        return rows[0].number if rows else None

    def _next_attempt(self, name: Name) -> int:
        self._attempts[name] = attempt = self._attempts.get(name, 0) + 1
        self._database.on_undo(lambda: self._attempts.update({name: attempt - 1} if attempt > 1 else {}))
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
        self._names = {row.number: _name_of(row) for row in rows}
        self._numbers = {_found_by(name): number for number, name in self._names.items()}
        self._last = self._maximum("sapwood_spans")
        self._incarnation = self._maximum("sapwood_incarnations") + 1
        for work in {row.work for row in rows}:
            self._count_attempts(work)
        for row in rows:
            if row.kind in IN_MEMORY and row.status == "running":
                self._put(row._replace(status="interrupted"))
        return self._open

    def _count_attempts(self, work: str) -> None:
        """Read how often was attempted what may be attempted again. A tool call that has returned is not one of it."""
        for row in self._rows("WHERE work = ? AND NOT (kind = 'tool' AND status = 'completed')", work):
            name = _name_of(row)
            self._attempts[name] = max(row.attempt, self._attempts.get(name, 0))

    def _maximum(self, table: str) -> int:
        ((number,),) = self._database.execute(f"SELECT ifnull(max(number), 0) FROM {table}")  # noqa: S608 - ours
        return number

    def _rows(self, where: str, *arguments: Any) -> list[SpanRow]:
        rows = self._database.execute(f"SELECT {COLUMNS} FROM sapwood_spans {where}", *arguments)  # noqa: S608 - ours
        return [SpanRow(*row)._replace(facts=facts_of(row[-1])) for row in rows]

    def _put(self, row: SpanRow) -> None:
        if self._actor.dropped is not None:
            return  # nothing of it is written any more
        opened, number = self._read(), row.number
        self._database.on_undo(functools.partial(self._restore, number, opened.get(number), self._changed.get(number)))
        if row.is_open:
            opened[number] = row
            self._numbers[_found_by(self._names[number])] = number
        else:
            self._close(opened, row)
        self._changed[number] = row
        self._actor.home.slices.join_next_commit(self._database, f"spans {self._actor.stem}", self.write)

    def _close(self, opened: dict[int, SpanRow], row: SpanRow) -> None:
        """A span is over: it is not needed in memory any more."""
        name = self._forget(opened, row.number)
        if row.parent is None:
            self._ended_works += 1
            self._attempts = {name: count for name, count in self._attempts.items() if name[0] != row.work}
        elif name is not None and row.kind == "tool" and row.status == "completed":
            self._attempts.pop(name, None)

    def _forget(self, opened: dict[int, SpanRow], number: int) -> Name | None:
        opened.pop(number, None)
        name = self._names.pop(number, None)
        if name is not None and self._numbers.get(_found_by(name)) == number:
            del self._numbers[_found_by(name)]
        return name

    def _restore(self, number: int, row: SpanRow | None, changed: SpanRow | None) -> None:
        """Take back a change of one span: what it records was undone."""
        opened = self._read()
        if row is None:
            gone = opened.get(number)
            if gone is not None:
                self._close(opened, gone)
        else:
            opened[number] = row
            self._names[number] = name = _name_of(row)
            self._numbers[_found_by(name)] = number
        if changed is None:
            self._changed.pop(number, None)
        else:
            self._changed[number] = changed

    def write(self) -> None:
        """Write what has changed, in this slice."""
        changed, self._changed = self._changed, {}
        if not changed or self._actor.dropped is not None:
            return
        rows = [(*row[:-1], msgspec.json.encode(row.facts).decode()) for row in changed.values()]
        if self.have_room(sum(len(facts) for *_, facts in rows)):
            self._insert(changed, rows)
        if self._ended_works >= SWEPT_AFTER and self._database.has(SPANS):
            self._ended_works = 0
            self._sweep()

    def have_room(self, size: int) -> bool:
        """Return whether so many bytes more may be recorded: records never fill a database so that its agent fails."""
        if self._unmeasured and size <= SMALL:
            self._unmeasured -= 1
            return True
        limit = self._database.max_bytes
        usable = limit - max(limit // KEPT_FREE, LEAST_FREE)
        if self._database.has_room(max(size, SELDOM * SMALL), usable):
            self._unmeasured = SELDOM
            return True
        if self._database.has_room(size, usable):
            self._unmeasured = 0
            return True
        if not self._is_full:
            self._is_full = True
            log.warning(
                "records left out, the database is nearly full address=%s database_bytes=%d",
                self._actor.address,
                limit,
                extra={"address": str(self._actor.address)},
            )
        return False

    def _insert(self, changed: dict[int, SpanRow], rows: list[tuple[Any, ...]]) -> None:
        was_noted = self._is_noted
        self._database.on_undo(lambda: self._unwritten(changed, was_noted=was_noted))
        self._database.ensure(SPANS)
        if not self._is_noted:
            # What is written first may have begun in an earlier incarnation.
            times = [row.began_at for row in changed.values() if row.incarnation == self._incarnation]
            self._note(min(times, default=self._actor.host.clock.now()))
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            self._database.execute(_upsert(len(some)), *(value for row in some for value in row))

    def note_incarnation(self, since: float) -> int:
        """Store, in this slice, when this incarnation began, which continues what another had begun.

        Returns its number.
        """
        self._read()
        self.write()
        if not self._is_noted:
            self._database.on_undo(lambda: setattr(self, "_is_noted", False))
            self._database.ensure(SPANS)
            self._note(self._actor.host.clock.now(), since)
        return self._incarnation

    def _note(self, began_at: float, since: float | None = None) -> None:
        self._is_noted = True
        crashed_at = self._actor.host.crashed_before(self._actor.address.root)
        # The agent may have slept since, and have begun again in the same process.
        sql = (
            "INSERT INTO sapwood_incarnations (number, began_at, version, crashed_at) VALUES (?1, ?2, ?3,"
            " (SELECT ?4 WHERE ?4 > (SELECT ifnull(max(began_at), ?5) FROM sapwood_incarnations)))"
        )
        self._database.execute(sql, self._incarnation, began_at, _version(), crashed_at, since)

    def _unwritten(self, changed: dict[int, SpanRow], *, was_noted: bool) -> None:
        """What was written is undone: write it with the next commit."""
        self._is_noted = was_noted
        self._changed = changed | self._changed
        self._actor.home.slices.join_next_commit(self._database, f"spans {self._actor.stem}", self.write)

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
        works = (
            f"SELECT work FROM sapwood_spans WHERE parent IS NULL AND NOT {IS_OPEN} AND ({which})"  # noqa: S608 - ours
            f" AND work NOT IN (SELECT work FROM sapwood_spans WHERE {IS_OPEN} AND parent IS NULL)"
        )
        gone = self._database.execute(
            f"DELETE FROM sapwood_spans WHERE work IN ({works}) RETURNING number",  # noqa: S608 - ours
            *arguments,
        )
        for (number,) in gone:
            self._forget(self._read(), number)  # a run that outlives the records of its work has none when it ends
        self._database.execute(
            "DELETE FROM sapwood_incarnations WHERE number < (SELECT max(number) FROM sapwood_incarnations)"
            " AND number < (SELECT ifnull(min(incarnation), ?) FROM sapwood_spans)",
            self._incarnation,
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


def facts_of(text: str) -> dict[str, Any]:
    """Return the facts of a stored span; those of a damaged row are left out."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return {}


def _name_of(row: SpanRow) -> Name:
    return row.work, row.kind, str(row.facts.get("key", row.name))


def _found_by(name: Name) -> Name:
    """The id of a run is unique in its agent, and its work changes: it may be let go, or adopted."""
    return ("", *name[1:]) if name[1] == "run" else name


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def check_record_retention(name: str, value: object) -> None:
    """Raise `UsageError` if `record_retention` of a class is invalid."""
    if value is None:
        return
    if not isinstance(value, Retention):
        raise UsageError(f"{name}.record_retention must be Retention(…) or None, got a {type(value).__name__}.")
    if value.bytes is not None or value.last:
        raise UsageError(f"{name}.record_retention supports `age` and `count` only.")
    if value.count == 0:
        raise UsageError(f"{name}.record_retention has count=0. Set it to `None` to write no records.")


def code_of(error: BaseException) -> str:
    """Return what a record says of an error: its code, or its class. The text may hold what must not be stored."""
    return getattr(error, "code", None) or type(error).__name__
