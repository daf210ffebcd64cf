"""The headers in which a request repeats what proxies may want to know of its body."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

KEY = "x-mcp-header"
"""The keyword of a JSON schema that names the header of an argument."""
PREFIX = "Mcp-Param-"
TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
PLAIN = re.compile(r"[\x20-\x7E]*")
WRAPPED = re.compile(r"=\?base64\?.*\?=")
SCALARS = frozenset({"string", "integer", "boolean"})
NAMED = {"tools/call": "name", "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}
"""The parameter that is repeated as `Mcp-Name`, by method."""


def encoded(value: str) -> str:
    """Return a value as a header can carry it."""
    if PLAIN.fullmatch(value) and value == value.strip() and not WRAPPED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def declared(schema: Any) -> dict[str, list[str]] | None:
    """Return the paths of the arguments that are repeated in headers. `None` means that the schema is invalid."""
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for path, part in _positions(schema):
        if KEY not in part:
            continue
        header, kind = part[KEY], part.get("type")
        is_valid = isinstance(header, str) and TOKEN.fullmatch(header) and isinstance(kind, str) and kind in SCALARS
        if not path or not is_valid or header.lower() in seen:
            return None
        seen.add(header.lower())
        found[header] = list(path)
    return found


def parameters(headers: Mapping[str, Sequence[str]], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of the arguments of a call."""
    found: dict[str, str] = {}
    for header, path in headers.items():
        value: Any = arguments
        for name in path:
            value = cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else None
        if isinstance(value, bool):
            found[PREFIX + header] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            found[PREFIX + header] = encoded(str(value))
    return found


def _positions(schema: Any) -> Iterator[tuple[tuple[str, ...] | None, dict[str, Any]]]:
    """Yield all objects of a schema, with the path to those that are properties and nothing else on the way."""
    left: list[tuple[tuple[str, ...] | None, Any]] = [((), schema)]
    while left:
        path, node = left.pop()
        if isinstance(node, list):
            left.extend((None, one) for one in cast("list[Any]", node))
        if not isinstance(node, dict):
            continue
        part = cast("dict[str, Any]", node)
        yield path, part
        for keyword, value in part.items():
            if keyword == "properties" and isinstance(value, dict):
                named = cast("dict[str, Any]", value).items()
                left.extend(((*path, name) if path is not None else None, one) for name, one in named)
            elif keyword not in ("default", "examples", "const", "enum", KEY):
                left.append((None, value))
