"""The output items of a response, computed from the events of a turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.address import Address
from sapwood.protocols.openai_ids import (
    call_id,
    conversation_id,
    item_id,
    read_call_id,
    read_conversation_id,
    read_response_id,
    response_id,
)
from sapwood.protocols.openai_items import Json, OutputItems
from sapwood.runs.events.events import Event, turn_event

DESK = Address.root_of("Desk", "d/ä:1")
TAIL = "0123456789abcdef" * 2


def told(*chunks: Json) -> tuple[OutputItems, list[Json]]:
    """Return what a turn that streams these chunks tells."""
    items = OutputItems(TAIL, "Desk", {"look"})
    events: list[Event] = [turn_event(DESK.segments, at, 0.0, chunk) for at, chunk in enumerate(chunks, 1)]
    return items, [one for event in events for one in items.tell(event)]


def test_reasoning_is_an_item_with_a_summary() -> None:
    items, events = told(
        {"type": "reasoning-start", "id": "1-0"},
        {"type": "reasoning-delta", "id": "1-0", "delta": "let "},
        {"type": "reasoning-delta", "id": "1-0", "delta": "me"},
        {"type": "reasoning-end", "id": "1-0"},
    )
    (item,) = items.output()
    assert (item["type"], item["summary"], item["status"]) == (
        "reasoning",
        [{"type": "summary_text", "text": "let me"}],
        "completed",
    )
    assert [event["type"] for event in events][-1] == "response.output_item.done"


def test_what_is_retracted_is_incomplete_and_what_was_complete_is_left_out() -> None:
    items, events = told(
        {"type": "text-start", "id": "1-0"},
        {"type": "text-delta", "id": "1-0", "delta": "kept"},
        {"type": "text-end", "id": "1-0"},
        {"type": "text-start", "id": "2-0"},
        {"type": "text-end", "id": "2-0"},
        {"type": "text-start", "id": "2-1"},
        {"type": "text-delta", "id": "2-1", "delta": "once"},
        {"type": "retracted", "after": 3},
        {"type": "text-start", "id": "2-0"},
        {"type": "text-delta", "id": "2-0", "delta": "there"},
        {"type": "text-end", "id": "2-0"},
    )
    assert [item["content"][0]["text"] for item in items.output()] == ["kept", "there"]
    ended = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["status"] for item in ended] == ["completed", "completed", "incomplete", "completed"]
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [0, 1, 2, 3]
    assert items.close() == []


def test_a_tool_that_fails_is_a_call_that_failed_and_the_tool_of_an_output_is_not_told() -> None:
    items, _ = told(
        {"type": "tool-input-available", "toolCallId": "a", "toolName": "weigh", "input": {"n": 1}},
        {"type": "tool-output-error", "toolCallId": "a", "errorText": "too heavy"},
        {"type": "tool-input-start", "toolCallId": "b", "toolName": "final_result"},
        {"type": "tool-input-available", "toolCallId": "b", "toolName": "final_result", "input": {}},
        {"type": "tool-output-available", "toolCallId": "b", "output": "ok"},
    )
    (item,) = items.output()
    assert (item["type"], item["status"], item["error"], item["arguments"]) == (
        "mcp_call",
        "failed",
        "too heavy",
        '{"n":1}',
    )


def test_ids_name_their_agent() -> None:
    assert read_response_id(response_id(DESK, TAIL)) == ("Desk", "d/ä:1", TAIL)
    assert read_conversation_id(conversation_id(DESK)) == ("Desk", "d/ä:1", "")
    found = read_call_id(call_id(DESK, item_id("fc", TAIL, 7)))
    assert found == (("Desk", "d/ä:1", TAIL), f"{TAIL}0007")


@given(st.text(max_size=200))
def test_any_other_text_names_nothing_or_a_possible_agent(text: str) -> None:
    for prefix in ("", "resp_", "conv_", "call_"):
        for read in (read_response_id, read_conversation_id, read_call_id):
            found = read(prefix + text)
            assert found is None or isinstance(found, tuple)


@pytest.mark.parametrize("id", ["resp_" + "A" * 5 + TAIL, "resp_\x00" + TAIL, "resp_" + TAIL, "resp_é" + TAIL])
def test_a_broken_id_names_nothing(id: str) -> None:
    assert read_response_id(id) is None
