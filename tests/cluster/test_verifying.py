"""All that a cluster stores can be checked, and what is damaged is found: on one server, in the archive, in the log."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cluster.servers import Nats, put
from tests.unit.logged_trees import Place, a_root

from sapwood.cli.cluster import told
from sapwood.errors import Unavailable
from sapwood.kernel.log.records import tree_id
from sapwood.kernel.ports.log import Entry, Epoch
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.cluster_status import look
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.base.placement import ShardOwner, encode
from sapwood.runtimes.cluster.base.segments import SEGMENTS
from sapwood.runtimes.cluster.copies.log_shipper import Shipper
from sapwood.runtimes.cluster.copies.replicas import NatsReplicas
from sapwood.runtimes.cluster.copies.s3_archive import ObjectArchive
from sapwood.runtimes.cluster.nats.bootstrap import found
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.nats.nats_log import NatsLog
from sapwood.runtimes.cluster.ops.repair import refill
from sapwood.runtimes.cluster.ops.verification import SERVER, VerificationReport, verify


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Nats]:
    cell = Nats(tmp_path / "cell").start().wait()
    yield cell
    cell.remove()


class Stored:
    """Some trees in a cluster, all of them shipped to the archive, one of them parked."""

    def __init__(self, cell: Nats, connection: Any, names: Names, folder: Path) -> None:
        self.cell = cell
        self.connection = connection
        self.names = names
        self.folder = folder
        self.archive = ObjectArchive((folder / "archive").as_uri())
        self.log = NatsLog(connection, names)
        self.roots = [a_root(f"verified-{number}") for number in range(20)]
        self.owned: dict[int, Epoch] = {}

    async def write(self) -> None:
        for shard in {shard_of(root) for root in self.roots}:
            answer = await put(self.connection, self.names.owner(shard), encode(ShardOwner(1, "")))
            self.owned[shard] = Epoch(1, answer.seq)
        place = Place(self.folder / "node", self.log, self.archive, self.owned, park_after=0.0)
        for number, root in enumerate(self.roots):
            tree = await place.open(root)
            for _ in range(6):
                tree.write("root", 4000, random.Random(number))
                await tree.flush()
            await place.close(tree)
        await Shipper(self.connection, self.names, 0, self.archive).ship()

    async def read(self) -> dict[str, list[tuple[int, bytes]]]:
        """Return what whoever leads has of each tree."""
        replicas = NatsReplicas(self.connection, self.names, self.archive)
        return {
            str(root): [(one.sequence, one.data) for one in await replicas.read_leader(shard_of(root), tree_id(root))]
            for root in self.roots
        }

    async def verify(self, *, repair: bool = False) -> VerificationReport:
        return await verify(self.connection, self.names, self.archive, repair=repair)


@pytest.fixture
async def stored(cell: Nats, tmp_path: Path) -> AsyncIterator[Stored]:
    connection = await connect(cell.urls, "test")
    stored = Stored(cell, connection, await found(connection, "sapwood", Layout(streams=1)), tmp_path)
    await stored.write()
    yield stored
    stored.log.close()
    await connection.close()


async def test_what_is_whole_is_found_whole_at_every_copy(stored: Stored) -> None:
    seen = await stored.verify()

    assert seen.is_whole, seen
    assert seen.trees == 20
    assert seen.messages >= 20 * 6


async def rot(stored: Stored, servers: Sequence[int]) -> None:
    """Flip bits in what some servers have of the stream."""
    stream = stored.names.stream(0)
    for victim in servers:
        await asyncio.sleep(1)
        stored.cell.processes[victim].terminate()  # in good order, so that its Raft log does not mend it
        stored.cell.processes[victim].wait()
        for block in stored.cell.blocks(victim, stream):
            content = bytearray(block.read_bytes())
            for at in (len(content) // 3, len(content) // 2):
                content[at] ^= 4
            block.write_bytes(content)
        stored.cell.start([victim]).wait()
        await asyncio.sleep(3)


async def test_a_damaged_disk_is_found_and_repaired_and_nothing_is_lost(stored: Stored) -> None:
    info = await stored.connection.jetstream().stream_info(stored.names.stream(0))
    before = await stored.read()
    await rot(stored, [stored.cell.number_of(info.cluster.replicas[0].name)])

    seen = await stored.verify()

    assert SERVER in seen.lacking
    assert seen.damaged
    assert all(one.can_be_mended and one.root.startswith("Kept:verified-") for one in seen.damaged)
    assert not seen.refilled

    seen = await stored.verify(repair=True)

    assert seen.is_whole, seen
    assert seen.refilled == [0]
    assert not seen.unrepaired
    for _ in range(3):
        assert (await stored.verify()).is_whole
    info = await stored.connection.jetstream().stream_info(stored.names.stream(0))
    assert (info.config.num_replicas, len(info.cluster.replicas)) == (3, 2)
    assert await stored.read() == before


@pytest.mark.nightly
async def test_copies_are_not_made_anew_while_a_server_is_away(stored: Stored) -> None:
    info = await stored.connection.jetstream().stream_info(stored.names.stream(0))
    gone = info.cluster.replicas[0].name
    stored.cell.kill(stored.cell.number_of(gone))
    await asyncio.sleep(6)
    seen = await stored.verify()
    assert (seen.is_whole, seen.offline) == (True, [gone])
    assert [str(line) for line in told(seen)][1:] == [
        f"Server {gone} is offline: its data was not checked.",
        "All other data is intact.",
    ]

    with pytest.raises(Unavailable, match="Replicas of sapwood-log-0 are offline"):
        await refill(stored.connection, stored.names, stored.archive, 0)

    info = await stored.connection.jetstream().stream_info(stored.names.stream(0))
    assert info.config.num_replicas == 3


@pytest.mark.nightly
async def test_a_repair_that_was_interrupted_is_seen_and_finished(stored: Stored) -> None:
    streams = stored.connection.jetstream(timeout=10)
    info = await streams.stream_info(stored.names.stream(0))
    info.config.num_replicas = 1
    await streams.update_stream(info.config)
    await asyncio.sleep(1)
    assert any("has 1 of 3 replicas" in one for one in (await look(stored.connection, "sapwood")).troubles)

    assert (await stored.verify(repair=True)).refilled == [0]

    assert not any("replicas" in one for one in (await look(stored.connection, "sapwood")).troubles)


@pytest.mark.nightly
async def test_a_message_of_somebody_who_is_not_the_owner_is_found(stored: Stored) -> None:
    root = stored.roots[3]
    entry = Entry(shard_of(root), tree_id(root), b"not a message of anybody's", "strange")
    await stored.log.append([entry], stored.owned)

    (damage,) = (await stored.verify()).damaged

    assert damage.root == str(root)
    assert "was changed after it was written" in damage.what
    assert damage.can_be_mended


async def test_an_archive_that_lost_something_is_found(stored: Stored) -> None:
    keys = [key async for key in stored.archive.keys(f"{SEGMENTS}/")]
    data = await stored.archive.get(keys[0])
    assert data is not None
    await stored.archive.put(keys[0], data[:-10] + b"0123456789")

    seen = await stored.verify()

    assert not seen.is_whole
    assert any("archive" in one.what for one in seen.damaged)


async def test_the_command_says_what_it_found(stored: Stored, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sapwood", "cluster", "verify", "--json"),
        *("--nats", stored.cell.urls, "--archive", (tmp_path / "archive").as_uri()),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()

    assert process.returncode == 0
    assert msgspec.json.decode(said)["trees"] == 20


@pytest.mark.nightly
async def test_all_trees_are_listed_whether_in_the_log_or_parked(stored: Stored, tmp_path: Path) -> None:
    parked = set(stored.roots[:3])
    place = Place(tmp_path / "node", stored.log, stored.archive, stored.owned, park_after=0.0)
    for _ in range(2):
        await place.keeper.idle_trees.sweep(
            {tree_id(root) for root in stored.roots if root not in parked}, {shard_of(root) for root in parked}
        )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sapwood", "cluster", "trees", "--json"),
        *("--nats", stored.cell.urls, "--archive", (tmp_path / "archive").as_uri()),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()

    assert process.returncode == 0
    found = {one["root"]: one["messages"] for one in msgspec.json.decode(said)}
    assert found.keys() == {str(root) for root in stored.roots}
    assert {root for root, messages in found.items() if not messages} == {str(root) for root in parked}
