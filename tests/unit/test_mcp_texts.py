"""Texts and schemas that MCP servers wrote."""

from __future__ import annotations

import sys
import unicodedata
from typing import Any

import pytest

from sapwood.mcp_client.text import cleaned, line_of
from sapwood.mcp_client.tool_schemas import arguments_schema


@pytest.mark.slow
def test_each_character_that_controls_or_formats_is_removed_and_no_other() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        is_unwanted = unicodedata.category(character) in ("Cc", "Cf", "Cs") and character not in "\n\t"
        if not is_unwanted and unicodedata.category(character) == "Cn":
            continue  # which a newer version of Unicode may have made one of them
        assert (cleaned(character, 1) == "") == is_unwanted, hex(code)


def test_a_text_is_cut_off_and_may_be_one_line() -> None:
    assert cleaned("a" * 9, 4) == "aaaa …"
    assert cleaned(7, 4) == ""
    assert line_of("a\n\n b\r\nc", 99) == "a b c"


@pytest.mark.parametrize(
    "part",
    [
        {"type": ["string", "null"]},
        {"$ref": "#/$defs/b"},
        {"$ref": "#"},
        {"$ref": "#/$defs/a~1b"},
        {"items": [{"type": "string"}]},
        {"items": {"type": "string"}, "additionalProperties": False},
        {"anyOf": [{"const": 1}, True]},
        {"x-other": {"$ref": "http://example.com"}},
    ],
)
def test_a_schema_that_providers_take_is_kept(part: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": part}, "$defs": {"b": {"type": "integer"}, "a/b": {}}}
    assert arguments_schema(schema) == schema


def test_notes_in_a_schema_are_cleaned_and_values_are_not() -> None:
    schema = {"type": "object", "properties": {"title": {"title": "a\u200bb", "enum": ["a\u200bb"]}}}
    assert arguments_schema(schema) == {
        "type": "object",
        "properties": {"title": {"title": "ab", "enum": ["a\u200bb"]}},
    }
