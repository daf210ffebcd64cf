"""Exchanges between nodes over NATS: whole, in order, and over when the other node is gone."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.servers import Nats
from tests.machine import patience

from sapwood.errors import Unavailable
from sapwood.kernel.ports.placement import NotBegun
from sapwood.kernel.ports.transport import Exchange
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.nats.transport import NatsTransport
from sapwood.timings import DEFAULTS, Timings

NAMES = Names("speech", Layout())


@pytest.fixture(scope="module")
def three_nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[Nats, None, None]:
    servers = Nats(Path(tmp_path_factory.mktemp("nats3")), 3, name="speech").start().wait()
    yield servers
    servers.remove()


class Speaker(NatsTransport):
    """A node that echoes, hangs and floods."""

    def __init__(self, name: str, connection: Any, timings: Timings) -> None:
        super().__init__(name, connection, NAMES, timings)
        self.hangs = asyncio.Event()
        """Set when it was asked something that it does not answer."""
        self.answer("echo", lambda message, exchange: exchange.end(message))
        self.answer("hang", lambda message, exchange: self.hangs.set())
        self.answer("flood", _flood)

    async def is_heard(self) -> bool:
        """Return whether the other nodes have said that they have all it sent."""
        return not any(pipe.get_write_buffer_size() for pipe in self._pipes.values())

    async def reaches(self, name: str) -> bool:
        """Return whether another node answers."""
        try:
            return await (await self.open(name, "echo", b"")).receive() == b""
        except Unavailable:
            return False


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(patience()):
        while not await condition():  # noqa: ASYNC110 - a server knows
            await asyncio.sleep(0.01)


@asynccontextmanager
async def speaking(
    urls: list[str], timings: Timings = DEFAULTS, names: str = "012"
) -> AsyncGenerator[list[Speaker], None]:
    """Yield nodes that reach each other, one at each of these servers."""
    made: list[Speaker] = []
    connections: list[Any] = []
    for name, url in zip(names, urls, strict=False):
        connections.append(await connect(url, name))
        made.append(Speaker(name, connections[-1], timings))
        await made[-1].listen()
    for (one, _), (_, other) in itertools.permutations(zip(made, names, strict=False), 2):
        await until(functools.partial(one.reaches, other))
    try:
        yield made
    finally:
        for one in made:
            await one.close()
        for one in connections:
            await one.close()


def _flood(message: bytes, exchange: Exchange) -> None:
    async def work() -> None:
        for number in range(int(message)):
            if (waiting := exchange.send(number.to_bytes(4, "big") * 4096)) is not None:
                await waiting
        exchange.end()

    FLOODS.add(asyncio.get_running_loop().create_task(work()))


FLOODS: set[asyncio.Task[None]] = set()


async def test_a_message_longer_than_any_of_nats_arrives_whole(three_nats: Nats) -> None:
    async with speaking(three_nats.urls.split(",")[:2]) as (one, _):
        message = bytes(range(256)) * 100_000  # 25 MB; NATS takes 8
        exchange = await one.open("1", "echo", message)
        assert await exchange.receive() == message


async def test_whoever_does_not_read_is_not_sent_more(three_nats: Nats) -> None:
    async with speaking(three_nats.urls.split(",")[:2]) as (one, two):
        exchange = await one.open("1", "flood", b"2000")

        async def is_held_up() -> bool:
            return two.held_up == 1

        await until(is_held_up)
        for number in range(2000):
            message = await exchange.receive()
            assert message is not None
            assert message[:4] == number.to_bytes(4, "big")
        assert await exchange.receive() is None


async def test_a_node_that_never_was_is_known_to_be_none_at_once(three_nats: Nats) -> None:
    never = Timings(pipe_absence_timeout=3600, pipe_timeout=3600)
    async with speaking(three_nats.urls.split(",")[:1], never) as (one,), asyncio.timeout(patience()):
        with pytest.raises(NotBegun):
            await one.open("nobody", "echo", b"")


async def test_what_is_asked_of_a_node_that_has_died_was_not_begun(three_nats: Nats) -> None:
    silent = Timings(pipe_ping_after=3600, pipe_timeout=3600)  # the first to notice it is what is asked next
    async with speaking(three_nats.urls.split(",")[:2], silent) as (one, two):
        hanging = await one.open("1", "hang", b"")
        await two.hangs.wait()
        await until(one.is_heard)
        await two.die()
        async with speaking(three_nats.urls.split(",")[:1], names="w") as (witness,):

            async def is_gone() -> bool:
                return not await witness.reaches("1")

            await until(is_gone)
        late = one.open_now("1", "echo", b"y")
        assert late is not None
        async with asyncio.timeout(patience()):
            with pytest.raises(NotBegun):
                await late.receive()
            with pytest.raises(Unavailable) as told:
                await hanging.receive()
        assert not isinstance(told.value, NotBegun), "it may have been begun"


async def test_a_node_that_stands_still_is_noticed(three_nats: Nats, monkeypatch: pytest.MonkeyPatch) -> None:
    async with speaking(three_nats.urls.split(",")[:2]) as (one, two):
        hanging = await one.open("1", "hang", b"")
        await two.hangs.wait()

        async def deaf(_: object) -> None: ...

        for subscription in two._subscriptions:  # pyright: ignore[reportPrivateUsage]
            subscription._cb = deaf  # pyright: ignore[reportPrivateUsage]
        for pipe in two._pipes.values():  # pyright: ignore[reportPrivateUsage]
            monkeypatch.setattr(pipe, "_publish", lambda *_: None)
        with pytest.raises(Unavailable):
            await asyncio.wait_for(hanging.receive(), patience(12))


async def test_nothing_is_lost_when_a_server_is_killed(three_nats: Nats) -> None:
    urls = three_nats.urls.split(",")
    async with speaking([urls[2], urls[0]]) as (one, _):  # it learns of the others
        exchange = await one.open("1", "flood", b"4000")
        for number in range(4000):
            message = await asyncio.wait_for(exchange.receive(), patience(20))
            assert message is not None
            assert message[:4] == number.to_bytes(4, "big")
            if number == 500:
                three_nats.kill(2)
        assert await exchange.receive() is None
    three_nats.start([2]).wait()
