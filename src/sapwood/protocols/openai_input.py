"""The input of a request: new messages of the user, and answers to what the agent has asked."""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass, field
from typing import Any, cast

from sapwood.protocols.openai_errors import invalid, unsupported
from sapwood.protocols.openai_history import ChatHistory
from sapwood.runs.tables.question import Answer

Json = dict[str, Any]

KEPT = (
    "The server keeps the conversation. Send only what is new, with `previous_response_id` or `conversation`, and no "
    "items of earlier responses."
)
DETAILS = ("auto", None)
FILES = "Files are sent inline: as a data URL, or as a public URL if the server allows it."


@dataclass(slots=True)
class Input:
    """What is new in a request."""

    history: ChatHistory = field(default_factory=ChatHistory)
    """The messages of the user, and what clients send again of earlier responses."""
    instructions: list[str] = field(default_factory=list[str])
    """The texts of its system and developer messages."""
    answers: list[tuple[str, Answer, str]] = field(default_factory=list[tuple[str, Answer, str]])
    """Answers, each with the full id of its question, and where in the request it is."""

    has_both: bool = False
    """Whether answers and a message are both new."""


def read_input(given: Any) -> Input:
    """Return the `input` of a request for a response."""
    found = Input()
    if isinstance(given, str):
        found.history.said([_text(given)])
    elif not isinstance(given, list) or not given:
        raise invalid("input", "expected a text, or an array of input items with at least one.")
    else:
        for at, one in enumerate(cast("list[Any]", given)):
            _read_item(found, one, f"input[{at}]")
    if not found.history.users and not found.answers:
        raise invalid("input", "expected a message of the user, or an answer to a tool call.")
    if found.has_both or (found.answers and found.history.users and not found.history.has_earlier):
        raise invalid(
            "input",
            "answers to tool calls continue the response that asked for them, and cannot be sent together with a "
            "message. Send the answers first.",
        )
    return found


def _read_item(found: Input, one: Any, where: str) -> None:
    if not isinstance(one, dict):
        raise invalid(where, "expected an object.")
    item = cast("Json", one)
    match item.get("type", "message"):
        case "message":
            _read_message(found, item, where)
        case "function_call_output":
            _check_fields(item, where, {"id", "call_id", "output", "status"})
            if item.get("status") not in (None, "completed"):
                raise unsupported(f"{where}.status", 'Only "completed" is supported.')
            output = text_in(item.get("output"), f"{where}.output")
            name = _id(item, "call_id", where)
            found.history.calls.append(name)
            found.answers.append((name, Answer("done", output), where))
        case "mcp_approval_response":
            _check_fields(item, where, {"id", "approval_request_id", "approve", "reason"})
            found.answers.append((_id(item, "approval_request_id", where), _verdict(item, where), where))
        case "function_call":
            found.history.calls.append(_id(item, "call_id", where))
            found.history.heard("", "")
        case "reasoning" | "mcp_call" | "mcp_approval_request":
            found.history.heard("", "")
        case "item_reference":
            raise unsupported(where, KEPT)
        case _:
            raise unsupported(where, "Items of this type are not supported.")


def _read_message(found: Input, item: Json, where: str) -> None:
    _check_fields(item, where, {"role", "content", "id", "status", "phase"})
    match item.get("role"):
        case "user":
            _read_user(found, parts_of(item.get("content"), f"{where}.content"))
        case "system" | "developer":
            found.instructions.append(text_in(item.get("content"), f"{where}.content"))
        case "assistant":
            found.answers.clear()
            found.history.heard("assistant", text_in(item.get("content"), f"{where}.content"))
        case _:
            raise invalid(f"{where}.role", "expected `user`.")


def _read_user(found: Input, parts: list[Json]) -> None:
    """Note a message of the user: messages in a row are one."""
    history = found.history
    found.has_both = bool(found.answers) and not history.has_earlier
    found.answers.clear()
    if history.lines and history.lines[-1][0] == "user":
        parts = [*history.users.pop(), *parts]
        history.lines.pop()
    history.said(parts)


