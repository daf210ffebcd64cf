"""The page about the wire has every frame, each with an example that is one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
from tests.npm.differences import table

from sapwood.wire import chat, frames, runs

ROOT = Path(__file__).parents[2]
HEY = {"id": "vfjU", "role": "user", "parts": [{"type": "text", "text": "hey"}]}
STARTED = {
    "kind": "started",
    "runId": "agent-tool:call_1",
    "agentType": "Researcher",
    "inputPreview": "rivers",
    "order": 0,
}
FINISHED = {"runId": "agent-tool:call_1", "kind": "finished", "summary": "The longest one has 6650 km."}
INTERRUPTED = {
    "runId": "agent-tool:call_1",
    "kind": "interrupted",
    "error": "The run made no progress for too long.",
    "reason": "no-progress",
    "childStillRunning": True,
}


def types() -> set[str]:
    """Return the types of frame the source knows."""
    source = Path(frames.__file__).read_text() + Path(chat.__file__).read_text()
    return {frames.RPC, runs.EVENT, runs.QUESTIONS, *re.findall(r"\bcf_agent_\w+", source)} - {"cf_agent_"}


LIBRARY = frames.McpServerState(
    "library", "https://library.example.com/mcp", None, "ready", None, None, msgspec.Raw(b'{"tools":{}}')
)
SEARCH = frames.McpToolState("library", "search", "Search the catalog.", {"type": "object"})


def examples() -> dict[str, list[dict[str, object]]]:
    """Return the examples on the page, by the heading they stand under."""
    parts = re.split(r"^### `([\w-]+)`$", (ROOT / "docs/reference/wire.md").read_text(), flags=re.MULTILINE)
    below = [re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0] for text in parts[2::2]]
    return {
        title: [json.loads(frame) for frame in re.findall(r"^```json\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)]
        for title, text in zip(parts[1::2], below, strict=True)
    }


def test_every_type_of_frame_is_on_the_page_and_nothing_else_is() -> None:
    assert set(examples()) == types()


def test_every_type_of_frame_has_an_example_of_itself() -> None:
    for title, shown in examples().items():
        assert shown, title
        assert {frame["type"] for frame in shown} == {title}


def test_the_examples_are_what_is_written() -> None:
    written = [
        frames.identity("room-1", "my-agent", state_follows=True),
        frames.state(b'{"count":1}'),
        frames.state_error(frames.REJECTED),
        frames.mcp_servers(),
        frames.mcp_servers({"library": LIBRARY}, [SEARCH]),
        frames.result("6f1c…", b"5", done=True),
        frames.result("6f1c…", b"0", done=False),
        frames.error("6f1c…", "Internal error (reference 1a2b3c4d)."),
        chat.chunk("xvaxlrqB", b'{"type":"text-delta","id":"1-0","delta":"Good"}', 3),
        chat.done("xvaxlrqB", "completed", asked=["vfjU"]),
        chat.done("xvaxlrqB", "failed", asked=["vfjU"], body="The model is out of order.", error=True),
        chat.replayed("xvaxlrqB", continuation=False),
        chat.messages(json.dumps([HEY]), connect=True),
        chat.updated(HEY),
        chat.cleared(),
        chat.recovering("xvaxlrqB", is_so=True),
        chat.about_stream(chat.RESUMING, id="xvaxlrqB", probe="Mo0CsJcT"),
        chat.about_stream(chat.PENDING, id="xvaxlrqB", probe="Mo0CsJcT"),
        chat.about_stream(chat.RESUME_NONE, reason="idle", probe="Mo0CsJcT"),
        runs.event(0, STARTED, tool_call="call_1"),
        runs.chunk(1, "agent-tool:call_1", b'{"type":"text-delta","id":"t","delta":"hi"}', tool_call="call_1"),
        runs.event(9, FINISHED, tool_call="call_1"),
        runs.event(9, INTERRUPTED, tool_call="call_1", replay=True),
    ]
    shown = [frame for frames in examples().values() for frame in frames]

    assert [frame for frame in written if json.loads(frame) not in shown] == []


def test_the_examples_of_what_clients_send_are_understood() -> None:
    (call,) = [frame for frame in examples()["rpc"] if "method" in frame]
    (state,) = examples()["cf_agent_state"]

    assert isinstance(frames.read(json.dumps(call)), frames.Rpc)
    assert isinstance(frames.read(json.dumps(state)), frames.StateChange)


def test_the_examples_of_what_clients_say_in_a_chat_are_understood() -> None:
    shown = {frame["type"]: frame for type in chat.HEARD for frame in examples()[type]}

    assert set(shown) == chat.HEARD
    for type, frame in shown.items():
        heard = chat.read(json.dumps(frame))
        assert heard is not None, type
        assert heard.type == type
    request = chat.read(json.dumps(shown[chat.REQUEST]))
    assert request is not None
    assert json.loads(request.init["body"])["messages"] == [HEY]


def test_the_table_of_differences_can_be_read() -> None:
    rows = table()

    assert rows
    assert len({row.where + row.original for row in rows}) == len(rows)
