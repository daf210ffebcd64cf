"""What goes wrong in the middle of storing, bringing and moving trees harms nothing that was stored."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tests.conformance.replicated import Storage
from tests.machine import patience
from tests.unit.logged_trees import contents
from tests.unit.test_keeping import ROOT, SHARD, TREE, Copies, World
from tests.unit.test_replicated import ONE, TWO, Node, wait

from sapwood import Agent
from sapwood.address import Address
from sapwood.clock import SystemClock
from sapwood.errors import Unavailable
from sapwood.kernel.log import restore
from sapwood.kernel.log.records import Base, chained, tree_id
from sapwood.kernel.log.snapshots import park
from sapwood.kernel.marshal.agent_class import known
from sapwood.kernel.node.node import Node as RealNode
from sapwood.kernel.node.shard_handover import ShardHandover
from sapwood.kernel.ports.log import Entry, Epoch, Fenced, Record
from sapwood.kernel.ports.placement import NotBegun
from sapwood.kernel.ports.shards import SHARDS, shard_of
from sapwood.kernel.trees.tree import Tree
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.base.segments import SEGMENTS, SegmentLine, pack_segment, segment_key
from sapwood.runtimes.cluster.copies.log_shipper import Shipper
from sapwood.runtimes.cluster.nats import reliable_stream
from sapwood.runtimes.cluster.ownership.ownership import Ownership
from sapwood.runtimes.cluster.runtime import Member, Ways, make_member
from sapwood.runtimes.workers.frames import Kind, Unheard, framed
from sapwood.settings import Settings
from sapwood.storage.files import Files
from sapwood.storage.image import PAGE_SIZE
from sapwood.storage.wal_frames import Frames, WalFrames
from sapwood.testing.memory_log import MemoryArchive, MemoryLog
from sapwood.timings import Timings


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    node.adopt(ONE)
    yield node
    node.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# Storing.


class Halting(MemoryLog):
    """Stands still in the middle of an append."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()
        self.refused: set[int] = set()
        """Shards that were taken when the log looked, which was a while ago."""

    async def append(self, entries: Sequence[Entry], epochs: Mapping[int, Epoch]) -> list[int]:
        self.arrived.set()
        await self.go_on.wait()
        if refused := self.refused & set(epochs):
            raise Fenced(refused)
        return await super().append(entries, epochs)


async def test_what_was_dropped_is_not_sent_under_a_later_ownership(tmp_path: Path) -> None:
    log = Halting()
    node = Node(tmp_path, log)
    node.adopt(ONE)
    node.adopt(TWO)
    node.commit(ONE)
    node.commit(TWO)
    await node.kept(ONE)
    await node.kept(TWO)
    log.go_on.clear()
    log.arrived.clear()
    node.commit(ONE, "lost")
    node.commit(TWO, "lost too")
    await log.arrived.wait()
    # Both are taken by others; the second comes back before it is known of the first.
    log.refused = {shard_of(ONE)}
    node.gate.drop(TWO)
    node.epochs[shard_of(TWO)] = Epoch(9, log.own(shard_of(TWO)))
    before = await node.read(TWO)
    log.go_on.set()
    await asyncio.sleep(0.05)
    assert await node.read(TWO) == before
    node.close()


async def test_a_tree_that_was_read_under_an_ownership_is_written_to_under_no_other(node: Node) -> None:
    node.commit(ONE)
    await node.kept(ONE)
    node.epochs[shard_of(ONE)] = Epoch(9, node.log.own(shard_of(ONE)))
    with pytest.raises(Unavailable):
        await wait(node, node.commit(ONE))
    node.gate.alarmed(ONE, 1.0, 0)
    await asyncio.sleep(0.02)
    assert len(await node.read(ONE)) == 1
    assert await node.log.alarms([shard_of(ONE)]) == []


async def test_nothing_follows_a_commit_that_could_not_be_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    database = node.commit(ONE)
    await node.kept(ONE)
    before = await node.read(ONE)
    read = WalFrames.read

    def broken(frames: WalFrames, first: int, last: int) -> Frames:
        raise OSError("EIO")

    monkeypatch.setattr(WalFrames, "read", broken)
    node.commit(ONE, "not in the log")
    monkeypatch.setattr(WalFrames, "read", read)
    node.commit(ONE, "after it")
    with pytest.raises(Unavailable):
        node.gate.wait(database)
    await asyncio.sleep(0.02)
    assert await node.read(ONE) == before
    assert node.lost == [shard_of(ONE)]


