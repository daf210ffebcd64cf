"""What goes to another process without an annotation arrives as what it was."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

from sapwood.errors import NotCopyable
from sapwood.kernel.marshal.values import Value, pack, value_from, value_of
from sapwood.types import Address


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Parcelled:
    at: int
    parts: tuple[int, ...] = ()
    below: list[Parcelled] = field(default_factory=list["Parcelled"])


class ParcelledModel(BaseModel):
    at: datetime


class ParcelledStruct(msgspec.Struct):
    at: int


class Spot(NamedTuple):
    x: int
    name: str


def there(value: object) -> Any:
    """Return what another process makes of a value."""
    return value_from(msgspec.msgpack.decode(pack(value_of(value)), type=Value))


NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
ODD: list[Any] = [2**70, -(2**80), "half \ud800"]
"""What msgpack has not; alone it goes to others, inside of something to nobody, also in one process."""
USUAL: list[Any] = [
    *(None, True, 3, 2.5, "text", b"bytes"),
    *(NOW, NOW.replace(tzinfo=None), date(2026, 1, 2), time(3, 4), timedelta(seconds=3), Decimal("1.20")),
    *(UUID(int=7), Colour.RED, Spot(1, "a"), ParcelledStruct(1), ParcelledModel(at=NOW)),
    Parcelled(1, (2, 3), [Parcelled(4)]),
    Address.root_of("Type", "name").segments,
    (("three", "of", "them"),),
]


@pytest.mark.parametrize("value", [*USUAL, *ODD], ids=lambda value: type(value).__name__)
def test_a_value_keeps_its_type(value: object) -> None:
    found = there(value)

    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("value", USUAL, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "around",
    [
        lambda value: [value, 1],
        lambda value: (value,),
        lambda value: {"key": value},
        lambda value: {"deep": [{"key": (value, [value])}]},
    ],
)
def test_a_value_keeps_its_type_inside_of_others(value: object, around: Any) -> None:
    whole = around(value)
    found = there(whole)

    assert (found, repr(found)) == (whole, repr(whole))


@pytest.mark.parametrize(
    "value",
    [
        {Colour.RED: [Spot(1, "a")], (1, 2): Decimal("0.1"), 3: frozenset({UUID(int=1)})},
        {Spot(1, "a")},
        [[], {}, (), set[int](), [[Parcelled(1)]]],
    ],
)
def test_keys_members_and_empty_ones_keep_their_types(value: object) -> None:
    assert repr(there(value)) == repr(value)


def test_what_is_of_a_class_that_the_other_process_cannot_find_arrives_as_what_it_holds() -> None:
    @dataclass
    class Local:
        at: int

    assert there([Local(1)]) == [{"at": 1}]


def test_what_holds_itself_is_refused() -> None:
    endless: list[Any] = [Spot(1, "a")]
    endless.append(endless)

    with pytest.raises(NotCopyable):
        value_of(endless)


def test_what_cannot_be_copied_is_refused_also_inside_of_others() -> None:
    with pytest.raises(NotCopyable):
        value_of([Spot(1, "a"), object()])
