"""The frames of a chat, as text: the contract with the npm clients."""

from __future__ import annotations

from typing import Any

import msgspec

from sapwood.wire.frames import is_deep

REQUEST = "cf_agent_use_chat_request"
RESPONSE = "cf_agent_use_chat_response"
MESSAGES = "cf_agent_chat_messages"
CLEAR = "cf_agent_chat_clear"
CANCEL = "cf_agent_chat_request_cancel"
RECOVERING = "cf_agent_chat_recovering"
RESUME = "cf_agent_stream_resume_request"
RESUME_ACK = "cf_agent_stream_resume_ack"
RESUMING = "cf_agent_stream_resuming"
RESUME_NONE = "cf_agent_stream_resume_none"
PENDING = "cf_agent_stream_pending"
TOOL_RESULT = "cf_agent_tool_result"
TOOL_APPROVAL = "cf_agent_tool_approval"
UPDATED = "cf_agent_message_updated"

_CONNECT = ',"connect":true}'
_text = msgspec.json.Encoder().encode


class ChatFrame(msgspec.Struct):
    """What a client said about a chat; what it left out is what it would be."""

    type: Any = None
    id: Any = None
    init: Any = None
    messages: Any = None
    probe: Any = msgspec.field(default=None, name="probeId")
    call: Any = msgspec.field(default=None, name="toolCallId")
    tool: Any = msgspec.field(default="", name="toolName")
    output: Any = None
    state: Any = None
    error: Any = msgspec.field(default=None, name="errorText")
    approved: Any = None
    digest: Any = None
    reason: Any = None
    go_on: Any = msgspec.field(default=False, name="autoContinue")
    client_tools: Any = msgspec.field(default=None, name="clientTools")
    path: Any = None
    """The path down to the agent that asked, if it is a sub-agent."""


_incoming = msgspec.json.Decoder(ChatFrame)

HEARD = frozenset({REQUEST, MESSAGES, CLEAR, CANCEL, RESUME, RESUME_ACK, TOOL_RESULT, TOOL_APPROVAL})


def read(text: str) -> ChatFrame | None:
    """Return what a client said about the chat; None for everything else."""
    if '"cf_agent_' not in text:
        return None
    try:
        frame = _incoming.decode(text)
        is_chat = isinstance(frame.type, str) and frame.type in HEARD
        # The body of a request is a string here, and is checked where it is read.
        is_chat = is_chat and (frame.type == REQUEST or not is_deep(text.encode()))
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    return frame if is_chat else None


def chunk(id: str, body: bytes, seq: int | None, *, replay: bool = False, continuation: bool = False) -> str:
    """Send one chunk, which is JSON."""
    frame = b'{"body":' + _text(body.decode()) + b',"done":false,"id":' + _text(id) + b',"type":"' + RESPONSE.encode()
    frame += b'"' if seq is None else b'","seq":%d' % seq
    frame += b',"replay":true' if replay else b""
    frame += b',"continuation":true}' if continuation else b"}"
    return frame.decode()


OUTCOMES = {"failed": "error", "cancelled": "aborted"}
"""The words of the npm client for the end of a turn, where it has others."""


def done(
    id: str,
    outcome: str | None = None,
    *,
    asked: list[str] | None = None,
    replay: bool = False,
    continuation: bool = False,
    body: str = "",
    error: bool = False,
) -> str:
    """End a stream."""
    frame: dict[str, Any] = {"body": body, "done": True, "id": id, "type": RESPONSE}
    if error:
        frame["error"] = True
    if replay:
        frame["replay"] = True
    if continuation:
        frame["continuation"] = True
    if outcome is not None:
        frame["outcome"] = OUTCOMES.get(outcome, outcome)
    if asked is not None:
        frame["messageIds"] = asked
    return _text(frame).decode()


def replayed(id: str, *, continuation: bool) -> str:
    """Say that a replay has caught up."""
    frame: dict[str, Any] = {"body": "", "done": False, "id": id, "type": RESPONSE, "replay": True}
    frame["replayComplete"] = True
    if continuation:
        frame["continuation"] = True
    return _text(frame).decode()


def messages(text: str, *, connect: bool = False) -> str:
    """Send the whole conversation, which is JSON."""
    # In one piece: it may have megabytes, and each "+" would copy them.
    return f'{{"type":"{MESSAGES}","messages":{text}{_CONNECT if connect else "}"}'


def updated(message: dict[str, Any]) -> str:
    """Send one message that has changed."""
    return _text({"type": UPDATED, "message": message}).decode()


def cleared() -> str:
    return _text({"type": CLEAR}).decode()


def about_stream(type: str, *, id: str | None = None, probe: Any = None, reason: str | None = None) -> str:
    """Answer a client that asks whether something streams."""
    frame: dict[str, Any] = {"type": type}
    if id is not None:
        frame["id"] = id
    if reason is not None:
        frame["reason"] = reason
    if probe is not None:
        frame["probeId"] = probe
    return _text(frame).decode()


def recovering(id: str, *, is_so: bool) -> str:
    return _text({"type": RECOVERING, "recovering": is_so, "id": id}).decode()