async def test_a_commit_whose_last_part_was_never_stored_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = Node(tmp_path, timings=Timings(log_message_bytes=8192, log_batch=2))
    node.adopt(ONE)
    node.commit(ONE)
    await node.kept(ONE)
    tail = node.gate.tail(ONE)
    assert tail is not None
    whole = node.images(ONE)
    append = node.log.append

    async def first_only(entries: Sequence[Entry], epochs: Mapping[int, Epoch]) -> list[int]:
        await append(entries, epochs)
        raise Unavailable("The log is gone.")

    monkeypatch.setattr(node.log, "append", first_only)
    with pytest.raises(Unavailable):
        await wait(node, node.commit(ONE, "x" * 100_000))
    monkeypatch.setattr(node.log, "append", append)
    assert len(await node.read(ONE)) == 3
    other = Node(tmp_path / "other", node.log)
    other.folder.mkdir()
    other.adopt(ONE, tail._replace(files=frozenset()))
    other.commit(ONE, "after it", "another")
    await other.kept(ONE)
    links = chained(await node.read(ONE))
    assert len(links) == 2
    assert (await node.restored(ONE))["root"] == whole["root"]
    other.close()
    node.close()


async def test_a_base_that_cannot_be_stored_in_one_step_is_not(tmp_path: Path) -> None:
    ten_pages = Timings(log_message_bytes=5 * PAGE_SIZE, log_batch=4)  # half a batch
    node = Node(tmp_path, timings=ten_pages)
    node.adopt(ONE)
    node.commit(ONE)
    await node.kept(ONE)
    cut = node.gate.cut(ONE)
    tail = await cut.known
    node.commit(ONE, "since")
    await node.kept(ONE)
    node.commit(ONE, "x" * 100_000)
    with pytest.raises(Unavailable, match="No snapshot"):
        await node.gate.rebase(ONE, Base("key", b"", tail.sequence, tail.digest), cut)
    await node.kept(ONE)
    assert await node.restored(ONE) == node.images(ONE)
    node.close()


