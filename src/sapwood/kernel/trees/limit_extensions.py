"""What people have allowed beside the limits of a tree in one period, and which turns wait for that: rows at its root.

A row is committed before the transaction of the agent that it is about, so a crash leaves no turn that waits without a
row. A row may be left of a turn that does not wait any more; it is deleted by a queued call of its agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from sapwood.address import Address
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.trees.budgets import Budget, Field
from sapwood.kernel.trees.tree_index import TreeIndex
from sapwood.periods import KEPT_PERIODS, Per, Period
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

EXTENSIONS = Schema("sapwood.kernel", "limit_extensions")
OF_LIMIT = "agent = ? AND name = ? AND period = ? AND zone = ? AND amount = ? AND starts_at = ?"
CONTINUES: Literal[""] = ""
"""The outcome of a wait after which the request is made again."""


class LimitKey(NamedTuple):
    """Which limit, in which period: the values of `OF_LIMIT`."""

    agent: str
    """The file stem of the agent that has the limit."""
    name: Field
    period: Period
    zone: str
    amount: float
    starts_at: float

    @property
    def question(self) -> str:
        """The key of the question at the agent that has the limit."""
        return f"sapwood limit {self.name} {self.amount:.15g} {self.period} {self.zone} {self.starts_at:.15g}"


@dataclass(frozen=True, slots=True)
class LimitPeriod:
    """A limit that a person may extend, in one period."""

    agent: str
    """The file stem of the agent that has the limit."""
    name: Field
    period: Period
    zone: str
    amount: float
    starts_at: float
    ends_at: float
    extend_by: float
    roles: tuple[str, ...] | None
    """Who may allow more, as questions have it."""

    @property
    def key(self) -> LimitKey:
        return LimitKey(self.agent, self.name, self.period, self.zone, self.amount, self.starts_at)


def period_of(budget: Budget, now: float) -> LimitPeriod:
    """Return the current period of a limit that can be extended."""
    per = budget.limit
    assert isinstance(per, Per)
    span = per.span(now)
    return LimitPeriod(
        budget.owner.stem,
        budget.field,
        per.period,
        per.zone,
        float(per.amount),
        span.starts_at,
        span.ends_at,
        per.extend_by or 0.0,
        per.roles,
    )


class Wait(NamedTuple):
    """A turn that waited, and may continue or fail now."""

    address: Address
    turn: str


class LimitExtensions(TreeIndex):
    """The extensions of the limits of one tree."""

    def granted(self, limit: LimitKey) -> int:
        """Return what people have allowed in this period, in tokens or nanodollars."""
        if not self._root.has(EXTENSIONS):
            return 0
        (row,) = self._root.execute(
            f"SELECT total(extra) FROM sapwood_limit_extensions WHERE {OF_LIMIT} AND allowed_at IS NOT NULL",  # noqa: S608 - ours
            *limit,
        )
        return int(row[0])

    def offer(self, limit: LimitKey, question: str, extra: int, before: Database) -> None:
        """Store what a question asks for, before the agent that asks it commits."""
        self._begin(EXTENSIONS)
        self._root.execute(
            "INSERT INTO sapwood_limit_extensions VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)", question, *limit, extra
        )
        *calendar, starts_at = limit
        self._root.execute(
            "DELETE FROM sapwood_limit_extensions WHERE agent = ?1 AND name = ?2 AND period = ?3 AND zone = ?4"
            " AND amount = ?5 AND starts_at NOT IN (SELECT DISTINCT starts_at FROM sapwood_limit_extensions"
            " WHERE agent = ?1 AND name = ?2 AND period = ?3 AND zone = ?4 AND amount = ?5"
            " ORDER BY abs(starts_at - ?6) LIMIT ?7)",
            *calendar,
            starts_at,
            KEPT_PERIODS,
        )
        self._commit_before(before)

    def allow(self, question: str, now: float) -> None:
        """Count what a question asked for, once. `settle` commits it."""
        self._begin(EXTENSIONS)
        self._root.execute(
            "UPDATE sapwood_limit_extensions SET allowed_at = ? WHERE question = ? AND allowed_at IS NULL",
            now,
            question,
        )

    def wait(self, actor: Actor, turn: str, limit: LimitKey, missing: int) -> None:
        """Store that a turn waits, before it does."""
        self._begin(EXTENSIONS)
        self._root.execute(
            "INSERT OR REPLACE INTO sapwood_limit_waits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
            actor.stem,
            turn,
            str(actor.address),
            *limit,
            missing,
        )
        self._commit_before(actor.database)

    def missing(self, limit: LimitKey) -> int | None:
        """Return how much more the turns that wait need, the greatest of them; `None` if none waits."""
        if not self._root.has(EXTENSIONS):
            return None
        (row,) = self._root.execute(
            f"SELECT max(missing) FROM sapwood_limit_waits WHERE {OF_LIMIT} AND outcome IS NULL",  # noqa: S608 - ours
            *limit,
        )
        return row[0]

    def settle(self, limit: LimitKey, outcome: str, before: Database) -> None:
        """Store what becomes of all turns that wait."""
        self._begin(EXTENSIONS)
        self._root.execute(
            f"UPDATE sapwood_limit_waits SET outcome = ? WHERE {OF_LIMIT} AND outcome IS NULL",  # noqa: S608 - ours
            outcome,
            *limit,
        )
        self._commit_before(before)

    def settled(self, limit: LimitKey) -> list[Wait]:
        """Return the turns that do not have to wait any more."""
        if not self._root.has(EXTENSIONS):
            return []
        rows = self._root.execute(
            f"SELECT path, turn FROM sapwood_limit_waits WHERE {OF_LIMIT} AND outcome IS NOT NULL",  # noqa: S608 - ours
            *limit,
        )
        return [Wait(Address.parse(path), turn) for path, turn in rows]

    def is_known(self, stem: str, turn: str) -> bool:
        """Return whether there is a row of a turn."""
        return self._row(stem, turn) is not None

    def outcome(self, stem: str, turn: str) -> str | None:
        """Return what becomes of a turn; `None` if it waits, or never did."""
        row = self._row(stem, turn)
        return None if row is None else row[0]

    def _row(self, stem: str, turn: str) -> tuple[str | None] | None:
        if not self._root.has(EXTENSIONS):
            return None
        rows = self._root.execute("SELECT outcome FROM sapwood_limit_waits WHERE waiter = ? AND turn = ?", stem, turn)
        return rows[0] if rows else None

    def leave(self, stem: str, turn: str) -> LimitKey | None:
        """Delete the row of a turn; return the limit if this was the last turn that waited for it."""
        if not self._root.has(EXTENSIONS):
            return None
        self._root.begin()
        rows = self._root.execute(
            "DELETE FROM sapwood_limit_waits WHERE waiter = ? AND turn = ?"
            " RETURNING agent, name, period, zone, amount, starts_at",
            stem,
            turn,
        )
        limit = LimitKey(*rows[0]) if rows else None
        return None if limit is None or self.missing(limit) is not None else limit

    def forget(self, stem: str) -> None:
        """Forget an agent that is being deleted."""
        if self._root.has(EXTENSIONS):
            self._root.execute("DELETE FROM sapwood_limit_extensions WHERE agent = ?", stem)
            self._root.execute("DELETE FROM sapwood_limit_waits WHERE waiter = ? OR agent = ?", stem, stem)
