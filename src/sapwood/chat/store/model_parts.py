"""Parts of the messages that a model sees: files that are left out, and tool calls that have no result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ToolCallPart


def without_files(content: Any, kinds: tuple[type, ...]) -> Any:
    """Return the content of a prompt with a note in the place of each file of these kinds."""
    if isinstance(content, str):
        return content
    return [
        f"[A file could not be read and was left out: {getattr(one, 'url', one.media_type)}]"
        if isinstance(one, kinds)
        else one
        for one in content
    ]


def unreturned(history: Iterable[ModelMessage]) -> list[ToolCallPart]:
    """Return the tool calls that nothing was returned for."""
    from pydantic_ai.messages import ToolCallPart, ToolReturnPart

    found: dict[str, ToolCallPart] = {}
    for message in history:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                found[part.tool_call_id] = part
            elif isinstance(part, ToolReturnPart):
                found.pop(part.tool_call_id, None)
    return [*found.values()]
