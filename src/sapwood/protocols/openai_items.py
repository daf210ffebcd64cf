"""What a turn says, as output items of a response and the events of its stream.

The same events of a turn always make the same items and the same events in the same order, so the number of an event is
its place: live, replayed, and after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from sapwood.protocols.openai_ids import item_id
from sapwood.runs.events.events import Event
from sapwood.runs.tables.question import Question

Json = dict[str, Any]
OUTPUT_TOOL = "final_result"
"""What the names of the tools begin with by which a model returns a structured output: that is told as a message."""
ASK_PERSON = "ask_person"
"""The name of the function by which code asks a person: the output of the call is the answer."""


@dataclass(slots=True)
class Item:
    """One output item."""

    index: int
    seq: int
    """The number of the turn's event that began it."""
    body: Json
    is_open: bool = True
    is_valid: bool = True
    """Whether it is part of the output. Words that were retracted are not."""
    text: str = ""


@dataclass(slots=True)
class ToolUse:
    """A tool call of the turn."""

    name: str = ""
    input: Any = None
    item: Item | None = None
    is_asked: bool = False
    """Whether it waited for an approval."""


class OutputItems:
    """The output items of one response, and the events that tell them."""

    def __init__(self, prefix: str, label: str, functions: Collection[str] = ()) -> None:
        self._prefix = prefix
        """What the ids of the items have in common."""
        self._label = label
        """What the agent's own tools are labeled with."""
        self._functions = functions
        """The names of the tools that the client executes."""
        self.items: list[Item] = []
        self._told: list[Json] = []
        self._texts: dict[tuple[str, str], Item] = {}
        self._tools: dict[str, ToolUse] = {}
        self._seq = 0
        self._deals: dict[str, Callable[[Json], None]] = {
            "text-start": self._text_starts,
            "text-delta": self._text_goes_on,
            "text-end": self._text_ends,
            "reasoning-start": self._reasoning_starts,
            "reasoning-delta": self._reasoning_goes_on,
            "reasoning-end": self._reasoning_ends,
            "tool-input-start": self._tool_starts,
            "tool-input-delta": self._tool_goes_on,
            "tool-input-available": self._tool_is_called,
            "tool-approval-request": self._is_asked,
            "tool-output-available": self._tool_ends,
            "tool-output-error": self._tool_ends,
            "tool-output-denied": self._tool_ends,
            "tool-input-error": self._tool_ends,
        }
        """What is done with each type of chunk. Others are for pages."""

    def skip(self, event: Event) -> None:
        """Note an event before the response: it may have begun tool calls that the response ends."""
        chunk: Json = event.body if event.kind == "chunk" else {}
        if chunk.get("type") == "tool-input-start":
            self._tools[chunk["toolCallId"]] = ToolUse(chunk["toolName"])
        elif chunk.get("type") == "tool-input-available":
            self._tools[chunk["toolCallId"]] = ToolUse(chunk["toolName"], chunk["input"])
        elif chunk.get("type") == "tool-approval-request" and (use := self._tools.get(chunk["toolCallId"])):
            use.is_asked = True

    def tell(self, event: Event) -> list[Json]:
        """Return the events of the stream for an event of the turn."""
        self._seq = event.seq
        if event.kind == "retracted":
            self._retract(event.body["after"])
        elif event.kind == "chunk" and (deal := self._deals.get(event.body["type"])) is not None:
            deal(event.body)
        return self._taken()

    def close(self) -> list[Json]:
        """Return the events that end the items that are open, when the turn says no more."""
        for item in self.items:
            if item.is_open:
                if item.body["type"] == "function_call":
                    self._end_call(item)
                else:
                    self._end(item, "incomplete")
        return self._taken()

    def add(self, body: Json) -> list[Json]:
        """Return the events of an item that is whole."""
        if body["type"] != "message":
            self._end(self._begin({**body}), body.get("status"))
            return self._taken()
        item = self._begin({**body, "status": "in_progress", "content": []})
        self._begin_text(item)
        for part in body["content"]:
            self._say(item, part["text"])
        self._end_text(item)
        return self._taken()

    def output(self) -> list[Json]:
        """Return the output."""
        return [item.body for item in self.items if item.is_valid]

    def knows(self, body: Json) -> bool:
        """Return whether an item was told."""
        return any(item.body["id"] == body["id"] for item in self.items)

    def calls(self, id: str) -> bool:
        """Return whether the client was told to execute a tool call."""
        found = (item.body for item in self.items if item.is_valid)
        return any(one["type"] == "function_call" and one["call_id"] == id for one in found)

    def new_id(self, kind: str) -> str:
        """Return the id of the next item."""
        return item_id(kind, self._prefix, len(self.items))

    # Items.

    def _begin(self, body: Json) -> Item:
        item = Item(len(self.items), self._seq, body)
        self.items.append(item)
        self._put("response.output_item.added", output_index=item.index, item={**body})
        return item

    def _end(self, item: Item, status: str | None) -> None:
        item.is_open = False
        if status is not None:
            item.body["status"] = status
        self._put("response.output_item.done", output_index=item.index, item={**item.body})

    def _put(self, type: str, **fields: Any) -> None:
        self._told.append({"type": type, **fields})

    def _taken(self) -> list[Json]:
        told, self._told = self._told, []
        return told

    def _retract(self, after: int) -> None:
        """End the items whose words are no longer valid."""
        for item in self.items:
            if item.seq > after and item.is_valid:
                item.is_valid = False
                if item.is_open:
                    self._end(item, "incomplete")
        self._texts.clear()
        for use in self._tools.values():
            if use.item is not None and not use.item.is_valid:
                use.item = None

    # Text and reasoning.

    def _text_starts(self, chunk: Json) -> None:
        item = self._begin(
            {"id": self.new_id("msg"), "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        )
        self._texts["text", chunk["id"]] = item
        self._begin_text(item)

    def _begin_text(self, item: Item) -> None:
        self._put("response.content_part.added", **_at(item), content_index=0, part=_text_part(""))

    def _text_goes_on(self, chunk: Json) -> None:
        if (item := self._texts.get(("text", chunk["id"]))) is not None:
            self._say(item, chunk["delta"])

    def _say(self, item: Item, words: str) -> None:
        item.text += words
        self._put("response.output_text.delta", **_at(item), content_index=0, delta=words, logprobs=[])

    def _text_ends(self, chunk: Json) -> None:
        if (item := self._texts.pop(("text", chunk["id"]), None)) is not None:
            self._end_text(item)

    def _end_text(self, item: Item) -> None:
        part = _text_part(item.text)
        item.body["content"] = [part]
        self._put("response.output_text.done", **_at(item), content_index=0, text=item.text, logprobs=[])
        self._put("response.content_part.done", **_at(item), content_index=0, part=part)
        self._end(item, "completed")

    def _reasoning_starts(self, chunk: Json) -> None:
        item = self._begin({"id": self.new_id("rs"), "type": "reasoning", "status": "in_progress", "summary": []})
        self._texts["reasoning", chunk["id"]] = item
        part = {"type": "summary_text", "text": ""}
        self._put("response.reasoning_summary_part.added", **_at(item), summary_index=0, part=part)

    def _reasoning_goes_on(self, chunk: Json) -> None:
        if (item := self._texts.get(("reasoning", chunk["id"]))) is not None:
            item.text += chunk["delta"]
            about = {**_at(item), "summary_index": 0}
            self._put("response.reasoning_summary_text.delta", **about, delta=chunk["delta"])

    def _reasoning_ends(self, chunk: Json) -> None:
        if (item := self._texts.pop(("reasoning", chunk["id"]), None)) is None:
            return
        part, about = {"type": "summary_text", "text": item.text}, {**_at(item), "summary_index": 0}
        item.body["summary"] = [part]
        self._put("response.reasoning_summary_text.done", **about, text=item.text)
        self._put("response.reasoning_summary_part.done", **about, part=part)
        self._end(item, "completed")

    # Tools.

    def _tool_starts(self, chunk: Json) -> None:
        name, id = chunk["toolName"], chunk["toolCallId"]
        use = self._tools.setdefault(id, ToolUse(name))
        if name.startswith(OUTPUT_TOOL) or use.item is not None:
            return
        if name in self._functions:
            use.item = self._begin(function_call(self.new_id("fc"), id, name, "", "in_progress"))
        else:
            use.item = self._begin(self._own_call(use, id))
            self._put("response.mcp_call.in_progress", **_at(use.item))

    def _own_call(self, use: ToolUse, id: str) -> Json:
        return {
            "id": self.new_id("mcp"),
            "type": "mcp_call",
            "server_label": self._label,
            "name": use.name,
            "arguments": "",
            "output": None,
            "error": None,
            "approval_request_id": id if use.is_asked else None,
            "status": "in_progress",
        }

    def _tool_goes_on(self, chunk: Json) -> None:
        use = self._tools.get(chunk["toolCallId"])
        if use is not None and use.item is not None and use.item.is_open:
            item, words = use.item, chunk["inputTextDelta"]
            item.text += words
            self._put(f"response.{_word(item)}_arguments.delta", **_at(item), delta=words)

    def _tool_is_called(self, chunk: Json) -> None:
        """The arguments of a call are complete."""
        known = self._tools.get(chunk["toolCallId"])
        if known is not None and known.item is None and known.name in self._functions:
            return  # the client was told before this response
        self._tool_starts(chunk)
        use = self._tools[chunk["toolCallId"]]
        use.input = chunk["input"]
        if use.item is None or not use.item.is_open or use.item.body["arguments"]:
            return
        self._end_arguments(use.item, use.input)
        if use.item.body["type"] == "function_call":
            self._end_call(use.item)

    def _end_arguments(self, item: Item, input: Any) -> None:
        item.body["arguments"] = item.text = item.text or json_text(input)
        told = {"arguments": item.text, "name": item.body["name"]}
        self._put(f"response.{_word(item)}_arguments.done", **_at(item), **told)

    def _end_call(self, item: Item) -> None:
        if not item.body["arguments"]:
            self._end_arguments(item, {})
        self._end(item, "completed")

    def _is_asked(self, chunk: Json) -> None:
        """A person must approve a call: the question follows as an item of its own."""
        use = self._tools.get(chunk["toolCallId"])
        if use is not None and use.item is not None and use.item.is_open:
            use.is_asked, use.item.is_valid = True, False
            self._end(use.item, "incomplete")
            use.item = None

    def _tool_ends(self, chunk: Json) -> None:
        id = chunk["toolCallId"]
        use = self._tools.setdefault(id, ToolUse())
        if not use.name or use.name in self._functions or use.name.startswith(OUTPUT_TOOL):
            return
        if use.item is None:  # it was called before this response
            use.item = self._begin(self._own_call(use, id))
            self._put("response.mcp_call.in_progress", **_at(use.item))
            self._end_arguments(use.item, {} if use.input is None else use.input)
        if not use.item.is_open:
            return
        if chunk["type"] == "tool-output-available":
            use.item.body["output"] = json_text(chunk["output"])
        else:
            use.item.body["error"] = chunk.get("errorText", "The call was denied.")
        ended = "completed" if use.item.body["error"] is None else "failed"
        self._put(f"response.mcp_call.{ended}", **_at(use.item))
        self._end(use.item, ended)


def function_call(id: str, call: str, name: str, arguments: str, status: str = "completed") -> Json:
    """Return the item of a function that the client is to execute."""
    about = {"call_id": call, "name": name, "arguments": arguments, "status": status}
    return {"id": id, "type": "function_call", **about}


def message(id: str, text: str) -> Json:
    """Return the item of a text."""
    about = {"role": "assistant", "status": "completed", "content": [_text_part(text)]}
    return {"id": id, "type": "message", **about}


def question_item(id: str, question: Question, label: str) -> Json:
    """Return the item of a question. The answer names `Question.full_id`."""
    if question.kind == "client":
        return function_call(id, question.full_id, question.tool, json_text(question.arguments))
    if question.is_from_code:
        return function_call(id, question.full_id, ASK_PERSON, json_text(question.shown()))
    where = "/".join(step.type for step in question.path) or label
    about = {"name": question.tool, "arguments": json_text(question.arguments), "server_label": where}
    return {"id": question.full_id, "type": "mcp_approval_request", **about}


def items_of_message(parts: list[Json], prefix: str, label: str, functions: Collection[str]) -> list[Json]:
    """Return the items of a message whose chunks are gone."""
    found: list[Json] = []
    for at, part in enumerate(parts):
        kind = str(part["type"])
        if kind == "text" and part["text"]:
            found.append(message(item_id("msg", prefix, at), part["text"]))
        elif kind.startswith("tool-") and not (name := kind.removeprefix("tool-")).startswith(OUTPUT_TOOL):
            arguments = json_text(part.get("input"))
            if name in functions:
                found.append(function_call(item_id("fc", prefix, at), part["toolCallId"], name, arguments))
            else:
                error = part.get("errorText")
                output = None if "output" not in part else json_text(part["output"])
                about = {"server_label": label, "name": name, "arguments": arguments, "output": output, "error": error}
                found.append(
                    {"id": item_id("mcp", prefix, at), "type": "mcp_call", **about, "approval_request_id": None}
                )
    return found


def json_text(value: Any) -> str:
    """Return a text as it is, and another value as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _word(item: Item) -> str:
    return cast("str", item.body["type"])


def _at(item: Item) -> Json:
    return {"item_id": item.body["id"], "output_index": item.index}


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
