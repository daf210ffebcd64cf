"""When something is to be called: values that say it, refuse what nobody could mean, and know about clock changes."""

# pyright: reportArgumentType=false

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood import After, At, Cron, Every, Retry
from sapwood.errors import UsageError
from sapwood.when import from_stored, wished

SECOND = timedelta(seconds=1)


def test_wishes_are_values() -> None:
    assert After(SECOND) == After(timedelta(milliseconds=1000))
    assert After(SECOND, key="a") != After(SECOND)
    assert Every(SECOND) != Every(SECOND, retry=Retry(max_attempts=9))
    assert Cron("* * * * *") == Cron("* * * * *", "UTC")
    assert len({Cron("* * * * *"), Cron("* * * * *"), Every(SECOND), Every(SECOND)}) == 2
    assert repr(After(SECOND, key="a")).startswith("After(delay=datetime.timedelta(seconds=1), key='a'")


def test_a_single_wish_comes_once() -> None:
    at = datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=2)))

    assert After(SECOND).first(100.0) == 101.0
    assert After(SECOND).next(101.0, 200.0) is None
    assert At(at).first(100.0) == at.timestamp() == datetime(2029, 12, 31, 22, tzinfo=UTC).timestamp()
    assert At(at).next(at.timestamp(), 200.0) is None


def test_an_interval_is_counted_from_when_it_was_due_and_what_was_missed_is_skipped() -> None:
    every = Every(timedelta(seconds=10))

    assert every.first(100.0) == 110.0
    assert every.next(110.0, 110.0) == 120.0
    assert every.next(110.0, 113.0) == 120.0
    assert every.next(110.0, 120.0) == 130.0
    assert every.next(110.0, 3600.0) == 3610.0


@pytest.mark.slow
@given(
    interval=st.integers(1, 10**9).map(lambda ms: timedelta(milliseconds=ms)),
    due=st.floats(1e9, 3e9),
    late=st.floats(0, 1e8),
)
def test_the_next_interval_is_never_in_the_past_and_at_most_one_interval_away(
    interval: timedelta, due: float, late: float
) -> None:
    following = Every(interval).next(due, due + late)

    assert following is not None
    assert due + late < following <= due + late + interval.total_seconds() * 1.001 + 1e-6


@pytest.mark.parametrize(
    "wish",
    [
        After(SECOND),
        At(datetime(2030, 1, 1, 12, 30, 1, 5, tzinfo=UTC)),
        Every(SECOND / 3),
        Cron("1 2 * * MON", "Asia/Tokyo"),
    ],
)
def test_what_is_stored_of_a_wish_is_read_back_as_the_same(wish: After | At | Every | Cron) -> None:
    assert from_stored(wish.stored()) == wish


def test_what_nobody_ever_stored_is_refused() -> None:
    with pytest.raises(UsageError, match="Unknown schedule kind"):
        from_stored({"on": "monday"})


