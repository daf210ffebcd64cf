"""A wire writes in order, and gives up on whoever does not read."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from tests.machine import patience

from sapwood.web.socket_writer import SocketWriter


class Peer:
    """The server's side of a socket, whose client may stop reading."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self.reads.wait()
        self.got.append(message.get("text") or message.get("code"))


async def quiet() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def peer() -> Peer:
    return Peer()


async def test_frames_are_written_at_once_while_the_client_reads(peer: Peer) -> None:
    wire = SocketWriter(peer.send, 1000)

    wire.send(1, "a")
    wire.send(2, "b")

    assert peer.got == ["a", "b"]


async def test_what_waited_is_written_in_order(peer: Peer) -> None:
    wire = SocketWriter(peer.send, 1000)
    peer.reads.clear()
    for number, frame in enumerate("abc"):
        wire.send(number, frame)
    wire.close(1000, "")

    peer.reads.set()
    await quiet()

    assert peer.got == ["a", "b", "c", 1000]


async def test_a_client_that_does_not_read_is_closed_with_1013(peer: Peer) -> None:
    wire = SocketWriter(peer.send, 1000)
    peer.reads.clear()
    for number in range(20):
        wire.send(number, "0123456789")

    peer.reads.set()
    await quiet()
    wire.send(21, "later")

    assert peer.got == ["0123456789", 1013]


async def test_whoever_waits_for_room_is_let_go_when_the_client_is_given_up(peer: Peer) -> None:
    wire = SocketWriter(peer.send, 100_000)
    peer.reads.clear()
    wire.send(1, "x" * 70_000)
    room = wire.room()
    assert room is not None

    wire.send(2, "x" * 70_000)

    await asyncio.wait_for(asyncio.ensure_future(room), patience())
    wire.lost()
    await quiet()


async def test_small_frames_weigh_what_keeping_them_costs(peer: Peer) -> None:
    wire = SocketWriter(peer.send, 64_000)
    peer.reads.clear()

    for number in range(1002):
        wire.send(number, "x")

    assert wire.gone.result() == 1013
    wire.lost()
    await quiet()


async def test_a_frame_weighs_its_bytes_and_not_its_characters(peer: Peer) -> None:
    wire = SocketWriter(peer.send, 3000)
    peer.reads.clear()

    wire.send(1, "x")
    wire.send(2, "\N{DECIDUOUS TREE}" * 1000)

    assert wire.gone.result() == 1013
    wire.lost()
    await quiet()
