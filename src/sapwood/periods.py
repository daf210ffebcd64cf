"""Limits that start again with every hour, day, week or month of a calendar.

A period starts at the first instant at which the clocks of its zone show it, and ends when the next one starts. So
periods never overlap and leave no gap, also where clocks change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

from sapwood.errors import UsageError
from sapwood.roles import Roles, stored_roles
from sapwood.when import first_instant, zone

Period = Literal["hour", "day", "week", "month"]
PERIODS: tuple[str, ...] = get_args(Period)
LONGER_THAN_A_MONTH = timedelta(days=32)
KEPT_PERIODS = 3
"""How many periods of a limit are stored: the current one and those nearest to it. A clock may be set back."""

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
    warn_at: float | None = field(default=None, kw_only=True)
    """The share of the amount, above 0 and up to 1, at which `on_limit_near` is called. `None` means never."""
    extend_by: float | None = field(default=None, kw_only=True)
    """When the limit is reached, a person is asked to allow this much more, and the request waits. `None` means that
    it fails."""
    approvers: Roles | None = field(default=None, kw_only=True)
    """Who may allow more: a role, several roles, or `ANY_CLIENT`. If the app authenticates its users, `None` means that
    only operators and code may, unless the class has `may_answer`."""

    def __post_init__(self) -> None:
        if self.period not in PERIODS:
            *names, last = [repr(name) for name in PERIODS]
            raise UsageError(f"Per({self.period!r}): expected {', '.join(names)} or {last}.")
        if not is_number(self.amount):
            raise UsageError(f"Per({self.period!r}, {self.amount!r}): expected a number of at least 0.")
        if not isinstance(cast("object", self.zone), str):
            raise UsageError(f"Per(zone={self.zone!r}): expected the name of a time zone, such as 'Europe/Berlin'.")
        zone(self.zone)
        if self.warn_at is not None and not (is_number(self.warn_at) and 0 < self.warn_at <= 1):
            raise UsageError(f"Per(warn_at={self.warn_at!r}): expected a number above 0 and up to 1, or None.")
        if self.extend_by is not None and not (is_number(self.extend_by) and self.extend_by > 0):
            raise UsageError(f"Per(extend_by={self.extend_by!r}): expected a number above 0, or None.")
        if self.approvers is not None:
            if self.extend_by is None:
                raise UsageError(f"Per(approvers={self.approvers!r}) needs extend_by, or no question is asked.")
            roles = stored_roles(self.approvers)
            object.__setattr__(self, "approvers", self.approvers if roles == () else roles)

    @property
    def roles(self) -> tuple[str, ...] | None:
        """Who may allow more, as questions have it: an empty tuple means every client."""
        return None if self.approvers is None else stored_roles(self.approvers)

    def __repr__(self) -> str:
        where = "" if self.zone == "UTC" else f", zone={self.zone!r}"
        warning = "" if self.warn_at is None else f", warn_at={self.warn_at:.15g}"
        more = "" if self.extend_by is None else f", extend_by={self.extend_by:.15g}"
        who = "" if self.approvers is None else f", approvers={self.approvers!r}"
        return f"Per({self.period!r}, {self.amount:.15g}{where}{warning}{more}{who})"

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


@dataclass(frozen=True, slots=True)
class LimitWarning:
    """That an agent and everything below it have used the share `warn_at` of a limit, in one period."""

    limit: str
    """`"tokens"` or `"dollars"`."""
    amount: float
    """What may be used in the period."""
    threshold: float
    """The amount at which the warning was due."""
    used: float
    """What is used so far, in tokens or dollars."""
    period: str
    """`"hour"`, `"day"`, `"week"` or `"month"`."""
    zone: str
    """The time zone of the period."""
    starts_at: datetime
    """When the period has started, in `zone`."""
    ends_at: datetime
    """When the next period starts, in `zone`."""


def with_local_times(warning: LimitWarning) -> LimitWarning:
    """Return a warning with its times in the zone of its limit."""
    place = zone(warning.zone)
    return replace(warning, starts_at=warning.starts_at.astimezone(place), ends_at=warning.ends_at.astimezone(place))


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
    return (
        PERIODS.index(per.period),
        per.zone,
        per.amount,
        per.warn_at or 0.0,
        per.extend_by or 0.0,
        repr(per.approvers),
    )