def test_a_wish_may_be_said_briefly() -> None:
    time = datetime(2030, 1, 1, tzinfo=UTC)

    assert wished(SECOND) == After(SECOND)
    assert wished(time) == At(time)
    assert wished(Every(SECOND)) == Every(SECOND)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: wished(60), r"got 60\. For seconds, write timedelta\(seconds=60\)\."),
        (lambda: wished(1.5), r"write timedelta\(seconds=1\.5\)"),
        (lambda: wished("0 9 * * *"), r"For a cron expression, write Cron\('0 9 \* \* \*'\)\."),
        (lambda: wished(None), "expects a timedelta, datetime, After, At, Every or Cron, got None"),
        (lambda: After(60), r"After\(60\): expected a timedelta"),
        (lambda: After(-SECOND), "must be between 0:00:00 and"),
        (lambda: After(timedelta.max), "must be between 0:00:00 and 18300 days"),
        (lambda: Every(timedelta(0)), "must be between 0:00:00.001000 and"),
        (lambda: Every(timedelta(microseconds=999)), "must be between 0:00:00.001000 and"),
        (lambda: Every("1h"), r"Every\('1h'\): expected a timedelta"),
        (lambda: At("2030-01-01"), r"At\('2030-01-01'\): expected a datetime with a time zone"),
        (lambda: At(SECOND), "expected a datetime with a time zone"),
        (lambda: After(SECOND, key=""), "key='': expected a non-empty string"),
        (lambda: Every(SECOND, key=7), "key=7: expected a non-empty string"),
        (lambda: After(SECOND, retry=3), r"retry=3: expected Retry\("),
        (lambda: Cron("* * * * *", retry=None), r"retry=None: expected Retry\("),
        (lambda: Cron("* * * *"), "expected five fields: minute, hour, day, month, weekday"),
        (lambda: Cron("* * * * * *"), "expected five fields"),
        (lambda: Cron("@daily"), "expected five fields"),
        (lambda: Cron("61 * * * *"), "is not a valid cron expression: Bad minute"),
        (lambda: Cron("* * * * FUN"), "is not a valid cron expression: Bad day-of-week"),
        (lambda: Cron("0 0 31 2 *"), "is not a valid cron expression: Bad day-of-month"),
        (lambda: Cron(5), "expected a string of five fields"),
        (lambda: Cron(["* * * * *"]), "expected a string of five fields"),
        (lambda: Cron("* * * * *", "Mars/Olympus"), "Unknown time zone 'Mars/Olympus'"),
        (lambda: Cron("* * * * *", "../etc"), "Unknown time zone"),
        (lambda: Cron("* * * * *", ZoneInfo("Europe/Berlin")), "the name of a time zone, such as 'Europe/Berlin'"),
        (lambda: Cron("* * * * *", None), "the name of a time zone"),
        (lambda: Retry(max_attempts=0), "`max_attempts` must be an int of at least 1"),
        (lambda: Retry(max_attempts=2.0), "`max_attempts` must be an int of at least 1"),
        (lambda: Retry(max_attempts=True), "`max_attempts` must be an int of at least 1"),
        (lambda: Retry(initial_delay=1), "must be a timedelta of at least 0"),
        (lambda: Retry(max_delay=-SECOND), "must be a timedelta of at least 0"),
        (lambda: Retry(initial_delay=timedelta(seconds=9)), "must not exceed `max_delay`"),
    ],
)
def test_what_nobody_could_mean_is_refused_with_a_way_out(wrong: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        wrong()


@pytest.mark.parametrize("wrap", [At, wished])
def test_a_datetime_without_a_time_zone_is_refused_and_told_how_to_get_one(wrap: Any) -> None:
    with pytest.raises(UsageError) as refused:
        wrap(datetime(2030, 1, 1, 9, 30))  # noqa: DTZ001 - that is the point

    assert str(refused.value) == (
        "Expected a datetime with a time zone, got 2030-01-01 09:30:00. Write datetime.now(timezone.utc), "
        'or add a time zone: .replace(tzinfo=ZoneInfo("Europe/Berlin")).'
    )


def test_a_time_beyond_what_can_be_shown_again_is_refused() -> None:
    wish = At(datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC))

    assert from_stored(wish.stored()) == wish
    with pytest.raises(UsageError, match="the year must be below 9999"):
        At(datetime.max.replace(tzinfo=UTC))


@given(attempts=st.integers(1, 200), base=st.integers(0, 10_000), more=st.integers(0, 10**7))
def test_the_wait_doubles_up_to_the_most_and_is_anything_below_it(attempts: int, base: int, more: int) -> None:
    retry = Retry(initial_delay=timedelta(milliseconds=base), max_delay=timedelta(milliseconds=base + more))

    limit = min(base / 1000 * 2.0 ** min(attempts - 1, 60), (base + more) / 1000)

    assert 0 <= retry.wait(attempts) <= limit + 1e-9


def test_those_who_failed_together_do_not_try_again_together() -> None:
    waits = {Retry(initial_delay=SECOND).wait(1) for _ in range(100)}

    assert len(waits) > 90
    assert max(waits) - min(waits) > 0.5


