"""Conversations and runs in the words of Helix: the names of fields are a contract."""

from __future__ import annotations

import ast
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import sapwood.wire
from sapwood.address import Address, PathSegment
from sapwood.runs.events.events import Event
from sapwood.runs.tables.runs_table import Run
from sapwood.wire.helix import SUBAGENT, Helix, agent_type, is_subagent_tool, recorded, session_id, sub_session_ref

AGENTS = {"summarize": "Summarizer"}
DESK = Address.root_of("Desk", "d")


def asked(*calls: tuple[str, str, Any]) -> dict[str, Any]:
    parts = [
        {"part_kind": "tool-call", "tool_name": name, "tool_call_id": id, "args": args} for id, name, args in calls
    ]
    return {"kind": "response", "parts": [{"part_kind": "text", "content": "Let me see."}, *parts]}


def returned(id: str, name: str, content: Any, outcome: str = "success") -> dict[str, Any]:
    part = {"part_kind": "tool-return", "tool_name": name, "tool_call_id": id, "content": content, "outcome": outcome}
    return {"kind": "request", "parts": [part]}


@pytest.mark.promise("A-167")
def test_a_tool_whose_calls_are_runs_is_marked_and_named_after_its_agent() -> None:
    (told,) = recorded([asked(("s1", "summarize", '{"texts": ["a"]}'), ("t1", "search", {"q": "b"}))], AGENTS)

    assert told == {
        "role": "assistant",
        "content": "Let me see.",
        "toolCalls": [
            {"id": "s1", "name": "subagent__Summarizer", "arguments": {"texts": ["a"]}},
            {"id": "t1", "name": "search", "arguments": {"q": "b"}},
        ],
    }
    names = [call["name"] for call in told["toolCalls"]]
    assert SUBAGENT == "subagent__"
    assert [is_subagent_tool(name) for name in names] == [True, False]
    assert agent_type(names[0]) == "Summarizer"


def test_what_a_run_put_out_is_recorded_as_the_result_of_its_tool_call() -> None:
    assert recorded([returned("s1", "summarize", {"summary": "short"})], AGENTS) == [
        {
            "role": "tool",
            "toolCallId": "s1",
            "toolName": "subagent__Summarizer",
            "content": '{"summary":"short"}',
        }
    ]


def test_a_run_that_failed_is_recorded_as_a_result_with_its_error() -> None:
    failure = '{"ok":false,"status":"failed","error":"Max steps exceeded","retryable":false}'

    for content in (failure, {"ok": False, "error": "Max steps exceeded"}, "Max steps exceeded"):
        (told,) = recorded([returned("s1", "summarize", content, "failed")], AGENTS)
        assert told["content"] == '{"error":"Max steps exceeded"}'


def test_what_was_said_is_recorded_by_role() -> None:
    parts = [{"part_kind": "system-prompt", "content": "Be kind."}, {"part_kind": "user-prompt", "content": "Hello"}]
    retry = {"part_kind": "retry-prompt", "content": "No tool.", "tool_name": None}

    assert recorded([{"kind": "request", "parts": [*parts, retry]}], {}) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
    ]


def run(status: Any, **more: Any) -> Run:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    return Run("r1", PathSegment("Summarizer", "r1"), status, None, tool_call="s1", started_at=began, **more)


@pytest.mark.promise("A-205", "A-206", "A-207", "A-259", "B-40")
def test_a_reference_to_a_run_has_all_fields_under_all_their_names() -> None:
    ended = datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)

    assert sub_session_ref(run("completed", output={"summary": "short"}, ended_at=ended), DESK) == {
        "id": "r1",
        "subSessionId": "Desk:d/Summarizer:r1",
        "toolCallId": "s1",
        "parentToolCallId": "s1",
        "agentType": "Summarizer",
        "status": "completed",
        "mode": "ephemeral",
        "name": "r1",
        "startedAt": 1767225600000,
        "completedAt": 1767225601000,
        "output": {"summary": "short"},
    }
    failed = sub_session_ref(
        run("failed", error="No.", ended_at=ended), DESK, "persistent", {"url": "u", "session": "x", "seq": 3}
    )
    assert (failed["error"], failed["mode"]) == ("No.", "persistent")
    assert failed["remote"] == {"streamId": "x", "lastSequence": 3}


@pytest.mark.promise("A-206", "A-259")
def test_a_reference_says_the_status_as_helix_does() -> None:
    words = {"queued": "running", "running": "running", "completed": "completed", "failed": "failed"}
    words |= {"cancelled": "terminated", "interrupted": "interrupted"}

    assert {status: sub_session_ref(run(status), DESK)["status"] for status in words} == words


def test_tool_calls_of_two_sessions_may_have_the_same_id() -> None:
    def chunk(name: str, **body: Any) -> Event:
        return Event(
            (PathSegment("Desk", "d"), PathSegment("Writer", name)),
            name,
            None,
            1,
            0.0,
            "chunk",
            {**body, "toolCallId": "c1"},
        )

    helix = Helix()
    for name, tool in (("a", "search"), ("b", "read")):
        helix.of(chunk(name, type="tool-input-available", toolName=tool, input={}))
    told = [helix.of(chunk(name, type="tool-output-available", output=1))[0] for name in "ab"]

    assert [(one["agentId"], one["toolName"]) for one in told] == [
        ("Desk:d/Writer:a", "search"),
        ("Desk:d/Writer:b", "read"),
    ]


def test_session_ids_are_unique_whatever_the_names_contain() -> None:
    paths = [
        (PathSegment("A", "x/B:y"),),
        (PathSegment("A", "x"), PathSegment("B", "y")),
        (PathSegment("A", "x%2FB%3Ay"),),
    ]

    ids = [session_id(path) for path in paths]

    assert len(set(ids)) == 3
    assert [Address.parse(id).segments for id in ids] == paths


@pytest.mark.promise("A-142")
def test_the_wire_needs_nothing_of_the_server() -> None:
    folder = Path(sapwood.wire.__path__[0])
    trees = [ast.parse(path.read_text()) for path in folder.glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    needed = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module is not None}
    needed |= {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}

    rooms = {name.split(".")[1] for name in needed if name.startswith("sapwood.")}
    assert rooms <= {"wire", "errors", "address"}
    assert not any(name.startswith("starlette") for name in needed)
