"""When something is to be called: once or again and again, by the wall clock, and how often to try.

All of it are values: they say what was wished, compare by it, and know no agent.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import msgspec

from sapwood.errors import UsageError
from sapwood.randomness import SYSTEM, Random

LONGEST_WAIT = timedelta(days=366 * 50)
NO_TIME = timedelta(0)
TOO_FAR = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def is_a(value: object, kind: type) -> bool:
    """Return whether a value is what its annotation says it is: unchecked programs exist."""
    return isinstance(value, kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a failed call is attempted, with exponential backoff and jitter between attempts."""

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

    def wait(self, failed: int, random: Random = SYSTEM) -> float:
        """Return the seconds to wait after this many failures, with jitter to spread calls that failed together."""
        doublings = min(failed - 1, 60)
        limit = min(self.initial_delay.total_seconds() * 2.0**doublings, self.max_delay.total_seconds())
        return random.uniform(0.0, limit)


DEFAULT_RETRY = Retry()


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What `After`, `At`, `Every` and `Cron` have in common."""

    key: str | None = None
    """An idempotency key. Scheduling the same call with the same key changes nothing; another call replaces it."""
    retry: Retry = DEFAULT_RETRY
    """How the call is retried if it fails."""


class After(Wish, frozen=True, tag=True):
    """Once, after a delay."""

    delay: timedelta
    """The delay from now."""

    def __post_init__(self) -> None:
        _check_span("After", self.delay, least=timedelta(0))
        _check_options(self)

    def first(self, now: float) -> float:
        """Return when the first call is due."""
        return now + self.delay.total_seconds()

    def next(self, due: float, now: float) -> float | None:
        """Return when the next call is due after the one that was due at `due`; `None` if there is none."""
        return None

    def stored(self) -> Mapping[str, Any]:
        """Return the schedule as a JSON object."""
        return {"after": self.delay.total_seconds()}


class At(Wish, frozen=True, tag=True):
    """Once, at this time."""

    time: datetime
    """The time, with a time zone."""

    def __post_init__(self) -> None:
        if not is_a(self.time, datetime):
            raise UsageError(f"At({self.time!r}): expected a datetime with a time zone.")
        if aware(self.time).timestamp() >= TOO_FAR:
            raise UsageError(f"At({self.time.isoformat(' ')}): the year must be below 9999.")
        _check_options(self)

    def first(self, now: float) -> float:
        """Return when the first call is due."""
        return self.time.timestamp()

    def next(self, due: float, now: float) -> float | None:
        """Return when the next call is due after the one that was due at `due`; `None` if there is none."""
        return None

    def stored(self) -> Mapping[str, Any]:
        """Return the schedule as a JSON object."""
        return {"at": self.time.timestamp()}


class Every(Wish, frozen=True, tag=True):
    """Repeatedly, at an interval. The first call is due after one interval.

    Missed calls, however many, are made up by one call. Calls do not overlap: if one takes longer than the interval,
    the next one waits. Without a key, scheduling the same call again at the same interval changes nothing.
    """

    interval: timedelta
    """The time between two calls."""

    def __post_init__(self) -> None:
        _check_span("Every", self.interval, least=timedelta(milliseconds=1))
        _check_options(self)

    def first(self, now: float) -> float:
        """Return when the first call is due."""
        return now + self.interval.total_seconds()

    def next(self, due: float, now: float) -> float | None:
        """Return when the next call is due after the one that was due at `due`; `None` if there is none."""
        seconds = self.interval.total_seconds()
        missed = max(int((now - due) // seconds), 0)
        following = due + (missed + 1) * seconds
        return following if following > now else now + seconds  # floats round

    def stored(self) -> Mapping[str, Any]:
        """Return the schedule as a JSON object."""
        return {"every": self.interval.total_seconds()}


class Cron(Wish, frozen=True, tag=True):
    """At the times of a cron expression, in a time zone.

    Daylight saving time depends on the expression. If it names minute and hour (`30 2 * * *`), a skipped time runs
    right after the gap, several skipped times run as one, and a repeated time runs only the first time. If its
    minute or hour begins with `*` (`*/15 * * * *`, `0 * * * *`), it follows the wall clock: a skipped time does not
    run, and a repeated time runs twice.

    Without a key, scheduling the same call again with the same expression and time zone changes nothing.
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
        """Return when the next call is due after the one that was due at `due`; `None` if there is none."""
        return _following(self.expression, self.tz, max(due, now))

    def stored(self) -> Mapping[str, Any]:
        """Return the schedule as a JSON object."""
        return {"cron": self.expression, "tz": self.tz}


