"""What the agents of a tree use of models in each period of their limits: rows at its root.

A use counts in the period in which it is settled. Of each limit, the current period and the two nearest to it are kept,
so a clock that is set back finds what was used before. Nothing is ever taken off a period: if a correction lowers
a sum, the requests were made all the same.
"""

from __future__ import annotations

from typing import NamedTuple

from sapwood.periods import KEPT_PERIODS, Per
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

PERIOD_SPENDING = Schema("sapwood.kernel", "period_spending")


class PeriodTotal(NamedTuple):
    """What was used in one period."""

    tokens: int = 0
    nanodollars: int = 0


class PeriodUsage:
    """The periods of one tree."""

    def __init__(self, root: Database) -> None:
        self._root = root

    def of(self, stem: str, per: Per, now: float) -> PeriodTotal:
        """Return what an agent and all below it have used in the current period."""
        if not self._root.has(PERIOD_SPENDING):
            return PeriodTotal()
        rows = self._root.execute(
            "SELECT tokens, nanodollars FROM sapwood_period_spending"
            " WHERE agent = ? AND period = ? AND zone = ? AND starts_at = ?",
            stem,
            per.period,
            per.zone,
            per.span(now).starts_at,
        )
        return PeriodTotal(*rows[0]) if rows else PeriodTotal()

    def add(self, stem: str, per: Per, now: float, used: PeriodTotal) -> None:
        """Count what was used in the current period, in the open transaction of the root."""
        self._root.ensure(PERIOD_SPENDING)
        key, starts_at = (stem, per.period, per.zone), per.span(now).starts_at
        rows = self._root.execute(
            "UPDATE sapwood_period_spending SET tokens = tokens + ?, nanodollars = nanodollars + ?"
            " WHERE agent = ? AND period = ? AND zone = ? AND starts_at = ? RETURNING 1",
            *used,
            *key,
            starts_at,
        )
        if rows:
            return
        self._root.execute("INSERT INTO sapwood_period_spending VALUES (?, ?, ?, ?, ?, ?)", *key, starts_at, *used)
        self._root.execute(
            "DELETE FROM sapwood_period_spending WHERE agent = ?1 AND period = ?2 AND zone = ?3 AND starts_at NOT IN"
            " (SELECT starts_at FROM sapwood_period_spending WHERE agent = ?1 AND period = ?2 AND zone = ?3"
            " ORDER BY abs(starts_at - ?4) LIMIT ?5)",
            *key,
            starts_at,
            KEPT_PERIODS,
        )

    def forget(self, stem: str) -> None:
        """Forget an agent that is being deleted."""
        if self._root.has(PERIOD_SPENDING):
            self._root.execute("DELETE FROM sapwood_period_spending WHERE agent = ?", stem)
