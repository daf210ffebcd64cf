"""Checks values against JSON schemas: the keywords that describe a form, and no others.

A schema with another keyword is refused, so that no constraint is silently ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from sapwood.errors import UsageError

TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
}
LIMITS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value: value, lambda value, limit: value >= limit, "at least {}"),
    "maximum": (lambda value: value, lambda value, limit: value <= limit, "at most {}"),
    "exclusiveMinimum": (lambda value: value, lambda value, limit: value > limit, "above {}"),
    "exclusiveMaximum": (lambda value: value, lambda value, limit: value < limit, "below {}"),
    "minLength": (len, lambda value, limit: value >= limit, "at least {} characters"),
    "maxLength": (len, lambda value, limit: value <= limit, "at most {} characters"),
    "minItems": (len, lambda value, limit: value >= limit, "at least {} items"),
    "maxItems": (len, lambda value, limit: value <= limit, "at most {} items"),
}
NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
TEXTS = frozenset({"minLength", "maxLength"})
CHECKED = frozenset(
    {"type", "enum", "const", "properties", "required", "additionalProperties", "items", "pattern"}
    | {"anyOf", "oneOf", "allOf", "$ref", *LIMITS}
)
NOTES = frozenset(
    {"title", "description", "default", "examples", "format", "deprecated", "readOnly", "writeOnly"}
    | {"$schema", "$id", "$comment", "$defs"}
)
"""Keywords that describe, and constrain nothing."""
DEEPEST = 50
MOST_CHECKS = 20_000
"""How often values of one answer are compared with schemas. Choices in a recursive schema multiply the comparisons."""


class TooMuch(Exception):
    """An answer takes too many comparisons."""


class Checks(NamedTuple):
    """One comparison of an answer with a schema."""

    root: Mapping[str, Any]
    left: Iterator[int]
    """Yields as often as a value may still be compared."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raise `UsageError` if a schema has a keyword that is not checked, or one with a value that cannot be."""
    for one in _schemas_in(schema):
        if unknown := [keyword for keyword in one if keyword not in CHECKED | NOTES]:
            raise UsageError(
                f"The schema has the keyword {unknown[0]!r}, which is not supported. Supported keywords: "
                f"{', '.join(sorted(CHECKED))}."
            )
        for keyword, fits in FORMS.items():
            if keyword in one and not fits(one[keyword]):
                raise UsageError(f"The schema has the keyword {keyword!r} with an invalid value: {one[keyword]!r}.")
        reference = one.get("$ref")
        if reference is not None and _referred(schema, reference) is None:
            raise UsageError(f"The schema refers to {reference!r}, which is not in its $defs.")


def problem_of(schema: Mapping[str, Any], value: Any) -> str | None:
    """Return in a sentence why a value does not fit a schema; `None` if it fits."""
    try:
        return _problem(Checks(schema, iter(range(MOST_CHECKS))), schema, value, "The answer", 0)
    except TooMuch:
        return "The answer is too large to be checked."


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping | bool)


def _is_list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(map(fits, cast("Sequence[Any]", value)))


def _are_named_schemas(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_schema, cast("Mapping[str, Any]", value).values()))


def _is_type(value: Any) -> bool:
    return isinstance(value, str) and value in TYPES


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except (re.error, OverflowError, RecursionError):
        return False


FORMS: dict[str, Callable[[Any], bool]] = {
    "type": lambda value: _is_type(value) or _is_list_of(_is_type)(value),
    "enum": _is_list_of(lambda value: True),
    "required": _is_list_of(lambda value: isinstance(value, str)),
    "pattern": _is_pattern,
    **dict.fromkeys(("properties", "$defs"), _are_named_schemas),
    **dict.fromkeys(("items", "additionalProperties"), _is_schema),
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), _is_list_of(_is_schema)),
    **dict.fromkeys(LIMITS, TYPES["number"]),
}
"""What the value of each keyword must be."""


def _schemas_in(schema: Any) -> list[Mapping[str, Any]]:
    """Return a schema and all schemas in it."""
    if not isinstance(schema, Mapping):
        return []
    known = cast("Mapping[str, Any]", schema)
    found: list[Any] = [known.get("items"), known.get("additionalProperties")]
    for keyword in ("$defs", "properties"):
        found += known[keyword].values() if isinstance(known.get(keyword), Mapping) else ()
    for keyword in ("anyOf", "oneOf", "allOf"):
        found += known[keyword] if isinstance(known.get(keyword), list | tuple) else ()
    return [known, *(inner for one in found for inner in _schemas_in(one))]


