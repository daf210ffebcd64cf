"""Periods of a calendar: they follow each other without gap or overlap, also where clocks change."""

from __future__ import annotations

import functools
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.errors import UsageError
from sapwood.periods import Per
from sapwood.roles import ANY_CLIENT
from sapwood.settings import Limits

ZONES = ["America/Asuncion", "America/Havana", "America/St_Johns", "Antarctica/Casey", "Asia/Beirut", "Asia/Kathmandu"]
ZONES += ["Atlantic/Azores", "Australia/Lord_Howe", "Europe/Berlin", "Pacific/Apia", "UTC"]
"""Clocks that change at midnight, by half an hour, by three hours, by a day, and by nothing."""
HOUR = 3600.0
LONGEST_SETBACK = 5 * 3600


def wall(at: float, zone: str) -> datetime:
    return datetime.fromtimestamp(at, ZoneInfo(zone)).replace(tzinfo=None, fold=0)


def instant(text: str, zone: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@functools.cache
def transitions(zone: str) -> list[int]:
    """Return the days on which the clocks of a zone change."""
    days = range(0, 2**31, 86400)
    offsets = [datetime.fromtimestamp(at, ZoneInfo(zone)).utcoffset() for at in days]
    return [at for at, one, next in zip(days, offsets, offsets[1:], strict=False) if one != next] or [0]


@st.composite
def moments(draw: st.DrawFn) -> tuple[str, int]:
    """Draw a zone and an instant, mostly near a change of its clocks."""
    zone = draw(st.sampled_from(ZONES))
    anywhere = st.integers(0, 2**31)
    near = st.builds(int.__add__, st.sampled_from(transitions(zone)), st.integers(-86400, 2 * 86400))
    return zone, draw(near | near | anywhere)


def label(at: float, per: Per) -> datetime:
    """Return what clocks have shown up to an instant, at the latest: the beginning of its period."""
    latest = max(wall(at - before, per.zone) for before in range(0, LONGEST_SETBACK, 60))
    hour = latest.replace(minute=0, second=0, microsecond=0)
    if per.period == "hour":
        return hour
    day = hour.replace(hour=0)
    return day - timedelta(days={"day": 0, "week": day.weekday(), "month": day.day - 1}[per.period])


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(moments(), st.sampled_from(["hour", "day", "week", "month"]))
def test_a_period_is_what_the_clocks_of_its_zone_show(moment: tuple[str, int], period: Any) -> None:
    zone, at = moment
    per = Per(period, 1, zone=zone)

    starts_at, ends_at = per.span(at)

    assert starts_at <= at < ends_at
    assert label(starts_at - 1, per) < label(starts_at, per) == label(at, per) == label(ends_at - 1, per)
    assert label(ends_at - 1, per) < label(ends_at, per)
    assert per.span(starts_at) == per.span(ends_at - 1) == (starts_at, ends_at)
    assert per.span(starts_at - 1).ends_at == starts_at
    assert per.span(ends_at).starts_at == ends_at


@pytest.mark.parametrize(
    ("zone", "period", "at", "hours"),
    [
        ("Europe/Berlin", "day", "2026-03-28T12:00", 24),
        ("Europe/Berlin", "day", "2026-03-29T12:00", 23),
        ("Europe/Berlin", "day", "2026-10-25T12:00", 25),
        ("Europe/Berlin", "week", "2026-10-25T12:00", 169),
        ("Europe/Berlin", "month", "2026-03-15T12:00", 31 * 24 - 1),
        ("Europe/Berlin", "hour", "2026-03-29T03:30", 1),
        ("Europe/Berlin", "hour", "2026-10-25T02:30", 2),  # it comes twice, and is one period
        ("Asia/Kathmandu", "hour", "2026-10-25T02:30", 1),
        ("Australia/Lord_Howe", "day", "2026-10-04T12:00", 23.5),
        ("Pacific/Apia", "day", "2011-12-29T12:00", 24),
        ("Pacific/Apia", "month", "2011-12-31T12:00", 30 * 24),  # it has no 30th
        ("UTC", "month", "2028-02-29T23:59:59.5", 29 * 24),
    ],
)
def test_a_period_is_as_long_as_its_clocks_say(zone: str, period: Any, at: str, hours: float) -> None:
    starts_at, ends_at = Per(period, 1, zone=zone).span(instant(at, zone))

    assert (ends_at - starts_at) / HOUR == hours


def test_a_month_whose_first_midnight_does_not_exist_starts_an_hour_later() -> None:
    zone = "America/Asuncion"
    starts_at, _ = Per("month", 1, zone=zone).span(instant("2017-10-01T12:00", zone))

    assert wall(starts_at, zone) == datetime(2017, 10, 1, 1)  # noqa: DTZ001 - what clocks show
    assert wall(starts_at - 1, zone) == datetime(2017, 9, 30, 23, 59, 59)  # noqa: DTZ001 - the same


def test_a_day_that_has_begun_does_not_end_when_clocks_are_set_back_across_midnight() -> None:
    zone = "America/St_Johns"  # clocks went from 00:01 back to 23:01
    midnight = datetime(2010, 11, 7, 0, 0, tzinfo=ZoneInfo(zone)).timestamp()
    per = Per("day", 1, zone=zone)

    assert wall(midnight + 60, zone) == datetime(2010, 11, 6, 23, 1)  # noqa: DTZ001 - what clocks show
    assert per.span(midnight).starts_at == per.span(midnight + 60).starts_at == midnight
    assert per.span(midnight - 1).ends_at == midnight


def test_a_week_starts_on_monday() -> None:
    starts_at, _ = Per("week", 1).span(datetime(2026, 11, 18, 12, tzinfo=UTC).timestamp())

    assert datetime.fromtimestamp(starts_at, UTC) == datetime(2026, 11, 16, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arguments", "zone", "sentence"),
    [
        (("year", 5), "UTC", "Per('year'): expected 'hour', 'day', 'week' or 'month'."),
        (("day", -1), "UTC", "Per('day', -1): expected a number of at least 0."),
        (("day", "5"), "UTC", "Per('day', '5'): expected a number of at least 0."),
        (("day", float("nan")), "UTC", "Per('day', nan): expected a number of at least 0."),
        (("day", 5), "Mars/Olympus", "Unknown time zone 'Mars/Olympus'"),
        (("day", 5), UTC, "expected the name of a time zone"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(arguments: Any, zone: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        Per(*arguments, zone=zone)


@pytest.mark.parametrize("share", [0, -1, 1.1, "0.8", float("nan")])
def test_a_warning_is_due_at_a_share_of_the_amount(share: Any) -> None:
    with pytest.raises(UsageError, match="expected a number above 0 and up to 1, or None"):
        Per("day", 5, warn_at=share)
    assert repr(Per("day", 5, warn_at=0.8)) == "Per('day', 5, warn_at=0.8)"


def test_tokens_are_whole_numbers_in_each_period_too() -> None:
    with pytest.raises(UsageError, match=re.escape("Limits(tokens=Per('day', 1.5)): expected an integer of at least")):
        Limits(tokens=Per("day", 1.5))
    with pytest.raises(UsageError, match=re.escape("Limits(tokens='many'): expected an integer of at least 0, or")):
        Limits(tokens=(Per("day", 1), "many"))  # pyright: ignore[reportArgumentType]


def test_limits_of_periods_hold_beside_each_other() -> None:
    day, month = Per("day", 5), Per("month", 50, zone="Europe/Berlin")

    both = Limits(dollars=(month, 100.0)).within(Limits(dollars=(70.0, day)))

    assert both.dollars == (70.0, day, month)
    assert Limits(dollars=(day,)) == Limits(dollars=day)
    assert Limits(dollars=()).dollars is None
    assert repr(both.dollars) == "(70.0, Per('day', 5), Per('month', 50, zone='Europe/Berlin'))"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"extend_by": 0}, "Per(extend_by=0): expected a number above 0, or None."),
        ({"approvers": "manager"}, "Per(approvers='manager') needs extend_by"),
        ({"extend_by": 5, "approvers": ()}, "approvers=(): expected a role, several roles, or ANY_CLIENT."),
    ],
)
def test_a_question_for_more_that_cannot_be_asked_is_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as error:
        Per("day", 5, **more)
    assert says in str(error.value)


def test_limits_with_the_same_question_are_equal() -> None:
    assert Per("day", 5, extend_by=1, approvers="a") == Per("day", 5, extend_by=1, approvers=["a"])
    assert repr(Per("day", 5, extend_by=1, approvers=ANY_CLIENT)) == "Per('day', 5, extend_by=1, approvers=ANY_CLIENT)"


def test_a_text_is_not_a_limit_per_period() -> None:
    expected = (
        "Limits(dollars='5/month'): expected a number of at least 0, or a limit per period, such as Per(\"month\", 5)."
    )
    with pytest.raises(UsageError, match=re.escape(expected)):
        Limits(dollars="5/month")  # pyright: ignore[reportArgumentType]
