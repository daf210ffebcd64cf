"""Messages of JSON-RPC in the body of a request."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from mcp_types.jsonrpc import INVALID_REQUEST, PARSE_ERROR
from starlette.requests import Request
from starlette.responses import Response

from sapwood.protocols.mcp_http import refusal
from sapwood.wire.frames import is_deep

NOT_ONE = "The body must be one JSON-RPC request, notification or response."
NO_ID = object()


async def message_of(request: Request) -> dict[str, Any] | Response:
    """Return the message in a body, or the response that refuses it."""
    body = await request.body()
    try:
        if is_deep(body):
            raise msgspec.DecodeError
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return refusal(400, PARSE_ERROR, "Parse error: the body must be JSON.")
    if not isinstance(found, dict) or cast("dict[str, Any]", found).get("jsonrpc") != "2.0":
        return refusal(400, INVALID_REQUEST, NOT_ONE)
    return cast("dict[str, Any]", found)


def is_request(message: dict[str, Any]) -> bool:
    """Return whether a message is a well-formed request."""
    id, params = message.get("id", NO_ID), message.get("params", {})
    is_id = isinstance(id, str | int) and not isinstance(id, bool)
    return is_id and isinstance(message.get("method"), str) and isinstance(params, dict)


def is_notification(message: dict[str, Any]) -> bool:
    """Return whether a message expects no answer."""
    return "id" not in message and isinstance(message.get("method"), str)
