"""What users say, as messages of the AI SDK: checked when it comes, and put as the model is told it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sapwood.chat.transcript import UIMessage
from sapwood.errors import InvalidArguments


def check(message: Any) -> None:
    """Refuse what is no message."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):  # pyright: ignore[reportUnknownMemberType]
        raise InvalidArguments("A message has a role and parts.")
    id, parts = message.get("id"), message.get("parts")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(id, str | None) or not isinstance(parts, list):
        raise InvalidArguments("A message has a role and parts.")
    for part in parts:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):  # pyright: ignore[reportUnknownMemberType]
            raise InvalidArguments("A part of a message has a type.")
        if part["type"] == "text" and not isinstance(part.get("text"), str):  # pyright: ignore[reportUnknownMemberType]
            raise InvalidArguments("A part of type text has a text.")


def check_understood(said: Sequence[UIMessage]) -> None:
    """Refuse what no model could be told: once it was accepted, all that is said later would wait behind it."""
    try:
        request_of(said)
    except ValueError as error:
        raise InvalidArguments(f"A message has parts that nobody understands: {error}") from error


def request_of(said: Sequence[UIMessage], *, joined: bool = False) -> Any:
    """Return what the model is told of what users said, perhaps as if they had said it in one breath."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    if all(part.get("type") == "text" for message in said for part in message["parts"]):
        texts = ["".join(part["text"] for part in message["parts"]) for message in said]
        if joined:
            texts = ["\n\n".join(texts)]
        return ModelRequest(parts=[UserPromptPart(text) for text in texts])
    from pydantic_ai.ui.vercel_ai import VercelAIAdapter
    from pydantic_ai.ui.vercel_ai.request_types import UIMessage as TheirMessage

    found = VercelAIAdapter.load_messages([TheirMessage.model_validate(message) for message in said])
    return ModelRequest(parts=[part for message in found for part in message.parts])  # pyright: ignore[reportArgumentType]


def trailing(messages: Sequence[UIMessage]) -> list[str]:
    """Return the ids of the messages of the user's at the end."""
    found: list[str] = []
    for message in reversed(messages):
        if message["role"] != "user":
            break
        if message.get("id"):
            found.insert(0, message["id"])
    return found


def ids_of(said: str) -> list[str]:
    return [message["id"] for message in msgspec.json.decode(said)]
