"""What a model says, as the chunks of an AI SDK stream; and chunks, as the message they make.

A chunk is a small JSON object. The two halves here mirror each other: whatever a client
builds of the chunks it was sent, `assembled` builds of the ones that are stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from sapwood.chat.store.file_references import shown
from sapwood.kernel.marshal.disclosure import for_clients

if TYPE_CHECKING:
    from pydantic_ai.messages import ToolReturnPart

Chunk = dict[str, Any]


class Projection:
    """Turns the events of one step into chunks. Its part ids begin with the step, so none comes twice in a turn."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._open: dict[int, tuple[str, str]] = {}
        """Parts that are being said: their kind, and their id."""

    def event(self, event: Any, *, known: Collection[str] = ()) -> list[Chunk]:
        """Return the chunks of one event of Pydantic AI's; how these `known` tool calls ended is not said."""
        kind = event.event_kind
        if kind == "part_delta":
            return self._delta(event.index, event.delta)
        if kind == "part_start":
            return self._start(event.index, event.part)
        if kind == "part_end":
            return self._end(event.index, event.part)
        if kind in ("function_tool_call", "output_tool_call"):
            return [] if event.args_valid is None else [_input_of(event.part)]
        if kind in ("function_tool_result", "output_tool_result"):
            return [] if event.part.tool_call_id in known else [output_of(event.part)]
        return []

    def _start(self, index: int, part: Any) -> list[Chunk]:
        kind, id = part.part_kind, f"{self._step}-{index}"
        if kind in ("text", "thinking"):
            word = "text" if kind == "text" else "reasoning"
            self._open[index] = (word, id)
            chunks: list[Chunk] = [{"type": f"{word}-start", "id": id}]
            if part.content:
                chunks.append({"type": f"{word}-delta", "id": id, "delta": part.content})
            return chunks
        if kind in ("tool-call", "builtin-tool-call"):
            self._open[index] = ("tool", part.tool_call_id)
            chunk: Chunk = {"type": "tool-input-start", "toolCallId": part.tool_call_id, "toolName": part.tool_name}
            if kind != "tool-call":
                chunk["providerExecuted"] = True
            given = part.args if isinstance(part.args, str) or part.args is None else part.args_as_json_str()
            return [chunk, *([_typed(part.tool_call_id, given)] if given else [])]
        if kind == "builtin-tool-return":
            return [{**output_of(part), "providerExecuted": True}]
        return []

    def _delta(self, index: int, delta: Any) -> list[Chunk]:
        word, id = self._open.get(index, ("", ""))
        if word == "tool":
            given = delta.args_delta
            if given is None or given == "":
                return []
            return [_typed(id, given if isinstance(given, str) else msgspec.json.encode(given).decode())]
        text = delta.content_delta if word else None
        return [{"type": f"{word}-delta", "id": id, "delta": text}] if text else []

    def _end(self, index: int, part: Any) -> list[Chunk]:
        word, id = self._open.pop(index, ("", ""))
        if word in ("text", "reasoning"):
            return [{"type": f"{word}-end", "id": id}]
        if part.part_kind == "builtin-tool-call":
            return [{**_input_of(part), "providerExecuted": True}]
        return []


def merged(chunks: list[Chunk]) -> list[Chunk]:
    """Return chunks with what follows each other in one part put together."""
    found: list[Chunk] = []
    for chunk in chunks:
        last = found[-1] if found else None
        if last is not None and last["type"] == chunk["type"]:
            if chunk["type"] in ("text-delta", "reasoning-delta") and last["id"] == chunk["id"]:
                found[-1] = {**last, "delta": last["delta"] + chunk["delta"]}
                continue
            if chunk["type"] == "tool-input-delta" and last["toolCallId"] == chunk["toolCallId"]:
                found[-1] = {**last, "inputTextDelta": last["inputTextDelta"] + chunk["inputTextDelta"]}
                continue
        found.append(chunk)
    return found


def _typed(id: str, text: str) -> Chunk:
    return {"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": text}


def _input_of(part: Any) -> Chunk:
    return {
        "type": "tool-input-available",
        "toolCallId": part.tool_call_id,
        "toolName": part.tool_name,
        "input": part.args_as_dict(),
    }


def output_of(part: ToolReturnPart) -> Chunk:
    """Return the chunk that says how a tool call ended."""
    id = part.tool_call_id
    if part.outcome == "denied":
        return {"type": "tool-output-denied", "toolCallId": id}
    if part.outcome in ("failed", "retried"):
        return {"type": "tool-output-error", "toolCallId": id, "errorText": for_clients(_in_words(part))}
    return {"type": "tool-output-available", "toolCallId": id, "output": for_clients(json_of(shown(part.content)))}


def _in_words(part: ToolReturnPart) -> str:
    """Return what went wrong with a tool call, for people: the model may have been told more."""
    told = part.content
    if part.outcome != "failed" or not isinstance(told, str):
        return part.model_response_str()
    try:
        found = msgspec.json.decode(told, type=dict[str, Any]).get("error")
    except msgspec.DecodeError:
        return told
    return found if isinstance(found, str) else told


def json_of(value: Any) -> Any:
    """Return a value as what JSON has."""
    import pydantic_core

    return msgspec.json.decode(pydantic_core.to_json(value, serialize_unknown=True))


