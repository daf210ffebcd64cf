"""What a tool returned, as code and models take it."""

from __future__ import annotations

import base64
import binascii
from typing import Any, cast

from sapwood.errors import Refused
from sapwood.mcp_client.text import cleaned

LONGEST_TEXT = 4 * 1024 * 1024
MEDIA = ("image", "audio")


class ToolRefused(Refused):
    """A tool of an MCP server returned an error."""


def value_of(result: dict[str, Any]) -> Any:
    """Return the result of a tool for code: its structured content if it has one, else its text.

    Raises `ToolRefused` if the tool reports an error.
    """
    if result.get("isError") is True:
        raise ToolRefused(text_of(result) or "The tool failed without a reason.")
    structured = result.get("structuredContent")
    return structured if structured is not None else text_of(result)


def text_of(result: dict[str, Any]) -> str:
    """Return the texts of a result."""
    return "\n".join(one for block in _blocks(result) if (one := _text(block)))


def media_of(result: dict[str, Any]) -> list[tuple[bytes, str]]:
    """Return the images and sounds of a result, with their media types."""
    found: list[tuple[bytes, str]] = []
    for block in _blocks(result):
        data, kind = block.get("data"), block.get("mimeType")
        if block.get("type") in MEDIA and isinstance(data, str) and isinstance(kind, str):
            try:
                found.append((base64.b64decode(data, validate=True), cleaned(kind, 100)))
            except (binascii.Error, ValueError):
                continue
    return found


def _blocks(result: dict[str, Any]) -> list[dict[str, Any]]:
    content = result.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return [cast("dict[str, Any]", one) for one in blocks if isinstance(one, dict)]


def _text(block: dict[str, Any]) -> str:
    if block.get("type") == "text":
        return cleaned(block.get("text"), LONGEST_TEXT)
    if block.get("type") == "resource" and isinstance(block.get("resource"), dict):
        return cleaned(block["resource"].get("text"), LONGEST_TEXT)
    if block.get("type") == "resource_link":
        return cleaned(block.get("uri"), LONGEST_TEXT)
    return ""
