"""Literals that are written into files: Python reads the same value, and people can read the lines."""

from __future__ import annotations

import ast
import keyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.admin.literal import WIDTH, Text, are_keywords, call_of, code, functions_of, literal, plain, quoted

TEXTS = st.text(st.sampled_from("ab \"'\\\n\r\t\x00\x1b\u2028\u202eüé🌲{}#%")) | st.text(max_size=400)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4))


@pytest.mark.slow
@given(VALUES, st.integers(0, 3))
def test_python_reads_the_value_that_was_written(value: object, depth: int) -> None:
    source = code(literal(value), indent=4 * depth, used=4 * depth + 8)

    assert ast.literal_eval(source) == value
    assert all(line.isprintable() for line in source.split("\n"))


@given(st.lists(st.text(st.sampled_from("abcdefgh "), max_size=300), max_size=5))
def test_lines_of_words_fit(texts: list[str]) -> None:
    lines = code(literal([one.replace("  ", " ") for one in texts]), indent=8, used=20).split("\n")

    assert all(len(line) <= WIDTH for line in lines)


def test_what_fits_is_on_one_line_and_what_does_not_has_a_line_for_each_element() -> None:
    assert code(literal({"a": [1, None, True], "b": "it's"})) == """{"a": [1, None, True], "b": "it's"}"""
    assert code(literal(["x" * 50, "y" * 50])) == f'[\n    "{"x" * 50}",\n    "{"y" * 50}",\n]'
    assert code(Text("One line.\nAnother one.")) == r'"One line.\nAnother one."'
    assert code(Text("A line.\n" + "Another one. " * 4)) == f'(\n    "A line.\\n"\n    "{"Another one. " * 4}"\n)'


def test_a_call_has_keywords_where_python_allows_them() -> None:
    assert are_keywords(["about", "tool"], ("id",))
    assert not any(are_keywords([name], ("id",)) for name in ("from", "a b", "id", "über", ""))
    assert all(not are_keywords([name]) for name in keyword.kwlist)


def test_a_keyword_may_have_any_name() -> None:
    assert code(call_of("call", function="'main'", arguments="1", named="2")) == (
        "call(function='main', arguments=1, named=2)"
    )


def test_the_functions_of_an_expression_are_found() -> None:
    inner = call_of("text", Text("functions(in, a, text)"))
    assert [*functions_of(call_of("calls", inner, call_of("ToolResult.failed", "None")))] == [
        *("calls", "text"),
        "ToolResult.failed",
    ]


@pytest.mark.parametrize("text", ['"""\nboom()', "\\", '\\"""', "\r\u2028#\n", "x" * 99])
def test_text_in_a_docstring_or_a_comment_does_not_end_it(text: str) -> None:
    tree = ast.parse(f'"""{plain(text)}"""\n# {plain(text)}\n')

    assert len(tree.body) == 1


def test_a_string_has_the_quotation_marks_that_need_no_escapes() -> None:
    assert [quoted(one) for one in ("it's", 'say "x"', "\\'", "")] == ['"it\'s"', "'say \"x\"'", '"\\\\\'"', '""']
