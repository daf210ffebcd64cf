"""JSON made to be costly: its depth is found in linear time, and every door refuses it with an answer."""

from __future__ import annotations

import gc
import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.serving import Site, call, door, greeted

from sapwood import Agent, ChatAgent, expose
from sapwood.testing import ScriptedModel
from sapwood.wire import chat, frames

MANY = 1_000_000


def nested(depth: int, around: str = "[]") -> str:
    begin, end = {"[]": ("[", "]"), "{}": ('{"a":', "}")}[around]
    return begin * depth + ("1" if around == "{}" else "") + end * depth


def cpu(function: Any, *args: Any) -> float:
    """Return the least CPU time of three calls."""
    times: list[float] = []
    gc.disable()  # it costs more, the more the tests before have left
    try:
        for _ in range(3):
            began = time.process_time()
            function(*args)
            times.append(time.process_time() - began)
    finally:
        gc.enable()
    return min(times)


@pytest.mark.parametrize("around", ["[]", "{}"])
@pytest.mark.parametrize(("depth", "expected"), [(128, False), (129, True), (100_000, True)])
def test_depth_is_counted_exactly(around: str, depth: int, *, expected: bool) -> None:
    assert frames.is_deep(nested(depth, around).encode()) is expected


@pytest.mark.parametrize(
    "text", ['"' + "[" * 500 + '"', r'["\"' + "[" * 500 + '"]', r'["\\",' + '"' + "[" * 500 + '"]']
)
def test_brackets_in_strings_do_not_count(text: str) -> None:
    json.loads(text)
    assert not frames.is_deep(text.encode())


@pytest.mark.parametrize("text", [r'["\\"' + "," + "[" * 500, r'["\\\\",' + "[" * 500])
def test_brackets_after_escaped_backslashes_count(text: str) -> None:
    assert frames.is_deep(text.encode())


VALUES = st.recursive(
    st.none() | st.booleans() | st.text('[]{}"\\,:a'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}"\\a', max_size=3), inner, max_size=3),
    max_leaves=40,
)


@pytest.mark.slow
@given(VALUES, st.integers(0, 140))
def test_depth_is_that_of_the_decoded_value(value: Any, more: int) -> None:
    for _ in range(more):
        value = [value]
    assert frames.is_deep(json.dumps(value).encode()) is (depth(value) > frames.DEPTH)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def filled(block: str) -> bytes:
    """Return a megabyte of JSON of one block."""
    return ("[" + ",".join([block] * (MANY // len(block))) + ",[]" * 200 + "]").encode()


@pytest.mark.slow
@pytest.mark.parametrize("levels", [120, 900])
def test_counting_costs_the_same_at_any_depth(levels: int) -> None:
    deep, flat = filled(nested(levels)), filled("[]")
    assert cpu(frames.is_deep, deep) < 3 * cpu(frames.is_deep, flat)  # in passes, one for each level: 6 and 11 times


@pytest.mark.slow
@pytest.mark.parametrize(
    "block",
    [nested(120), "[]", '{"a":1}', '"[["', r'"\\\""'],
    ids=["deep", "flat", "objects", "texts", "escapes"],
)
def test_counting_costs_about_as_much_as_decoding(block: str) -> None:
    text = filled(block)
    assert cpu(frames.is_deep, text) < 8 * cpu(msgspec.json.decode, text)


@pytest.mark.slow
@pytest.mark.parametrize("block", [b'"', b'\\"', b"\\", b'"[\\'], ids=["quotes", "escaped", "backslashes", "mixed"])
def test_texts_without_end_take_linear_time(block: bytes) -> None:
    once, eight = (b"[" * 200 + b'"' + block * (number * MANY // 4) for number in (1, 8))
    assert cpu(frames.is_deep, eight) < 30 * max(cpu(frames.is_deep, once), 0.001)  # quadratic: 64 times


@pytest.mark.parametrize("kind", [{}, [], 1, None, True])
def test_a_chat_frame_of_another_type_is_no_chat_frame(kind: Any) -> None:
    assert chat.read(json.dumps({"type": kind, "id": '"cf_agent_'})) is None


class Talk(ChatAgent):
    model = ScriptedModel()

    @expose
    async def echo(self, value: Any) -> Any:
        return value


class Desk(Agent):
    expose_runs = True

    async def on_run(self, input: Any) -> Any:
        return input


async def posted(site: Site, path: str, body: str) -> int:
    headers = {"sapwood-protocol": "1"}
    return (await site.http(path, method="POST", headers=headers, body=body.encode())).status


@pytest.mark.parametrize("levels", [1000, 20_000, 200_000])
async def test_every_door_answers_deep_json_with_a_refusal(levels: int) -> None:
    deep = nested(levels)
    async with door(Talk, Desk) as site:
        assert await posted(site, "/agents/talk/a/questions", f'{{"id":"c","output":{deep}}}') == 400
        assert await posted(site, "/agents/talk/a/chat", f'{{"messages":{deep}}}') == 400
        assert await posted(site, "/agents/desk/a/run", f'{{"input":{deep}}}') == 400
        async with site.socket("/agents/talk/a") as client:
            await greeted(client)
            with pytest.raises(RuntimeError, match=r"nested deeper|recursion|Method"):
                await call(client, "echo", *json_deep(levels))
            for frame in FRAMES:
                await client.send(json.dumps(frame).replace('"@"', deep))
                await client.send(json.dumps({**frame, "x": "@"}).replace('"@"', deep))
            body = f'{{"messages":[{{"id":"m","role":"user","parts":{deep}}}]}}'
            await client.send(json.dumps({"type": chat.REQUEST, "id": "q", "init": {"method": "POST", "body": body}}))
            assert await call(client, "echo", 7) == 7  # the same socket still answers


def json_deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(min(levels, 900)):  # as deep as the test's own encoder can write
        value = [value]
    return [value]


FRAMES: list[dict[str, Any]] = [
    {"type": chat.REQUEST, "id": "q", "init": "@"},
    {"type": chat.MESSAGES, "messages": "@"},
    {"type": chat.TOOL_RESULT, "toolCallId": "c", "output": "@"},
    {"type": chat.TOOL_APPROVAL, "toolCallId": "c", "approved": True, "path": "@"},
    {"type": frames.STATE, "state": "@"},
]
