"""A tree is read back from the log and the archive as it was, byte for byte, or not at all."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import loops
from tests.machine import patience
from tests.unit.logged_trees import LoggedTree, Place, a_root, contents, shard

from sapwood.errors import Unavailable
from sapwood.kernel.log import idle_trees
from sapwood.kernel.log.archive_objects import ENDED, ENDS, MARKS, SNAPSHOTS, handed_key, sweep_ended, sweep_handed
from sapwood.kernel.log.idle_trees import SWEEPER
from sapwood.kernel.log.local_copy import CLEAN
from sapwood.kernel.log.records import ChainBroken, Message, seal, tree_id
from sapwood.kernel.log.repair import Read, heal
from sapwood.kernel.ports.log import Entry, Epoch, Record
from sapwood.testing.memory_log import MemoryArchive, MemoryLog
from sapwood.timings import DEFAULTS, Timings

ROOT = a_root("one")
TREE = tree_id(ROOT)
SHARD = shard(ROOT)


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = MemoryLog()
        self.archive = MemoryArchive()
        self.epoch = 0
        self.replicas: Copies | None = None
        self.timings = DEFAULTS
        """Of the nodes that are made from now on."""

    def node(self, name: str, *, park_after: float = 0.0) -> Place:
        """A node that takes the shard; whoever had it is fenced."""
        return self.taken(self.other(name, park_after=park_after))

    def other(self, name: str, *, park_after: float = 0.0) -> Place:
        """A node that owns nothing."""
        return Place(
            self.folder / name,
            self.log,
            self.archive,
            {},
            park_after=park_after,
            replicas=self.replicas,
            timings=self.timings,
        )

    def taken(self, place: Place) -> Place:
        """Have a node take the shard."""
        self.epoch += 1
        place.owned[SHARD] = Epoch(self.epoch, self.log.own(SHARD))
        return place

    def records(self) -> list[Record]:
        return [one.record for one in self.log._stored[0] if one.record.tree == TREE]


class Copies:
    """Other copies of the log."""

    def __init__(self, *copies: list[Record]) -> None:
        self.copies: tuple[list[Record], ...] = copies
        self.distrusted: list[int] = []

    async def newest(self, shard: int, tree: str) -> int:
        return max((record.sequence for copy in self.copies for record in copy), default=0)

    def reads(self, shard: int, tree: str) -> list[Read]:
        async def read(copy: list[Record]) -> list[Record]:
            return copy

        return [lambda copy=copy: read(copy) for copy in self.copies]

    async def distrust(self, shard: int) -> None:
        self.distrusted.append(shard)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_tree_is_restored_by_the_next_owner_byte_for_byte(world: World) -> None:
    randomly = random.Random(1)
    first = world.node("a")
    tree = await first.open(ROOT)
    for at in range(20):
        tree.write("root" if at % 3 else "child", 5000, randomly)
    tree.write("gone", 100, randomly)
    tree.remove("gone")
    tree.write("root", 1, randomly)
    await first.close(tree)
    second = world.node("b")
    again = await second.open(ROOT)
    assert contents(second.folder_of(ROOT)) == contents(first.folder_of(ROOT))
    assert set(contents(second.folder_of(ROOT))) == {"root", "child"}
    assert (second.folder_of(ROOT) / "address").read_text() == str(ROOT)
    again.write("root", 5000, randomly)
    await again.flush()


async def test_there_is_no_such_tree(world: World) -> None:
    place = world.node("a")
    tree = await place.open(ROOT)
    assert not tree.folder.exists()
    tail = place.gate.tail(ROOT)
    assert tail is not None
    assert tail.sequence == 0


async def test_files_that_were_closed_cleanly_are_used_again(world: World) -> None:
    place = world.node("a")
    tree = await place.open(ROOT)
    tree.write("root", 3000, random.Random(1))
    await place.close(tree)
    inode = (tree.folder / "root.db").stat().st_ino
    tree = await place.open(ROOT)
    assert (tree.folder / "root.db").stat().st_ino == inode
    assert not (tree.folder / CLEAN).exists()
    tree.write("root", 3000, random.Random(2))
    await place.close(tree)
    assert [len(chain) for chain in [world.records()]] == [2]


async def test_clean_files_wait_for_a_log_that_nobody_leads_and_are_used_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.replicas = Copies()
    world.timings = Timings(log_leader_timeout=-1.0)
    place = world.node("a")
    tree = await place.open(ROOT)
    tree.write("root", 3000, random.Random(1))
    await place.close(tree)
    inode = (tree.folder / "root.db").stat().st_ino
    newest, asked = world.replicas.newest, 0

    async def electing(shard: int, tree: str) -> int:
        nonlocal asked
        asked += 1
        if asked < 4:
            raise Unavailable("Nobody leads the log now.")
        return await newest(shard, tree)

    monkeypatch.setattr(world.replicas, "newest", electing)
    with pytest.raises(Unavailable):
        await place.open(ROOT)
    assert (tree.folder / CLEAN).exists()

    world.timings = DEFAULTS
    tree = await world.node("a").open(ROOT)
    assert asked == 4
    assert (tree.folder / "root.db").stat().st_ino == inode
    assert not (tree.folder / CLEAN).exists()


async def test_files_that_were_changed_or_are_old_are_not_used(world: World) -> None:
    place = world.node("a")
    tree = await place.open(ROOT)
    tree.write("root", 3000, random.Random(1))
    rows = tree.rows()
    await place.close(tree)
    kept = world.folder / "copy"
    shutil.copytree(tree.folder, kept)
    with (tree.folder / "root.db").open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    tree = await place.open(ROOT)
    assert tree.rows() == rows
    tree.write("root", 3000, random.Random(2))
    rows = tree.rows()
    await place.close(tree)
    shutil.rmtree(tree.folder)
    kept.rename(tree.folder)  # clean, but from before the last commit
    tree = await place.open(ROOT)
    assert tree.rows() == rows


async def test_files_of_a_tree_that_was_not_closed_are_not_used(world: World) -> None:
    place = world.node("a")
    tree = await place.open(ROOT)
    tree.write("root", 3000, random.Random(1))
    rows = tree.rows()
    await tree.flush()
    world.log.is_reachable.clear()
    tree.write("root", 3000, random.Random(2))  # never stored
    tree.close()
    world.log.is_reachable.set()
    world.log.own(SHARD)
    again = await world.node("a").open(ROOT)
    assert again.rows() == rows


async def test_commits_that_nobody_knows_of_do_not_come_back_from_the_local_files(world: World) -> None:
    place = world.node("a")
    tree = await place.open(ROOT)
    tree.write("root", 3000, random.Random(1))
    rows = tree.rows()
    await tree.flush()
    world.log.own(SHARD)  # somebody else's now
    tree.write("root", 3000, random.Random(2))
    with pytest.raises(Exception, match="Another node"):
        await tree.flush()
    tree.close()
    await place.keeper.put_away(ROOT, tree.folder)
    assert not tree.folder.exists()
    again = await world.node("a").open(ROOT)
    assert again.rows() == rows


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**6), steps=st.lists(st.sampled_from("wwwwwwnfcspg"), min_size=3, max_size=25))
def test_whatever_happens_a_tree_is_as_it_was(tmp_path_factory: pytest.TempPathFactory, seed: int, steps: str) -> None:
    """w: write, n: another node, f: one that fetched it, c: close and open, s: snapshot, p: park, g: a child goes."""

    async def run() -> None:
        randomly = random.Random(seed)
        world = World(tmp_path_factory.mktemp("steps"))
        place = world.node("n0")
        tree = await place.open(ROOT)
        expected: dict[str, list[tuple[object, ...]]] = {}

        def write() -> None:
            stem = randomly.choice(["root", "a", "b"])
            tree.write(stem, randomly.choice([10, 3000, 60_000]), randomly)
            expected[stem] = tree.rows(stem)

        for step in steps:
            if step == "w":
                write()
            elif step == "g" and "a" in tree.databases:
                tree.remove("a")
                expected.pop("a", None)
            elif step == "s":
                working = asyncio.create_task(place.keeper.snapshot(ROOT))
                while not working.done():
                    if randomly.random() < 0.5:
                        write()
                    await asyncio.sleep(0.0005)
                await working
            else:
                following = world.other(f"n{randomly.randrange(3)}")
                if step == "f" and following.folder != place.folder:
                    await following.keeper.fetch(ROOT, following.folder_of(ROOT))
                    for _ in range(randomly.randrange(3)):
                        write()
                await place.close(tree)
                before = contents(tree.folder)
                if step == "p":
                    await _park(world, place, stays=randomly.random() < 0.5)
                if step != "c":
                    place = world.taken(following)
                tree = await place.open(ROOT)
                assert contents(tree.folder) == before
            if randomly.random() < 0.2:
                await tree.flush()
        await place.close(tree)
        place = world.node("last")
        tree = await place.open(ROOT)
        assert {stem: tree.rows(stem) for stem in contents(tree.folder)} == expected

    loops.play(run())


async def _park(world: World, place: Place, *, stays: bool) -> None:
    await asyncio.sleep(0)
    place.keeper.idle_trees.park_after = 0
    await place.keeper.idle_trees.sweep((), [SHARD])
    await place.keeper.idle_trees.sweep((), [SHARD])
    assert not world.records()
    if not stays:
        shutil.rmtree(place.folder_of(ROOT), ignore_errors=True)


async def test_files_that_are_old_get_what_the_log_got_since(world: World) -> None:
    randomly = random.Random(7)
    first, second = world.node("a"), world.other("b")
    tree = await first.open(ROOT)
    for stem in ("root", "gone", "anew"):
        tree.write(stem, 30_000, randomly)
    await first.close(tree)
    inode = (tree.folder / "root.db").stat().st_ino
    tree = await world.taken(second).open(ROOT)
    tree.write("root", 60_000, randomly)
    tree.write("born", 3000, randomly)
    for stem in ("gone", "anew"):
        tree.rows(stem)
        tree.remove(stem)
    tree.write("anew", 3000, randomly)
    await second.close(tree)
    again = await world.taken(first).open(ROOT)
    assert contents(again.folder) == contents(tree.folder)
    assert set(contents(again.folder)) == {"root", "born", "anew"}
    assert (again.folder / "root.db").stat().st_ino == inode
    again.write("root", 3000, randomly)
    await first.close(again)
    assert contents((await world.node("c").open(ROOT)).folder) == contents(again.folder)


async def test_what_was_fetched_ahead_needs_only_what_was_written_since(world: World) -> None:
    randomly = random.Random(8)
    first, second = world.node("a"), world.other("b")
    tree = await first.open(ROOT)
    tree.write("root", 60_000, randomly)
    await tree.flush()
    await second.keeper.fetch(ROOT, second.folder_of(ROOT))
    inode = (second.folder_of(ROOT) / "root.db").stat().st_ino
    tree.write("root", 3000, randomly)
    rows = tree.rows()
    await first.close(tree)
    again = await world.taken(second).open(ROOT)
    assert (again.folder / "root.db").stat().st_ino == inode
    assert again.rows() == rows


@pytest.mark.parametrize("harm", ["impostor", "removed", "replaced", "owned"])
async def test_what_was_fetched_ahead_is_not_used_if_the_log_does_not_follow_it(world: World, harm: str) -> None:
    randomly = random.Random(9)
    first, second = world.node("a"), world.other("b")
    tree = await first.open(ROOT)
    tree.write("root", 60_000, randomly)
    await tree.flush()
    await second.keeper.fetch(ROOT, second.folder_of(ROOT))
    tree.write("root", 3000, randomly)
    rows = tree.rows()
    folder = second.folder_of(ROOT)
    if harm == "impostor":
        second.keeper._ahead[TREE] = second.keeper._ahead[TREE]._replace(digest=b"0" * 16)
    elif harm == "removed":
        shutil.rmtree(folder)
    elif harm == "replaced":
        await first.keeper.snapshot(ROOT)
    else:
        await first.keeper.fetch(ROOT, tree.folder)  # it is open here
        assert tree.rows() == rows
    await first.close(tree)
    again = await world.taken(second).open(ROOT)
    assert again.rows() == rows


async def _some(world: World, count: int = 5) -> list[tuple[object, ...]]:
    place = world.node("a")
    tree = await place.open(ROOT)
    for at in range(count):
        tree.write("root", 3000, random.Random(at))
        await tree.flush()
    rows = tree.rows()
    await place.close(tree)
    return rows


@pytest.mark.parametrize("which", [0, 2])
async def test_a_missing_message_is_found(world: World, which: int) -> None:
    await _some(world)
    del world.log._stored[0][which]
    with pytest.raises(ChainBroken):
        await world.node("b").open(ROOT)


async def test_a_changed_message_is_found(world: World) -> None:
    await _some(world)
    one = world.log._stored[0][2]
    data = bytearray(one.record.data)
    data[700] ^= 1
    world.log._stored[0][2] = one._replace(record=one.record._replace(data=bytes(data)))
    with pytest.raises(ChainBroken):
        await world.node("b").open(ROOT)


async def test_an_impostor_is_found(world: World) -> None:
    await _some(world)
    message = Message(root=str(ROOT), epoch=7, previous=0, before=b"", at=0.0, version="")
    data, digest = seal(message)
    place = world.node("b")
    await world.log.append([Entry(SHARD, TREE, data, digest.hex())], place.owned)
    with pytest.raises(ChainBroken):
        await place.open(ROOT)


async def test_a_log_that_is_empty_though_the_tree_lives_is_damage(world: World) -> None:
    await _some(world)
    place = world.node("b")
    tree = await place.open(ROOT)
    tree.write("root", 100, random.Random(9))
    await tree.flush()
    place.keeper._look_at(tree)
    await asyncio.gather(*place.keeper._tasks)
    assert [key.rsplit("-", 1)[1] for key in world.archive.objects if key.startswith(MARKS)] == ["live"]
    world.log._stored[0].clear()
    with pytest.raises(ChainBroken):
        await world.node("c").open(ROOT)


async def test_an_archive_that_was_changed_is_found(world: World) -> None:
    place = world.node("a")
    tree = await place.open(ROOT)
    tree.write("root", 30_000, random.Random(1))
    await place.keeper.snapshot(ROOT)
    await place.close(tree)
    (key,) = [key for key in world.archive.objects if key.startswith(SNAPSHOTS)]
    whole = world.archive.objects[key]
    world.archive.objects[key] = whole[:-20] + b"x" + whole[-19:]
    with pytest.raises(ChainBroken, match="changed"):
        await world.node("b").open(ROOT)
    del world.archive.objects[key]
    with pytest.raises(ChainBroken, match="missing"):
        await world.node("b").open(ROOT)


async def test_a_tree_is_put_together_from_copies_none_of_which_is_whole(world: World) -> None:
    rows = await _some(world, 8)
    whole = world.records()
    del world.log._stored[0][4]
    world.replicas = Copies(world.records(), [one for one in whole if one is not whole[1]])
    place = world.node("b")
    tree = await place.open(ROOT)
    assert tree.rows() == rows
    assert world.replicas.distrusted == [SHARD]
    assert len(world.records()) == 1  # the log is whole again, by a message with a snapshot
    world.replicas = None
    assert (await world.node("c").open(ROOT)).rows() == rows


async def test_a_leader_without_the_newest_messages_is_found_out(world: World) -> None:
    world.timings = Timings(replica_lag_timeout=0.2)
    rows = await _some(world, 8)
    whole = world.records()
    del world.log._stored[0][5:]
    world.replicas = Copies(world.records(), whole)
    tree = await world.node("b").open(ROOT)
    assert tree.rows() == rows
    assert world.replicas.distrusted == [SHARD]


async def test_a_leader_that_has_not_caught_up_yet_is_waited_for(world: World) -> None:
    world.timings = Timings(replica_lag_timeout=60.0)
    rows = await _some(world, 8)
    whole = list(world.log._stored[0])
    world.replicas = Copies(world.records())
    del world.log._stored[0][5:]
    opening = asyncio.create_task(world.node("b").open(ROOT))
    await asyncio.sleep(1.5)
    assert not opening.done()
    world.log._stored[0][:] = whole
    assert (await opening).rows() == rows
    assert world.replicas.distrusted == []


async def test_a_log_that_does_not_answer_is_not_taken_for_damaged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.timings = Timings(replica_lag_timeout=0.1, log_leader_timeout=1.0)
    await _some(world, 8)
    world.replicas = Copies(world.records())
    place = world.node("b")

    async def lost(shard: int, tree: str, after: int = 0) -> list[Record]:
        await asyncio.sleep(0.2)
        raise Unavailable("no answer")

    monkeypatch.setattr(world.log, "read", lost)
    with pytest.raises(Unavailable, match="cannot be read"):
        await place.open(ROOT)
    assert world.replicas.distrusted == []


async def test_of_copies_that_do_not_all_answer_nobody_says_that_they_are_damaged(world: World) -> None:
    await _some(world, 8)
    whole = world.records()

    async def does_not_answer() -> list[Record]:
        raise Unavailable("no answer")

    async def lacks_some() -> list[Record]:
        return [one for one in whole if one is not whole[3]]

    async def has_all() -> list[Record]:
        return whole

    newest = whole[-1].sequence
    with pytest.raises(Unavailable, match="Not all replicas"):
        await heal([does_not_answer, lacks_some], world.archive, tree_id(ROOT), newest)
    with pytest.raises(ChainBroken):
        await heal([lacks_some], world.archive, tree_id(ROOT), newest)
    assert await heal([does_not_answer, has_all], world.archive, tree_id(ROOT), newest) is not None


async def test_copies_that_are_not_whole_together_are_refused(world: World) -> None:
    await _some(world, 8)
    del world.log._stored[0][0]
    world.replicas = Copies(world.records(), world.records()[3:])
    with pytest.raises(ChainBroken):
        await world.node("b").open(ROOT)


async def test_what_no_copy_has_is_not_passed_over(world: World) -> None:
    await _some(world, 8)
    del world.log._stored[0][4]
    world.replicas = Copies(world.records(), world.records()[:6])
    with pytest.raises(ChainBroken, match="lead to message"):
        await world.node("b").open(ROOT)
    assert len(world.records()) == 7  # nothing was repaired by forgetting


async def test_an_impostor_is_left_out_if_the_copies_are_whole_without_it(world: World) -> None:
    rows = await _some(world)
    whole = world.records()
    place = world.node("b")
    data, digest = seal(Message(root=str(ROOT), epoch=7, previous=0, before=b"", at=0.0, version=""))
    await world.log.append([Entry(SHARD, TREE, data, digest.hex())], place.owned)
    world.replicas = Copies(world.records(), whole)
    place = world.node("c")
    tree = await place.open(ROOT)
    assert tree.rows() == rows
    tree.write("root", 10, random.Random(1))
    await place.close(tree)


async def test_a_log_that_rots_under_an_open_tree_is_mended_by_the_next_snapshot(world: World) -> None:
    copies = world.replicas = Copies([])
    place = world.node("a")
    tree = await place.open(ROOT)
    for at in range(5):
        tree.write("root", 3000, random.Random(at))
        await tree.flush()
    copies.copies = (world.records(),)
    del world.log._stored[0][2]
    await place.keeper.snapshot(ROOT)
    copies.copies = ()
    rows = tree.rows()
    await place.close(tree)
    assert (await world.node("b").open(ROOT)).rows() == rows


async def test_a_parked_tree_costs_the_log_nothing_and_writes_on(world: World) -> None:
    rows = await _some(world)
    place = world.node("b")
    assert await place.keeper.idle_trees.sweep((), [SHARD]) == 1
    assert world.records() == []
    tree = await place.open(ROOT)
    assert tree.rows() == rows
    tree.write("root", 10, random.Random(5))
    rows = tree.rows()
    await place.close(tree)
    assert len(world.records()) == 1
    place = world.node("c")
    tree = await place.open(ROOT)
    assert tree.rows() == rows


async def test_a_crash_before_the_messages_are_dropped_loses_nothing(world: World) -> None:
    await _some(world)
    place = world.node("b")

    async def die(*what: object) -> None:
        raise RuntimeError

    drop, world.log.drop = world.log.drop, die  # type: ignore[method-assign,assignment]
    with pytest.raises(RuntimeError):
        await place.keeper.idle_trees.sweep((), [SHARD])
    world.log.drop = drop  # type: ignore[method-assign]
    place = world.node("c")
    tree = await place.open(ROOT)
    tree.write("root", 10, random.Random(5))
    rows = tree.rows()
    await place.close(tree)
    # The one who was parking is late, and goes on.
    (mark,) = [key for key in world.archive.objects if key.startswith(MARKS)]
    await world.log.drop(SHARD, TREE, int(mark.split("-")[1]))
    assert len(world.records()) == 1
    assert (await world.node("d").open(ROOT)).rows() == rows


async def test_a_tree_that_was_destroyed_leaves_nothing(world: World) -> None:
    place = world.node("a")
    tree = await place.open(ROOT)
    tree.write("root", 30_000, random.Random(1))
    await place.keeper.snapshot(ROOT)
    tree.close()
    await place.gate.bury(ROOT, tree.folder)
    await place.keeper.put_away(ROOT, tree.folder)
    tree = await world.node("b").open(ROOT)
    assert not tree.folder.exists()
    place = world.node("c")
    assert await place.keeper.idle_trees.sweep((), [SHARD]) == 1
    assert world.records() == []
    assert {key.split("/")[0] for key in world.archive.objects} == {ENDED, ENDS}  # for who asks for the past
    assert await sweep_ended(world.archive, time.time() - 60) == 0
    assert await sweep_ended(world.archive, time.time() + 60) == 1
    assert world.archive.objects == {}
    tree = await place.open(ROOT)
    tree.write("root", 10, random.Random(5))
    rows = tree.rows()
    await place.close(tree)
    assert (await world.node("d").open(ROOT)).rows() == rows


async def test_a_tree_made_anew_after_it_was_destroyed(world: World) -> None:
    place = world.node("a")
    tree = await place.open(ROOT)
    tree.write("root", 30_000, random.Random(1))
    tree.close()
    await place.gate.bury(ROOT, tree.folder)
    await place.keeper.put_away(ROOT, tree.folder)
    tree = await place.open(ROOT)
    tree.write("root", 10, random.Random(5))
    rows = tree.rows()
    await place.close(tree)
    place = world.node("b")
    assert (await place.open(ROOT)).rows() == rows
    place = world.node("c")
    assert await place.keeper.idle_trees.sweep((), [SHARD]) == 1
    assert (await place.open(ROOT)).rows() == rows


async def test_a_tree_whose_class_got_another_type_id(world: World) -> None:
    old = a_root("one", "Before")
    place = world.node("a")
    tree = await place.open(old)
    tree.write("root", 3000, random.Random(1))
    rows = tree.rows()
    await place.close(tree)
    place = world.node("b")
    await place.keeper.bring(ROOT, place.folder_of(ROOT), [old])
    place.folder_of(old).rename(place.folder_of(ROOT))  # as the node does
    place.gate.moved(place.folder_of(ROOT))
    tree = LoggedTree(ROOT, place.folder_of(ROOT), place.gate)
    assert tree.rows() == rows
    await tree.flush()
    await place.gate.flushed(ROOT)
    place.keeper._look_at(tree)
    await asyncio.gather(*place.keeper._tasks)
    await place.close(tree)
    place = world.node("c")
    assert (await place.open(ROOT, [old])).rows() == rows
    gone = await place.open(old)
    assert not gone.folder.exists()


async def test_a_tree_that_is_fetched_by_its_old_type_id_is_waited_for(world: World) -> None:
    old = a_root("one", "Before")
    place = world.node("a")
    tree = await place.open(old)
    tree.write("root", 3000, random.Random(1))
    await place.close(tree)
    following = world.other("b")
    lock = following.keeper._lock(tree_id(old))
    await lock.acquire()  # as whoever fetches it does
    bringing = asyncio.create_task(world.taken(following).keeper.bring(ROOT, following.folder_of(ROOT), [old]))
    await asyncio.sleep(0.1)
    assert not bringing.done()
    assert not following.folder_of(old).exists()
    lock.release()
    await bringing
    assert contents(following.folder_of(old)) == contents(tree.folder)
    assert not following.keeper._ahead


async def test_a_tree_that_writes_much_and_one_that_rests_are_looked_after(world: World) -> None:
    world.timings = Timings(snapshot_interval=0.01, snapshot_min_bytes=50_000)
    place = world.node("a", park_after=0.05)
    tree = await place.open(ROOT)
    trees = [tree]
    place.keeper.look_after(lambda: trees, lambda: [SHARD], 1)
    for at in range(60):
        tree.database().execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, content BLOB)")
        tree.database().execute("INSERT OR REPLACE INTO rows VALUES (1, ?)", random.Random(at).randbytes(5000))
        await asyncio.sleep(0.01)
    rows = tree.rows()
    assert any(key.startswith(SNAPSHOTS) for key in world.archive.objects)
    assert len(world.records()) < 40
    await place.close(tree)
    trees.clear()
    async with asyncio.timeout(patience()):
        while world.records():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    assert (await place.open(ROOT)).rows() == rows
    await place.keeper.close()


async def test_old_snapshots_go_when_their_time_has_passed(world: World) -> None:
    place = world.node("a")
    tree = await place.open(ROOT)
    for at in range(4):
        tree.write("root", 3000, random.Random(at))
        await place.keeper.snapshot(ROOT)
    assert sum(key.startswith(SNAPSHOTS) for key in world.archive.objects) == 4
    place.keeper._history = -2.0  # all are older
    tree.write("root", 3000, random.Random(9))
    await place.keeper.snapshot(ROOT)
    await place.close(tree)
    assert sum(key.startswith(SNAPSHOTS) for key in world.archive.objects) == 1
    # Parked as messages: what they follow stays.
    place = world.node("b")
    tree = await place.open(ROOT)
    tree.write("root", 10, random.Random(1))
    await place.close(tree)
    place.keeper._history = -2.0
    await place.keeper.idle_trees.sweep((), [SHARD])
    assert sum(key.startswith(SNAPSHOTS) for key in world.archive.objects) == 2
    await world.node("c").open(ROOT)


@pytest.mark.slow
async def test_ten_megabytes_are_restored_from_a_snapshot_and_what_came_after_it(world: World) -> None:
    place = world.node("a")
    tree = await place.open(ROOT)
    for at in range(10):
        tree.write("root", 1_000_000, random.Random(at))
    await place.keeper.snapshot(ROOT)
    tree.write("root", 100_000, random.Random(11))
    await place.close(tree)
    place = world.node("b")

    await place.keeper.bring(ROOT, place.folder_of(ROOT))

    assert contents(place.folder_of(ROOT)) == contents(tree.folder)


async def test_no_tree_waits_to_be_parked_until_the_archive_is_swept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.timings = Timings(snapshot_interval=0.01)
    place = world.node("a", park_after=0.05)
    place.owned[SWEEPER] = Epoch(1, world.log.own(SWEEPER))
    begun = asyncio.Event()

    async def sweep_removals(*what: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(idle_trees, "sweep_removals", sweep_removals)
    tree = await place.open(ROOT)
    trees = [tree]
    place.keeper.look_after(lambda: trees, lambda: [SHARD], 1)
    async with asyncio.timeout(patience()):
        await begun.wait()
        tree.database().execute("CREATE TABLE rows (id INTEGER PRIMARY KEY)")
        await place.close(tree)
        trees.clear()
        while world.records():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    await place.keeper.close()


async def test_what_was_handed_over_and_left_behind_is_swept(world: World) -> None:
    left = handed_key(TREE, time.time(), "1")
    world.timings = Timings(handover_expiry=-5.0)  # as if it were later
    await world.archive.put(left, b"of a node that died")
    place = world.node("a")
    place.owned[SWEEPER] = Epoch(1, world.log.own(SWEEPER))
    place.keeper.look_after(list, lambda: [SWEEPER], 1)
    async with asyncio.timeout(patience()):
        while left in world.archive.objects:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.02)
    await place.keeper.close()

    await world.archive.put(handed_key(TREE, time.time(), "2"), b"on its way")
    assert await sweep_handed(world.archive, time.time() - 60) == 0
    assert len(world.archive.objects) == 1
