"""Frames are read as JavaScript reads them, and written as the npm clients expect them."""

from __future__ import annotations

import json

import msgspec
import pytest

from sapwood.wire import frames

CALL = '{"type":"rpc","id":"1","method":"add","args":[1,2]}'


def arguments(frame: object) -> list[object]:
    assert isinstance(frame, frames.Rpc)
    return [msgspec.json.decode(raw) for raw in frame.args]


@pytest.mark.parametrize("text", [CALL, f" {CALL}", f"\n\t{CALL}\r\n", CALL.replace("type", r"\u0074ype")])
def test_a_call_may_be_written_in_any_way_json_can_be(text: str) -> None:
    assert arguments(frames.read(text)) == [1, 2]


@pytest.mark.parametrize("text", ["", " ", "null", "[]", "3", "{}", CALL[:-1], r'{"a":"\ud800",NaN}', "{" * 10_000])
def test_everything_else_is_the_users(text: str) -> None:
    assert frames.read(text) is None


def test_half_a_surrogate_pair_is_replaced_so_that_the_call_is_answered() -> None:
    text = CALL.replace("[1,2]", r'["a\ud800b", "\ud83d\ude00"]')

    assert arguments(frames.read(text)) == ["a\ufffdb", "😀"]


def test_a_state_with_half_a_surrogate_pair_is_a_state() -> None:
    frame = frames.read(r'{"type":"cf_agent_state","state":{"text":"\udc00"}}')

    assert isinstance(frame, frames.StateChange)
    assert msgspec.json.decode(frame.value) == {"text": "\ufffd"}


def test_identity_speaks_of_a_state_only_if_one_follows() -> None:
    assert "stateFollows" not in json.loads(frames.identity("a", "room", state_follows=False))
    assert json.loads(frames.identity("a", "room", state_follows=True))["stateFollows"] is True