def assembled(chunks: Iterable[Chunk], message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with what these chunks add to its parts, as a client would have it."""
    assembly = _Assembly(message)
    for chunk in chunks:
        assembly.add(chunk)
    return assembly.message()


class _Assembly:
    """A message that grows chunk by chunk."""

    def __init__(self, message: dict[str, Any]) -> None:
        self._message = message
        self._parts: list[dict[str, Any]] = [dict(part) for part in message.get("parts", ())]
        self._metadata: dict[str, Any] | None = message.get("metadata")
        self._texts: dict[str, dict[str, Any]] = {}
        self._tools = {part["toolCallId"]: part for part in self._parts if "toolCallId" in part}
        self._typed: dict[str, str] = {}

    def message(self) -> dict[str, Any]:
        for id, text in self._typed.items():
            part = self._tools.get(id)
            if part is not None and part["state"] == "input-streaming":
                part["input"] = _as_far_as_typed(text)
        whole = {**self._message, "parts": self._parts}
        return whole if self._metadata is None else {**whole, "metadata": self._metadata}

    def add(self, chunk: Chunk) -> None:
        kind: str = chunk["type"]
        word, _, what = kind.rpartition("-")
        if word in ("text", "reasoning"):
            self._add_text(word, what, chunk)
        elif kind.startswith("tool-"):
            self._add_tool(kind, chunk)
        elif kind == "start-step":
            self._parts.append({"type": "step-start"})
        elif kind in ("file", "source-url", "source-document"):
            self._parts.append(dict(chunk))
        elif kind in ("message-metadata", "finish", "start") and chunk.get("messageMetadata") is not None:
            self._metadata = {**(self._metadata or {}), **chunk["messageMetadata"]}
        elif kind.startswith("data-") and not chunk.get("transient"):
            self._put_data(chunk)

    def _add_text(self, word: str, what: str, chunk: Chunk) -> None:
        if what == "start":
            part = self._texts[chunk["id"]] = {"type": word, "text": "", "state": "streaming"}
            self._parts.append(part)
        elif (part := self._texts.get(chunk["id"])) is not None:
            if what == "delta":
                part["text"] += chunk["delta"]
            else:
                part["state"] = "done"

    def _add_tool(self, kind: str, chunk: Chunk) -> None:
        id = chunk["toolCallId"]
        part = self._tools.get(id)
        if part is None and "toolName" in chunk:
            part = self._tools[id] = {"type": f"tool-{chunk['toolName']}", "toolCallId": id, "state": "input-streaming"}
            if chunk.get("providerExecuted"):
                part["providerExecuted"] = True
            self._parts.append(part)
        if part is None:
            return
        match kind:
            case "tool-input-delta":
                self._typed[id] = self._typed.get(id, "") + chunk["inputTextDelta"]
            case "tool-input-available":
                part.update(state="input-available", input=chunk["input"])
            case "tool-approval-request":
                part.update(state="approval-requested", approval={"id": chunk["approvalId"]})
            case "tool-output-available":
                part.update(state="output-available", output=chunk["output"])
            case "tool-output-error" | "tool-input-error":
                part.update(state="output-error", errorText=chunk["errorText"])
            case "tool-output-denied":
                part.update(state="output-denied")
            case _:
                pass

    def _put_data(self, chunk: Chunk) -> None:
        part = {key: value for key, value in chunk.items() if key in ("type", "id", "data")}
        for at, old in enumerate(self._parts):
            if "id" in part and old.get("type") == part["type"] and old.get("id") == part["id"]:
                self._parts[at] = part
                return
        self._parts.append(part)


def _as_far_as_typed(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


UNFINISHED = ("input-streaming", "input-available", "approval-requested", "approval-responded")


INTERRUPTED = "It was interrupted."
STOPPED = "It was stopped."


def closing(chunks: Iterable[Chunk], why: str = INTERRUPTED) -> list[Chunk]:
    """Return the chunks that close what these have opened, when no more will follow."""
    unended: dict[tuple[str, str], Chunk] = {}
    for chunk in chunks:
        word, _, what = chunk["type"].rpartition("-")
        if word in ("text", "reasoning"):
            if what == "start":
                unended[word, chunk["id"]] = {"type": f"{word}-end", "id": chunk["id"]}
            elif what == "end":
                unended.pop((word, chunk["id"]), None)
        elif word == "tool-input" and what in ("start", "available"):
            id = chunk["toolCallId"]
            unended["tool", id] = {"type": "tool-output-error", "toolCallId": id, "errorText": why}
        elif word == "tool-output" or chunk["type"] == "tool-input-error":
            unended.pop(("tool", chunk["toolCallId"]), None)
    return [*unended.values()]


def closed(message: dict[str, Any], why: str = INTERRUPTED) -> dict[str, Any]:
    """Return a message that will not be continued, with every part of it closed."""
    parts: list[dict[str, Any]] = []
    for part in message["parts"]:
        if part.get("state") == "streaming":
            part = {**part, "state": "done"}
        elif part.get("state") in UNFINISHED and "toolCallId" in part:
            part = {**part, "state": "output-error", "errorText": why, "input": part.get("input")}
        parts.append(part)
    while parts and parts[-1]["type"] == "step-start":
        parts.pop()
    return {**message, "parts": parts}


def answered(message: dict[str, Any], id: str, kind: str, value: Any) -> dict[str, Any]:
    """Return a message in which a tool call has its answer."""
    parts: list[dict[str, Any]] = [dict(part) for part in message["parts"]]
    for part in parts:
        if part.get("toolCallId") != id:
            continue
        if kind in ("approved", "denied"):
            part["approval"] = {"id": id, "approved": kind == "approved"}
            part["state"] = "approval-responded" if kind == "approved" else "output-denied"
        elif kind == "failed":
            part.update(state="output-error", errorText=for_clients(value))
        else:
            part.update(state="output-available", output=for_clients(value))
    return {**message, "parts": parts}
