"""The frames of a plain agent's socket, as text: the contract with the npm clients.

Every frame is one JSON object with a string `type`. What goes out is built from pieces
that are JSON already, so a state or a result is encoded once, however many read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

RPC = "rpc"
CANCEL = "sapwood_cancel"
"""Ours alone: the npm clients have no word for it."""
STATE = "cf_agent_state"
READONLY = "Connection is readonly"
REJECTED = "State update rejected"
DEPTH = 128
"""How deep a client's values may be nested. What can be read here must be writable elsewhere, on any stack."""
TOO_DEEP = f"The message is nested deeper than {DEPTH} levels."
BEGINNINGS = ("{", " ", "\n", "\r", "\t")
"""What JSON that holds an object may begin with."""
HALVES = re.compile("[\ud800-\udfff]")

_text = msgspec.json.Encoder().encode
_not_brackets = bytes(set(range(256)) - set(b"[]{}"))
_steps = bytes({**dict.fromkeys(b"[{", 1), **dict.fromkeys(b"]}", 255)}.get(byte, 0) for byte in range(256))
"""What each bracket adds to the depth; 255 is -1 as a signed byte."""
BLOCK = 16 * 1024
"""Brackets that are counted before it is decided whether to continue."""

T = TypeVar("T")


class ClientFrame(msgspec.Struct):
    """What a client sent, as far as the framework looks at it; anything else is the user's."""

    type: Any = None
    id: Any = None
    method: Any = None
    args: msgspec.Raw = msgspec.Raw(b"null")
    state: msgspec.Raw = msgspec.Raw(b"")


_incoming = msgspec.json.Decoder(ClientFrame)
_arguments = msgspec.json.Decoder(list[msgspec.Raw])


class Rpc(msgspec.Struct):
    """A client calls a method."""

    id: str
    method: str
    args: list[msgspec.Raw]


class StateChange(msgspec.Struct):
    """A client replaces the state; `value` is JSON."""

    value: bytes
    id: str | None = None
    """What the answer is to name. The npm clients give none, and hear nothing unless it is refused."""


class CancelFrame(msgspec.Struct):
    """A client does not wait for a call any more."""

    id: str


def read(text: str) -> Rpc | StateChange | CancelFrame | None:
    """Return what the framework answers itself; None for everything that is the user's."""
    if text[:1] not in BEGINNINGS:
        return None
    try:
        frame = _decoded(text)
        if frame.type == RPC and isinstance(frame.id, str) and isinstance(frame.method, str):
            return Rpc(frame.id, frame.method, _arguments.decode(frame.args))
        if frame.type == STATE and frame.state:
            return StateChange(bytes(frame.state), frame.id if isinstance(frame.id, str) else None)
        if frame.type == CANCEL and isinstance(frame.id, str):
            return CancelFrame(frame.id)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        pass
    return None


def is_deep(text: bytes) -> bool:
    """Return whether JSON is nested deeper than a client's may be, in time linear in its size, for any bytes."""
    if text.count(b"[") + text.count(b"{") <= DEPTH:
        return False
    if b'"' in text:
        # Without escaped backslashes and quotes, every second part is inside a string, also if the last has no end.
        text = b"".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    steps = memoryview(text.translate(_steps, _not_brackets)).cast("b")
    depth = 0
    for at in range(0, len(steps), BLOCK):
        depths = list(accumulate(steps[at : at + BLOCK], initial=depth))
        if max(depths) > DEPTH:
            return True
        depth = depths[-1]
    return False


def read_json(text: bytes | str, type: type[T]) -> T:
    """Return a client's JSON as a value. Raises `msgspec.DecodeError`, also if it is nested too deep or is no text."""
    try:
        body = text.encode() if isinstance(text, str) else text
        if is_deep(body):
            raise msgspec.DecodeError(TOO_DEEP)
        return msgspec.json.decode(body, type=type)
    except (RecursionError, UnicodeError) as error:
        raise msgspec.DecodeError(str(error)) from None


def _decoded(text: str) -> ClientFrame:
    try:
        return _incoming.decode(text)
    except msgspec.DecodeError:
        if "\\u" not in text:
            raise
    # JavaScript's texts may hold half of a surrogate pair, and its JSON too; no other text may.
    # The client waits for an answer, so it is replaced, as browsers do where they cannot send it.
    try:
        whole = json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None
    return _incoming.decode(HALVES.sub("\ufffd", whole))


def identity(name: str, agent: str, *, state_follows: bool) -> str:
    """Tell a client whom it is connected to, and, only if one does, that a state follows."""
    frame: dict[str, Any] = {"type": "cf_agent_identity", "name": name, "agent": agent}
    if state_follows:
        frame["stateFollows"] = True
    return _text(frame).decode()


def state(value: bytes) -> str:
    """Tell a client the state, which is JSON."""
    return (b'{"type":"cf_agent_state","state":' + value + b"}").decode()


def state_error(text: str) -> str:
    return _text({"type": "cf_agent_state_error", "error": text}).decode()


class McpServerState(msgspec.Struct):
    """What clients see of one MCP server of an agent."""

    name: str
    server_url: str
    auth_url: str | None
    """Where a user signs in, if one has to."""
    state: str
    """`connecting`, `authenticating`, `ready` or `failed`."""
    error: str | None
    instructions: str | None
    capabilities: msgspec.Raw


class McpToolState(msgspec.Struct, rename="camel"):
    """What clients see of one tool of an MCP server."""

    server_id: str
    name: str
    description: str
    input_schema: dict[str, Any]


def mcp_servers(servers: Mapping[str, McpServerState] | None = None, tools: Sequence[McpToolState] = ()) -> str:
    """Tell a client the MCP servers of an agent."""
    body = {"servers": servers or {}, "tools": tools, "prompts": (), "resources": ()}
    return _text({"type": "cf_agent_mcp_servers", "mcp": body}).decode()


def result(id: str, value: bytes | None, *, done: bool) -> str:
    """Answer a call, or send one item of its stream; None leaves the result out."""
    head = b'{"type":"rpc","success":true,"done":' + (b"true" if done else b"false") + b',"id":' + _text(id)
    return (head + (b',"result":' + value if value is not None else b"") + b"}").decode()


def error(id: str, text: str, code: str = "") -> str:
    """Return why there is no result. `code`: for a program; browsers read the text."""
    told = {"type": "rpc", "id": id, "success": False, "error": text}
    return _text({**told, "code": code} if code else told).decode()