def parts_of(content: Any, where: str) -> list[Json]:
    """Return the content of a user's message in the form of the AI SDK."""
    if isinstance(content, str):
        return [_text(content)]
    if not isinstance(content, list) or not content:
        raise invalid(where, "expected a text, or an array of content parts with at least one.")
    return [_part(one, f"{where}[{at}]") for at, one in enumerate(cast("list[Any]", content))]


def _part(one: Any, where: str) -> Json:
    if not isinstance(one, dict):
        raise invalid(where, "expected an object.")
    part = cast("Json", one)
    match part.get("type"):
        case "input_text" | "text" | "output_text":
            _check_fields(part, where, {"text", "annotations", "logprobs"})
            if not isinstance(part.get("text"), str):
                raise invalid(f"{where}.text", "expected a string.")
            return _text(part["text"])
        case "input_image":
            _check_fields(part, where, {"type", "image_url", "detail", "file_id"})
            return _image(part.get("image_url"), part, where)
        case "image_url":
            _check_fields(part, where, {"type", "image_url"})
            image = part.get("image_url")
            if not isinstance(image, dict):
                raise invalid(f"{where}.image_url", "expected an object with a `url`.")
            given = cast("Json", image)
            _check_fields(given, f"{where}.image_url", {"url", "detail"})
            return _image(given.get("url"), given, where)
        case "input_file":
            _check_fields(part, where, {"type", "file_data", "filename", "file_url", "file_id"})
            return _file(part, where)
        case "file" if isinstance(part.get("file"), dict):
            _check_fields(part, where, {"type", "file"})
            _check_fields(part["file"], f"{where}.file", {"file_data", "filename", "file_id"})
            return _file(part["file"], f"{where}.file")
        case _:
            raise unsupported(where, "Content parts of this type are not supported.")


def _image(url: Any, given: Json, where: str) -> Json:
    if given.get("file_id") is not None:
        raise unsupported(f"{where}.file_id", FILES)
    if given.get("detail") not in DETAILS:
        raise unsupported(f"{where}.detail", 'Only "auto" is supported.')
    if not isinstance(url, str):
        raise invalid(f"{where}.image_url", "expected a URL.")
    return {"type": "file", "mediaType": _media_type(url, "image/png"), "url": url}


def _file(part: Json, where: str) -> Json:
    if part.get("file_id") is not None:
        raise unsupported(f"{where}.file_id", FILES)
    url, name = part.get("file_data") or part.get("file_url"), part.get("filename")
    if not isinstance(url, str) or not isinstance(name, str | None):
        raise invalid(where, "expected `file_data` as a data URL, or `file_url`, and perhaps a `filename`.")
    guess = mimetypes.guess_type(name or "")[0] or "application/octet-stream"
    named = {} if name is None else {"filename": name}
    return {"type": "file", "mediaType": _media_type(url, guess), **named, "url": url}


def _media_type(url: str, default: str) -> str:
    """Return the media type that a data URL names, or that the end of another URL tells."""
    if url[:5].lower() == "data:":
        return url[5:].partition(",")[0].partition(";")[0] or default
    return mimetypes.guess_type(url.partition("?")[0])[0] or default


def text_in(output: Any, where: str) -> str:
    """Return a content that is only text."""
    if isinstance(output, str):
        return output
    parts = parts_of(output, where) if output and isinstance(output, list) else []
    if not parts or any(part["type"] != "text" for part in parts):
        raise invalid(where, "expected a text, or an array of texts.")
    return "".join(part["text"] for part in parts)


def _verdict(item: Json, where: str) -> Answer:
    approve, reason = item.get("approve"), item.get("reason")
    if not isinstance(approve, bool) or not isinstance(reason, str | None):
        raise invalid(where, "expected `approve` as true or false, and perhaps a `reason`.")
    return Answer("approved") if approve else Answer("denied", reason)


def _id(item: Json, name: str, where: str) -> str:
    found = item.get(name)
    if not isinstance(found, str) or not found:
        raise invalid(f"{where}.{name}", "expected a string.")
    return found


def _check_fields(item: Json, where: str, known: set[str]) -> None:
    if unknown := {name for name, value in item.items() if value is not None} - {"type", *known}:
        raise unsupported(f"{where}.{min(unknown)}", "It is not known here. Leave it out.")


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
