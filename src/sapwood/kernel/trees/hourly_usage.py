"""What the agents of a tree use of models in each hour: rows at its root, by class, model and user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

HOURLY_SPENDING = Schema("sapwood.kernel", "hourly_spending")
HOUR = 3600
KEPT_DAYS = 92
"""Days after which the hours of a tree are deleted."""
Dimension: TypeAlias = Literal["hour", "class", "model", "user"]
DIMENSIONS: tuple[Dimension, ...] = ("hour", "class", "model", "user")
UNITS = ("requests", "input_tokens", "output_tokens", "nanodollars", "unpriced")


class Hour(NamedTuple):
    """An hour, and what is counted apart in it."""

    starts_at: int
    class_: str
    model: str
    user: str

    @classmethod
    def at(cls, now: float, class_: str, model: str, user: str | None) -> Hour:
        """Return the hour of a time."""
        return cls(int(now // HOUR) * HOUR, class_, model, user or "")


class HourlyUsage:
    """The hours of one tree."""

    def __init__(self, root: Database) -> None:
        self._root = root

    def add(self, hour: Hour, spent: Sequence[int]) -> None:
        """Count what was used, in the open transaction of the root."""
        self._root.ensure(HOURLY_SPENDING)
        sets = ", ".join(f"{unit} = {unit} + ?" for unit in UNITS)
        sql = f"UPDATE sapwood_hourly_spending SET {sets} WHERE (hour, class, model, user) = (?, ?, ?, ?) RETURNING 1"  # noqa: S608 - ours
        if self._root.execute(sql, *spent, *hour):
            return
        self._root.execute("INSERT INTO sapwood_hourly_spending VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", *hour, *spent)
        before = hour.starts_at - KEPT_DAYS * 24 * HOUR
        self._root.execute("DELETE FROM sapwood_hourly_spending WHERE hour < ?", before)

    def sums(
        self, begins_at: float | None, ends_at: float | None, by: Sequence[Dimension]
    ) -> list[tuple[tuple[Any, ...], tuple[int, ...]]]:
        """Return what was used in the hours that overlap with a time, added up by some dimensions, in their order."""
        if not self._root.exists or not self._root.has(HOURLY_SPENDING):
            return []
        columns = [one for one in DIMENSIONS if one in by]
        grouped = ", ".join(columns) or "''"
        units = ", ".join(f"sum({unit})" for unit in UNITS)
        rows = self._root.execute(
            f"SELECT {', '.join([*columns, units])} FROM sapwood_hourly_spending"  # noqa: S608 - ours
            " WHERE (?1 IS NULL OR hour + 3600 > ?1) AND (?2 IS NULL OR hour < ?2)"
            f" GROUP BY {grouped} ORDER BY {grouped}",
            begins_at,
            ends_at,
        )
        return [(row[: len(columns)], row[len(columns) :]) for row in rows]
