"""The frames that tell a client of what happens below its agent: of runs as npm clients know them, and questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from sapwood.errors import PathSegment

EVENT = "agent-tool-event"
QUESTIONS = "sapwood_questions"

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


class ShownQuestion(Protocol):
    """A question, as far as a wire is concerned."""

    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def tool(self) -> str: ...
    @property
    def arguments(self) -> Any: ...
    @property
    def prompt(self) -> str: ...
    @property
    def options(self) -> Sequence[str] | None: ...
    @property
    def schema(self) -> dict[str, Any] | None: ...
    @property
    def is_from_code(self) -> bool: ...
    @property
    def digest(self) -> str: ...
    @property
    def remote(self) -> Sequence[PathSegment] | None: ...


def questions(
    path: Sequence[PathSegment], asked: Sequence[ShownQuestion], *, refused: tuple[str, str] | None = None
) -> str:
    """Tell the open questions of the agent at the end of a path; `refused`: an answer that was not taken, and why."""
    frame: dict[str, Any] = {"type": QUESTIONS, "path": _path(path), "questions": [_question(one) for one in asked]}
    if refused is not None:
        frame["refused"] = {"id": refused[0], "reason": refused[1]}
    return _text(frame).decode()


def question(asked: ShownQuestion, path: Sequence[PathSegment]) -> dict[str, Any]:
    """Return one question, with who asks."""
    return {"path": _path(path), **_question(asked)}


def _question(asked: ShownQuestion) -> dict[str, Any]:
    told: dict[str, Any] = {"id": asked.id, "kind": asked.kind}
    if asked.is_from_code:
        told["prompt"] = asked.prompt
        told |= {} if asked.options is None else {"options": asked.options}
        told |= {} if asked.schema is None else {"schema": asked.schema}
    else:
        told |= {"tool": asked.tool, "input": asked.arguments}
    told |= {} if asked.remote is None else {"remote": _path(asked.remote)}
    return {**told, "digest": asked.digest}


def _path(path: Sequence[PathSegment]) -> list[dict[str, str]]:
    return [{"type": step.type, "name": step.name} for step in path]
