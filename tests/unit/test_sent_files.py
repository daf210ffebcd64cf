"""Records of requests name the files that were sent, wherever a provider puts their base64."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable

import pytest
from pydantic_ai.messages import BinaryContent, ModelRequest, UserPromptPart

from sapwood.chat.store.file_references import REFERENCE
from sapwood.chat.store.sent_files import SentFiles

SAME_HEAD = bytes(range(200, 256)) * 2


def sent(*contents: bytes) -> SentFiles:
    """Return the files of a request with these contents."""
    files: list[BinaryContent] = []
    for data in contents:
        file = BinaryContent(data, media_type="image/png")
        object.__setattr__(file, REFERENCE, hashlib.sha256(data).hexdigest())
        files.append(file)
    return SentFiles([ModelRequest(parts=[UserPromptPart(["look", *files])])])


def name(data: bytes) -> str:
    return f"<file sha256:{hashlib.sha256(data).hexdigest()}, {len(data)} bytes>"


@pytest.mark.parametrize("size", [48, 300, 301, 302, 100_000])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode], ids=["standard", "url-safe"])
def test_each_file_is_named_in_the_place_of_its_base64(encode: Callable[[bytes], bytes], size: int) -> None:
    one, two = (SAME_HEAD * size)[:size], (SAME_HEAD * size)[: size - 1] + b"!"
    urls = [f"data:image/png;base64,{encode(data).decode()}" for data in (one, two, one)]
    body = json.dumps({"messages": [{"images": urls, "text": "x"}]}).encode()

    named = json.loads(sent(one, two).named_in(body))

    assert named["messages"][0]["images"] == [f"data:image/png;base64,{name(data)}" for data in (one, two, one)]
    assert named["messages"][0]["text"] == "x"


def test_what_only_begins_like_a_file_stays() -> None:
    file = SAME_HEAD * 10
    body = base64.b64encode(file + b"and more of it") + b" " + base64.b64encode(file[:-9])

    assert sent(file).named_in(body) == body


def test_a_request_without_files_stays() -> None:
    assert sent().named_in(b'{"messages":[]}') == b'{"messages":[]}'
