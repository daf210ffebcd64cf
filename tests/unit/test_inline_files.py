"""Inline files are taken out of a frame without reading its JSON, and nothing else changes."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from sapwood.wire.inline_files import SMALL, decoded, take_files

CONTENT = bytes(range(256)) * 200


def url(content: bytes = CONTENT, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize("wrap", [lambda value: value, json.dumps, lambda value: json.dumps(json.dumps(value))])
def test_files_are_taken_out_of_json_and_of_json_in_strings(wrap: Any) -> None:
    other = CONTENT[::-1]
    message = {"text": 'a "quoted" text with data: and data:image/png;base64,', "urls": [url(), url(other), "x"]}
    frame = take_files(json.dumps(wrap(message)), "token")

    plain = json.loads(frame)
    while isinstance(plain, str):
        plain = json.loads(plain)

    assert plain["text"] == message["text"]
    one, two, three = plain["urls"]
    assert (frame.files[one], frame.files[two], three) == (CONTENT, other, "x")
    assert "token" in one


@pytest.mark.parametrize(
    "odd",
    [
        url(CONTENT[:100]),
        url()[:-1] + "!",
        url().replace(";base64", ""),
        f"data:image/png;base64,{'A' * SMALL}A",
        url().replace("data:", "DATA:"),
    ],
    ids=["small", "not base64", "not encoded", "wrong length", "upper case"],
)
def test_what_is_no_large_file_in_base64_stays(odd: str) -> None:
    text = json.dumps({"url": odd})

    frame = take_files(text, "token")

    assert frame == text
    assert not frame.files


def test_a_frame_may_end_in_the_middle_of_a_file() -> None:
    frame = take_files(url(), "token")

    assert list(frame.files.values()) == [CONTENT]


def test_a_url_is_decoded_with_its_parameters() -> None:
    assert decoded(url(kind="text/plain;charset=utf-8")) == CONTENT
    assert decoded("data:,hello") is None
    assert decoded("https://example.com/cat.png") is None
