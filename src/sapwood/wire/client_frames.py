"""The frames of a plain agent's socket from the client's side: what it says, and what it makes of what it hears."""

from __future__ import annotations

from typing import Any

import msgspec

from sapwood.wire import frames

IDENTITY = "cf_agent_identity"
MCP_SERVERS = "cf_agent_mcp_servers"
STATE_ERROR = "cf_agent_state_error"

_text = msgspec.json.Encoder().encode


class AnswerFrame(msgspec.Struct):
    """An answer to a call, or one item of its stream."""

    id: str
    value: bytes
    """JSON; empty if there is none."""
    error: str | None
    done: bool
    code: str = ""
    """What kind of error it is, if a program can do something about it."""


class Identity(msgspec.Struct):
    """Whom the client is connected to."""

    name: str
    agent: str
    state_follows: bool


class StateFrame(msgspec.Struct):
    """The agent's state, as JSON."""

    value: bytes


class GreetingEnd(msgspec.Struct):
    """The last of what a server sends unasked when a client has connected."""


class StateRefused(msgspec.Struct):
    """The state that the client sent was refused."""

    error: str


class ServerFrame(msgspec.Struct):
    """What a server sent, as far as the client looks at it; anything else is the user's."""

    type: Any = None
    id: Any = None
    success: Any = None
    done: Any = True
    result: msgspec.Raw = msgspec.Raw(b"")
    error: Any = None
    code: Any = None
    name: Any = None
    agent: Any = None
    state_follows: Any = msgspec.field(default=False, name="stateFollows")
    state: msgspec.Raw = msgspec.Raw(b"")


_outgoing = msgspec.json.Decoder(ServerFrame)

Heard = AnswerFrame | Identity | StateFrame | GreetingEnd | StateRefused


def hear(text: str) -> Heard | None:
    """Return what the framework deals with itself; None for everything that is the user's."""
    if not text.startswith("{"):
        return None
    try:
        frame = _outgoing.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    if frame.type == frames.RPC and isinstance(frame.id, str):
        error = None if frame.success is True else str(frame.error)
        code = frame.code if isinstance(frame.code, str) else ""
        return AnswerFrame(frame.id, bytes(frame.result), error, frame.done is not False, code)
    if frame.type == frames.STATE and frame.state:
        return StateFrame(bytes(frame.state))
    if frame.type == IDENTITY:
        return Identity(str(frame.name), str(frame.agent), frame.state_follows is True)
    if frame.type == MCP_SERVERS:
        return GreetingEnd()
    if frame.type == STATE_ERROR:
        return StateRefused(str(frame.error))
    return None


def call(id: str, method: str, arguments: bytes) -> str:
    """Call a method; the arguments are a JSON array."""
    return (
        b'{"type":"rpc","id":' + _text(id) + b',"method":' + _text(method) + b',"args":' + arguments + b"}"
    ).decode()


def change_state(id: str, value: bytes) -> str:
    """Replace the state with a JSON value; the answer names `id`."""
    return (b'{"type":"cf_agent_state","id":' + _text(id) + b',"state":' + value + b"}").decode()


def cancel(id: str) -> str:
    """A client no longer waits for a call."""
    return _text({"type": frames.CANCEL, "id": id}).decode()