class When(Protocol):
    """What `After`, `At`, `Every` and `Cron` have in common."""

    @property
    def key(self) -> str | None: ...

    @property
    def retry(self) -> Retry: ...

    def first(self, now: float) -> float:
        """Return when the first call is due."""
        ...

    def next(self, due: float, now: float) -> float | None:
        """Return when the next call is due after the one that was due at `due`; `None` if there is none."""
        ...

    def stored(self) -> Mapping[str, Any]:
        """Return the schedule as a JSON object."""
        ...


def from_stored(stored: Mapping[str, Any]) -> After | At | Every | Cron:
    """Return the schedule that `stored` wrote, without key and retry."""
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
            raise UsageError(f"Unknown schedule kind in stored data: {dict(stored)!r}.")


def wished(when: timedelta | datetime | After | At | Every | Cron) -> After | At | Every | Cron:
    """Return the schedule for `when`; a timedelta means `After`, a datetime means `At`."""
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
    raise UsageError(f"schedule() expects a timedelta, datetime, After, At, Every or Cron, got {when!r}.{hint}")


def aware(time: datetime) -> datetime:
    """Return a time unchanged. Raises `UsageError` if it has no time zone."""
    if time.tzinfo is None or time.utcoffset() is None:
        raise UsageError(
            f"Expected a datetime with a time zone, got {time.isoformat(' ')}. Write datetime.now(timezone.utc), "
            'or add a time zone: .replace(tzinfo=ZoneInfo("Europe/Berlin")).'
        )
    return time


def _check_span(what: str, span: object, *, least: timedelta) -> None:
    if not isinstance(span, timedelta):
        raise UsageError(f"{what}({span!r}): expected a timedelta.")
    if not least <= span <= LONGEST_WAIT:
        raise UsageError(f"{what}({span!r}): must be between {least} and {LONGEST_WAIT.days} days.")


def _check_options(when: When) -> None:
    if when.key is not None and (not is_a(when.key, str) or not when.key):
        raise UsageError(f"key={when.key!r}: expected a non-empty string.")
    if not is_a(when.retry, Retry):
        raise UsageError(f"retry={when.retry!r}: expected Retry(…).")


def _check_cron(expression: object, tz: object) -> None:
    if not isinstance(expression, str):
        raise UsageError(f"Cron({expression!r}): expected a string of five fields.")
    if isinstance(tz, tzinfo):
        raise UsageError(f"Cron(tz={tz!r}): expected the name of a time zone, such as {str(tz)!r}.")
    if not isinstance(tz, str):
        raise UsageError(f"Cron(tz={tz!r}): expected the name of a time zone, such as 'Europe/Berlin'.")
    _check_expression(expression, tz)


@functools.lru_cache(maxsize=1000)
def _check_expression(expression: str, tz: str) -> None:
    from cronsim import CronSimError

    if len(expression.split()) != 5:
        raise UsageError(f"Cron({expression!r}): expected five fields: minute, hour, day, month, weekday.")
    try:
        _following(expression, tz, 0.0)
    except CronSimError as error:
        raise UsageError(
            f"Cron({expression!r}) is not a valid cron expression: {error}. Write minute, hour, day, month, weekday."
        ) from None


def _following(expression: str, tz: str, after: float) -> float:
    """Return when an expression comes next.

    The expression is followed as if clocks never changed, and its times are then found in the
    zone: cronsim alone loses some where the clocks change by half an hour, and goes back in
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
        raise UsageError(f"Cron({expression!r}) has no time in the future.")
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


def first_instant(wall: datetime, place: ZoneInfo) -> float:
    """Return when clocks in a zone first show this time, or a later one if they skip it."""
    return _occurrences(wall, place, is_fixed=True)[0]


@functools.lru_cache(maxsize=100)
def zone(name: str) -> ZoneInfo:
    """Return a time zone by its name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise UsageError(
            f"Unknown time zone {name!r} ({error}). Write a name such as 'Europe/Berlin'. If this machine has no time "
            "zone database, install the package tzdata."
        ) from None
