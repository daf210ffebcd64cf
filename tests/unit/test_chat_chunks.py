"""Events of a model become chunks, and chunks become the message that a client of the AI SDK would build."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import BinaryImage
from pydantic_ai.messages import (
    FilePart,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
)
from tests.conformance.chats import built

from sapwood.chat.store.chunks import Projection, assembled, closed, json_of, merged

EMPTY: dict[str, Any] = {"id": "m", "role": "assistant", "parts": []}


def projected(*events: Any, step: int = 1) -> list[dict[str, Any]]:
    projection = Projection(step)
    return [chunk for event in events for chunk in projection.event(event)]


def test_text_begins_grows_and_ends_under_an_id_of_its_step() -> None:
    chunks = projected(
        PartStartEvent(index=0, part=TextPart("Hel")),
        PartDeltaEvent(index=0, delta=TextPartDelta("lo")),
        PartDeltaEvent(index=0, delta=TextPartDelta("")),
        PartEndEvent(index=0, part=TextPart("Hello")),
        step=3,
    )

    assert chunks == [
        {"type": "text-start", "id": "3-0"},
        {"type": "text-delta", "id": "3-0", "delta": "Hel"},
        {"type": "text-delta", "id": "3-0", "delta": "lo"},
        {"type": "text-end", "id": "3-0"},
    ]


def test_thoughts_are_reasoning() -> None:
    chunks = projected(
        PartStartEvent(index=0, part=ThinkingPart("")),
        PartDeltaEvent(index=0, delta=ThinkingPartDelta(content_delta="hm")),
        PartDeltaEvent(index=0, delta=ThinkingPartDelta(signature_delta="xyz")),
        PartEndEvent(index=0, part=ThinkingPart("hm")),
    )

    assert [chunk["type"] for chunk in chunks] == ["reasoning-start", "reasoning-delta", "reasoning-end"]
    assert assembled(chunks, EMPTY)["parts"] == [{"type": "reasoning", "text": "hm", "state": "done"}]


def test_a_tool_call_is_typed_then_available_then_has_its_output() -> None:
    part = ToolCallPart("add", '{"a":1}', "c1")
    chunks = projected(
        PartStartEvent(index=1, part=ToolCallPart("add", None, "c1")),
        PartDeltaEvent(index=1, delta=ToolCallPartDelta(args_delta='{"a"')),
        PartDeltaEvent(index=1, delta=ToolCallPartDelta(args_delta=":1}")),
        PartEndEvent(index=1, part=part),
        FunctionToolCallEvent(part, args_valid=True),
        FunctionToolResultEvent(ToolReturnPart("add", {"sum": 1}, "c1")),
    )

    assert chunks == [
        {"type": "tool-input-start", "toolCallId": "c1", "toolName": "add"},
        {"type": "tool-input-delta", "toolCallId": "c1", "inputTextDelta": '{"a"'},
        {"type": "tool-input-delta", "toolCallId": "c1", "inputTextDelta": ":1}"},
        {"type": "tool-input-available", "toolCallId": "c1", "toolName": "add", "input": {"a": 1}},
        {"type": "tool-output-available", "toolCallId": "c1", "output": {"sum": 1}},
    ]
    assert assembled(chunks, EMPTY)["parts"] == [
        {
            "type": "tool-add",
            "toolCallId": "c1",
            "state": "output-available",
            "input": {"a": 1},
            "output": {"sum": 1},
        }
    ]


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ("success", "tool-output-available"),
        ("failed", "tool-output-error"),
        ("retried", "tool-output-error"),
        ("denied", "tool-output-denied"),
    ],
)
def test_a_return_says_how_the_call_ended(outcome: Any, kind: str) -> None:
    (chunk,) = projected(FunctionToolResultEvent(ToolReturnPart("add", "x", "c1", outcome=outcome)))

    assert chunk["type"] == kind


def test_a_file_of_the_model_is_not_shown_before_it_is_stored() -> None:
    assert not projected(PartStartEvent(index=0, part=FilePart(BinaryImage(b"x", media_type="image/png"))))

    chunk = {"type": "file", "url": "/agents/talker/t/files/0", "mediaType": "image/png"}
    assert assembled([chunk], EMPTY)["parts"] == [chunk]


def test_what_json_does_not_have_becomes_what_it_has() -> None:
    assert json_of({"a": (1, 2), "b": b"x", "c": {3}}) == {"a": [1, 2], "b": "x", "c": [3]}


def test_data_is_kept_replaced_by_its_id_and_left_out_if_transient() -> None:
    message = assembled(
        [
            {"type": "data-weather", "id": "w", "data": 1},
            {"type": "data-weather", "id": "w", "data": 2},
            {"type": "data-note", "data": "a"},
            {"type": "data-note", "data": "b"},
            {"type": "data-progress", "data": 0.5, "transient": True},
        ],
        EMPTY,
    )

    assert message["parts"] == [
        {"type": "data-weather", "id": "w", "data": 2},
        {"type": "data-note", "data": "a"},
        {"type": "data-note", "data": "b"},
    ]


def test_metadata_comes_from_start_finish_and_between() -> None:
    message = assembled(
        [
            {"type": "start", "messageMetadata": {"a": 1}},
            {"type": "message-metadata", "messageMetadata": {"b": 2}},
            {"type": "finish", "messageMetadata": {"a": 3}},
        ],
        EMPTY,
    )

    assert message["metadata"] == {"a": 3, "b": 2}
    assert "metadata" not in assembled([{"type": "start"}, {"type": "finish"}], EMPTY)


def test_a_continuation_adds_to_the_parts_there_are_and_answers_the_calls_in_them() -> None:
    before = assembled(
        [
            {"type": "start-step"},
            {"type": "tool-input-start", "toolCallId": "c", "toolName": "beep"},
            {"type": "tool-input-available", "toolCallId": "c", "toolName": "beep", "input": {}},
        ],
        EMPTY,
    )

    after = assembled(
        [
            {"type": "tool-output-available", "toolCallId": "c", "output": 1},
            {"type": "start-step"},
            {"type": "text-start", "id": "2-0"},
            {"type": "text-delta", "id": "2-0", "delta": "ok"},
            {"type": "text-end", "id": "2-0"},
        ],
        before,
    )

    assert [part["type"] for part in after["parts"]] == ["step-start", "tool-beep", "step-start", "text"]
    assert after["parts"][1]["output"] == 1
    assert before["parts"][1]["state"] == "input-available"


def test_what_nobody_goes_on_with_is_closed() -> None:
    states = ["input-streaming", "input-available", "approval-requested", "approval-responded", "output-available"]
    parts: list[dict[str, Any]] = [{"type": "text", "text": "a", "state": "streaming"}]
    parts += [{"type": "tool-x", "toolCallId": state, "state": state} for state in states]

    message = closed({**EMPTY, "parts": parts})

    assert [part["state"] for part in message["parts"]] == ["done", *["output-error"] * 4, "output-available"]
    assert message["parts"][1]["errorText"]


def stream() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Make streams as turns have them: steps of texts and tool calls, perhaps cut off."""

    def of_step(step: int, what: list[tuple[str, list[str], bool]]) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = [{"type": "start-step"}]
        for at, (kind, pieces, ends) in enumerate(what):
            id = f"{step}-{at}"
            if kind == "tool":
                chunks.append({"type": "tool-input-start", "toolCallId": id, "toolName": "t"})
                chunks += [{"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": one} for one in pieces]
                whole = {"type": "tool-input-available", "toolCallId": id, "toolName": "t", "input": pieces}
                out = {"type": "tool-output-available", "toolCallId": id, "output": pieces}
                chunks += [whole, out] if ends else [whole]
            else:
                chunks.append({"type": f"{kind}-start", "id": id})
                chunks += [{"type": f"{kind}-delta", "id": id, "delta": one} for one in pieces]
                chunks += [{"type": f"{kind}-end", "id": id}] if ends else []
        return [*chunks, {"type": "finish-step"}]

    part = st.tuples(
        st.sampled_from(["text", "reasoning", "tool"]), st.lists(st.text("ab", min_size=1), max_size=4), st.booleans()
    )
    steps = st.lists(st.lists(part, max_size=3), min_size=1, max_size=3)
    return steps.map(lambda found: [chunk for number, one in enumerate(found, 1) for chunk in of_step(number, one)])


@pytest.mark.slow
@given(stream())
def test_what_is_stored_is_what_a_client_builds_and_merging_changes_nothing(chunks: list[dict[str, Any]]) -> None:
    theirs = built([{"type": "start", "messageId": "m"}, *chunks])

    assert assembled(chunks, EMPTY) == theirs
    assert assembled(merged(chunks), EMPTY) == theirs
    assert built([{"type": "start", "messageId": "m"}, *merged(chunks)]) == theirs
    assert json.loads(json.dumps(theirs)) == theirs


@pytest.mark.slow
@given(stream(), st.data())
def test_a_stream_cut_anywhere_and_put_together_is_the_stream(
    chunks: list[dict[str, Any]], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(chunks)))

    assert assembled([*merged(chunks[:at]), *merged(chunks[at:])], EMPTY) == assembled(chunks, EMPTY)