def _referred(root: Mapping[str, Any], reference: Any) -> Any:
    if reference == "#":
        return root
    prefix, _, name = str(reference).rpartition("/")
    return root.get("$defs", {}).get(name) if prefix == "#/$defs" else None


def check_linear(schema: Mapping[str, Any]) -> None:
    """Raise `UsageError` if a schema that strangers wrote has a pattern that could take very long to compare."""
    for one in _schemas_in(schema):
        if "pattern" in one and _linear_matcher(one["pattern"]) is None:
            raise UsageError(f"The schema has the pattern {one['pattern']!r}, which is not safe.")


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return what searches a text for a pattern, in linear time if possible: the text is a client's."""
    if (linear := _linear_matcher(pattern)) is not None:
        return linear
    compiled = re.compile(pattern)
    return lambda text: compiled.search(text) is not None


@lru_cache(maxsize=256)
def _linear_matcher(pattern: str) -> Callable[[str], bool] | None:
    """Return what searches a text in linear time; `None` if Pydantic is missing, or has not what the pattern needs."""
    try:
        from pydantic_core import SchemaValidator, core_schema

        found = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except Exception:  # noqa: BLE001 - of Pydantic or of its engine
        return None
    return found.isinstance_python


def _problem(checks: Checks, schema: Any, value: Any, at: str, depth: int) -> str | None:
    if schema is True or schema == {}:
        return None
    if schema is False or depth > DEEPEST:
        return f"{at} is not allowed."
    if next(checks.left, None) is None:
        raise TooMuch
    if "$ref" in schema:
        referred = _referred(checks.root, schema["$ref"])
        deeper = depth + (isinstance(referred, Mapping) and "$ref" in referred)  # it may refer to itself
        if (problem := _problem(checks, referred, value, at, deeper)) is not None:
            return problem
    return (
        _problem_of_value(schema, value, at)
        or _problem_of_choice(checks, schema, value, at, depth)
        or _problem_inside(checks, schema, value, at, depth)
    )


def _problem_of_value(schema: Mapping[str, Any], value: Any, at: str) -> str | None:
    wanted = schema.get("type")
    types: Sequence[str] = [wanted] if isinstance(wanted, str) else wanted or ()
    if types and not any(TYPES[one](value) for one in types):
        return f"{at} must be of type {' or '.join(types)}."
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if allowed is not None and not any(type(one) is type(value) and one == value for one in allowed):
        return f"{at} must be one of {', '.join(map(repr, allowed))}."
    for keyword, (measure, fits, text) in LIMITS.items():
        kind = "number" if keyword in NUMBERS else "string" if keyword in TEXTS else "array"
        if keyword in schema and TYPES[kind](value) and not fits(measure(value), schema[keyword]):
            return f"{at} must be {text.format(schema[keyword])}."
    if "pattern" in schema and isinstance(value, str) and not _matcher(schema["pattern"])(value):
        return f"{at} must match the pattern {schema['pattern']}."
    return None


def _problem_of_choice(checks: Checks, schema: Mapping[str, Any], value: Any, at: str, depth: int) -> str | None:
    for one in schema.get("allOf", ()):
        if (problem := _problem(checks, one, value, at, depth + 1)) is not None:
            return problem
    for keyword in ("anyOf", "oneOf"):
        problems: list[str | None] = []
        for one in schema.get(keyword, ()):
            problems.append(_problem(checks, one, value, at, depth + 1))
            if keyword == "anyOf" and problems[-1] is None:
                break
        fitting = problems.count(None)
        if problems and (not fitting or (keyword == "oneOf" and fitting > 1)):
            return problems[0] or f"{at} fits more than one of the allowed forms."
    return None


def _problem_inside(checks: Checks, schema: Mapping[str, Any], value: Any, at: str, depth: int) -> str | None:
    if isinstance(value, list):
        for number, one in enumerate(cast("list[Any]", value)):
            if (
                problem := _problem(checks, schema.get("items", True), one, f"Item {number} of it", depth + 1)
            ) is not None:
                return problem
    if not isinstance(value, dict):
        return None
    fields, properties = cast("dict[str, Any]", value), schema.get("properties", {})
    if missing := [name for name in schema.get("required", ()) if name not in fields]:
        return f"The field {missing[0]!r} is missing."
    others = schema.get("additionalProperties", True)
    for name, one in fields.items():
        inner = properties.get(name, others)
        if (problem := _problem(checks, inner, one, f"The field {name!r}", depth + 1)) is not None:
            return problem
    return None
