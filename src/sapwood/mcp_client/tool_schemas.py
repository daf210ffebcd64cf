"""The JSON schemas of a server's tools. One that is invalid would make a provider refuse the whole request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from sapwood.kernel.marshal.json_schemas import TYPES
from sapwood.mcp_client.text import cleaned
from sapwood.wire.frames import is_deep

LONGEST_NOTE = 2048
"""Characters of a title or a description in a schema."""
NOTES = ("title", "description", "$comment")
NAMED, LISTED, SINGLE = (
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"),
    ("anyOf", "oneOf", "allOf", "prefixItems"),
    ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"),
)
"""The keywords that contain schemas: by name, in a list, and one."""


def arguments_schema(given: Any) -> dict[str, Any] | None:
    """Return the schema of the arguments of a tool as models may see it; `None` if it is invalid."""
    if not isinstance(given, dict) or is_deep(msgspec.json.encode(given)):
        return None
    schema = cast("dict[str, Any]", given)
    if schema.get("type") != "object":
        return None
    found = _cleaned(schema)
    return found if all(_is_valid(one, found) for one in _objects(found)) else None


def _objects(schema: Any) -> Iterator[Any]:
    """Yield a schema and all schemas in it; also what is none but is where one belongs."""
    left = [schema]
    while left:
        yield (one := left.pop())
        if not isinstance(one, dict):
            continue
        part = cast("dict[str, Any]", one)
        for keyword in NAMED:
            left += _values(part.get(keyword))
        for keyword in LISTED:
            inner = part.get(keyword)
            left += cast("list[Any]", inner) if isinstance(inner, list) else [inner] if keyword in part else []
        for keyword in SINGLE:
            inner = part.get(keyword, True)
            left += cast("list[Any]", inner) if isinstance(inner, list) else [inner]


def _values(named: Any) -> list[Any]:
    return [] if named is None else list(cast("dict[str, Any]", named).values()) if isinstance(named, dict) else [named]


def _is_valid(schema: Any, root: Mapping[str, Any]) -> bool:
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, dict):
        return False
    part = cast("dict[str, Any]", schema)
    wanted: Any = part.get("type", [])
    types = cast("list[Any]", wanted) if isinstance(wanted, list) else [wanted]
    required, allowed = part.get("required", []), part.get("enum", [])
    names = [name for keyword in NAMED for name in _keys(part.get(keyword))]
    return (
        all(isinstance(one, str) and one in TYPES for one in types)
        and isinstance(required, list)
        and all(isinstance(one, str) for one in cast("list[Any]", required))
        and isinstance(allowed, list)
        and all(len(name) > 0 and name.isprintable() for name in names)
        and ("$ref" not in part or _refers(part["$ref"], root))
        and "$dynamicRef" not in part
    )


def _keys(named: Any) -> list[str]:
    return list(cast("dict[str, Any]", named)) if isinstance(named, dict) else []


def _refers(reference: Any, root: Mapping[str, Any]) -> bool:
    """Return whether a reference leads to a schema in the same document. No other document is ever read."""
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
        return False
    found: Any = root
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = cast("dict[str, Any]", found).get(name) if isinstance(found, dict) else None
    return isinstance(found, dict | bool)


def _cleaned(value: Any) -> Any:
    """Return a schema whose titles and descriptions have no characters that a person does not see."""
    if isinstance(value, list):
        return [_cleaned(one) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    return {
        name: cleaned(one, LONGEST_NOTE) if name in NOTES and isinstance(one, str) else _cleaned(one)
        for name, one in cast("dict[str, Any]", value).items()
    }