# Worked out by hand from the rules of each zone in 2026, not by any program.
#
# Europe/Berlin: +1, in summer +2. On 29 March 02:00 becomes 03:00 (01:00 UTC); on 25 October 03:00 becomes 02:00
# (01:00 UTC), so 02:00 to 03:00 is shown twice: from 00:00 and from 01:00 UTC.
# America/New_York: -5, in summer -4. On 8 March 02:00 becomes 03:00 (07:00 UTC); on 1 November 02:00 becomes 01:00
# (06:00 UTC), so 01:00 to 02:00 is shown twice: from 05:00 and from 06:00 UTC.
# Australia/Lord_Howe: +10:30, in summer +11. On 4 October 02:00 becomes 02:30 (3 October, 15:30 UTC); on 5 April 02:00
# becomes 01:30 (4 April, 15:00 UTC), so 01:30 to 02:00 is shown twice: from 14:30 and from 15:00 UTC.
CLOCK_CHANGES = [
    # In the gap: right after it, and once for all that is in it.
    ("Europe/Berlin", "30 2 * * *", "03-28 00:00", ["03-28 01:30", "03-29 01:00", "03-30 00:30", "03-31 00:30"]),
    ("Europe/Berlin", "0,20,40 2 * * *", "03-28 12:00", ["03-29 01:00", "03-30 00:00", "03-30 00:20", "03-30 00:40"]),
    ("Europe/Berlin", "30 2,3 * * *", "03-28 12:00", ["03-29 01:00", "03-29 01:30", "03-30 00:30", "03-30 01:30"]),
    ("America/New_York", "30 2 * * *", "03-07 00:00", ["03-07 07:30", "03-08 07:00", "03-09 06:30", "03-10 06:30"]),
    ("Australia/Lord_Howe", "15 2 * * *", "10-02 00:00", ["10-02 15:45", "10-03 15:30", "10-04 15:15", "10-05 15:15"]),
    ("Australia/Lord_Howe", "30 2 * * *", "10-02 00:00", ["10-02 16:00", "10-03 15:30", "10-04 15:30"]),
    # Beside the gap: as on any day.
    ("Europe/Berlin", "59 1 * * *", "03-28 12:00", ["03-29 00:59", "03-29 23:59"]),
    ("Europe/Berlin", "0 3 * * *", "03-28 12:00", ["03-29 01:00", "03-30 01:00"]),
    ("Australia/Lord_Howe", "45 2 * * *", "10-03 00:00", ["10-03 15:45", "10-04 15:45"]),
    # In the hour that comes twice: the first time only.
    ("Europe/Berlin", "30 2 * * *", "10-24 12:00", ["10-25 00:30", "10-26 01:30", "10-27 01:30"]),
    ("Europe/Berlin", "0,20,40 2 * * *", "10-24 12:00", ["10-25 00:00", "10-25 00:20", "10-25 00:40", "10-26 01:00"]),
    ("Europe/Berlin", "0 1-3 * * *", "10-24 12:00", ["10-24 23:00", "10-25 00:00", "10-25 02:00", "10-26 00:00"]),
    ("America/New_York", "30 1 * * *", "10-31 12:00", ["11-01 05:30", "11-02 06:30", "11-03 06:30"]),
    ("Australia/Lord_Howe", "45 1 * * *", "04-04 00:00", ["04-04 14:45", "04-05 15:15", "04-06 15:15"]),
    ("Australia/Lord_Howe", "15 1 * * *", "04-04 00:00", ["04-04 14:15", "04-05 14:45"]),
    # Asked while that hour comes the second time: the next day, never back in time.
    ("Europe/Berlin", "30 2 * * *", "10-25 01:10", ["10-26 01:30", "10-27 01:30"]),
    ("Europe/Berlin", "30 2 * * *", "10-25 00:45", ["10-26 01:30"]),
    ("America/New_York", "30 1 * * *", "11-01 06:10", ["11-02 06:30"]),
    ("Australia/Lord_Howe", "45 1 * * *", "04-04 15:05", ["04-05 15:15"]),
    # Daily, at a time no clock change touches: the same on the wall.
    ("Europe/Berlin", "0 9 * * *", "03-28 00:00", ["03-28 08:00", "03-29 07:00", "03-30 07:00"]),
    ("Europe/Berlin", "0 9 * * *", "10-24 00:00", ["10-24 07:00", "10-25 08:00", "10-26 08:00"]),
    ("America/New_York", "0 9 * * *", "03-07 00:00", ["03-07 14:00", "03-08 13:00", "03-09 13:00"]),
    ("America/New_York", "0 9 * * *", "10-31 00:00", ["10-31 13:00", "11-01 14:00", "11-02 14:00"]),
    ("Australia/Lord_Howe", "0 9 * * *", "10-02 00:00", ["10-02 22:30", "10-03 22:00", "10-04 22:00"]),
    ("Australia/Lord_Howe", "0 9 * * *", "04-03 00:00", ["04-03 22:00", "04-04 22:30", "04-05 22:30"]),
    # Hourly: the clock on the wall is followed; with whole hours, every hour that passes.
    ("Europe/Berlin", "0 * * * *", "03-28 23:30", ["03-29 00:00", "03-29 01:00", "03-29 02:00", "03-29 03:00"]),
    ("Europe/Berlin", "0 * * * *", "10-24 23:30", ["10-25 00:00", "10-25 01:00", "10-25 02:00", "10-25 03:00"]),
    ("America/New_York", "0 * * * *", "03-08 05:30", ["03-08 06:00", "03-08 07:00", "03-08 08:00"]),
    ("America/New_York", "0 * * * *", "11-01 04:30", ["11-01 05:00", "11-01 06:00", "11-01 07:00"]),
    ("Australia/Lord_Howe", "0 * * * *", "10-03 14:00", ["10-03 14:30", "10-03 16:00", "10-03 17:00"]),
    ("Australia/Lord_Howe", "30 * * * *", "10-03 14:00", ["10-03 15:00", "10-03 15:30", "10-03 16:30"]),
    ("Australia/Lord_Howe", "0 * * * *", "04-04 13:30", ["04-04 14:00", "04-04 15:30", "04-04 16:30"]),
    ("Australia/Lord_Howe", "30 * * * *", "04-04 13:00", ["04-04 13:30", "04-04 14:30", "04-04 15:00", "04-04 16:00"]),
    # Every quarter of an hour: every quarter that passes.
    ("Europe/Berlin", "*/15 * * * *", "03-29 00:30", ["03-29 00:45", "03-29 01:00", "03-29 01:15", "03-29 01:30"]),
    ("Europe/Berlin", "*/15 * * * *", "10-25 00:30", ["10-25 00:45", "10-25 01:00", "10-25 01:15", "10-25 01:30"]),
    ("Europe/Berlin", "*/15 * * * *", "10-25 01:30", ["10-25 01:45", "10-25 02:00", "10-25 02:15"]),
    ("America/New_York", "*/15 * * * *", "03-08 06:30", ["03-08 06:45", "03-08 07:00", "03-08 07:15"]),
    ("America/New_York", "*/15 * * * *", "11-01 05:30", ["11-01 05:45", "11-01 06:00", "11-01 06:15"]),
    ("Australia/Lord_Howe", "*/15 * * * *", "10-03 15:00", ["10-03 15:15", "10-03 15:30", "10-03 15:45"]),
    (
        "Australia/Lord_Howe",
        "*/15 * * * *",
        "04-04 14:30",
        ["04-04 14:45", "04-04 15:00", "04-04 15:15", "04-04 15:30"],
    ),
    # Quarters of one hour: none where it is skipped, twice as many where it comes twice.
    ("Europe/Berlin", "*/30 2 * * *", "03-28 12:00", ["03-30 00:00", "03-30 00:30"]),
    (
        "Europe/Berlin",
        "*/30 2 * * *",
        "10-24 12:00",
        ["10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30", "10-26 01:00"],
    ),
    ("Australia/Lord_Howe", "*/15 2 * * *", "10-03 00:00", ["10-03 15:30", "10-03 15:45", "10-04 15:00"]),
    (
        "Australia/Lord_Howe",
        "*/15 3 * * *",
        "10-03 00:00",
        ["10-03 16:00", "10-03 16:15", "10-03 16:30", "10-03 16:45"],
    ),
    (
        "Australia/Lord_Howe",
        "*/30 1 * * *",
        "04-04 00:00",
        ["04-04 14:00", "04-04 14:30", "04-04 15:00", "04-05 14:30"],
    ),
    ("Australia/Lord_Howe", "*/30 2 * * *", "04-04 00:00", ["04-04 15:30", "04-04 16:00", "04-05 15:30"]),
    # Once a week, on the day itself: Sunday.
    ("Europe/Berlin", "30 2 * * SUN", "03-23 00:00", ["03-29 01:00", "04-05 00:30"]),
    ("Europe/Berlin", "30 2 * * SUN", "10-19 00:00", ["10-25 00:30", "11-01 01:30"]),
]


