"""What one side of a socket says, the other understands."""

from __future__ import annotations

import pytest

from sapwood.wire import client_frames, frames


def test_the_server_understands_what_a_client_says() -> None:
    call = frames.read(client_frames.call("1", "add", b'[1,"two"]'))
    change = frames.read(client_frames.change_state("2", b'{"n":1}'))

    assert isinstance(call, frames.Rpc)
    assert (call.id, call.method, [bytes(part) for part in call.args]) == ("1", "add", [b"1", b'"two"'])
    assert change == frames.StateChange(b'{"n":1}', "2")
    assert frames.read(client_frames.cancel("3")) == frames.CancelFrame("3")


def test_a_client_understands_what_the_server_says() -> None:
    assert client_frames.hear(frames.result("1", b"[1]", done=False)) == client_frames.AnswerFrame(
        "1", b"[1]", None, False
    )
    assert client_frames.hear(frames.result("1", None, done=True)) == client_frames.AnswerFrame("1", b"", None, True)
    assert client_frames.hear(frames.error("1", "boom")) == client_frames.AnswerFrame("1", b"", "boom", True)
    assert client_frames.hear(frames.error("1", "away", "unavailable")) == client_frames.AnswerFrame(
        "1", b"", "away", True, "unavailable"
    )
    assert client_frames.hear(frames.identity("ann", "player", state_follows=True)) == client_frames.Identity(
        "ann", "player", True
    )
    assert client_frames.hear(frames.state(b'{"n":1}')) == client_frames.StateFrame(b'{"n":1}')
    assert client_frames.hear(frames.state_error(frames.READONLY)) == client_frames.StateRefused(frames.READONLY)
    assert client_frames.hear(frames.mcp_servers()) == client_frames.GreetingEnd()


def test_an_answer_that_does_not_say_whether_it_is_the_last_is_the_last() -> None:
    assert client_frames.hear('{"type":"rpc","id":"1","success":true,"result":5}') == client_frames.AnswerFrame(
        "1", b"5", None, True
    )


@pytest.mark.parametrize("text", ["", "text", "[1]", "{", '{"type":"mine"}', '{"type":"rpc"}', '{"type":["rpc"]}'])
def test_everything_else_is_the_users(text: str) -> None:
    assert client_frames.hear(text) is None
    assert frames.read(text) is None


def test_the_npm_clients_change_the_state_without_an_id() -> None:
    assert frames.read('{"state":null,"type":"cf_agent_state"}') == frames.StateChange(b"null", None)
