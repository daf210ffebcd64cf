"""Rows are values: read already, by column name, converted on demand."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TypedDict

import msgspec
import pytest

from sapwood.errors import UsageError
from sapwood.storage.rows import Rows

NONE = Rows(("id", "name"), [])
ONE = Rows(("id", "name"), [(1, "oak")])
TWO = Rows(("id", "name"), [(1, "oak"), (2, "elm")])


@dataclass
class Tree:
    id: int
    name: str
    felled: bool = False


class Struct(msgspec.Struct):
    id: int
    name: str


class Typed(TypedDict):
    id: int
    name: str


def test_rows_are_a_sequence_of_dictionaries() -> None:
    assert len(TWO) == 2
    assert list(TWO) == [{"id": 1, "name": "oak"}, {"id": 2, "name": "elm"}]
    assert TWO[-1] == {"id": 2, "name": "elm"}
    assert list(TWO[1:]) == [{"id": 2, "name": "elm"}]
    assert {"id": 1, "name": "oak"} in TWO
    assert repr(ONE) == "Rows([{'id': 1, 'name': 'oak'}])"


def test_rows_can_be_read_any_number_of_times() -> None:
    assert list(TWO) == list(TWO)


def test_no_rows_are_false() -> None:
    assert not NONE
    assert ONE


def test_one_wants_exactly_one_row() -> None:
    assert ONE.one() == {"id": 1, "name": "oak"}
    with pytest.raises(UsageError, match="exactly one row, got 0"):
        NONE.one()
    with pytest.raises(UsageError, match="exactly one row, got 2"):
        TWO.one()


def test_first_is_none_when_there_is_none() -> None:
    assert TWO.first() == {"id": 1, "name": "oak"}
    assert NONE.first() is None


def test_a_scalar_is_the_only_column_of_the_only_row() -> None:
    assert Rows(("n",), [(7,)]).scalar(int) == 7
    for wrong in (NONE, ONE, TWO, Rows(("n",), []), Rows(("n",), [(1,), (2,)])):
        with pytest.raises(UsageError, match="one row with one column"):
            wrong.scalar(int)


def test_a_scalar_is_converted_to_what_sqlite_has_no_type_for() -> None:
    assert Rows(("n",), [(1,)]).scalar(bool) is True
    assert Rows(("n",), [("1.50",)]).scalar(Decimal) == Decimal("1.50")
    assert Rows(("n",), [("2026-01-01T00:00:00Z",)]).scalar(datetime) == datetime(2026, 1, 1, tzinfo=UTC)


def test_a_scalar_of_another_type_is_refused() -> None:
    with pytest.raises(UsageError, match="type int, got 'oak'"):
        Rows(("n",), [("oak",)]).scalar(int)
    with pytest.raises(UsageError, match="type int, got None"):
        Rows(("n",), [(None,)]).scalar(int)


def test_a_refused_scalar_names_a_union_too() -> None:
    wanted: type = int | None  # pyright: ignore[reportAssignmentType]

    assert Rows(("n",), [(None,)]).scalar(wanted) is None
    with pytest.raises(UsageError, match=r"int \| None"):
        Rows(("n",), [("oak",)]).scalar(wanted)


def test_rows_become_dataclasses_structs_or_typed_dicts() -> None:
    assert TWO.into(Tree) == [Tree(1, "oak"), Tree(2, "elm")]
    assert TWO.into(Struct) == [Struct(1, "oak"), Struct(2, "elm")]
    assert TWO.into(Typed) == [{"id": 1, "name": "oak"}, {"id": 2, "name": "elm"}]


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="missing required field `name`"):
        Rows(("id",), [(1,)]).into(Tree)


def test_two_columns_of_one_name_are_refused_when_asked_for_by_name() -> None:
    # Silently one of the two would be dropped: SELECT a.id, b.id FROM a JOIN b.
    rows = Rows(("id", "id"), [(1, 2)])

    with pytest.raises(UsageError, match="'id'"):
        rows.one()
    with pytest.raises(UsageError, match="AS"):
        list(rows)
