"""What crosses a stub is a copy made by the receiver's annotation, or is refused in a sentence."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple, Optional

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from sapwood.errors import InvalidArguments, NotCopyable, OverLimit
from sapwood.kernel.marshal.copier import Copier

LIMIT = 1_000_000


def copy(annotation: Any, value: object, limit: int = LIMIT) -> Any:
    return Copier(annotation, "The thing").copy(value, limit)


class Wood(Enum):
    OAK = "oak"


@dataclass
class Plank:
    wood: Wood
    lengths: list[float]


class Struct(msgspec.Struct):
    planks: tuple[Plank, ...]


class Model(BaseModel):
    name: str
    planks: list[int] = []


class Point(NamedTuple):
    x: int
    y: int


plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(plain)
def test_plain_data_arrives_equal_whatever_it_is(value: Any) -> None:
    assert copy(Any, value) == value
    assert copy(object, value) == value
    assert copy(list[object], [value]) == [value]


@pytest.mark.slow
@given(plain.filter(lambda value: isinstance(value, list | dict)))
def test_what_can_change_is_never_the_same_object(value: Any) -> None:
    assert copy(Any, value) is not value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Plank, Plank(Wood.OAK, [1.5])),
        (Struct, Struct((Plank(Wood.OAK, []),))),
        (Model, Model(name="m", planks=[1])),
        (list[Model], [Model(name="m")]),
        (dict[str, Plank], {"a": Plank(Wood.OAK, [])}),
        (Point, Point(1, 2)),
        (set[int], {1, 2}),
        (frozenset[str], frozenset({"a"})),
        (tuple[int, str], (1, "a")),
        (datetime, datetime(2026, 1, 1, tzinfo=UTC)),
        (date, date(2026, 1, 1)),
        (timedelta, timedelta(seconds=1.5)),
        (Decimal, Decimal("1.10")),
        (uuid.UUID, uuid.UUID(int=7)),
        (Wood, Wood.OAK),
        (Optional[Plank], None),  # noqa: UP045 - users write it
        (Plank | None, Plank(Wood.OAK, [])),
        (Literal["a", "b"], "b"),
        (bytes, b"\0\xff"),
        (bytearray, bytearray(b"ab")),
        (float, 1.5),
    ],
    ids=lambda value: str(getattr(value, "__name__", value))[:30],
)
def test_types_survive(annotation: Any, value: object) -> None:
    arrived = copy(annotation, value)

    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize("value", [1, 1.5, True, None, "text", b"bytes", 2**100])
def test_what_cannot_change_passes_as_it_is(value: object) -> None:
    assert copy(Any, value) is value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "1"),
        (int, 1.5),
        (int, True),
        (str, 1),
        (str, None),
        (bool, 1),
        (list[int], ["a"]),
        (list[int], "abc"),
        (dict[str, int], {1: 1}),
        (Plank, {"wood": "elm", "lengths": []}),
        (Plank, 7),
        (Model, {"planks": []}),
        (tuple[int, int], [1]),
        (Wood, "elm"),
        (None, 1),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_and_named(annotation: Any, value: object) -> None:
    with pytest.raises(InvalidArguments, match="The thing does not fit"):
        copy(annotation, value)


def test_a_whole_number_fits_where_a_fraction_is_wanted() -> None:
    arrived = copy(float, 2)

    assert arrived == 2.0
    assert isinstance(arrived, float)


def loop() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize(
    "value",
    [object(), [object()], {"f": open}, [2**80], ["\ud800"], loop(), Exception("no"), iter([1]), {1: object()}],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_copied_is_refused_and_named(value: object) -> None:
    with pytest.raises(NotCopyable, match="The thing cannot be copied"):
        copy(Any, value)


class Custom:
    pass


def test_an_annotation_that_means_nothing_to_a_copy_is_refused_and_named() -> None:
    for annotation in (Custom, list[Custom], Callable[[], None]):
        with pytest.raises(NotCopyable, match="The thing"):
            copy(annotation, [1])


def test_the_limit_counts_what_is_copied() -> None:
    assert copy(Any, "x" * 100, 100) == "x" * 100
    for value in ("x" * 101, b"x" * 101, ["x" * 100], [1] * 200, {"a": "x" * 100}):
        with pytest.raises(OverLimit, match="The thing has") as caught:
            copy(Any, value, 100)
        assert caught.value.limit == "payload_bytes"


def test_a_limit_of_zero_lets_no_text_through() -> None:
    with pytest.raises(OverLimit):
        copy(str, "x", 0)
    assert copy(int, 7, 0) == 7


def test_a_model_with_defaults_and_validators_is_validated_again_on_arrival() -> None:
    class Strict(BaseModel):
        even: int

        def model_post_init(self, context: Any) -> None:
            assert self.even % 2 == 0

    assert copy(Strict, Strict(even=2)) == Strict(even=2)
