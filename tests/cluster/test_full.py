"""A log that is full refuses what is written, at once and for a reason; what is stored is read; later all goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.servers import Nats, put
from tests.machine import patience

from sapwood import Agent, App
from sapwood.errors import Unavailable
from sapwood.kernel.ports.log import Entry, Epoch, Full
from sapwood.runtimes.cluster.base.cluster_status import look
from sapwood.runtimes.cluster.base.layout import Layout
from sapwood.runtimes.cluster.base.placement import ShardOwner, encode
from sapwood.runtimes.cluster.nats.bootstrap import found
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.nats.nats_log import NatsLog
from sapwood.runtimes.cluster.ownership.ownership import Ownership
from sapwood.runtimes.cluster.runtime import ClusterRuntime
from sapwood.settings import Settings
from sapwood.testing.memory_log import MemoryArchive

LASTING = partial(Ownership, lease=30.0, renewal=1.0, margin=0.5)
"""Nobody dies here, and who has lost a lease is refused by a full log, too."""
ROOM = 3_000_000
STREAM = "sapwood-log-0"


class FullChest(Agent):
    """Keeps what it is given."""

    migrations = ("CREATE TABLE things (number INTEGER PRIMARY KEY, filling BLOB) STRICT",)

    async def put(self, number: int, size: int = 50_000) -> None:
        self.sql("INSERT INTO things VALUES (?, randomblob(?))", number, size)

    async def things(self) -> list[int]:
        return [int(str(row["number"])) for row in self.sql("SELECT number FROM things ORDER BY number")]

    async def put_later(self, number: int, seconds: float) -> None:
        self.schedule(timedelta(seconds=seconds), self.put, number)


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Nats]:
    cell = Nats(tmp_path / "cell").start().wait()
    yield cell
    cell.remove()


@pytest.fixture
async def connection(cell: Nats) -> AsyncIterator[Any]:
    connection = await connect(cell.urls, "test")
    yield connection
    await connection.close()


@pytest.fixture
async def apps(cell: Nats, tmp_path: Path) -> AsyncIterator[list[App]]:
    archive, apps = MemoryArchive(), list[App]()
    for node in "ab":
        settings = Settings(
            data=tmp_path / node, durability="replicated", nats=cell.urls, archive="memory://", node=node
        )
        runtime = ClusterRuntime(settings, layout=Layout(streams=1), archive=archive, make_owners=LASTING)
        apps.append(await App(agents=[FullChest], settings=settings, runtime=runtime).__aenter__())
    yield apps
    for app in apps:
        await app.__aexit__()


async def give_room(connection: Any, room: int) -> None:
    info = await connection.jetstream().stream_info(STREAM)
    info.config.max_bytes = room
    await connection.jetstream().update_stream(info.config)


@pytest.mark.nightly
async def test_writes_are_refused_reads_go_on_and_all_does_when_there_is_room(apps: list[App], connection: Any) -> None:
    await give_room(connection, ROOM)
    names = [f"full-{number}" for number in range(6)]
    chests = {name: await apps[0].get_agent(FullChest, name) for name in names}
    stored: dict[str, list[int]] = {name: [] for name in names}

    async def fill(name: str) -> str:
        while True:
            try:
                await chests[name].put(len(stored[name]))
            except Unavailable as error:
                return str(error)
            stored[name].append(len(stored[name]))

    async with asyncio.timeout(patience()):
        said = await asyncio.gather(*map(fill, names))

    assert all("The log is full" in one and STREAM in one and "maximum bytes exceeded" in one for one in said), said
    async with asyncio.timeout(patience(10)):
        for name in names:
            assert "The log is full" in await fill(name)  # what went together was refused together: one may fit
            assert await chests[name].things() == stored[name]
            assert await (await apps[1].get_agent(FullChest, name)).things() == stored[name]
    why = [app.node.unready for app in apps if app.node.unready is not None]
    assert why
    assert all(STREAM in one for one in why)
    await asyncio.sleep(1.5)  # until the leases say so
    troubles = (await look(connection, "sapwood")).troubles
    assert any("the log is full" in one for one in troubles), troubles
    assert any(f"Stream {STREAM} uses" in one for one in troubles), troubles

    await give_room(connection, 4 * ROOM)
    async with asyncio.timeout(patience()):
        while any(app.node.unready for app in apps):  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.1)
    for name in names:
        await chests[name].put(len(stored[name]))
        stored[name].append(len(stored[name]))
        assert await chests[name].things() == stored[name]
    await asyncio.sleep(1.5)
    troubles = (await look(connection, "sapwood")).troubles  # shards may be on their way still
    assert not any("full" in one or "room" in one for one in troubles), troubles


@pytest.mark.nightly
async def test_what_is_due_while_the_log_is_full_is_done_when_there_is_room(apps: list[App], connection: Any) -> None:
    chest = await apps[0].get_agent(FullChest, "due")
    await chest.put_later(7, 3.0)
    # Not all of them are due at once, or the log would be full before the call is stored.
    info = await connection.jetstream().stream_info(STREAM)
    await give_room(connection, info.state.bytes + 20_000)
    await asyncio.sleep(5.0)

    assert await chest.things() == []

    await give_room(connection, ROOM)
    async with asyncio.timeout(patience()):
        while await chest.things() != [7]:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.2)


async def test_a_stream_made_before_gets_the_room_that_the_servers_say_now(tmp_path: Path) -> None:
    cell = Nats(tmp_path / "cell", 1).start().wait()
    try:
        connection = await connect(cell.urls, "test")
        layout = Layout(streams=1, replicas=1)
        await found(connection, "sapwood", layout)
        assert (await connection.jetstream().stream_info(STREAM)).config.max_bytes == -1
        await connection.close()
        for room, has in (("5MB", 5 << 20), ("8MB", 8 << 20)):
            cell.stop()
            cell.stream_room = room
            cell.start().wait()
            connection = await connect(cell.urls, "test")
            await found(connection, "sapwood", layout)
            assert (await connection.jetstream().stream_info(STREAM)).config.max_bytes == has
            await connection.close()
    finally:
        cell.remove()


async def test_servers_that_are_full_refuse_in_seconds_and_are_named(tmp_path: Path) -> None:
    cell = Nats(tmp_path / "cell", room="3MB").start().wait()
    connection = await connect(cell.urls, "test")
    try:
        names = await found(connection, "sapwood", Layout(streams=1))
        log = NatsLog(connection, names)
        owned = {0: Epoch(1, (await put(connection, names.owner(0), encode(ShardOwner(1, "a")))).seq)}

        async def fill() -> None:
            for number in range(200):
                await log.append([Entry(0, "t", bytes(50_000), f"id-{number}")], owned)

        with pytest.raises(Full, match="insufficient resources"):
            await fill()
        with pytest.raises(Unavailable, match="The log is full"):  # a server that just gave up may not answer
            async with asyncio.timeout(patience()):
                await log.append([Entry(0, "t", bytes(50_000), "one more")], owned)
        log.close()

        monitors = [f"http://127.0.0.1:{port}" for port in cell.monitors]
        troubles = (await look(connection, "sapwood", monitors=monitors)).troubles
        assert any(one.startswith("Server cell-") and "of its storage" in one for one in troubles), troubles
    finally:
        await connection.close()
        cell.remove()
