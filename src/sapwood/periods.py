"""Limits that start again with every hour, day, week or month of a calendar.

A period starts at the first instant at which the clocks of its zone show it, and ends when the next one starts. So
periods never overlap and leave no gap, also where clocks change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

from sapwood.errors import UsageError
from sapwood.when import first_instant, zone

Period = Literal["hour", "day", "week", "month"]
PERIODS: tuple[str, ...] = get_args(Period)
LONGER_THAN_A_MONTH = timedelta(days=32)

N = TypeVar("N", int, float)


class Span(NamedTuple):
    """One period, in seconds since the epoch."""

    starts_at: float
    ends_at: float
    """The first instant that is not in it."""


@dataclass(frozen=True, slots=True)
class Per:
    """A limit for each period of a calendar, such as `Per("month", 50, zone="Europe/Berlin")`."""

    period: Period
    """`"hour"`, `"day"`, `"week"` or `"month"`. A week starts on Monday."""
    amount: float
    """What may be used in each period. 0 means nothing."""
    zone: str = field(default="UTC", kw_only=True)
    """The name of the time zone whose clocks say when a period starts, such as `Europe/Berlin`."""

    def __post_init__(self) -> None:
        if self.period not in PERIODS:
            *names, last = [repr(name) for name in PERIODS]
            raise UsageError(f"Per({self.period!r}): expected {', '.join(names)} or {last}.")
        if not is_number(self.amount):
            raise UsageError(f"Per({self.period!r}, {self.amount!r}): expected a number of at least 0.")
        if not isinstance(cast("object", self.zone), str):
            raise UsageError(f"Per(zone={self.zone!r}): expected the name of a time zone, such as 'Europe/Berlin'.")
        zone(self.zone)

    def __repr__(self) -> str:
        where = "" if self.zone == "UTC" else f", zone={self.zone!r}"
        return f"Per({self.period!r}, {self.amount:.15g}{where})"

    def span(self, now: float) -> Span:
        """Return the period that an instant is in."""
        place = zone(self.zone)
        start = _start(datetime.fromtimestamp(now, place).replace(tzinfo=None, fold=0), self.period)
        following = _following(start, self.period)
        # Clocks that were set back may show an earlier period once more: it has ended.
        while (ends_at := first_instant(following, place)) <= now:
            start, following = following, _following(following, self.period)
        return Span(first_instant(start, place), ends_at)

    def end(self, now: float) -> str:
        """Return when the period of an instant ends, as ISO 8601 in its zone."""
        return datetime.fromtimestamp(self.span(now).ends_at, zone(self.zone)).isoformat()


def _start(wall: datetime, period: Period) -> datetime:
    """Return what clocks show when the period starts that they show now."""
    hour = wall.replace(minute=0, second=0, microsecond=0)
    if period == "hour":
        return hour
    day = hour.replace(hour=0)
    if period == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if period == "month" else day


def _following(start: datetime, period: Period) -> datetime:
    """Return what clocks show when the next period starts."""
    if period == "month":
        return (start + LONGER_THAN_A_MONTH).replace(day=1)
    return start + {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1)}[period]


def is_number(value: Any) -> bool:
    """Return whether a value can be an amount: not negative, and finite."""
    return isinstance(value, int | float) and 0 <= value < inf


def each(limit: N | Per | tuple[N | Per, ...] | None) -> tuple[N | Per, ...]:
    """Return the parts of a limit: numbers hold for the lifetime of an agent, the others for each period."""
    if limit is None:
        return ()
    return limit if isinstance(limit, tuple) else (limit,)


def combined(*limits: Any) -> Any:
    """Return the limit that allows what all of these allow: the lowest number, and each limit of a period."""
    parts = [part for limit in limits for part in each(limit)]
    numbers = [part for part in parts if not isinstance(part, Per)]
    periods = sorted({part for part in parts if isinstance(part, Per)}, key=_order)
    found = (*([min(numbers)] if numbers else []), *periods)
    return found if len(found) > 1 else next(iter(found), None)


def _order(per: Per) -> tuple[Any, ...]:
    return (PERIODS.index(per.period), per.zone, per.amount)
