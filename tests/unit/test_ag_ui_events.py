"""Events of a turn as events of AG-UI: what a sub-agent says again after a crash is told once."""

from __future__ import annotations

from typing import Any

from sapwood.address import PathSegment
from sapwood.protocols.ag_ui_events import Projection
from sapwood.runs.events.events import Event

ROOT, CHILD = PathSegment("Desk", "d"), PathSegment("Clerk", "r1")
CALL: list[dict[str, Any]] = [
    {"type": "tool-input-start", "toolCallId": "c1", "toolName": "pay"},
    {"type": "tool-input-available", "toolCallId": "c1", "toolName": "pay", "input": {}},
]
RESULT = [CALL[1], {"type": "tool-output-available", "toolCallId": "c1", "output": "3 euros"}]


def told(projection: Projection, path: tuple[PathSegment, ...], run: str | None, *chunks: Any) -> list[str]:
    """Return the types of what a client is told of chunks."""
    events = [Event(path, run, None, seq, 0.0, "chunk", chunk) for seq, chunk in enumerate(chunks, 1)]
    return [frame["type"] for event in events for frame in projection.of(event)]


def test_a_result_that_a_sub_agent_tells_again_after_a_crash_is_told_once() -> None:
    once = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"]
    for path, run in (((ROOT,), None), ((ROOT, CHILD), "r1")):
        frames = told(Projection("m1", 1), path, run, *CALL, *RESULT, *RESULT)
        assert [type for type in frames if type.startswith("TOOL")] == once, path
