"""Trees over real servers: snapshots and parking, the second copy, the loss of the log, and a replica that rots."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.servers import S3, Nats, put
from tests.unit.logged_trees import Place, a_root, contents

from sapwood.errors import Unavailable
from sapwood.kernel.log.records import ChainBroken, tree_id
from sapwood.kernel.ports.log import Archive, Entry, Epoch
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.base.segments import SEGMENTS
from sapwood.runtimes.cluster.copies.log_shipper import INDEX, Shipper, position
from sapwood.runtimes.cluster.copies.replicas import NatsReplicas
from sapwood.runtimes.cluster.copies.s3_archive import ObjectArchive
from sapwood.runtimes.cluster.nats.bootstrap import found
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.nats.nats_log import NatsLog
from sapwood.runtimes.cluster.ops.recovery import restore_everything, tree_at


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    servers = Nats(tmp_path_factory.mktemp("archive")).start().wait()
    yield servers
    servers.remove()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    bucket = S3(tmp_path_factory.mktemp("s3")).start()
    yield bucket
    bucket.stop()


class Cluster:
    """A cluster of one's own in a cell that others use too."""

    def __init__(self, folder: Path, connection: Any, names: Names, archive: Archive) -> None:
        self.folder = folder
        self.connection = connection
        self.names = names
        self.archive = archive
        self.log = NatsLog(connection, names)
        self.replicas = NatsReplicas(connection, names, archive)
        self.js = connection.jetstream()

    async def own(self, *shards: int, epoch: int = 1) -> dict[int, Epoch]:
        owned: dict[int, Epoch] = {}
        for shard in shards:
            answer = await put(self.connection, self.names.owner(shard), b"owner %d" % epoch)
            owned[shard] = Epoch(epoch, answer.seq)
        return owned

    async def node(self, name: str, *roots: Any, epoch: int = 1, park_after: float = 0.0) -> Place:
        owned = await self.own(*{shard_of(root) for root in roots}, epoch=epoch)
        return Place(self.folder / name, self.log, self.archive, owned, replicas=self.replicas, park_after=park_after)

    async def count(self, root: Any) -> int:
        shard = shard_of(root)
        return (await self.log.trees([shard]))[shard].get(tree_id(root), 0)

    def shipper(self, stream: int = 0, **options: Any) -> Shipper:
        return Shipper(self.connection, self.names, stream, self.archive, **options)


@pytest.fixture
async def cluster(
    cell: Nats, s3: S3, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Cluster]:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    connection = await connect(cell.urls, "test")
    name = f"c{abs(hash(request.node.name)) % 10**8}"
    names = await found(connection, name, Layout(streams=1))
    made = Cluster(tmp_path, connection, names, ObjectArchive(f"{s3.url}/{name}"))
    yield made
    made.log.close()
    await made.js.delete_stream(names.stream(0))
    await made.js.delete_stream(names.members)
    await connection.close()


ROOT = a_root("archived")
ROUNDS = 20
"""So many that a stream has several files: damage in the last one is mended by the server itself."""


@pytest.mark.nightly
async def test_a_snapshot_while_commits_go_on(cluster: Cluster) -> None:
    randomly = random.Random(1)
    place = await cluster.node("a", ROOT)
    tree = await place.open(ROOT)
    for _ in range(30):
        tree.write(randomly.choice(["root", "child"]), 20_000, randomly)
        await tree.flush()
    assert await cluster.count(ROOT) == 30
    snapshots = asyncio.create_task(place.keeper.snapshot(ROOT))
    written = 0
    while not snapshots.done():
        tree.write("root", 2000, randomly)
        written += 1
        await tree.flush()
    await snapshots
    assert written > 0
    assert await cluster.count(ROOT) < 30
    tree.write("root", 2000, randomly)
    await place.close(tree)
    other = await cluster.node("b", ROOT, epoch=2)
    await other.open(ROOT)
    assert contents(other.folder_of(ROOT)) == contents(tree.folder)


async def test_a_parked_tree_leaves_nothing_in_the_log_and_wakes_from_s3(cluster: Cluster) -> None:
    roots = [a_root(f"parked-{number}") for number in range(12)]
    place = await cluster.node("a", *roots)
    before: dict[Any, dict[str, bytes]] = {}
    for number, root in enumerate(roots):
        tree = await place.open(root)
        tree.write("root", 3000 if number else 10_000_000, random.Random(number))
        await place.close(tree)
        before[root] = contents(tree.folder)
    assert await place.keeper.idle_trees.sweep((), place.owned) == len(roots)
    for root in roots:
        assert await cluster.count(root) == 0
    took: list[float] = []
    other = await cluster.node("b", *roots, epoch=2)
    for root in roots:
        begun = time.perf_counter()
        tree = await other.open(root)
        took.append(time.perf_counter() - begun)
        assert contents(tree.folder) == before[root]
        tree.write("root", 100, random.Random(1))
        await other.close(tree)
        assert await cluster.count(root) >= 1
    print(f"woken from S3: 10 MB {took[0] * 1e3:.0f} ms, 3 KB {sorted(took[1:])[5] * 1e3:.1f} ms in the middle")
    third = await cluster.node("c", *roots, epoch=3)
    for root in roots:
        await third.open(root)
        assert contents(third.folder_of(root)) == contents(other.folder_of(root))


