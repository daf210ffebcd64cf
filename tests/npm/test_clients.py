"""The unmodified npm clients work with sapwood, and every difference from the original is told."""

from __future__ import annotations

from typing import Any

from tests.npm.differences import differences, fits, table


def test_the_clients_see_what_they_should(ours: dict[str, Any]) -> None:
    assert {name: scenario["failures"] for name, scenario in ours.items() if scenario["failures"]} == {}


def test_every_difference_from_the_original_is_in_the_reference(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    rows = table()

    found = differences(theirs, ours)

    assert {place: pair for place, pair in found.items() if not any(fits(row, place, pair) for row in rows)} == {}


def test_the_reference_tells_of_no_difference_that_is_none(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    found = differences(theirs, ours)

    rows = table()

    assert [row for row in rows if not any(fits(row, place, pair) for place, pair in found.items())] == []
    assert [row for row in rows if not row.why] == []
