"""The JSON schemas of forms: what they allow, and which keywords are refused."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sapwood.errors import UsageError
from sapwood.kernel.marshal.json_schemas import check_linear, check_schema, problem_of

TREE: dict[str, Any] = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "below": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}


@pytest.mark.parametrize(
    ("schema", "fits", "not_so"),
    [
        ({"type": "integer"}, [1, 2.0], [1.5, True, "1", None]),
        ({"type": "number"}, [1, 1.5], [False, "1"]),
        ({"type": ["string", "null"]}, ["a", None], [1]),
        ({"enum": ["a", 1]}, ["a", 1], ["b", True, 1.0]),
        ({"const": 3}, [3], [4]),
        ({"type": "integer", "minimum": 1, "exclusiveMaximum": 3}, [1, 2], [0, 3]),
        ({"type": "string", "minLength": 1, "maxLength": 2}, ["a", "ab"], ["", "abc"]),
        ({"type": "string", "pattern": "^a"}, ["ab"], ["ba"]),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 1}, [[], ["a"]], [[1], ["a", "b"]]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["a", None], [1]),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, [1.5], [1, "a"]),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}], "type": "integer"}, [1, 2], [0, 3]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"a": 1}], [{"a": "b"}]),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"type": "string"}}}, ["a"], [5]),
        ({"$ref": "#/$defs/A", "minLength": 1, "$defs": {"A": {"type": "string", "minLength": 3}}}, ["abc"], ["ab"]),
        ({"$ref": "#/$defs/A", "$defs": {"A": True}}, ["a", 1], []),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, [], ["a"]),
        (TREE, [{"name": "a", "below": [{"name": "b"}]}], [{"name": "a", "below": [{}]}, {"name": "a", "x": 1}]),
    ],
)
def test_a_value_fits_a_schema_or_the_problem_is_a_sentence(
    schema: dict[str, Any], fits: list[Any], not_so: list[Any]
) -> None:
    check_schema(schema)
    for value in fits:
        assert problem_of(schema, value) is None, value
    for value in not_so:
        assert (problem_of(schema, value) or "").endswith("."), value


def test_a_value_that_is_nested_too_deep_is_refused() -> None:
    value: dict[str, Any] = {"name": "a"}
    for _ in range(60):
        value = {"name": "a", "below": [value]}
    assert problem_of(TREE, value) is not None


@pytest.mark.parametrize(
    "schema", [{"not": {}}, {"type": "object", "properties": {"a": {"if": {}}}}, {"$ref": "#/$defs/Nothing"}]
)
def test_a_keyword_that_is_not_checked_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"type": ["string", "text"]},
        {"type": "string", "pattern": "("},
        {"type": "string", "minLength": "3"},
        {"type": "string", "enum": "abc"},
        {"type": "object", "properties": ["a"]},
        {"type": "object", "properties": {"a": "string"}},
        {"type": "object", "required": "abc"},
        {"type": "array", "items": [{"type": "string"}]},
        {"anyOf": {"type": "string"}},
        {"anyOf": ["string"]},
        {"$ref": "#/$defs/A", "$defs": {"A": "string"}},
    ],
)
def test_a_keyword_whose_value_cannot_be_checked_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check_schema(schema)


def test_a_value_that_every_choice_of_a_recursive_schema_examines_is_refused_in_time() -> None:
    sums = {
        name: {
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/Any"}, "op": {"const": name}},
            "required": ["left", "op"],
        }
        for name in ("add", "subtract", "multiply")
    }
    schema: dict[str, Any] = {
        "$ref": "#/$defs/Any",
        "$defs": {**sums, "Any": {"anyOf": [*({"$ref": f"#/$defs/{name}"} for name in sums), {"type": "number"}]}},
    }
    check_schema(schema)
    fits: Any = 1
    for _ in range(10):
        fits = {"left": fits, "op": "add"}
    assert problem_of(schema, fits) is None
    wrong: Any = "one"
    for _ in range(22):
        wrong = {"left": wrong, "op": "add"}
    begun = time.process_time()
    assert "too large" in (problem_of(schema, wrong) or "")
    assert time.process_time() - begun < 5


def test_a_pattern_takes_linear_time() -> None:
    schema = {"type": "string", "pattern": "^(a+)+$"}
    check_schema(schema)
    assert problem_of(schema, "a" * 1000) is None
    assert "must match" in (problem_of(schema, "a" * 1000 + "!") or "")
    assert problem_of({"type": "string", "pattern": "^(?!b)"}, "a") is None  # which only Python's own engine has


def test_a_pattern_of_a_stranger_must_be_one_that_takes_linear_time() -> None:
    check_linear({"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}})
    with pytest.raises(UsageError, match="not safe"):
        check_linear({"anyOf": [{"pattern": "^(?!b)"}]})


@pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 10_000, "("])
def test_a_pattern_that_cannot_be_compiled_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="'pattern'"):
        check_schema({"type": "string", "pattern": pattern})
