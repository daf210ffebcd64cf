"""What wants to leave a tree waits until the log has all that was committed in it, and of the log it is made anew."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import loops
from tests.machine import patience
from tests.unit.helpers import a_database, without_checksums
from tests.unit.test_slices import SliceOwner, write

from sapwood.address import Address
from sapwood.clock import SystemClock
from sapwood.errors import StoredDataError, Unavailable
from sapwood.kernel.durability.slices import Slices
from sapwood.kernel.log.alarm_entry import alarm_line
from sapwood.kernel.log.records import Base, ChainBroken, ChainLink, chained, commits, tree_id
from sapwood.kernel.log.replicated_gate import ReplicatedGate
from sapwood.kernel.log.writer import LogPosition
from sapwood.kernel.ports.durability import Commit
from sapwood.kernel.ports.log import Epoch, FencedLog, OutOfTouch, Record
from sapwood.kernel.ports.shards import shard_of
from sapwood.storage.database import Database
from sapwood.storage.files import Files
from sapwood.storage.image import PAGE_SIZE
from sapwood.testing.memory_log import MemoryLog
from sapwood.timings import DEFAULTS, Timings

PART = DEFAULTS.log_message_bytes
ONE, TWO = Address.root_of("Tree", "one"), Address.root_of("Tree", "two")


class Gated(SliceOwner):
    """Tells the gate of every file that is opened, as a tree does."""

    def __init__(self, slices: Slices, gate: ReplicatedGate) -> None:
        super().__init__(slices)
        self.gate = gate

    def opened(self, database: Database) -> None:
        super().opened(database)
        self.gate.opened(database)


class Node:
    """A gate over a log in memory, with some trees."""

    def __init__(
        self,
        folder: Path,
        log: MemoryLog | None = None,
        stored: FencedLog | None = None,
        timings: Timings = DEFAULTS,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.folder = folder
        self.log = log or MemoryLog()
        self.stored = stored or self.log
        self.epochs: dict[int, Epoch] = {}
        self.lost: list[int] = []
        self.refused: list[Address] = []
        self.holds_lease = True
        self.gate = ReplicatedGate(
            self.stored,
            self.loop,
            SystemClock(),
            epoch_of=self.epochs.get,
            holds_lease=lambda: self.holds_lease,
            fenced=self.lost.extend,
            version="1",
            refused=lambda roots, error: self.refused.extend(roots),
            timings=timings,
        )
        self.slices: dict[Address, Slices] = {}
        self.databases: dict[tuple[Address, str], Database] = {}

    def adopt(self, root: Address, tail: LogPosition | None = None, epoch: Epoch | None = None) -> None:
        shard = shard_of(root)
        self.epochs[shard] = epoch or Epoch(len(self.epochs) + 1, self.log.own(shard))
        self.gate.adopt(root, tail or LogPosition())
        self.slices[root] = Slices(root, self.gate, self.loop)
        (self.folder / tree_id(root)).mkdir(exist_ok=True)

    def database(self, root: Address, name: str = "root") -> Database:
        database = self.databases.get((root, name))
        if database is None:
            path = self.folder / tree_id(root) / f"{name}.db"
            database = a_database(path, Gated(self.slices[root], self.gate))
            self.databases[root, name] = database
            database.run("CREATE TABLE IF NOT EXISTS t (v)", ())
            self.slices[root].commit()
        return database

    def commit(self, root: Address, value: object = 1, name: str = "root") -> Database:
        database = self.database(root, name)
        write(database, value)
        self.slices[root].commit()
        return database

    async def kept(self, root: Address) -> None:
        await asyncio.wait_for(self.gate.flushed(root), patience())

    async def read(self, root: Address) -> list[Record]:
        return await self.stored.read(shard_of(root), tree_id(root))

    async def restored(self, root: Address, base: dict[str, bytes] | None = None) -> dict[str, bytes]:
        return restored(chained(await self.read(root)), base)

    def images(self, root: Address) -> dict[str, bytes]:
        """Return what the files of a tree hold."""
        return {
            name: without_checksums(serialized(database))
            for (whose, name), database in self.databases.items()
            if whose == root and not database.removed
        }

    def close(self) -> None:
        for database in self.databases.values():
            database.rollback()
            database.close()
        self.gate.close()


def serialized(database: Database) -> bytes:
    connection = database._connection  # pyright: ignore[reportPrivateUsage]
    assert connection is not None
    return connection.serialize("main")


def restored(links: Sequence[ChainLink], base: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """Return the files of a tree as its messages make them."""
    files = {name: bytearray(image) for name, image in (base or {}).items()}
    for parts in commits(links):
        for link in parts:
            if link.message.is_end:
                files.clear()
            for name in link.message.removed:
                files.pop(name, None)
            for change in link.message.changes:
                file = files[change.file] = bytearray() if change.is_new else files[change.file]
                length = change.size * PAGE_SIZE
                file[length:] = b""
                file.extend(bytes(length - len(file)))
                for at, number in enumerate(change.numbers):
                    image = change.images[at * PAGE_SIZE : (at + 1) * PAGE_SIZE]
                    file[(number - 1) * PAGE_SIZE : number * PAGE_SIZE] = image
    return {name: without_checksums(file) for name, file in files.items()}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    node.adopt(ONE)
    yield node
    node.close()


def wait(node: Node, database: Database) -> asyncio.Future[None]:
    waiting = node.gate.wait(database)
    assert waiting is not None
    return waiting


async def test_an_exit_waits_until_the_log_has_what_was_committed(node: Node) -> None:
    node.log.is_reachable.clear()
    database = node.commit(ONE)
    waiting = wait(node, database)

    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert not node.gate.is_quiet(database)
    assert node.gate.waiting == 1

    node.log.is_reachable.set()
    await asyncio.wait_for(waiting, patience())
    assert node.gate.wait(database) is None
    assert node.gate.is_quiet(database)
    assert await node.restored(ONE) == node.images(ONE)


async def test_an_exit_waits_for_commits_of_the_whole_tree_and_of_no_other(node: Node) -> None:
    node.adopt(TWO)
    other = node.commit(TWO)
    await node.kept(TWO)
    child = node.commit(ONE, name="child")
    await node.kept(ONE)
    node.log.is_reachable.clear()

    node.commit(ONE)

    assert node.gate.wait(child) is not None
    assert node.gate.wait(other) is None
    node.log.is_reachable.set()
    await node.kept(ONE)


async def test_what_is_committed_while_an_append_is_under_way_goes_together_with_the_next(node: Node) -> None:
    node.adopt(TWO)
    node.commit(ONE)
    node.commit(TWO)
    await node.kept(ONE)
    await node.kept(TWO)
    node.log.appends.clear()
    node.log.is_reachable.clear()
    node.commit(ONE, "first")
    await asyncio.sleep(0.01)

    for value in range(50):
        node.commit(ONE, value)
        node.commit(ONE, value, "child")
        node.commit(TWO, value)
    node.log.is_reachable.set()
    await node.kept(ONE)
    await node.kept(TWO)

    assert node.log.appends == [1, 2]
    assert await node.restored(ONE) == node.images(ONE)
    assert await node.restored(TWO) == node.images(TWO)


async def test_waiters_of_an_append_are_not_kept_up_by_what_came_later(node: Node) -> None:
    node.log.is_reachable.clear()
    early = wait(node, node.commit(ONE, "early"))
    await asyncio.sleep(0.01)
    database = node.commit(ONE, "late")
    late = [node.loop.create_future()]
    node.gate.let_go(database, late)

    node.log.is_reachable.set()
    await early
    assert not late[0].done()
    await asyncio.wait_for(late[0], patience())


async def test_each_message_follows_the_one_before(node: Node) -> None:
    for value in range(3):
        node.commit(ONE, value)
        await node.kept(ONE)

    first, second, third = chained(await node.read(ONE), b"")
    assert [link.message.previous for link in (first, second, third)] == [0, first.sequence, second.sequence]
    assert node.gate.tail(ONE) == LogPosition(
        third.sequence,
        third.digest,
        1,
        3,
        sum(len(record.data) for record in await node.read(ONE)),
        frozenset({"root"}),
    )
    records = await node.read(ONE)
    with pytest.raises(ChainBroken):
        chained([records[0], records[2]])


async def test_a_tree_goes_on_where_its_log_ends(node: Node, tmp_path: Path) -> None:
    node.commit(ONE, "kept")
    await node.kept(ONE)
    tail = node.gate.tail(ONE)
    assert tail is not None
    (tmp_path / "next").mkdir()
    folder = tmp_path / "next" / tree_id(ONE)
    folder.mkdir()
    for name, image in (await node.restored(ONE)).items():
        Files().create_database(folder / f"{name}.db", image)
    node.epochs.clear()

    after = Node(tmp_path / "next", node.log)
    after.epochs[1] = Epoch(1, 1)
    after.adopt(ONE, tail)
    after.commit(ONE, "more")
    await after.kept(ONE)

    assert await after.restored(ONE) == after.images(ONE)
    assert [link.message.epoch for link in chained(await after.read(ONE), b"")] == [1, 2]
    after.close()


async def test_a_file_that_is_not_from_the_log_is_not_built_upon(node: Node, tmp_path: Path) -> None:
    node.commit(ONE)
    database = node.databases.pop((ONE, "root"))
    database.close()
    node.gate.forget(database)
    node.adopt(ONE)

    with pytest.raises(StoredDataError, match="does not come from the log"):
        node.commit(ONE)


async def test_without_a_lease_nothing_leaves_not_even_what_was_read(node: Node) -> None:
    database = node.commit(ONE)
    await node.kept(ONE)
    node.holds_lease = False

    with pytest.raises(Unavailable, match="no connection to the cluster"):
        node.gate.wait(database)
    leaving = [node.loop.create_future()]
    node.gate.let_go(database, leaving)
    with pytest.raises(Unavailable, match="no connection to the cluster"):
        await leaving[0]


@pytest.mark.promise("B-7")
async def test_an_acknowledgement_that_comes_after_the_lease_lets_nothing_leave(node: Node) -> None:
    database = node.commit(ONE)
    await node.kept(ONE)
    node.log.is_reachable.clear()
    node.commit(ONE)
    leaving = [node.loop.create_future()]
    node.gate.let_go(database, leaving)
    waiting = wait(node, database)
    node.holds_lease = False
    node.log.is_reachable.set()

    for one in (waiting, *leaving):
        with pytest.raises(OutOfTouch):
            await asyncio.wait_for(one, patience())
    assert node.gate.is_quiet(database)
    node.holds_lease = True
    assert node.gate.wait(database) is None


async def test_a_fenced_tree_fails_whoever_waits_and_the_others_are_stored(node: Node) -> None:
    node.adopt(TWO)
    node.commit(ONE)
    node.commit(TWO)
    await node.kept(ONE)
    await node.kept(TWO)
    node.log.own(shard_of(ONE))

    one, two = wait(node, node.commit(ONE, "lost")), wait(node, node.commit(TWO, "kept"))

    with pytest.raises(Unavailable, match="Another node"):
        await one
    await asyncio.wait_for(two, patience())
    assert node.lost == [shard_of(ONE)]
    assert len(await node.read(ONE)) == 1
    assert await node.restored(TWO) == node.images(TWO)
    with pytest.raises(Unavailable, match="Another node"):
        node.gate.wait(node.database(ONE))


async def test_a_tree_that_is_nobodys_any_more_is_not_written_to(node: Node) -> None:
    node.commit(ONE)
    await node.kept(ONE)
    del node.epochs[shard_of(ONE)]

    with pytest.raises(Unavailable, match="Another node"):
        await wait(node, node.commit(ONE))
    assert len(await node.read(ONE)) == 1


async def test_trees_in_doubt_fail_whoever_waits_and_their_shard_has_to_be_owned_anew(node: Node) -> None:
    database = node.commit(ONE)
    await node.kept(ONE)
    node.log.in_doubt = True

    with pytest.raises(Unavailable, match="outcome of the last write is unknown"):
        await wait(node, node.commit(ONE))

    assert node.lost == [shard_of(ONE)]
    with pytest.raises(Unavailable, match="outcome of the last write is unknown"):
        node.gate.wait(database)
    node.gate.drop(ONE)
    with pytest.raises(Unavailable, match="outcome of the last write is unknown"):
        node.gate.wait(database)


async def test_whoever_waits_for_a_tree_that_leaves_is_told(node: Node) -> None:
    node.log.is_reachable.clear()
    waiting = wait(node, node.commit(ONE))
    flushed = asyncio.ensure_future(node.gate.flushed(ONE))
    await asyncio.sleep(0)

    node.gate.drop(ONE)

    with pytest.raises(Unavailable, match="no longer runs on this node"):
        await waiting
    with pytest.raises(Unavailable, match="no longer runs on this node"):
        await flushed
    node.log.is_reachable.set()


async def test_a_removed_file_goes_with_the_next_message(node: Node) -> None:
    database = node.commit(ONE, name="child")
    node.commit(ONE)
    await node.kept(ONE)

    database.removed = True
    database.close()
    node.gate.forget(database)
    node.commit(ONE)
    await node.kept(ONE)

    assert (await node.restored(ONE)).keys() == {"root"}
    tail = node.gate.tail(ONE)
    assert tail is not None
    assert tail.files == {"root"}


async def test_a_destroyed_tree_leaves_one_message_that_says_so_and_can_begin_anew(node: Node, tmp_path: Path) -> None:
    node.commit(ONE)
    await node.kept(ONE)
    database = node.commit(ONE, "pending")

    await node.gate.bury(ONE, None)
    node.commit(ONE, "too late")
    await node.kept(ONE)

    (record,) = await node.read(ONE)
    assert chained([record])[0].message.is_end
    assert node.gate.wait(database) is None

    database.close()
    node.gate.forget(database)
    node.databases.clear()
    folder = tmp_path / tree_id(ONE)
    folder.rename(tmp_path / "away")
    node.gate.moved(folder)
    folder.mkdir()
    node.commit(ONE, "anew")
    await node.kept(ONE)
    assert await node.restored(ONE) == node.images(ONE)


async def test_a_tree_that_was_never_stored_is_destroyed_without_a_word(node: Node) -> None:
    node.log.is_reachable.clear()

    await node.gate.bury(ONE, None)

    node.log.is_reachable.set()
    assert await node.read(ONE) == []


async def test_another_folder_in_the_place_of_a_trees_own_is_stored_whole(node: Node, tmp_path: Path) -> None:
    node.commit(ONE, name="child")
    node.commit(ONE)
    await node.kept(ONE)
    node.adopt(TWO)
    node.commit(TWO, "other")
    images = node.images(TWO)
    for database in node.databases.values():
        database.close()
        node.gate.forget(database)

    mine, other = tmp_path / tree_id(ONE), tmp_path / tree_id(TWO)
    mine.rename(tmp_path / "away")
    node.gate.moved(mine)
    other.rename(mine)
    node.gate.moved(mine)
    await node.kept(ONE)

    assert await node.restored(ONE) == images


async def test_an_alarm_is_stored_with_the_commit_that_needs_it_and_before_it(node: Node) -> None:
    node.commit(ONE)
    await node.kept(ONE)
    node.log.appends.clear()

    node.gate.alarmed(ONE, 12.5, 0)
    node.commit(ONE)
    await node.kept(ONE)

    assert node.log.appends == [2]
    (record,) = await node.log.alarms([shard_of(ONE)])
    line = alarm_line(record.data)
    assert line is not None
    assert (line.root, line.due, line.dead) == (str(ONE), 12.5, 0)
    assert record.sequence < (await node.read(ONE))[-1].sequence


async def test_an_alarm_is_stored_by_itself_if_nothing_is_committed_and_holds_nobody_up(node: Node) -> None:
    database = node.commit(ONE)
    await node.kept(ONE)

    node.gate.alarmed(ONE, None, 3)
    assert node.gate.wait(database) is None
    await node.kept(ONE)
    assert len(await node.log.alarms([shard_of(ONE)])) == 1

    node.gate.alarmed(ONE, None, 0)
    await node.kept(ONE)
    assert await node.log.alarms([shard_of(ONE)]) == []


async def test_a_new_base_replaces_the_log_and_keeps_what_was_committed_since_the_cut(node: Node) -> None:
    node.commit(ONE, "before")
    node.commit(ONE, "before", "child")
    node.log.is_reachable.clear()
    await asyncio.sleep(0.01)
    node.commit(ONE, "also before")
    cut, copied = node.gate.cut(ONE), node.images(ONE)
    node.commit(ONE, "after")
    node.log.is_reachable.set()
    node.commit(ONE, "after", "new")
    await node.kept(ONE)
    tail = await cut.known
    for value in range(5):
        node.commit(ONE, value)
        await node.kept(ONE)
    before = restored([link for link in chained(await node.read(ONE)) if link.sequence <= tail.sequence])
    assert before == copied

    node.log.is_reachable.clear()
    node.commit(ONE, "in flight")
    await asyncio.sleep(0.01)
    node.commit(ONE, "pending")
    base = Base("key", b"digest", tail.sequence, tail.digest)
    rebased = asyncio.ensure_future(node.gate.rebase(ONE, base, cut))
    await asyncio.sleep(0)
    node.log.is_reachable.set()
    await rebased

    (record,) = await node.read(ONE)
    assert chained([record])[0].message.base == base
    assert await node.restored(ONE, copied) == node.images(ONE)
    assert node.gate.log_size(ONE) == (1, len(record.data))

    node.commit(ONE, "later")
    await node.kept(ONE)
    assert await node.restored(ONE, copied) == node.images(ONE)
    assert node.gate.log_size(ONE)[0] == 2


async def test_only_the_last_cut_counts(node: Node) -> None:
    node.commit(ONE)
    await node.kept(ONE)
    old, new = node.gate.cut(ONE), node.gate.cut(ONE)
    await old.known

    with pytest.raises(Unavailable, match="cannot be used"):
        await node.gate.rebase(ONE, Base("key", b"", 1, b""), old)
    node.log.is_reachable.clear()
    rebased = asyncio.ensure_future(node.gate.rebase(ONE, Base("key", b"", 1, b""), new))
    await asyncio.sleep(0)
    newest = node.gate.cut(ONE)
    node.log.is_reachable.set()
    with pytest.raises(Unavailable, match="Another snapshot"):
        await rebased
    await newest.known
    await node.gate.rebase(ONE, Base("key", b"", 1, b""), newest)


async def test_too_much_after_a_cut_is_not_kept_for_it(tmp_path: Path) -> None:
    node = Node(tmp_path, timings=Timings(snapshot_max_pages=20))
    node.adopt(ONE)
    node.commit(ONE)
    cut = node.gate.cut(ONE)
    for _ in range(20):
        node.commit(ONE)
        await node.kept(ONE)
    cut_again = node.gate.cut(ONE)
    await cut_again.known

    node.commit(ONE, bytes(60 * PAGE_SIZE))
    await node.kept(ONE)

    for one in (cut, cut_again):
        with pytest.raises(Unavailable, match="cannot be used"):
            await node.gate.rebase(ONE, Base("key", b"", 1, b""), one)
    assert await node.restored(ONE) == node.images(ONE)
    node.close()


async def test_an_abandoned_cut_keeps_nothing(node: Node) -> None:
    node.commit(ONE)
    await node.kept(ONE)
    cut = node.gate.cut(ONE)

    node.gate.uncut(ONE, cut)

    with pytest.raises(Unavailable, match="cannot be used"):
        await node.gate.rebase(ONE, Base("key", b"", 1, b""), cut)


async def test_a_large_commit_is_cut_into_parts_that_are_stored_together(node: Node) -> None:
    node.commit(ONE)
    await node.kept(ONE)
    node.log.appends.clear()

    node.commit(ONE, random.Random(1).randbytes(5 * PART), "child")
    node.commit(ONE, random.Random(2).randbytes(PART // 2))
    await node.kept(ONE)

    assert node.log.appends == [6]
    assert await node.restored(ONE) == node.images(ONE)
    records = await node.read(ONE)
    assert all(len(record.data) < 1_000_000 for record in records)
    assert len(commits(chained(records[:-1]))) == 1, "without its last part it does not count"


def random_steps() -> st.SearchStrategy[list[tuple[str, int]]]:
    kinds = st.sampled_from(
        ["write", "write", "write", "grow", "shrink", "checkpoint", "reopen", "remove", "pause", "cut"]
    )
    return st.lists(st.tuples(kinds, st.integers(0, 3)), min_size=1, max_size=40)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=random_steps(), held=st.booleans())
def test_the_log_holds_every_tree_as_its_files_do(
    steps: list[tuple[str, int]], held: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    loops.play(live(steps, tmp_path_factory.mktemp("live"), held=held))


async def live(steps: list[tuple[str, int]], folder: Path, *, held: bool) -> None:
    node, base, copied = Node(folder), None, dict[str, bytes]()
    node.adopt(ONE)
    generation = 0
    for kind, which in steps:
        name = f"f{which}" if which != 3 else f"g{generation}"
        match kind:
            case "write":
                node.commit(ONE, bytes([which]) * 100 * (which + 1), name)
            case "grow":
                node.commit(ONE, bytes([which]) * 9000, name)
            case "shrink":
                database = node.database(ONE, name)
                database.run("DELETE FROM t", ())
                node.slices[ONE].commit()
                vacuum(node, database)
            case "checkpoint":
                database = node.database(ONE, name)
                database.frames = max(database.frames, 1000)
                database.checkpoint_if_long()
            case "reopen":
                database = node.database(ONE, name)
                database.close()
                node.gate.forget(database)
            case "remove":
                if (ONE, f"g{generation}") in node.databases:
                    database = node.databases[ONE, f"g{generation}"]
                    database.removed = True
                    database.close()
                    node.gate.forget(database)
                    generation += 1
            case "cut":
                cut, copied = node.gate.cut(ONE), opened_images(node)
                tail = await cut.known
                node.commit(ONE, "since")
                base = Base("key", b"", tail.sequence, tail.digest)
                await node.gate.rebase(ONE, base, cut)
            case _:
                await asyncio.sleep(0 if held else 0.001)
    node.commit(ONE, "last")
    await node.kept(ONE)
    links = chained(await node.read(ONE))
    assert restored(links, copied if base is not None else None) == opened_images(node)
    node.close()


def vacuum(node: Node, database: Database) -> None:
    """Have the file shrink."""
    before = database.frames
    connection = database._connection  # pyright: ignore[reportPrivateUsage]
    assert connection is not None
    connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 1)
    connection.execute("VACUUM")
    if database.frames > before:
        node.gate.committed(Commit(ONE, database, before + 1, database.frames))


def opened_images(node: Node) -> dict[str, bytes]:
    for (whose, _), database in node.databases.items():
        if whose == ONE and not database.removed:
            database.execute("SELECT 1")
    return node.images(ONE)


@pytest.mark.slow
async def test_whoever_asked_and_does_not_wait_leaves_nothing_behind_when_the_tree_goes(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    database = node.commit(ONE)
    assert node.gate.wait(database) is not None  # only looked at
    node.gate.drop(ONE)
    gc.collect()
    await asyncio.sleep(0)

    assert caplog.records == []
