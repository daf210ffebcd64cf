"""Formats of outputs: those of a class are set on the server, and a request can only name the one that is used."""

from __future__ import annotations

from typing import Any, cast

from sapwood.protocols.openai_errors import invalid

Json = dict[str, Any]
NOTES = frozenset({"title", "description", "default", "additionalProperties", "required", "examples"})
"""What schemas of the same data may differ in: the SDKs add and remove it."""


def check_format(format: Json, output_type: Any, where: str) -> None:
    """Refuse a format that is not the one in which a class answers."""
    kind, schema = format.get("type"), _schema_of(output_type)
    if kind == "text" or (kind == "json_object" and schema is not None):
        return
    if schema is None:
        raise invalid(where, "this model answers with text. Its class on the server decides that. Leave it out.")
    # The two APIs nest it differently.
    given: Any = format["json_schema"] if isinstance(format.get("json_schema"), dict) else format
    asked: Any = cast("Json", given).get("schema")
    if not isinstance(asked, dict) or _bare(asked, cast("Json", asked)) != _bare(schema, schema):
        raise invalid(where, "the schema is not that of this model's output, which its class on the server sets.")


def _schema_of(output_type: Any) -> Json | None:
    """Return the JSON schema of a class's output; `None` if it is text, or not known before the turn."""
    from pydantic import PydanticSchemaGenerationError, TypeAdapter
    from pydantic.errors import PydanticUserError

    if output_type is str:
        return None
    try:
        return TypeAdapter(output_type).json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError):
        return None


def _bare(schema: Any, root: Json, depth: int = 0) -> object:
    """Return a schema without notes, and with what it refers to in place."""
    if isinstance(schema, list):
        return [_bare(one, root, depth + 1) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict) or depth > 30:
        return cast("object", schema)
    given = cast("Json", schema)
    name = given.get("$ref")
    if isinstance(name, str):
        defined: Any = root.get("$defs", {})
        named = cast("Json", defined).get(name.rpartition("/")[2]) if isinstance(defined, dict) else None
        return _bare(named, root, depth + 1)
    found: Json = {}
    for key, one in given.items():
        if key == "properties" and isinstance(one, dict):
            found[key] = {field: _bare(value, root, depth + 1) for field, value in cast("Json", one).items()}
        elif key not in NOTES and key != "$defs":
            found[key] = _bare(one, root, depth + 1)
    return found
