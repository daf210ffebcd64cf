"""When something is to be called: once or again and again, by the wall clock, and how often to try.

All of it are values: they say what was wished, compare by it, and know no agent.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import msgspec

from sapwood.errors import UsageError

LONGEST_WAIT = timedelta(days=366 * 50)
NO_TIME = timedelta(0)
TOO_FAR = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def is_a(value: object, kind: type) -> bool:
    """Return whether a value is what its annotation says it is: unchecked programs exist."""
    return isinstance(value, kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a failed call is attempted, with exponential backoff and jitter in between."""

    max_attempts: int = 3
    """Maximum number of attempts, the first included."""
    initial_delay: timedelta = timedelta(milliseconds=100)
    """Maximum delay before the second attempt. It doubles with each further attempt."""
    max_delay: timedelta = timedelta(seconds=3)
    """Maximum delay before any attempt."""

    def __post_init__(self) -> None:
        if not is_a(self.max_attempts, int) or isinstance(self.max_attempts, bool) or self.max_attempts < 1:
            raise UsageError(f"`max_attempts` must be an int of at least 1, got {self.max_attempts!r}.")
        for name in ("initial_delay", "max_delay"):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or value < timedelta(0):
                raise UsageError(f"`{name}` must be a timedelta of at least 0, got {value!r}.")
        if self.initial_delay > self.max_delay:
            raise UsageError(f"`initial_delay` ({self.initial_delay}) must not exceed `max_delay` ({self.max_delay}).")

    def wait(self, failed: int) -> float:
        """Return the seconds to wait after this many failures: random, so that calls that failed together spread."""
        doublings = min(failed - 1, 60)
        limit = min(self.initial_delay.total_seconds() * 2.0**doublings, self.max_delay.total_seconds())
        return random.uniform(0.0, limit)


