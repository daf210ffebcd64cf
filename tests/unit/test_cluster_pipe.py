"""A stream of bytes over messages that get lost, come twice and in another order: whole, or over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import loops

from sapwood.runtimes.cluster.nats.reliable_stream import HEAD, Pipe
from sapwood.runtimes.workers.frames import Kind, Unheard, framed
from sapwood.timings import Timings

QUICK = Timings(pipe_check_interval=0.01, pipe_ack_delay=0.002, pipe_ping_after=0.02, pipe_absence_timeout=0.1)
MORTAL = replace(QUICK, pipe_timeout=0.1)
"""Who says nothing is soon taken for gone."""


class End(asyncio.Protocol):
    """Notes what comes out of one end."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.lost: list[Exception | None] = []
        self.paused = 0

    def data_received(self, data: bytes) -> None:
        self.got += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.paused -= 1


class Wires:
    """Two ends, and a fate for every message between them."""

    def __init__(self, fates: Callable[[], str], largest: int = 64, timings: Timings = QUICK) -> None:
        self.loop = asyncio.get_running_loop()
        self.ends = (End(), End())
        self.fates = fates
        self.held: list[tuple[int, bytes]] = []
        self.forgotten: list[int] = []
        self.sent = 0
        self.pipes = tuple(
            Pipe(
                self.loop,
                self.ends[at],
                lambda packet, which, to=1 - at: self._carry(to, packet),
                largest + HEAD.size,
                lambda at=at: self.forgotten.append(at),
                timings,
            )
            for at in (0, 1)
        )

    def _carry(self, to: int, packet: bytes) -> None:
        self.sent += 1
        fate = self.fates()
        if fate == "lost":
            return
        if fate == "late":
            self.held.append((to, packet))
            return
        for _ in range(2 if fate == "twice" else 1):
            self.loop.call_soon(lambda: self.pipes[to].hear(packet))
        held, self.held = self.held, []
        for late_to, late in held:
            self.loop.call_soon(lambda late_to=late_to, late=late: self.pipes[late_to].hear(late))


async def until(what: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not what():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.001)


def run(work: Coroutine[Any, Any, None]) -> None:
    loops.play(work)


FATES = st.lists(st.sampled_from(["come", "lost", "twice", "late"]), max_size=60)
WRITES = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 200)), min_size=1, max_size=30)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(fates=FATES, writes=WRITES)
def test_all_that_is_written_comes_once_and_in_order(fates: list[str], writes: list[tuple[int, int]]) -> None:
    async def work() -> None:
        left = list(fates)
        wires = Wires(lambda: left.pop(0) if left else "come")
        wanted = (bytearray(), bytearray())
        for number, (at, size) in enumerate(writes):
            data = bytes([number % 256]) * size
            wires.pipes[at].write(data)
            wanted[1 - at].extend(data)
            if number % 3 == 0:
                await asyncio.sleep(0)
        await until(lambda: all(end.got == want for end, want in zip(wires.ends, wanted, strict=True)))
        await until(lambda: all(pipe.get_write_buffer_size() == 0 for pipe in wires.pipes))
        assert wires.ends[0].lost == wires.ends[1].lost == []
        for pipe in wires.pipes:
            pipe.cut()

    run(work())


def test_whoever_says_nothing_is_taken_for_gone() -> None:
    async def work() -> None:
        wires = Wires(lambda: "lost", timings=MORTAL)
        wires.pipes[0].write(b"x")
        await until(lambda: bool(wires.ends[0].lost), 1)
        assert wires.ends[0].lost == [None]
        assert 0 in wires.forgotten
        wires.pipes[1].cut()

    run(work())


def test_a_pipe_that_nobody_uses_stays_open() -> None:
    async def work() -> None:
        wires = Wires(lambda: "come", timings=MORTAL)
        await asyncio.sleep(0.4)
        assert wires.ends[0].lost == wires.ends[1].lost == []
        wires.pipes[0].close()
        await until(lambda: bool(wires.ends[1].lost))

    run(work())


def test_a_close_comes_after_all_that_was_written() -> None:
    async def work() -> None:
        fates = ["lost", "lost"]
        wires = Wires(lambda: fates.pop(0) if fates else "come")
        wires.pipes[0].write(b"last words")
        wires.pipes[0].close()
        await until(lambda: bool(wires.ends[1].lost))
        assert wires.ends[1].got == b"last words"

    run(work())


def test_nobody_may_write_for_ever_what_is_not_taken() -> None:
    async def work() -> None:
        gone = ["lost"] * 20
        narrow = replace(QUICK, pipe_high_water=1000, pipe_low_water=100)
        wires = Wires(lambda: gone.pop(0) if gone else "come", timings=narrow)
        for _ in range(20):
            wires.pipes[0].write(bytes(60))
        assert wires.ends[0].paused == 1
        await until(lambda: wires.ends[0].paused == 0)
        assert wires.ends[1].got == bytes(1200)
        for pipe in wires.pipes:
            pipe.cut()

    run(work())


def test_whoever_was_away_for_a_moment_has_missed_nothing() -> None:
    async def work() -> None:
        away = True
        wires = Wires(lambda: "lost" if away else "", largest=1000)
        wires.pipes[0].write(b"one ")
        wires.pipes[0].write(b"two")
        wires.pipes[0].nobody(1)
        await asyncio.sleep(0.02)
        away = False
        await until(lambda: wires.ends[1].got == b"one two")
        assert wires.ends[0].lost == []
        for pipe in wires.pipes:
            pipe.cut()

    run(work())


def test_what_nobody_heard_is_known() -> None:
    async def work() -> None:
        wires = Wires(lambda: "lost", largest=1000)
        one, two = framed(1, 7, Kind.OPEN, b"one"), framed(2, 8, Kind.OPEN, b"two")
        wires.pipes[0].write(one)
        wires.pipes[0].write(two + framed(3, 7, Kind.MESSAGE, b"more"))
        wires.pipes[0].nobody(2)
        await until(lambda: bool(wires.ends[0].lost))
        (error,) = wires.ends[0].lost
        assert isinstance(error, Unheard)
        assert error.opened() == {8}, "the first may have been heard"
        wires.pipes[1].cut()

    run(work())
