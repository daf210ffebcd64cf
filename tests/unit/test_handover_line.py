"""The connection between a server and its successor carries messages and open files, in order, and ends for both."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from sapwood.runtimes.handover_line import CHUNK, HandoverLine, LineLost


def test_messages_arrive_in_order_each_with_its_files() -> None:
    one, other = HandoverLine.pair()
    ends = [socket.socketpair() for _ in range(3)]

    for number, (near, _) in enumerate(ends):
        one.send("connection", near.fileno(), received=bytes([number]) * number)
        near.close()
    one.send("released")

    for number, (_, far) in enumerate(ends):
        message = other.receive(1)
        assert (message.kind, message.facts["received"]) == ("connection", bytes([number]) * number)
        with socket.socket(fileno=other.take_file()) as taken:
            assert not os.get_inheritable(taken.fileno())
            taken.sendall(b"hello")
        assert far.recv(10) == b"hello"
        far.close()
    assert other.receive(1).kind == "released"
    one.close()
    other.close()


async def test_a_message_is_waited_for_however_large_it_is() -> None:
    one, other = HandoverLine.pair()
    waiting = asyncio.ensure_future(other.received())
    await asyncio.sleep(0)
    received = os.urandom(CHUNK + 17)

    await asyncio.to_thread(one.send, "connection", received=received)

    assert (await waiting).facts["received"] == received
    one.close()
    other.close()


def test_the_end_of_the_other_process_is_noticed() -> None:
    one, other = HandoverLine.pair()
    one.send("serving")
    one.close()

    assert other.receive(1).kind == "serving"
    with pytest.raises(LineLost):
        other.receive(1)
    with pytest.raises(LineLost):
        other.send("released")
    with pytest.raises(LineLost):
        other.send("released")
    other.close()