async def test_many_files_that_are_no_more_fit_into_messages(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.commit(ONE)
    await node.kept(ONE)
    tree = node.gate._trees[tree_id(ONE)]  # pyright: ignore[reportPrivateUsage]
    for number in range(30_000):
        tree.gathering().remove(f"{number:024}-{number}")
    node.commit(ONE, "x" * 800_000)
    await node.kept(ONE)
    records = await node.read(ONE)
    assert max(len(record.data) for record in records) < 1_000_000
    assert sum(len(link.message.removed) for link in chained(records)) == 30_000
    assert await node.restored(ONE) == node.images(ONE)


# Bringing.


class SlowFiles(Files):
    """Stands still before a folder gets its name."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived, self.go_on = threading.Event(), threading.Event()

    def rename(self, path: Path, to: Path) -> None:
        if path.suffix == restore.SOON:
            self.arrived.set()
            self.go_on.wait(10)
        super().rename(path, to)


async def test_files_are_not_changed_any_more_after_bringing_was_cancelled(world: World) -> None:
    place = world.node("a")
    tree = await place.open(ROOT)
    tree.write("root", 3000, random.Random(1))
    await place.close(tree)
    other = world.node("b")
    slow = other.keeper._files = SlowFiles()  # pyright: ignore[reportPrivateUsage]
    bringing = asyncio.ensure_future(other.open(ROOT))
    await asyncio.to_thread(slow.arrived.wait, 10)
    bringing.cancel()
    await asyncio.sleep(0.01)
    again = asyncio.ensure_future(other.open(ROOT))
    await asyncio.sleep(0.05)
    assert not again.done()
    slow.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await bringing
    tree = await again
    folder = other.folder_of(ROOT).stat().st_ino
    await asyncio.sleep(0.1)
    assert other.folder_of(ROOT).stat().st_ino == folder
    assert contents(other.folder_of(ROOT)) == contents(place.folder_of(ROOT))


async def test_if_nobody_knows_whether_a_mended_log_was_stored_the_shard_is_owned_anew(world: World) -> None:
    place = world.node("a")
    tree = await place.open(ROOT)
    for at in range(3):
        tree.write("root", 3000, random.Random(at))
        await tree.flush()
    await place.close(tree)
    whole = world.records()
    world.log._stored[0] = [one for one in world.log._stored[0] if one.record.sequence != whole[1].sequence]
    world.replicas = Copies(whole)
    other = world.node("b")
    world.log.in_doubt = True
    with pytest.raises(Unavailable):
        await other.open(ROOT)
    assert other.fenced == [SHARD]


async def test_a_late_owner_does_not_bring_back_a_tree_that_was_destroyed(world: World) -> None:
    place = world.node("a")
    tree = await place.open(ROOT)
    tree.write("root", 3000, random.Random(1))
    await place.close(tree)
    is_ours = True
    put = world.archive.put

    async def late(key: str, data: bytes, *, only_new: bool = False) -> bool:
        nonlocal is_ours
        if key.startswith("trees/") and is_ours:
            # While it stood still another node took the shard, and the tree was destroyed and forgotten.
            is_ours = False
            done = await put(key, data, only_new=only_new)
            other = world.node("b")
            await other.open(ROOT)
            await other.gate.bury(ROOT, None)
            await other.keeper.destroyed(ROOT)
            assert await park(world.log, world.archive, SHARD, TREE, clock=SystemClock(), history=0.0)
            return done
        return await put(key, data, only_new=only_new)

    world.archive.put = late  # type: ignore[method-assign]
    await park(world.log, world.archive, SHARD, TREE, clock=SystemClock(), history=0.0, is_ours=lambda: is_ours)
    assert world.records() == []
    third = world.node("c")
    tree = await third.open(ROOT)
    assert contents(third.folder_of(ROOT)) == {}


# A node.


class Troubled(Agent[None]):
    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS t (v)")

    async def add(self) -> int:
        self.sql("INSERT INTO t VALUES (1)")
        return self.sql("SELECT count(*) FROM t").scalar(int)

    async def ask_in_vain(self) -> None:
        raise NotBegun("Somebody else did not begin.")


TROUBLED = Address.root_of(known(Troubled).type, "one")


class OneNode:
    """A node that owns what a test says."""

    def __init__(self, folder: Path, storage: Storage) -> None:
        self.storage = storage
        self.epochs = {shard: Epoch(1, storage.log.own(shard)) for shard in range(SHARDS)}
        self.lost: list[int] = []
        self.member: Member = make_member(
            Settings(data=folder, durability="replicated", nats="memory", archive="memory"),
            clock=SystemClock(),
            files=Files(),
            deps=None,
            log=storage.log,
            archive=storage.archive,
            ways=Ways(self.epochs.get, lambda: True, self.lost.extend),
        )
        self.node: RealNode = self.member.node
        self.node.begin([known(Troubled)], begin_due=lambda actor: None, when_started=lambda actor: None)

    @property
    def holding(self) -> ShardHandover:
        return self.member.holding

    def own_anew(self) -> None:
        shard = shard_of(TROUBLED)
        self.epochs[shard] = Epoch(self.epochs[shard].number + 1, self.storage.log.own(shard))


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[OneNode]:
    one = OneNode(tmp_path, Storage())
    await one.holding.gained(dict.fromkeys(range(SHARDS), True))
    yield one
    await one.node.stop()


async def add(one: OneNode) -> int:
    stub = await one.node.stub([(known(Troubled), "one")], None)
    return await asyncio.wait_for(stub.add(), patience())  # type: ignore[attr-defined]


async def test_a_tree_whose_bringing_was_cancelled_before_it_began_can_be_brought(one: OneNode) -> None:
    asking = asyncio.ensure_future(one.node.loader.load(TROUBLED))
    await asyncio.sleep(0)
    one.holding.lost([shard_of(TROUBLED)])
    with pytest.raises(Unavailable):
        await asking
    one.own_anew()
    await one.holding.gained({shard_of(TROUBLED): False})
    assert await add(one) == 1


@pytest.mark.slow
async def test_a_lost_tree_leaves_no_open_files_and_lets_nothing_of_its_own_out(one: OneNode) -> None:
    assert await add(one) == 1
    tree = one.node.trees[TROUBLED]
    actor = tree.actors[TROUBLED]
    one.holding.lost([shard_of(TROUBLED)])
    assert len(one.member.gate._files) == 0  # pyright: ignore[reportPrivateUsage]
    one.own_anew()
    await one.holding.gained({shard_of(TROUBLED): False})
    assert await add(one) == 2
    with pytest.raises(Unavailable):
        one.node.gate.wait(actor.database)


async def test_a_shard_is_let_go_of_only_when_its_sleeping_trees_have_said_all(one: OneNode) -> None:
    assert await add(one) == 1
    one.storage.log.is_reachable.clear()
    one.node.gate.alarmed(TROUBLED, 1.0, 0)
    one.node.sleep()
    assert TROUBLED not in one.node.trees
    letting_go = asyncio.ensure_future(one.holding.let_go([shard_of(TROUBLED)]))
    await asyncio.sleep(0.05)
    assert not letting_go.done()
    one.storage.log.is_reachable.set()
    await asyncio.wait_for(letting_go, patience())
    assert len(await one.storage.log.alarms([shard_of(TROUBLED)])) == 1


async def test_a_tree_that_did_not_close_well_is_said_to_have_not(
    one: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await add(one) == 1

    async def broken(tree: object, error: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(one.node.removal, "close", broken)
    with pytest.raises(Unavailable):
        await one.holding.let_go([shard_of(TROUBLED)])


async def test_an_alarm_that_nobody_can_read_keeps_no_shard_from_running(
    one: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def alarms(shards: Collection[int]) -> list[Record]:
        return [Record("00", 1, b"\xc1"), Record("01", 2, b"\x93\xa1x\xc0\x01")]

    monkeypatch.setattr(one.storage.log, "alarms", alarms)
    await one.holding.gained({shard_of(TROUBLED): True})
    assert await add(one) == 1


async def test_a_tree_that_cannot_be_dropped_keeps_no_other_and_answers_no_more(
    one: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        await (await one.node.stub([(known(Troubled), name)], None)).add()  # type: ignore[attr-defined]
    first, second = list(one.node.trees)
    lose = one.node.removal.lose

    def broken(tree: Tree) -> None:
        if tree.address == first:
            raise OSError("no")
        lose(tree)

    actor = one.node.trees[first].actors[first]
    monkeypatch.setattr(one.node.removal, "lose", broken)
    one.holding.lost([shard_of(first), shard_of(second)])
    assert second not in one.node.trees
    with pytest.raises(Unavailable):
        one.node.gate.wait(actor.database)


async def test_a_lost_tree_that_is_being_put_away_is_not_waited_for(one: OneNode) -> None:
    assert await add(one) == 1
    one.storage.log.is_reachable.clear()
    one.node.gate.alarmed(TROUBLED, 1.0, 0)
    one.node.sleep()
    ((_, work),) = one.node.loader.closed_trees(lambda root: True).values()
    await asyncio.sleep(0.02)
    one.holding.lost([shard_of(TROUBLED)])
    await asyncio.wait_for(work, patience())
    one.storage.log.is_reachable.set()


async def test_what_an_agent_fails_with_is_never_taken_for_something_that_was_not_begun(one: OneNode) -> None:
    stub = await one.node.stub([(known(Troubled), "one")], None)
    with pytest.raises(Unavailable) as raised:
        await stub.ask_in_vain()  # type: ignore[attr-defined]
    assert not isinstance(raised.value, NotBegun)


class NoGround:
    """A cluster whose streams nobody leads."""

    async def last_lease(self, node: str) -> tuple[int, None]:
        return 0, None

    async def listen(self, *_: object) -> None:
        raise Unavailable("NATS does not answer.")

    async def close(self) -> None:
        pass


async def test_who_could_not_join_leaves_at_once() -> None:
    owners = Ownership(cast("Any", NoGround()), "a")
    with pytest.raises(Unavailable):
        await owners.join(cast("Any", None))
    await asyncio.wait_for(owners.leave(patience=3600), patience())


async def test_what_was_sent_after_a_question_may_have_been_heard() -> None:
    sent: list[tuple[bytes, int]] = []
    ended: list[Exception | None] = []

    class End(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            ended.append(exc)

    mine = reliable_stream.Pipe(
        asyncio.get_running_loop(),
        End(),
        lambda packet, which: sent.append((packet, which)),
        1000,
        lambda: None,
        Timings(pipe_ping_after=0.0, pipe_check_interval=0.01, pipe_absence_timeout=0.0),
    )
    await asyncio.sleep(0.05)
    asked = [which for packet, which in sent if packet[0] == reliable_stream.ASKED]
    assert asked
    mine.write(framed(1, 7, Kind.OPEN, b"x"))
    mine.nobody(asked[-1])
    await asyncio.sleep(0.1)
    (error,) = ended
    assert isinstance(error, Unheard)
    assert error.opened() == set()


# Shipping.


class NoIndex(Shipper):
    async def index(self) -> None:
        pass


async def test_a_segment_without_messages_does_not_make_those_before_it_old() -> None:
    archive = MemoryArchive()
    now = time.time()
    ages = [9, 2, None, None, 1, 0]
    for first, days in enumerate(ages, start=1):
        lines = [] if days is None else [SegmentLine(first, now - days * 86400, "c.log.0.0.tree.aa", b"x")]
        await archive.put(segment_key(0, first), pack_segment(0, first, first, lines))
    shipper = NoIndex(None, Names("c", Layout(streams=1)), 0, archive, history=7 * 86400.0)
    assert await shipper.sweep() == 1
    assert min([key async for key in archive.keys(f"{SEGMENTS}/")]) == segment_key(0, 2)


async def test_a_full_log_undoes_what_it_refused_and_loses_no_shard(tmp_path: Path) -> None:
    node = Node(tmp_path, timings=Timings(full_log_interval=0.01))
    node.adopt(ONE)
    database = node.commit(ONE, "kept")
    await node.kept(ONE)
    node.log.is_full = True
    node.commit(ONE, "refused")
    waiting = node.gate.wait(database)
    assert waiting is not None

    with pytest.raises(Unavailable, match="The log is full"):
        await waiting

    assert (node.refused, node.lost) == ([ONE], [])
    assert node.gate.full == "The log is full."
    with pytest.raises(Unavailable, match="The log is full"):
        node.gate.wait(database)  # what is in its files is not what is stored
    node.log.is_full = False
    async with asyncio.timeout(patience()):
        while node.gate.full is not None:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
    node.close()


async def test_a_new_base_that_a_full_log_refuses_undoes_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.adopt(ONE)
    database = node.commit(ONE, "kept")
    await node.kept(ONE)
    cut = node.gate.cut(ONE)
    tail = await cut.known
    node.log.is_full = True

    with pytest.raises(Unavailable, match="no room"):
        await node.gate.rebase(ONE, Base("key", b"", tail.sequence, tail.digest), cut)

    assert node.refused == []
    assert node.gate.wait(database) is None
    node.log.is_full = False
    node.commit(ONE, "after")
    await node.kept(ONE)
    assert await node.restored(ONE) == node.images(ONE)
    node.close()


async def test_a_log_that_is_full_in_the_middle_of_a_large_commit_leaves_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, timings=Timings(log_message_bytes=4 * PAGE_SIZE, log_batch=1))
    node.adopt(ONE)
    node.commit(ONE)
    await node.kept(ONE)
    stored = node.log.append

    async def fill(entries: Sequence[Entry], epochs: Mapping[int, Epoch]) -> list[int]:
        places = await stored(entries, epochs)
        node.log.is_full = True
        return places

    monkeypatch.setattr(node.log, "append", fill)
    node.commit(ONE, bytes(20 * PAGE_SIZE))

    with pytest.raises(Unavailable):
        await node.kept(ONE)

    assert (node.refused, node.lost) == ([], [shard_of(ONE)])
    node.close()
