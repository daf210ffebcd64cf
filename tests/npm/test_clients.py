"""The unmodified npm clients work with sapwood, and every difference from the original is told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.npm.differences import PAGE, differences, fits, table


def sockets(transcript: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for scenario in transcript.values():
        for records in scenario["clients"].values():
            yield from records


@pytest.mark.promise("A-77")
def test_the_clients_see_what_they_should(ours: dict[str, Any]) -> None:
    assert {name: scenario["failures"] for name, scenario in ours.items() if scenario["failures"]} == {}


@pytest.mark.nightly
def test_every_difference_from_the_original_is_in_the_reference(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    rows = table()

    found = differences(theirs, ours)

    assert {place: pair for place, pair in found.items() if not any(fits(row, place, pair) for row in rows)} == {}


@pytest.mark.nightly
def test_the_reference_tells_of_no_difference_that_is_none(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    found = differences(theirs, ours)

    rows = table()

    assert [row for row in rows if not any(fits(row, place, pair) for place, pair in found.items())] == []
    assert [row for row in rows if not row.why] == []


CHAT = ("cf_agent_chat_", "cf_agent_use_chat_", "cf_agent_stream_", "cf_agent_tool_", "cf_agent_message_")
"""How the frames of a chat begin, which no plain agent sends."""
ASKED = "sapwood_questions"
"""What only those are told below whom somebody asks."""


def test_every_type_of_frame_and_every_close_code_that_occurs_is_in_the_reference(ours: dict[str, Any]) -> None:
    page = PAGE.read_text()

    said = {frame["type"] for socket in sockets(ours) for frame in socket["received"] if "type" in frame}
    codes = {int(socket["closed"].split()[0]) for socket in sockets(ours) if "closed" in socket}

    known = set(re.findall(r"^### `(\w+)`$", page, flags=re.MULTILINE))
    assert said == {frame for frame in known - {ASKED} if not frame.startswith(CHAT)}
    assert {code for code in codes if code < 4000 and f"| {code} |" not in page} == {1008}
