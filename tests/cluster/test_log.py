"""The log over real servers: only the owner writes, whatever is tried again is stored once, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Generator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.servers import Nats, put
from tests.unit.test_replicated import Node

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.ports.log import Entry, Epoch, Fenced
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.nats import nats_log
from sapwood.runtimes.cluster.nats.bootstrap import found
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.nats.nats_log import NatsLog
from sapwood.timings import Timings

LAYOUT = Layout(streams=2)
clusters = count()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Nats, None, None]:
    servers = Nats(tmp_path_factory.mktemp("nats")).start().wait()
    yield servers
    servers.remove()


class Cell:
    """A cluster of its own on the shared servers."""

    def __init__(self, connection: Any, names: Names) -> None:
        self.connection = connection
        self.names = names
        self.log = NatsLog(connection, names)
        self._ids = count()

    def use(self, timings: Timings) -> None:
        """Have another log in the same streams, which nothing was asked yet."""
        self.log = NatsLog(self.connection, self.names, timings=timings)

    async def take(self, shard: int) -> Epoch:
        """Become the owner of a shard."""
        before = await self.log.owner(shard)
        headers = {nats_log.FENCE: str(before)}
        acknowledged = await put(self.connection, self.names.owner(shard), b"mine", headers)
        return Epoch(1, acknowledged.seq)

    def entry(self, shard: int, tree: str, data: bytes = b"data", **what: Any) -> Entry:
        return Entry(shard, tree, data, f"{self.names.cluster}-{next(self._ids)}", **what)

    async def read(self, shard: int, tree: str) -> list[bytes]:
        return [record.data for record in await self.log.read(shard, tree)]

    async def leader(self, stream: int = 0) -> int:
        info = await self.connection.jetstream(timeout=10).stream_info(self.names.stream(stream))
        return int(info.cluster.leader.rsplit("-", 1)[1])


@pytest.fixture
async def cell(servers: Nats) -> AsyncIterator[Cell]:
    connection = await connect(servers.urls, "test")
    cell = Cell(connection, await found(connection, f"log{next(clusters)}", LAYOUT))
    yield cell
    cell.log.close()
    with contextlib.suppress(Exception):  # the servers take forty streams, and have to last for all tests
        for stream in (cell.names.members, *map(cell.names.stream, range(LAYOUT.streams))):
            await connection.jetstream(timeout=10).delete_stream(stream)
    await connection.close()


async def test_what_was_appended_is_read_in_order(cell: Cell) -> None:
    epoch = await cell.take(0)

    places = [(await cell.log.append([cell.entry(0, "a", b"%d" % n)], {0: epoch}))[0] for n in range(600)]

    records = await cell.log.read(0, "a")
    assert [record.sequence for record in records] == places
    assert [record.data for record in records] == [b"%d" % n for n in range(600)]
    assert await cell.log.read(0, "a", places[-2]) == records[-1:]
    assert await cell.log.read(0, "a", places[-1]) == []
    assert await cell.log.read(0, "other") == []


async def test_several_are_stored_whole_and_know_their_places(cell: Cell) -> None:
    epochs = {0: await cell.take(0), 2: await cell.take(2)}
    entries = [cell.entry(0, "a", b"1"), cell.entry(2, "b", b"2"), cell.entry(0, "a", b"3"), cell.entry(2, "c", b"4")]

    places = await cell.log.append(entries, epochs)

    assert [record.sequence for record in await cell.log.read(0, "a")] == [places[0], places[2]]
    assert [record.sequence for record in await cell.log.read(2, "b")] == [places[1]]
    assert await cell.read(2, "c") == [b"4"]


async def test_an_owner_before_the_last_is_refused_also_in_trees_that_nobody_else_wrote_to(cell: Cell) -> None:
    old = await cell.take(0)
    await cell.log.append([cell.entry(0, "a", b"kept")], {0: old})
    new = await cell.take(0)

    with pytest.raises(Fenced) as one:
        await cell.log.append([cell.entry(0, "b")], {0: old})
    with pytest.raises(Fenced):
        await cell.log.append([cell.entry(0, "a"), cell.entry(0, "b")], {0: old})

    assert set(one.value.shards) == {0}
    assert await cell.read(0, "a") == [b"kept"]
    assert await cell.read(0, "b") == []
    await cell.log.append([cell.entry(0, "b", b"fresh")], {0: new})


async def test_a_batch_with_one_lost_shard_stores_nothing_and_names_it_and_the_others_go_alone(cell: Cell) -> None:
    epochs = {shard: await cell.take(shard) for shard in (0, 2, 4)}
    await cell.take(2)
    entries = [cell.entry(shard, "a", b"x") for shard in (0, 2, 4)]

    with pytest.raises(Fenced) as lost:
        await cell.log.append(entries, epochs)
    assert set(lost.value.shards) == {2}
    assert [await cell.read(shard, "a") for shard in (0, 2, 4)] == [[], [], []]

    await cell.log.append([entry for entry in entries if entry.shard != 2], {0: epochs[0], 4: epochs[4]})
    assert [await cell.read(shard, "a") for shard in (0, 2, 4)] == [[b"x"], [], [b"x"]]


async def test_what_is_sent_twice_is_stored_once_and_keeps_its_place(cell: Cell) -> None:
    epochs = {0: await cell.take(0), 2: await cell.take(2)}
    one = [cell.entry(0, "a", b"one")]
    several = [cell.entry(0, "a", b"two"), cell.entry(2, "b", b"three"), cell.entry(2, "b", b"four")]

    first = [await cell.log.append(one, epochs), await cell.log.append(several, epochs)]
    again = [await cell.log.append(one, epochs), await cell.log.append(several, epochs)]

    assert again == first
    assert await cell.read(0, "a") == [b"one", b"two"]
    assert await cell.read(2, "b") == [b"three", b"four"]


async def test_what_was_stored_before_the_shard_was_lost_is_known_as_stored(cell: Cell) -> None:
    epochs = {0: await cell.take(0)}
    one, several = [cell.entry(0, "a")], [cell.entry(0, "b"), cell.entry(0, "c")]
    places = [await cell.log.append(one, epochs), await cell.log.append(several, epochs)]
    await cell.take(0)

    assert [await cell.log.append(one, epochs), await cell.log.append(several, epochs)] == places


async def test_a_message_that_replaces_leaves_nothing_before_it_its_parts_included(cell: Cell) -> None:
    epochs = {0: await cell.take(0)}
    await cell.log.append([cell.entry(0, "a", b"old"), cell.entry(0, "b", b"stays")], epochs)

    parts = [cell.entry(0, "a", b"new 1", replaces=True), cell.entry(0, "a", b"new 2"), cell.entry(0, "a", b"new 3")]
    await cell.log.append(parts, epochs)

    assert await cell.read(0, "a") == [b"new 1", b"new 2", b"new 3"]
    assert await cell.read(0, "b") == [b"stays"]


async def test_a_commit_of_20_megabytes_is_stored_in_parts(cell: Cell) -> None:
    epochs = {0: await cell.take(0)}
    parts = [random.Random(n).randbytes(900_000) for n in range(23)]

    await cell.log.append([cell.entry(0, "a", part) for part in parts], epochs)

    assert await cell.read(0, "a") == parts


async def test_a_tree_is_dropped_up_to_a_place(cell: Cell) -> None:
    epochs = {0: await cell.take(0)}
    places = await cell.log.append([cell.entry(0, "a", b"%d" % n) for n in range(5)], epochs)

    await cell.log.drop(0, "a", places[2])
    assert await cell.read(0, "a") == [b"3", b"4"]
    assert await cell.log.trees([0, 2]) == {0: {"a": 2}, 2: {}}

    await cell.log.drop(0, "a", places[4])
    assert await cell.read(0, "a") == []
    assert await cell.log.trees([0]) == {0: {}}
    with pytest.raises(Fenced):
        await cell.log.append([cell.entry(0, "a")], {0: Epoch(1, 0)})


async def test_the_index_of_alarms_has_one_line_for_each_tree(cell: Cell) -> None:
    cell.use(Timings(alarm_cleanup_delay=0.2))
    epochs = {shard: await cell.take(shard) for shard in (0, 1, 2)}
    for shard, tree, line in ((0, "a", b"old"), (0, "a", b"new"), (1, "b", b"b"), (2, "c", b"c"), (0, "d", b"d")):
        alarm = cell.entry(shard, tree, line, is_alarm=True)
        await cell.log.append([alarm, cell.entry(shard, tree)], epochs)
    await cell.log.append([cell.entry(0, "d", b"", is_alarm=True)], epochs)

    async def lines(*shards: int) -> list[tuple[str, bytes]]:
        return sorted((record.tree, record.data) for record in await cell.log.alarms(shards))

    assert await lines(0, 1, 2) == [("a", b"new"), ("b", b"b"), ("c", b"c")]
    assert await lines(0) == [("a", b"new")]
    assert await lines(4) == []
    assert await lines(*range(400)) == [("a", b"new"), ("b", b"b"), ("c", b"c")]
    assert await cell.read(0, "d") == [b"data"]

    await asyncio.sleep(0.5)
    info = await cell.connection.jetstream().stream_info(cell.names.stream(0), subjects_filter=cell.names.alarm(0, "*"))
    assert info.state.subjects == {cell.names.alarm(0, "a"): 1}, "an empty line goes"


async def test_many_alarms_are_read_from_the_leader(cell: Cell) -> None:
    cell.use(Timings(alarm_page=10))
    epochs = {0: await cell.take(0)}
    for at in range(3):
        alarms = [cell.entry(0, f"t{at}-{n}", b"line", is_alarm=True) for n in range(20)]
        await cell.log.append(alarms, epochs)

    assert len({record.tree for record in await cell.log.alarms([0])}) == 60


async def test_an_empty_line_that_goes_while_alarms_are_read_is_not_waited_for(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = {0: await cell.take(0)}
    await cell.log.append([cell.entry(0, "a", b"line", is_alarm=True)], epochs)
    subjects = cell.log._subjects

    async def and_then_it_goes(stream: int, wanted: str) -> dict[str, int]:
        found = await subjects(stream, wanted)
        await cell.log._purge(stream, cell.names.alarm(0, "a"), 1 << 40)
        return found

    monkeypatch.setattr(cell.log, "_subjects", and_then_it_goes)
    async with asyncio.timeout(10):
        assert await cell.log.alarms([0]) == []


async def test_a_closed_connection_is_said_at_once(cell: Cell) -> None:
    epochs = {0: await cell.take(0)}
    await cell.connection.close()

    with pytest.raises(Unavailable):
        await asyncio.wait_for(cell.log.append([cell.entry(0, "a")], epochs), 2)
    with pytest.raises(Unavailable):
        await asyncio.wait_for(cell.log.read(0, "a"), 2)


async def test_after_its_patience_nobody_knows(cell: Cell, servers: Nats) -> None:
    cell.use(Timings(log_append_timeout=1.0, log_attempt_timeout=0.3))
    epochs = {0: await cell.take(0)}
    two = [n for n in range(3) if servers.ports[n] != cell.connection.connected_url.port]
    for n in two:
        servers.pause(n)
    try:
        await asyncio.sleep(0.5)  # until all of their threads stand still
        with pytest.raises(Unavailable, match="did not accept"):
            await cell.log.append([cell.entry(0, "a")], epochs)
    finally:
        for n in two:
            servers.go_on(n)
        servers.wait()


async def test_a_killed_leader_loses_nothing_and_doubles_nothing(cell: Cell, servers: Nats) -> None:
    epochs = {shard: await cell.take(shard) for shard in (0, 2, 4)}
    sent: dict[int, list[bytes]] = {0: [], 2: [], 4: []}
    places: list[int] = []
    stop = asyncio.Event()

    async def write() -> None:
        for number in count():
            if stop.is_set():
                return
            shards = [shard for shard in sent if number % (shard + 1) == 0]
            entries = [cell.entry(shard, "a", b"%d-%d" % (shard, number)) for shard in shards]
            places.extend(await cell.log.append(entries, epochs))
            for entry in entries:
                sent[entry.shard].append(entry.data)

    writing = asyncio.ensure_future(write())
    for _ in range(2):
        await asyncio.sleep(0.5)
        so_far = len(places)
        leader = await cell.leader()
        servers.kill(leader)
        async with asyncio.timeout(60):
            while len(places) < so_far + 20:  # noqa: ASYNC110 - it ends
                await asyncio.sleep(0.05)
        servers.start([leader]).wait()
    stop.set()
    await asyncio.wait_for(writing, 30)

    assert len(set(places)) == len(places)
    assert places == sorted(places)
    for shard, data in sent.items():
        assert await cell.read(shard, "a") == data


async def test_trees_that_commit_at_once_go_together_and_are_whole(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, stored=cell.log)
    roots = [Address.root_of("Tree", f"n{number}") for number in range(16)]
    for root in roots:
        node.adopt(root, epoch=await cell.take(shard_of(root)))
    appends: list[int] = []
    append = cell.log.append

    async def counted(entries: Any, epochs: Any) -> list[int]:
        appends.append(len(entries))
        return await append(entries, epochs)

    monkeypatch.setattr(cell.log, "append", counted)

    for number in range(20):
        for root in roots:
            node.commit(root, number, "child" if number % 3 else "root")
        await asyncio.sleep(0)
    node.commit(roots[0], random.Random(1).randbytes(20_000_000), "large")
    for root in roots:
        await node.kept(root)

    assert len(appends) < 20
    for root in roots:
        assert await node.restored(root) == node.images(root)
    assert node.lost == []
    node.close()


async def test_a_gate_whose_shard_was_taken_fails_its_waiters_and_keeps_the_others(cell: Cell, tmp_path: Path) -> None:
    node = Node(tmp_path, stored=cell.log)
    roots = [Address.root_of("Tree", f"n{number}") for number in range(9)]
    one, two = [root for root in roots if cell.log.stream_of(shard_of(root)) == 0][:2]
    for root in (one, two):
        node.adopt(root, epoch=await cell.take(shard_of(root)))
        node.commit(root)
        await node.kept(root)
    await cell.take(shard_of(one))

    lost, kept = (node.gate.wait(node.commit(root, "more")) for root in (one, two))

    assert lost is not None
    assert kept is not None
    with pytest.raises(Unavailable):
        await lost
    await kept
    assert node.lost == [shard_of(one)]
    assert len(await node.read(one)) == 1
    assert await node.restored(two) == node.images(two)
    node.close()


async def test_an_answer_that_was_lost_is_asked_for_again(cell: Cell) -> None:
    """The connection swallows every second acknowledgement."""
    epochs = {0: await cell.take(0), 2: await cell.take(2)}
    real, turns = cell.connection, count()

    class Lossy:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        async def request(self, subject: str, data: bytes, **how: Any) -> Any:
            answer = await real.request(subject, data, **how)
            if not subject.startswith("$JS") and next(turns) % 2 == 0:
                raise TimeoutError
            return answer

    log = NatsLog(Lossy(), cell.names)
    places = [
        await log.append([cell.entry(0, "a", b"1")], epochs),
        await log.append([cell.entry(0, "a", b"2"), cell.entry(2, "b", b"3")], epochs),
        await log.append([cell.entry(0, "a", b"4")], epochs),
    ]

    records = [*await cell.log.read(0, "a"), *await cell.log.read(2, "b")]
    assert sorted(record.sequence for record in records) == sorted(place for some in places for place in some)
    assert await cell.read(0, "a") == [b"1", b"2", b"4"]


async def test_a_replica_that_is_behind_is_not_believed(cell: Cell) -> None:
    """The first answer of a replica lacks the end, as that of one that is behind does."""
    epochs = {0: await cell.take(0)}
    await cell.log.append([cell.entry(0, "a", b"%d" % n) for n in range(4)], epochs)
    behind = [True]

    class Behind(NatsLog):
        async def _get(self, stream: int, question: Any, begin: int) -> Any:
            found, up_to = await super()._get(stream, question, begin)
            if behind.pop() if behind else False:
                return found[:2], up_to
            return found, up_to

    log = Behind(cell.connection, cell.names)

    assert [record.data for record in await log.read(0, "a")] == [b"0", b"1", b"2", b"3"]
    with contextlib.suppress(Unavailable):
        log.close()
