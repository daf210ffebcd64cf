"""The body of a request to a model is taken apart, and put together again byte for byte."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.chat.store.sent_body import LONG, split

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=8) | st.just("x" * (LONG + 1)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
BODIES = st.dictionaries(
    st.sampled_from(["model", "messages", "input", "tools", "system", 'a"b', "ü", "1", ""]), VALUES, max_size=6
)


@pytest.mark.slow
@given(body=BODIES, separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", " : ")]), ascii=st.booleans())
def test_the_parts_of_any_body_are_the_same_bytes_again(
    body: dict[str, Any], separators: tuple[str, str], ascii: bool
) -> None:
    text = json.dumps(body, separators=separators, ensure_ascii=ascii).encode()

    assert split(text).join() == text


@pytest.mark.parametrize("body", [b"", b"[]", b"not json", b'{"a":1}{"b":2}', b"\xff\xfe", b" { } "])
def test_what_is_no_json_object_stays_whole(body: bytes) -> None:
    assert split(body).join() == body


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body",
    [b'{"a":"\xff"}', b'{"messages":["\xff"]}', b'{"messages":[' + DEEP + b"]}", b'{"a":' + DEEP + b"}"],
    ids=["field", "message", "deep message", "deep field"],
)
def test_what_would_not_be_read_again_stays_whole(body: bytes) -> None:
    """An error here would undo the commit that the record joins."""
    found = split(body)

    assert (found.parts, found.texts, found.messages) == ([True], [body], [])


@pytest.mark.parametrize("name", ["messages", "input", "contents"])
def test_messages_and_long_values_are_texts_of_their_own(name: str) -> None:
    messages = [{"role": "user", "content": str(number)} for number in range(3)]
    tools = [{"name": "look", "description": "x" * LONG}]
    body = msgspec.json.encode({"model": "m", name: messages, "tools": tools, "temperature": 0.5})

    found = split(body)

    assert [msgspec.json.decode(one) for one in found.messages] == messages
    assert [msgspec.json.decode(one) for one in found.texts] == [tools]
    assert found.join() == body
