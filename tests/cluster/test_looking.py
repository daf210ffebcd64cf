"""A cluster seen from outside: who is there, who owns what, and what is wrong with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from tests.cluster.servers import Nats, put
from tests.machine import patience
from tests.ports import free_port

from sapwood.errors import UsageError
from sapwood.kernel.ports.shards import SHARDS
from sapwood.runtimes.cluster.base.cluster_status import look
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.base.leases import NodeLease
from sapwood.runtimes.cluster.base.placement import ShardOwner, encode
from sapwood.runtimes.cluster.base.segments import SegmentLine, pack_segment, segment_key
from sapwood.runtimes.cluster.nats.bootstrap import found
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.testing.memory_log import MemoryArchive


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    cell = Nats(tmp_path_factory.mktemp("cell")).start().wait()
    yield cell
    cell.stop()


@pytest.fixture
async def node(cell: Nats) -> AsyncIterator[Any]:
    connection = await connect(cell.urls, "node")
    yield connection
    await connection.close()


@pytest.fixture
async def watch(cell: Nats) -> AsyncIterator[Any]:
    connection = await connect(cell.urls_of("watch"), "watch")
    yield connection
    await connection.close()


def monitors(cell: Nats) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in cell.monitors]


async def own(connection: Any, names: Names, shards: Sequence[int], owner: str) -> None:
    for at in range(0, len(shards), 200):
        await asyncio.gather(
            *(
                put(connection, names.owner(shard), encode(ShardOwner(3, owner, "life")))
                for shard in shards[at : at + 200]
            )
        )


async def test_nodes_owners_and_streams_are_seen_by_who_may_only_look(cell: Nats, node: Any, watch: Any) -> None:
    names = await found(node, "sapwood", Layout())
    await own(node, names, range(0, SHARDS, 2), "anna")
    await own(node, names, range(1, SHARDS - 1, 2), "berta")
    for name in ("anna", "berta"):
        await put(node, names.lease(name), msgspec.msgpack.encode(NodeLease(name, "life", 1, "1.0")))

    seen = await look(watch, "sapwood", monitors=monitors(cell))

    assert [(one.name, one.is_alive, one.shards) for one in seen.nodes] == [("anna", True, 2048), ("berta", True, 2047)]
    assert all(0 <= one.renewed < patience() for one in seen.nodes)
    assert (seen.unowned, seen.orphaned) == (1, 0)
    assert seen.troubles == ["1 shards have no owner: their agents do not answer."]
    assert len(seen.streams) == Layout().streams
    for stream in seen.streams:
        assert sorted(copy.server for copy in stream.copies) == ["cell-0", "cell-1", "cell-2"]
        assert [copy.is_leader for copy in stream.copies] == [True, False, False]
        assert {(copy.messages, copy.last) for copy in stream.copies} == {(stream.messages, stream.last)}


async def test_a_node_that_is_silent_is_gone_and_its_shards_are_told_of(cell: Nats, node: Any, watch: Any) -> None:
    names = await found(node, "sapwood", Layout())
    await own(node, names, [5], "carla")
    await put(node, names.lease("carla"), msgspec.msgpack.encode(NodeLease("carla", "life", 1)))
    await asyncio.sleep(0.8)

    seen = await look(watch, "sapwood", expiry=0.5)

    assert seen.orphaned >= 1
    assert any(one.startswith("Node carla renewed its lease") for one in seen.troubles)


async def test_what_the_archive_does_not_have_yet_is_counted(cell: Nats, node: Any, watch: Any) -> None:
    names = await found(node, "sapwood", Layout())
    await own(node, names, [0, 8], "anna")

    archive = MemoryArchive()
    await archive.put(
        segment_key(0, 1), pack_segment(0, 1, 2, [SegmentLine(2, time.time() - 100, names.owner(0), b"")])
    )

    seen = await look(watch, "sapwood", archive=archive)

    assert seen.streams[0].archived == 2
    assert seen.streams[0].unarchived == seen.streams[0].last - 2
    assert seen.streams[1].archived is None
    assert seen.streams[1].unarchived == seen.streams[1].last - seen.streams[1].first + 1


async def test_an_archive_that_another_cluster_writes_to_is_told_of(cell: Nats, node: Any, watch: Any) -> None:
    names = await found(node, "sapwood", Layout())
    await own(node, names, [0], "anna")
    last = (await look(watch, "sapwood")).streams[0].last
    archive = MemoryArchive()
    line = SegmentLine(last + 7, time.time(), names.owner(0), b"")
    await archive.put(segment_key(0, last + 1), pack_segment(0, last + 1, last + 7, [line]))

    seen = await look(watch, "sapwood", archive=archive)

    told = f"Stream sapwood-log-0 ends at {last}, but the archive has messages up to {last + 7}: another cluster writes"
    assert [one for one in seen.troubles if one.startswith(told)]


async def test_whoever_is_asked_in_vain_is_told_of(cell: Nats, node: Any, watch: Any) -> None:
    await found(node, "sapwood", Layout())
    nowhere = free_port()

    seen = await look(watch, "sapwood", monitors=[*monitors(cell)[:1], f"http://127.0.0.1:{nowhere}", "no address"])

    assert [one for one in seen.troubles if one.startswith("No answer from")] == [
        f"No answer from {where}: the data of its server was not compared."
        for where in (f"http://127.0.0.1:{nowhere}", "no address")
    ]


@pytest.mark.nightly
async def test_a_server_that_is_gone_is_told_of(tmp_path: Any) -> None:
    cell = Nats(tmp_path).start().wait()
    connection = await connect(cell.urls, "node")
    try:
        await found(connection, "sapwood", Layout(streams=1))
        stream = (await look(connection, "sapwood")).streams[0]
        gone = next(copy.server for copy in stream.copies if not copy.is_leader)
        cell.kill(cell.number_of(gone))
        await asyncio.sleep(6)

        seen = await look(connection, "sapwood", monitors=monitors(cell))

        assert f"Stream sapwood-log-0: server {gone} is offline." in seen.troubles
        assert {copy.server: copy.messages is None for copy in seen.streams[0].copies}[gone]
    finally:
        await connection.close()
        cell.stop()


async def test_a_cluster_that_was_never_founded_is_named(watch: Any) -> None:
    with pytest.raises(UsageError) as told:
        await look(watch, "other")
    assert str(told.value) == "The cluster 'other' does not exist on these servers: no node has started yet."