def utc(text: str) -> float:
    return datetime.fromisoformat(f"2026-{text}").replace(tzinfo=UTC).timestamp()


@pytest.mark.promise("CF-42")
@pytest.mark.parametrize(("tz", "expression", "after", "expected"), CLOCK_CHANGES)
def test_cron_follows_the_clock_on_the_wall_through_its_changes(
    tz: str, expression: str, after: str, expected: list[str]
) -> None:
    cron, now = Cron(expression, tz), utc(after)

    found: list[float] = []
    for _ in expected:
        now = cron.first(now) if not found else cron.next(now, now + 0.25) or math.nan
        found.append(now)

    assert [datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M") for at in found] == expected


@given(
    after=st.floats(utc("01-01 00:00"), utc("12-31 00:00")),
    tz=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"]),
    expression=st.sampled_from(["*/7 * * * *", "15,45 1-3 * * *", "30 2 * * *", "0 * * * *", "*/20 2 1 * *"]),
)
def test_cron_always_goes_on_and_what_comes_is_what_the_expression_says(after: float, tz: str, expression: str) -> None:
    following = Cron(expression, tz).first(after)

    assert following > after
    assert following % 60 == 0
    # Nothing is left out: asked from anywhere in between, the answer is the same.
    assert Cron(expression, tz).first((after + following) / 2) == following or following - after < 1e-3


def test_missed_times_of_cron_are_skipped() -> None:
    cron = Cron("0 * * * *")

    assert cron.next(utc("01-01 10:00"), utc("01-01 10:00")) == utc("01-01 11:00")
    assert cron.next(utc("01-01 10:00"), utc("03-01 10:30")) == utc("03-01 11:00")
    assert cron.next(utc("01-01 10:00"), utc("01-01 09:59")) == utc("01-01 11:00")
