"""The exposed methods of an agent class, described with JSON schemas.

Schemas show types, never the values of defaults: a default may hold a secret.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from sapwood.kernel.marshal.agent_class import AgentClass, Method
from sapwood.kernel.marshal.copier import without_object
from sapwood.wire.methods import ExposedMethod, MethodList

NAMED_SCHEMAS = frozenset({"$defs", "properties", "patternProperties"})
"""Keywords whose value maps names to schemas."""
VALUES = frozenset({"const", "enum", "examples", "required"})
"""Keywords whose value is no schema."""

Mode = Literal["validation", "serialization"]


@functools.cache
def method_list(kind: AgentClass) -> bytes:
    """Return the methods of a class that clients may call, inherited ones included, as JSON."""
    return msgspec.json.encode(MethodList([described(method) for method in callable_methods(kind)]))


def callable_methods(kind: AgentClass) -> list[Method]:
    """Return the methods of a class that clients may call, inherited ones included."""
    return [one for one in kind.methods.values() if one.is_exposed and _is_callable(one)]


def schema_of(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of values that are read as this type. A type without a schema allows every value."""
    (schema,), definitions = _schemas([annotation], "validation")
    return _without_defaults(schema | definitions)


def _is_callable(method: Method) -> bool:
    """Return whether clients can call a method: they pass arguments by position."""
    return not any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in method.signature.parameters)


def described(method: Method) -> ExposedMethod:
    """Return the description of a method for clients."""
    signature = method.signature
    places = [p for p in signature.parameters if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    names = [p.name for p in places]
    schemas, definitions = _schemas([signature.hints.get(name, Any) for name in names], "validation")
    if variadic := any(p.kind is p.VAR_POSITIONAL for p in places):
        schemas[-1] = {"type": "array", "items": schemas[-1]}
    parameters = {
        "type": "object",
        "properties": dict(zip(names, schemas, strict=True)),
        "required": [p.name for p in places if p.default is p.empty and p.kind is not p.VAR_POSITIONAL],
        "additionalProperties": False,
    }
    return ExposedMethod(
        name=method.name,
        doc=inspect.getdoc(method.function),
        parameters=_without_defaults(parameters | definitions),
        variadic=variadic,
        streams=method.streams,
        result=result_schema(signature.returned) if "return" in signature.hints else None,
    )


def result_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of results that are written as this type."""
    (schema,), definitions = _schemas([annotation], "serialization")
    return _without_defaults(schema | definitions)


def _schemas(annotations: Sequence[Any], mode: Mode) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the schema of each type, and `$defs` of the types that they name.

    A type without a schema gets one that allows every value.
    """
    definitions: dict[str, Any] = {}

    def of_other(type_: type) -> dict[str, Any]:
        found = _of_pydantic(type_, mode)
        definitions.update(found.pop("$defs", {}))
        return found

    def components(types: Sequence[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
        return msgspec.json.schema_components(types, schema_hook=of_other, ref_template="#/$defs/{name}")

    def or_any(annotation: Any) -> Any:
        try:
            components([annotation])
        except TypeError:
            return Any
        return annotation

    # All at once: then two classes of the same name get different names.
    schemas, named = components([or_any(without_object(one)) for one in annotations])
    definitions |= named
    return list(schemas), {"$defs": definitions} if definitions else {}


def _of_pydantic(type_: type, mode: Mode) -> dict[str, Any]:
    """Return the schema of a pydantic model. Of any other class, return its name only."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not issubclass(type_, pydantic.BaseModel):
        return {"title": type_.__name__}
    # Two models may name different classes alike.
    prefix = re.sub(r"\W", "_", f"{type_.__module__}.{type_.__qualname__}")
    try:
        # Arguments are read by alias, results are written by name.
        found = cast("Any", type_).model_json_schema(
            by_alias=mode == "validation", mode=mode, ref_template=f"#/$defs/{prefix}.{{model}}"
        )
    except pydantic.errors.PydanticUserError:
        return {"title": type_.__name__}
    if "$defs" in found:
        found["$defs"] = {f"{prefix}.{name}": schema for name, schema in found["$defs"].items()}
    return found


def _without_defaults(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_defaults(one) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for keyword, value in cast("Mapping[str, Any]", schema).items():
        if keyword in NAMED_SCHEMAS:
            kept[keyword] = {name: _without_defaults(one) for name, one in value.items()}
        elif keyword != "default":
            kept[keyword] = value if keyword in VALUES else _without_defaults(value)
    return kept