async def test_the_second_copy_is_whole_whoever_ships(cluster: Cluster) -> None:
    randomly = random.Random(1)
    place = await cluster.node("a", ROOT)
    tree = await place.open(ROOT)
    one, other = cluster.shipper(), cluster.shipper()
    times: list[float] = []
    states: list[list[tuple[object, ...]]] = []
    for at in range(6):
        tree.write("root", 3000, randomly)
        await tree.flush()
        times.append(time.time() + 0.01)
        states.append(tree.rows())
        await asyncio.sleep(0.02)
        shippers = [one, other, cluster.shipper()]
        await asyncio.gather(*(shipper.ship() for shipper in shippers[: at % 3 + 1]))
    assert one.lag().messages == 0 or other.lag().messages == 0
    keys = [key async for key in cluster.archive.keys(f"{SEGMENTS}/0000/")]
    assert len(keys) >= 6
    await place.close(tree)
    for at, rows in zip(times, states, strict=True):
        state = await tree_at(cluster.archive, cluster.names, ROOT, at, {})
        assert state is not None
        path = cluster.folder / f"at-{at}.db"
        path.write_bytes(state.files["root"])
        assert _rows(path) == rows


def _rows(path: Path) -> list[tuple[object, ...]]:
    import apsw

    connection = apsw.Connection(str(path))
    rows = connection.execute("SELECT id, content FROM rows ORDER BY id").fetchall()
    connection.close()
    return list(rows)


async def test_a_shipper_ships_by_itself_and_says_how_far_it_is(cluster: Cluster) -> None:
    place = await cluster.node("a", ROOT)
    tree = await place.open(ROOT)
    shipper = cluster.shipper(every=0.2)
    running = asyncio.create_task(shipper.run())
    for at in range(5):
        tree.write("root", 3000, random.Random(at))
        await tree.flush()
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    assert shipper.lag() == (0, 0.0)
    running.cancel()
    again = cluster.shipper()
    assert await again.ship() == 0
    await place.close(tree)


async def test_everything_comes_back_after_the_log_was_lost(cluster: Cluster) -> None:
    randomly = random.Random(1)
    roots = [a_root(f"lost-{number}") for number in range(6)]
    place = await cluster.node("a", *roots)
    states: dict[Any, dict[str, bytes]] = {}
    for number, root in enumerate(roots):
        tree = await place.open(root)
        tree.write("root", 30_000, randomly)
        if number % 3 == 1:
            await place.keeper.snapshot(root)
        tree.write("root", 3000, randomly)
        tree.write("child", 3000, randomly)
        await tree.flush()
        place.keeper._look_at(tree)
        await asyncio.gather(*place.keeper._tasks)
        await place.close(tree)
        states[root] = contents(tree.folder)
    shard = shard_of(roots[0])
    await cluster.log.append([Entry(shard, tree_id(roots[0]), b"alarm line", "a1", is_alarm=True)], place.owned)
    # Two rest; one of them was woken again and wrote.
    place.keeper.idle_trees._idle.clear()
    parked = [tree_id(root) for root in roots[:4]]
    assert await place.keeper.idle_trees.sweep(parked, place.owned) == 2
    tree = await place.open(roots[4])
    tree.write("root", 500, randomly)
    await place.close(tree)
    states[roots[4]] = contents(tree.folder)
    shipper = cluster.shipper()
    await shipper.ship()
    end = (await position(cluster.connection, cluster.names.stream(0))).last
    tree = await place.open(roots[0])
    tree.write("root", 500, randomly)  # not shipped
    await place.close(tree)
    await cluster.js.delete_stream(cluster.names.stream(0))
    await found(cluster.connection, cluster.names.cluster, Layout(streams=1))
    result = await restore_everything(cluster.connection, cluster.names, cluster.archive)
    assert (result.trees, result.parked, result.alarms, result.lost) == (5, 1, 1, {})
    assert time.time() - result.newest[0] < 60
    assert (await position(cluster.connection, cluster.names.stream(0))).first > end
    other = await cluster.node("b", *roots, epoch=2)
    for root in roots:
        tree = await other.open(root)
        assert contents(tree.folder) == states[root]
        tree.write("root", 100, randomly)
        await other.close(tree)
    assert [one.data for one in await cluster.log.alarms([shard])] == [b"alarm line"]
    assert await cluster.shipper().ship() > 0
    with pytest.raises(Exception, match="not empty"):
        await restore_everything(cluster.connection, cluster.names, cluster.archive)


