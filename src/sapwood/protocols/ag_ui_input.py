"""What an AG-UI client sends with a run, checked: a field that has no effect here is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from sapwood.chat.store.transcript import UIMessage
from sapwood.errors import InvalidArguments
from sapwood.runs.tables.question import Answer, Question
from sapwood.wire.frames import read_json

LONGEST_ID = 200
MEDIA = {"image": "image/png", "audio": "audio/mpeg", "video": "video/mp4", "document": "application/octet-stream"}
DENIED = "The user cancelled it."
USER_FIELDS = {"id", "role", "content", "name", "metadata"}
"""What a new message of a user may have."""


class ClientTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool that the page executes."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    """For the page: the agent does not see it."""

    def told(self) -> dict[str, Any]:
        """Return the tool as a chat agent has it."""
        parameters = self.parameters or {"type": "object", "properties": {}}
        return {"name": self.name, "description": self.description, "parameters": parameters}


class ContextEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A piece of ambient information."""

    description: str
    value: str


class ResumeEntry(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The answer to an interrupt."""

    interrupt_id: str
    status: str
    payload: Any = None
    metadata: dict[str, Any] | None = None


class RunInput(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`RunAgentInput` of the protocol."""

    thread_id: str
    run_id: str
    messages: list[dict[str, Any]] = []
    tools: list[ClientTool] = []
    context: list[ContextEntry] = []
    state: Any = None
    forwarded_props: Any = None
    parent_run_id: str | None = None
    protocol_version: str | None = None
    resume: list[ResumeEntry] | None = None

    def said(self) -> list[UIMessage]:
        """Return the messages of the user at the end, in the format of the AI SDK."""
        found: list[UIMessage] = []
        for at in range(len(self.messages) - 1, -1, -1):
            message = self.messages[at]
            if message["role"] in ("activity", "reasoning"):
                continue
            if message["role"] in ("system", "developer"):
                _refuse_instructions(at, message)
            if message["role"] != "user":
                break
            found.insert(0, user_message(message, f"messages[{at}]"))
        return found

    def results(self) -> dict[str, Answer]:
        """Return the results of tools that the page has executed, by tool call."""
        return {
            str(message["toolCallId"]): _result(message, f"messages[{at}]")
            for at, message in enumerate(self.messages)
            if message["role"] == "tool" and "subagentRunId" not in message
        }

    def body(self) -> dict[str, Any]:
        """Return what the code of the agent reads as `Turn.body`."""
        fields = {
            "context": msgspec.to_builtins(self.context),
            "state": self.state,
            "forwardedProps": self.forwarded_props,
            "parentRunId": self.parent_run_id,
        }
        return {name: value for name, value in fields.items() if value not in (None, [], {})}


class CancelInput(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The body of a request to cancel a run."""

    thread_id: str
    run_id: str


def read_input(body: bytes) -> RunInput:
    """Return what a client sent with a run. Raises `InvalidArguments` if it cannot be used."""
    given = _read(body, RunInput)
    check_id("runId", given.run_id)
    for at, message in enumerate(given.messages):
        if not isinstance(message.get("id"), str) or not isinstance(message.get("role"), str):
            raise InvalidArguments(f"`messages[{at}]` must have an `id` and a `role`, both texts.")
        if message["role"] == "tool" and not isinstance(message.get("toolCallId"), str):
            raise InvalidArguments(f"`messages[{at}]` is the result of a tool and must have a `toolCallId`.")
    for at, entry in enumerate(given.resume or ()):
        if entry.status not in ("resolved", "cancelled"):
            raise InvalidArguments(f'`resume[{at}].status` must be "resolved" or "cancelled".')
    return given


def read_cancel(body: bytes) -> CancelInput:
    """Return which run a client wants to cancel."""
    return _read(body, CancelInput)


def check_id(name: str, value: str) -> None:
    """Refuse an id that is empty or very long."""
    if not 0 < len(value) <= LONGEST_ID:
        raise InvalidArguments(f"`{name}` must have 1 to {LONGEST_ID} characters, got {len(value)}.")


def _read(body: bytes, kind: Any) -> Any:
    try:
        return read_json(body, kind)
    except msgspec.ValidationError as error:
        raise InvalidArguments(f"The body is not valid in AG-UI 1.0: {error}.") from None
    except msgspec.DecodeError as error:
        raise InvalidArguments(f"The body must be a JSON object: {error}.") from None


def user_message(message: Mapping[str, Any], where: str) -> UIMessage:
    """Return a message of a user in the format of the AI SDK."""
    if unknown := sorted(set(message) - USER_FIELDS):
        raise InvalidArguments(f"`{where}.{unknown[0]}` is not supported in a message of a user.")
    content = message.get("content")
    if isinstance(content, str):
        parts: list[dict[str, Any]] = [{"type": "text", "text": content}]
    elif isinstance(content, list):
        items = enumerate(cast("list[Any]", content))
        parts = [_part(part, f"{where}.content[{at}]") for at, part in items]
    else:
        raise InvalidArguments(f"`{where}.content` must be a text or an array of parts.")
    given, name = message.get("metadata"), message.get("name")
    if not isinstance(given, dict | None) or not isinstance(name, str | None):
        raise InvalidArguments(f"`{where}.metadata` must be an object, and its `name` a text.")
    metadata = {**cast("dict[str, Any]", given or {}), **({} if name is None else {"name": name})}
    return {"id": message["id"], "role": "user", "parts": parts, **({"metadata": metadata} if metadata else {})}


def _part(part: Any, where: str) -> dict[str, Any]:
    fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    kind = str(fields.get("type"))
    if kind == "text" and isinstance(fields.get("text"), str):
        return {"type": "text", "text": fields["text"]}
    if kind == "binary":
        return _file(fields, fields.get("url"), fields.get("data"), fields.get("mimeType"), where)
    if kind not in MEDIA or not isinstance(fields.get("source"), dict):
        kinds = ", ".join(("text", *MEDIA))
        raise InvalidArguments(f"`{where}` must be a part of type {kinds}, with its `text` or `source`.")
    source = cast("dict[str, Any]", fields["source"])
    value, media_type = source.get("value"), source.get("mimeType") or MEDIA[kind]
    if source.get("type") == "url":
        return _file(fields, value, None, media_type, f"{where}.source")
    if source.get("type") == "data":
        return _file(fields, None, value, media_type, f"{where}.source")
    raise InvalidArguments(f"`{where}.source.type` must be data or url: other files are not known here.")


def _file(part: Mapping[str, Any], url: Any, data: Any, media_type: Any, where: str) -> dict[str, Any]:
    if not isinstance(media_type, str) or not isinstance(data if url is None else url, str):
        raise InvalidArguments(f"`{where}` must have a `mimeType`, and its data or URL as text.")
    where_it_is = url if url is not None else f"data:{media_type};base64,{data}"
    named = {"filename": part["filename"]} if isinstance(part.get("filename"), str) else {}
    return {"type": "file", "mediaType": media_type, "url": where_it_is, **named}


def _refuse_instructions(at: int, message: Mapping[str, Any]) -> None:
    raise InvalidArguments(
        f"`messages[{at}].role` is {message['role']}: clients cannot send instructions. Set `instructions` of "
        "the class, or send `context`."
    )


def _result(message: Mapping[str, Any], where: str) -> Answer:
    content, error = message.get("content"), message.get("error")
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        if not all(isinstance(part, dict) and isinstance(cast("Any", part).get("text"), str) for part in parts):
            raise InvalidArguments(f"`{where}.content` may have parts of type text only.")
        content = "".join(part["text"] for part in parts)
    if error is not None:
        return Answer("failed", str(error))
    if not isinstance(content, str):
        raise InvalidArguments(f"`{where}.content` must be a text or an array of parts.")
    return Answer("done", content)


def answer_of(entry: ResumeEntry, question: Question) -> Answer:
    """Return the answer of a client to an interrupt."""
    if entry.status == "cancelled":
        return Answer("denied", DENIED) if question.kind == "approval" else Answer("failed", DENIED)
    if question.kind != "approval":
        if (problem := question.problem_of(entry.payload)) is not None:
            raise InvalidArguments(f"The payload for {entry.interrupt_id!r} is no answer. {problem}")
        return Answer("done", entry.payload)
    given = entry.payload
    payload = cast("dict[str, Any]", given) if isinstance(given, dict) else {"approved": given}
    approved, arguments, reason = payload.get("approved"), payload.get("arguments"), payload.get("reason")
    unknown = sorted(set(payload) - {"approved", "arguments", "reason"})
    if unknown or not isinstance(approved, bool) or not isinstance(arguments, dict | None):
        raise InvalidArguments(
            f'The payload for {entry.interrupt_id!r} must be {{"approved": true}} or {{"approved": false}}, perhaps '
            "with `arguments`, an object, or a `reason`."
        )
    return Answer("approved", arguments) if approved else Answer("denied", None if reason is None else str(reason))
