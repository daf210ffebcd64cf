"""Limits combine to the tightest, field by field."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, asdict, fields, replace
from math import nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.errors import UsageError
from sapwood.periods import PERIODS, Per
from sapwood.settings import Durability, Limits, Settings

numbers = st.integers(0, 2**40)
PER_MONTH = "Limits(dollars='5'): expected a number of at least 0, or a limit per period, such as Per(\"month\", 5)."
GROWTH = {name: value for name, value in asdict(Limits()).items() if value is not None}
"""What a tree may grow to; what it may use has no limit until somebody sets one."""
plain = st.builds(
    Limits, **{field.name: numbers if field.name in GROWTH else st.none() | numbers for field in fields(Limits)}
)
budgets = st.lists(numbers | st.builds(Per, st.sampled_from(PERIODS), numbers), max_size=3).map(tuple)
limits = st.builds(replace, plain, tokens=budgets, dollars=budgets)


@pytest.mark.slow
@given(plain, plain)
def test_the_tighter_of_two_limits_wins_in_every_field(one: Limits, other: Limits) -> None:
    both = one.within(other)

    for name, value in asdict(both).items():
        assert value == min(
            (limit for limit in (getattr(one, name), getattr(other, name)) if limit is not None), default=None
        )


@pytest.mark.slow
@given(limits, limits, limits)
def test_it_does_not_matter_in_which_order_limits_combine(a: Limits, b: Limits, c: Limits) -> None:
    assert a.within(b) == b.within(a)
    assert a.within(b).within(c) == a.within(b.within(c))
    assert a.within(a) == a


def test_zero_means_zero() -> None:
    assert Limits(depth=0).within(Limits()).depth == 0
    assert Limits().within(Limits(children=0)).children == 0
    assert Limits(tokens=0).within(Limits()).tokens == 0
    assert Limits().within(Limits(dollars=0)).dollars == 0


def test_every_limit_of_growth_is_on_by_default_and_of_use_none() -> None:
    assert all(0 < value < 2**40 for value in GROWTH.values())
    assert set(asdict(Limits())) - set(GROWTH) == {"tokens", "dollars", "runs_at_once", "runs_per_minute"}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("tokens", 1.5, "Limits(tokens=1.5): expected an integer of at least 0."),
        ("tokens", -1, "Limits(tokens=-1): expected an integer of at least 0."),
        ("depth", None, "Limits(depth=None): expected an integer of at least 0."),
        ("dollars", -0.01, "Limits(dollars=-0.01): expected a number of at least 0."),
        ("dollars", float("nan"), "Limits(dollars=nan): expected a number of at least 0."),
        ("dollars", "5", PER_MONTH),
    ],
)
def test_a_limit_that_is_none_is_refused(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(sentence)}$"):
        Limits(**{name: value})


@pytest.mark.parametrize("price", [1, (1.0,), ("1", "2"), (-1, 2), (1, float("inf"))])
def test_a_price_has_two_numbers(price: Any) -> None:
    with pytest.raises(UsageError, match="expected two numbers of at least 0"):
        Settings(prices={"my-model": price})


def test_settings_cannot_be_changed_once_made() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().threads = 1  # pyright: ignore[reportAttributeAccessIssue]


REPLICATED_NEEDS = (
    "Settings(durability='replicated') stores all data in NATS and in object storage. "
    "Set nats='nats://one,nats://two', or SAPWOOD_NATS."
)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("data", None, "Settings(data=None): expected a path."),
        ("durability", 2, "Settings(durability=2): expected a Durability or its value."),
        ("durability", "disc", "Settings(durability='disc'): expected 'process', 'disk' or 'replicated'."),
        ("limits", 5, "Settings(limits=5): expected Limits(…)."),
        ("sleep_after", "5", "Settings(sleep_after='5'): expected a number of at least 0."),
        ("threads", 1.5, "Settings(threads=1.5): expected an integer of at least 1."),
        ("threads", True, "Settings(threads=True): expected an integer of at least 1."),
        ("threads", 0, "Settings(threads=0): expected an integer of at least 1."),
        ("open_databases", "9", "Settings(open_databases='9'): expected an integer of at least 1, or None."),
        ("open_databases", 0, "Settings(open_databases=0): expected an integer of at least 1, or None."),
        ("new_roots_per_minute", -1, "Settings(new_roots_per_minute=-1): expected an integer of at least 0, or None."),
        ("sleep_after", -5, "Settings(sleep_after=-5): expected a number of at least 0."),
        ("sleep_after", nan, "Settings(sleep_after=nan): expected a number of at least 0."),
        ("sql_timeout", -1, "Settings(sql_timeout=-1): expected a number above 0."),
        ("slow_after", 0.0, "Settings(slow_after=0.0): expected a number above 0."),
        ("connections", -1, "Settings(connections=-1): expected an integer of at least 1."),
        ("request_bytes", -1, "Settings(request_bytes=-1): expected an integer of at least 0."),
        ("model_requests_at_once", 0, "Settings(model_requests_at_once=0): expected an integer of at least 1."),
        ("model_requests_per_minute", 0, "Settings(model_requests_per_minute=0): expected an integer of at least 1."),
        ("check_state", 1, "Settings(check_state=1): expected True or False."),
        (
            "durability",
            "replicated",
            REPLICATED_NEEDS,
        ),
        (
            "nats",
            "nats://a",
            "Settings(nats=…) requires durability='replicated'. Set both, or neither.",
        ),
        ("cluster", "a.b", "Settings(cluster='a.b'): expected at most 64 letters, digits, hyphens and underscores."),
        ("node", "a b", "Settings(node='a b'): expected at most 64 letters, digits, hyphens and underscores."),
    ],
)
def test_a_setting_of_the_wrong_type_is_refused_when_it_is_made(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(sentence)}$"):
        Settings(**{name: value})


def test_seconds_may_be_whole_and_a_folder_may_be_any_path() -> None:
    settings = Settings(data=Path("data"), sleep_after=5, open_databases=9, durability=Durability.DISK)

    assert (settings.data, settings.sleep_after) == (Path("data"), 5)


def test_a_level_of_durability_may_be_written_as_text() -> None:
    assert Settings(durability="disk").durability == Durability.DISK
    assert Durability.PROCESS == "process"