async def test_old_segments_go_and_alarms_that_are_older_stay(cluster: Cluster) -> None:
    place = await cluster.node("a", ROOT)
    shard = shard_of(ROOT)
    await cluster.log.append([Entry(shard, tree_id(ROOT), b"in a year", "a1", is_alarm=True)], place.owned)
    shipper = cluster.shipper(history=-60.0)
    await shipper.ship()
    tree = await place.open(ROOT)
    for at in range(4):
        tree.write("root", 3000, random.Random(at))
        await tree.flush()
        await shipper.ship()
    await place.keeper.snapshot(ROOT)
    await shipper.ship()
    await place.close(tree)
    assert await shipper.sweep() == 5
    assert len([key async for key in cluster.archive.keys(f"{SEGMENTS}/0000/")]) == 1
    assert await cluster.shipper().ship() == 0  # it knows where to go on
    await cluster.js.delete_stream(cluster.names.stream(0))
    await found(cluster.connection, cluster.names.cluster, Layout(streams=1))
    (key,) = [key async for key in cluster.archive.keys(f"{INDEX}/0000/")]
    index = await cluster.archive.get(key)
    assert index is not None
    await cluster.archive.put(key, index[:-4] + b"rot!")
    with pytest.raises(ChainBroken, match=r"It has the owners of shards\. Restore this object from a copy"):
        await restore_everything(cluster.connection, cluster.names, cluster.archive)
    await cluster.archive.put(key, index)
    result = await restore_everything(cluster.connection, cluster.names, cluster.archive)
    assert (result.trees, result.alarms, result.lost) == (1, 1, {})
    assert [one.data for one in await cluster.log.alarms([shard])] == [b"in a year"]
    other = await cluster.node("b", ROOT, epoch=2)
    await other.open(ROOT)
    assert contents(other.folder_of(ROOT)) == contents(tree.folder)


async def test_a_stream_that_was_made_anew_is_not_copied_over_the_old_one(cluster: Cluster) -> None:
    place = await cluster.node("a", ROOT)
    tree = await place.open(ROOT)
    for at in range(5):
        tree.write("root", 100, random.Random(at))
        await tree.flush()
    await place.close(tree)
    await cluster.shipper().ship()
    await cluster.js.delete_stream(cluster.names.stream(0))
    await found(cluster.connection, cluster.names.cluster, Layout(streams=1))
    with pytest.raises(Unavailable, match="created again"):
        await cluster.shipper().look()


@pytest.mark.nightly
async def test_one_replica_rots_and_nothing_acknowledged_is_lost(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    cell = Nats(tmp_path / "rot").start().wait()
    try:
        connection = await connect(cell.urls, "test")
        names = await found(connection, "rot", Layout(streams=1))
        cluster = Cluster(tmp_path, connection, names, ObjectArchive(f"{s3.url}/rot"))
        await _rot(cell, cluster)
        await connection.close()
    finally:
        cell.remove()


async def _rot(cell: Nats, cluster: Cluster) -> None:
    randomly = random.Random(3)
    roots = [a_root(f"rot-{number}") for number in range(40)]
    place = await cluster.node("a", *roots)
    states: dict[Any, dict[str, bytes]] = {}
    trees = [await place.open(root) for root in roots]
    for _ in range(ROUNDS):
        for tree in trees:
            tree.write("root", 12_000, randomly)
        await asyncio.gather(*(tree.flush() for tree in trees))
    for tree in trees:
        await place.close(tree)
        states[tree.address] = contents(tree.folder)
    stream = cluster.names.stream(0)
    info = await cluster.js.stream_info(stream)
    victim = cell.number_of(info.cluster.replicas[0].name)
    await asyncio.sleep(1.0)
    cell.kill(victim)
    blocks = cell.blocks(victim, stream)
    assert len(blocks) > 1
    for block in blocks:
        with block.open("r+b") as file:
            size = file.seek(0, 2)
            for _ in range(2):
                at = randomly.randrange(size // 3, size)
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 4]))
    cell.start([victim]).wait()
    await asyncio.sleep(3.0)
    # Let the rotten one lead.
    for _ in range(10):
        info = await cluster.js.stream_info(stream)
        if cell.number_of(info.cluster.leader) == victim:
            break
        wish = b'{"placement":{"preferred":"cell-%d"}}' % victim
        await cluster.connection.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", wish, timeout=5)
        await asyncio.sleep(1.5)
    assert cell.number_of((await cluster.js.stream_info(stream)).cluster.leader) == victim
    hidden = 0
    for root in roots:
        hidden += len(await cluster.replicas.read_leader(shard_of(root), tree_id(root))) < ROUNDS
    print(f"the rotten leader hides messages of {hidden} of {len(roots)} trees")
    assert hidden
    other = await cluster.node("b", *roots, epoch=2)
    for root in roots:
        tree = await other.open(root)
        assert contents(tree.folder) == states[root], root
        tree.write("root", 100, randomly)
        await other.close(tree)
        states[root] = contents(tree.folder)
    third = await cluster.node("c", *roots, epoch=3)
    for root in roots:
        tree = await third.open(root)
        assert contents(tree.folder) == states[root], root
