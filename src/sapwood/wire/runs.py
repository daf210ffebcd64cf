"""The frames that tell a client of the runs its agent has given: the contract with the npm clients."""

from __future__ import annotations

from typing import Any

import msgspec

EVENT = "agent-tool-event"

_text = msgspec.json.Encoder().encode


def event(sequence: int, told: dict[str, Any], *, tool_call: str | None, replay: bool = False) -> str:
    """Tell how a run goes: it started, or ended in some way."""
    frame: dict[str, Any] = {"type": EVENT, "sequence": sequence, "event": told}
    if tool_call is not None:
        frame["parentToolCallId"] = tool_call
    if replay:
        frame["replay"] = True
    return _text(frame).decode()


def chunk(sequence: int, run: str, body: bytes, *, tool_call: str | None, replay: bool = False) -> str:
    """Tell one chunk of what a run says, which is JSON."""
    head = b'{"type":"' + EVENT.encode() + b'","sequence":%d' % sequence
    if tool_call is not None:
        head += b',"parentToolCallId":' + _text(tool_call)
    if replay:
        head += b',"replay":true'
    told = b',"event":{"kind":"chunk","runId":' + _text(run) + b',"body":' + _text(body.decode()) + b"}}"
    return (head + told).decode()
