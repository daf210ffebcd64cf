"""The keys of tools that the provider runs, such as MCP servers: no record of a request holds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

NOT_RECORDED = "<not recorded>"
"""Stands in a record for a key."""
FIELDS = ("tools", "mcp_servers")
"""Where providers expect these tools."""


def without_keys(parameters: Any) -> Any:
    """Return the parameters of a request without the keys of its native tools."""
    tools: Sequence[Any] = getattr(parameters, "native_tools", None) or ()
    if not any(_keys_of(tool) for tool in tools):
        return parameters
    return replace(parameters, native_tools=[_without_keys(tool) if _keys_of(tool) else tool for tool in tools])


def keys_in(parameters: Any) -> list[str]:
    """Return the keys of the native tools of a request."""
    return [key for tool in getattr(parameters, "native_tools", None) or () for key in _keys_of(tool)]


def tools_without_keys(parameters: Any) -> list[str]:
    """Return the names of the native tools whose keys a stored request does not hold."""
    return [tool.id for tool in getattr(parameters, "native_tools", None) or () if NOT_RECORDED in _keys_of(tool)]


def keys_left_out(body: bytes, keys: Sequence[str]) -> bytes:
    """Return the body of a request to a provider without these keys of its tools."""
    if not keys:
        return body
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return body
    for name in FIELDS:
        if name in fields:
            before = after = bytes(fields[name])
            for key in keys:
                for escaped in (json.dumps(key), json.dumps(key, ensure_ascii=False)):
                    after = after.replace(escaped.encode(), json.dumps(NOT_RECORDED).encode())
            body = body.replace(before, after)
    return body


def _keys_of(tool: Any) -> list[str]:
    token: str | None = getattr(tool, "authorization_token", None)
    headers: dict[str, str] | None = getattr(tool, "headers", None)
    return [*([token] if token else []), *(headers or {}).values()]


def _without_keys(tool: Any) -> Any:
    headers: dict[str, str] | None = tool.headers
    return replace(
        tool,
        authorization_token=NOT_RECORDED if tool.authorization_token else None,
        headers=None if headers is None else dict.fromkeys(headers, NOT_RECORDED),
    )