DEFAULT_RETRY = Retry()


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the four ways of saying when have in common."""

    key: str | None = None
    """The same again under the same key changes nothing; something else under it takes its place."""
    retry: Retry = DEFAULT_RETRY
    """What to do when it fails."""


class After(Wish, frozen=True, tag=True):
    """Once, this long after now."""

    delay: timedelta
    """How long."""

    def __post_init__(self) -> None:
        _check_span("After", self.delay, least=timedelta(0))
        _check_options(self)

    def first(self, now: float) -> float:
        """Return when the first call is due."""
        return now + self.delay.total_seconds()

    def next(self, due: float, now: float) -> float | None:
        """Return when the call after the one that was due then is due; None: there is none."""
        return None

    def stored(self) -> Mapping[str, Any]:
        """Return the wish as what JSON has."""
        return {"after": self.delay.total_seconds()}


class At(Wish, frozen=True, tag=True):
    """Once, at this time."""

    time: datetime
    """When; with a time zone."""

    def __post_init__(self) -> None:
        if not is_a(self.time, datetime):
            raise UsageError(f"At({self.time!r}): it takes a datetime with a time zone.")
        if aware(self.time).timestamp() >= TOO_FAR:
            raise UsageError(f"At({self.time.isoformat(' ')}): that is too far away; the year has to be below 9999.")
        _check_options(self)

    def first(self, now: float) -> float:
        """Return when the first call is due."""
        return self.time.timestamp()

    def next(self, due: float, now: float) -> float | None:
        """Return when the call after the one that was due then is due; None: there is none."""
        return None

    def stored(self) -> Mapping[str, Any]:
        """Return the wish as what JSON has."""
        return {"at": self.time.timestamp()}


class Every(Wish, frozen=True, tag=True):
    """Again and again, this long apart; the first time after one interval.

    However many times were missed, one call is owed; a call that takes longer than the
    interval is not overtaken by the next. Without a key, the same wish for the same call is
    the same schedule.
    """

    interval: timedelta
    """How long apart."""

    def __post_init__(self) -> None:
        _check_span("Every", self.interval, least=timedelta(milliseconds=1))
        _check_options(self)

    def first(self, now: float) -> float:
        """Return when the first call is due."""
        return now + self.interval.total_seconds()

    def next(self, due: float, now: float) -> float | None:
        """Return when the call after the one that was due then is due; None: there is none."""
        seconds = self.interval.total_seconds()
        missed = max(int((now - due) // seconds), 0)
        following = due + (missed + 1) * seconds
        return following if following > now else now + seconds  # floats round

    def stored(self) -> Mapping[str, Any]:
        """Return the wish as what JSON has."""
        return {"every": self.interval.total_seconds()}


class Cron(Wish, frozen=True, tag=True):
    """At the times of a cron expression, in a time zone.

    Where the clocks change, an expression that names minute and hour (`30 2 * * *`) keeps its
    number of calls: a time that is skipped happens right after the gap, several of them as
    one, and a time that comes twice happens the first time only. One whose minute or hour
    begins with `*` (`*/15 * * * *`, `0 * * * *`) follows the clock on the wall: what is skipped
    does not happen, and what comes twice happens twice. Without a key, the same wish for the
    same call is the same schedule.
    """

    expression: str
    """Five fields: minute, hour, day, month, weekday."""
    tz: str = "UTC"
    """The name of a time zone, such as `Europe/Berlin`."""

    def __post_init__(self) -> None:
        _check_options(self)
        _check_cron(self.expression, self.tz)

    def first(self, now: float) -> float:
        """Return when the first call is due."""
        return _following(self.expression, self.tz, now)

    def next(self, due: float, now: float) -> float | None:
        """Return when the call after the one that was due then is due; None: there is none."""
        return _following(self.expression, self.tz, max(due, now))

    def stored(self) -> Mapping[str, Any]:
        """Return the wish as what JSON has."""
        return {"cron": self.expression, "tz": self.tz}


class When(Protocol):
    """What the four ways of saying when have in common."""

    @property
    def key(self) -> str | None: ...

    @property
    def retry(self) -> Retry: ...

    def first(self, now: float) -> float:
        """Return when the first call is due."""
        ...

    def next(self, due: float, now: float) -> float | None:
        """Return when the call after the one that was due then is due; None: there is none."""
        ...

    def stored(self) -> Mapping[str, Any]:
        """Return the wish as what JSON has."""
        ...


def from_stored(stored: Mapping[str, Any]) -> After | At | Every | Cron:
    """Return the wish that `stored` wrote, without key and retry."""
    match stored:
        case {"after": seconds}:
            return After(timedelta(seconds=seconds))
        case {"at": at}:
            return At(datetime.fromtimestamp(at, UTC))
        case {"every": seconds}:
            return Every(timedelta(seconds=seconds))
        case {"cron": expression, "tz": tz}:
            return Cron(expression, tz)
        case _:
            raise UsageError(f"Nobody knows when {dict(stored)!r} is.")


def wished(when: timedelta | datetime | After | At | Every | Cron) -> After | At | Every | Cron:
    """Return what a user wished, also where it was said briefly."""
    if isinstance(when, After | At | Every | Cron):
        return when
    if isinstance(when, timedelta):
        return After(when)
    if is_a(when, datetime):
        return At(when)
    hint = ""
    if isinstance(when, int | float):
        hint = f" For seconds, write timedelta(seconds={when})."
    elif isinstance(when, str):
        hint = f" For a cron expression, write Cron({when!r})."
    raise UsageError(f"schedule() takes a timedelta, a datetime, After, At, Every or Cron, not {when!r}.{hint}")


def aware(time: datetime) -> datetime:
    """Return a time as it is; refuse one that does not say where it holds."""
    if time.tzinfo is None or time.utcoffset() is None:
        raise UsageError(
            f"{time.isoformat(' ')} has no time zone, so nobody knows when it is. Write datetime.now(timezone.utc), "
            'or give it one: .replace(tzinfo=ZoneInfo("Europe/Berlin")).'
        )
    return time


def _check_span(what: str, span: object, *, least: timedelta) -> None:
    if not isinstance(span, timedelta):
        raise UsageError(f"{what}({span!r}): it takes a timedelta.")
    if not least <= span <= LONGEST_WAIT:
        raise UsageError(f"{what}({span!r}): it has to be between {least} and {LONGEST_WAIT.days} days.")


def _check_options(when: When) -> None:
    if when.key is not None and (not is_a(when.key, str) or not when.key):
        raise UsageError(f"key={when.key!r}: a key is a text.")
    if not is_a(when.retry, Retry):
        raise UsageError(f"retry={when.retry!r}: it takes Retry(…).")


def _check_cron(expression: object, tz: object) -> None:
    if not isinstance(expression, str):
        raise UsageError(f"Cron({expression!r}): it takes a text of five fields.")
    if isinstance(tz, tzinfo):
        raise UsageError(f"Cron(tz={tz!r}): it takes the name of a time zone, such as {str(tz)!r}, to be stored.")
    if not isinstance(tz, str):
        raise UsageError(f"Cron(tz={tz!r}): it takes the name of a time zone.")
    _check_expression(expression, tz)


@functools.lru_cache(maxsize=1000)
def _check_expression(expression: str, tz: str) -> None:
    from cronsim import CronSimError

    if len(expression.split()) != 5:
        raise UsageError(f"Cron({expression!r}): it has five fields: minute, hour, day, month, weekday.")
    try:
        _following(expression, tz, 0.0)
    except CronSimError as error:
        raise UsageError(
            f"Cron({expression!r}) is no cron expression: {error}. Write minute, hour, day, month, weekday."
        ) from None


def _following(expression: str, tz: str, after: float) -> float:
    """Return when an expression comes next.

    The expression is followed as if clocks never changed, and its times are then found in the
    zone: cronsim by itself loses some where the clocks change by half an hour, and goes back in
    time when it begins in an hour that comes twice.
    """
    from cronsim import CronSim

    place = zone(tz)
    here = datetime.fromtimestamp(after, place)
    wall, again = here.replace(tzinfo=None, fold=0), here.replace(fold=1)
    minute, hour = expression.split()[:2]
    is_fixed = not minute.startswith("*") and not hour.startswith("*")
    starts = [wall]
    if not is_fixed and again.utcoffset() != here.utcoffset():
        # This hour comes a second time, and with it times that are earlier on the wall.
        starts.append(wall - ((here.utcoffset() or NO_TIME) - (again.utcoffset() or NO_TIME)))
    found: list[float] = []
    for start in starts:
        for time in CronSim(expression, start):
            later = [at for at in _occurrences(time, place, is_fixed=is_fixed) if at > after]
            if later:
                found.append(min(later))
                break
    if not found:
        raise UsageError(f"Cron({expression!r}) never comes again.")
    return min(found)


def _occurrences(wall: datetime, place: ZoneInfo, *, is_fixed: bool) -> list[float]:
    """Return when clocks in a zone show this time: once, twice, or never."""
    first, second = (wall.replace(tzinfo=place, fold=fold) for fold in (0, 1))
    before, after = first.utcoffset() or NO_TIME, second.utcoffset() or NO_TIME
    if before == after:
        return [first.timestamp()]
    if before > after:
        return [first.timestamp()] if is_fixed else [first.timestamp(), second.timestamp()]
    if not is_fixed:
        return []
    # Skipped: by the clocks of before the gap it is this long after the beginning of it.
    low, high = second.timestamp(), first.timestamp()
    while high - low > 1.0:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, place).utcoffset() == before:
            low = middle
        else:
            high = middle
    return [high]


@functools.lru_cache(maxsize=100)
def zone(name: str) -> ZoneInfo:
    """Return a time zone by its name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise UsageError(
            f"{name!r} is no time zone this machine knows ({error}). Write a name such as 'Europe/Berlin'; if the "
            "machine has no list of them, install the package tzdata."
        ) from None
