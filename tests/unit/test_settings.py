"""Limits combine to the tightest, field by field."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.settings import Durability, Limits, Settings

numbers = st.integers(0, 2**40)
limits = st.builds(Limits, **{field.name: numbers for field in fields(Limits)})


@given(limits, limits)
def test_the_tighter_of_two_limits_wins_in_every_field(one: Limits, other: Limits) -> None:
    both = one.within(other)

    for name, value in asdict(both).items():
        assert value == min(getattr(one, name), getattr(other, name))


@given(limits, limits, limits)
def test_it_does_not_matter_in_which_order_limits_combine(a: Limits, b: Limits, c: Limits) -> None:
    assert a.within(b) == b.within(a)
    assert a.within(b).within(c) == a.within(b.within(c))
    assert a.within(a) == a


def test_zero_means_zero() -> None:
    assert Limits(depth=0).within(Limits()).depth == 0
    assert Limits().within(Limits(children=0)).children == 0


def test_every_limit_is_on_by_default() -> None:
    assert all(0 < value < 2**40 for value in asdict(Limits()).values())


def test_settings_cannot_be_changed_once_made() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().threads = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_a_level_of_durability_may_be_written_as_text() -> None:
    assert Durability("disk") is Durability.DISK
    assert Durability.PROCESS == "process"
