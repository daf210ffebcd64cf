"""A conversation as AG-UI has it: one message for each text, each tool call and each result.

The ids of what an agent itself has said are counted in its message, so that they are the same in a stream of events
and in what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from sapwood.chat.store.transcript import UIMessage

Message = dict[str, Any]
Frame = dict[str, Any]
DENIED = "The user did not allow this call."


def text_id(owner: str, number: int) -> str:
    """Return the id of the nth text of a message, or of what a sub-agent says."""
    return f"{owner}-{number}"


def reasoning_id(owner: str, number: int) -> str:
    """Return the id of the nth reasoning of a message, or of what a sub-agent says."""
    return f"{owner}-r{number}"


def result_id(call: str) -> str:
    """Return the id of the message with the result of a tool call."""
    return f"result-{call}"


def text_of(value: Any) -> str:
    """Return the result of a tool as text."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def flat(messages: Sequence[UIMessage]) -> list[Message]:
    """Return stored messages as AG-UI has them."""
    return [one for message in messages for one in _flat(message)]


def _flat(message: UIMessage) -> Iterator[Message]:
    if message["role"] != "assistant":
        yield _of_user(message)
        return
    id, texts, thoughts = str(message["id"]), 0, 0
    for part in message["parts"]:
        if part["type"] == "text":
            texts += 1
            yield {"id": text_id(id, texts), "role": "assistant", "content": part["text"]}
        elif part["type"] == "reasoning":
            thoughts += 1
            yield {"id": reasoning_id(id, thoughts), "role": "reasoning", "content": part["text"]}
        elif "toolCallId" in part:
            yield from _of_call(part)


def _of_user(message: UIMessage) -> Message:
    metadata = dict(message.get("metadata") or {})
    name = metadata.pop("name", None)
    told: Message = {"id": message["id"], "role": message["role"], "content": _content(message["parts"])}
    if isinstance(name, str):
        told["name"] = name
    return {**told, "metadata": metadata} if metadata else told


def _content(parts: Sequence[Mapping[str, Any]]) -> Any:
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return [
        {"type": "text", "text": part["text"]} if part["type"] == "text" else _media(part)
        for part in parts
        if part["type"] in ("text", "file")
    ]


def _media(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part["mediaType"].partition("/")[0]
    source = {"type": "url", "value": part["url"], "mimeType": part["mediaType"]}
    return {"type": kind if kind in ("image", "audio", "video") else "document", "source": source}


def _of_call(part: Mapping[str, Any]) -> Iterator[Message]:
    id, given = str(part["toolCallId"]), part.get("input")
    arguments = given if isinstance(given, str) else msgspec.json.encode({} if given is None else given).decode()
    function = {"name": part["type"].removeprefix("tool-"), "arguments": arguments}
    yield {"id": id, "role": "assistant", "toolCalls": [{"id": id, "type": "function", "function": function}]}
    if (content := result_in(part)) is not None:
        yield {"id": result_id(id), "role": "tool", "toolCallId": id, "content": content}


def result_in(part: Mapping[str, Any]) -> str | None:
    """Return the result in a stored tool call; `None` if there is none yet."""
    match part.get("state"):
        case "output-available":
            return text_of(part.get("output"))
        case "output-error":
            return str(part.get("errorText"))
        case "output-denied":
            return DENIED
        case _:
            return None


def key_of(message: Mapping[str, Any]) -> str:
    """Return what names a message for both sides: clients give the results of their tools ids of their own."""
    return f"result of {message.get('toolCallId')}" if message["role"] == "tool" else str(message["id"])


class Messages:
    """The messages that a client makes of the events of one turn."""

    def __init__(self) -> None:
        self._messages: dict[str, Message] = {}
        self._calls: dict[str, dict[str, Any]] = {}

    def all(self) -> list[Message]:
        """Return the messages in their order."""
        return list(self._messages.values())

    def know(self, messages: Sequence[Message]) -> None:
        """Begin with messages that are known."""
        for message in messages:
            self._messages[message["id"]] = dict(message)
            for one in message.get("toolCalls", ()):
                self._calls[one["id"]] = one["function"]

    def forget(self, ids: Sequence[str]) -> None:
        """Take messages back."""
        for id in ids:
            self._messages.pop(id, None)

    def take(self, frame: Frame) -> None:
        """Take an event of a stream."""
        who = {"subagentRunId": frame["subagentRunId"]} if "subagentRunId" in frame else {}
        match frame["type"]:
            case "TEXT_MESSAGE_START":
                self._put(frame["messageId"], {"role": "assistant", "content": "", **who})
            case "REASONING_MESSAGE_START":
                self._put(frame["messageId"], {"role": "reasoning", "content": "", **who})
            case "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT":
                self._messages[frame["messageId"]]["content"] += frame["delta"]
            case "TOOL_CALL_START":
                id = frame["toolCallId"]
                function = self._calls[id] = {"name": frame["toolCallName"], "arguments": ""}
                call = {"id": id, "type": "function", "function": function}
                self._put(id, {"role": "assistant", "toolCalls": [call], **who})
            case "TOOL_CALL_ARGS":
                self._calls[frame["toolCallId"]]["arguments"] += frame["delta"]
            case "TOOL_CALL_RESULT":
                told = {"role": "tool", "toolCallId": frame["toolCallId"], "content": frame["content"], **who}
                self._put(frame["messageId"], told)
            case _:
                pass

    def _put(self, id: str, message: Message) -> None:
        self._messages.setdefault(id, {"id": id, **message})
