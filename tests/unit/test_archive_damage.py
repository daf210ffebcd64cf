"""Damage to each kind of object in the archive: noticed, never served, and harmless to other trees and objects."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.replicated import running_replicated
from tests.conformance.worlds import Branch
from tests.unit.logged_trees import Place, a_root
from tests.unit.test_keeping import ROOT, SHARD, TREE, World

from sapwood import App
from sapwood.address import Address
from sapwood.errors import StoredDataError, UsageError
from sapwood.kernel.log.archive_objects import MARKS, SNAPSHOTS
from sapwood.kernel.log.records import ChainBroken, tree_id
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.base.segments import (
    SegmentLine,
    last_copied,
    pack_segment,
    segment_key,
    segments,
    tree_from_segments,
)
from sapwood.runtimes.cluster.copies.archive_identity import SETUP, setup_of
from sapwood.runtimes.cluster.copies.log_shipper import Shipper, StreamBounds
from sapwood.runtimes.cluster.ops.recovery import every_tree_at
from sapwood.testing.memory_log import MemoryArchive

OTHER = next(root for number in range(10_000) if shard_of(root := a_root(f"other-{number}")) == SHARD)
NAMES = Names("c", Layout(streams=1))


def flip(whole: bytes) -> bytes:
    place = len(whole) // 2
    return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]


CHANGES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "header": lambda whole, older: b"\xff" * 16 + whole[16:],
    "middle": lambda whole, older: whole[: len(whole) // 2] + b"\xff" * 4 + whole[len(whole) // 2 + 4 :],
    "tail": lambda whole, older: whole[:-4] + b"\xff" * 4,
    "truncation": lambda whole, older: whole[: len(whole) // 2],
    "emptied": lambda whole, older: b"",
    "zeroing": lambda whole, older: bytes(len(whole)),
    "one bit": lambda whole, older: flip(whole),
    "older copy": lambda whole, older: older,
}
"""What becomes of an object; the second argument is an earlier object of the same kind."""


class Archived:
    """Two trees, and what the archive has of the one that is damaged."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.objects = world.archive.objects
        self.rows: dict[Address, list[tuple[object, ...]]] = {}
        self.older: dict[str, bytes] = {}
        """The first object of each kind."""

    async def write(self, place: Place, root: Address, *, snapshot: bool = False) -> None:
        tree = await place.open(root)
        tree.write("root", 3000, random.Random(str(root)))
        await tree.flush()
        if snapshot:
            await place.keeper.snapshot(root)
        self.rows[root] = tree.rows()
        await place.close(tree)

    def keys(self, kind: str) -> list[str]:
        return [key for key in sorted(self.objects) if key.startswith(f"{kind}/{TREE}/")]

    async def is_refused(self) -> bool:
        """Return whether the damaged tree is refused. The other one must be as it was."""
        place = self.world.node("reader")
        other = await place.open(OTHER)
        assert other.rows() == self.rows[OTHER]
        await place.close(other)
        try:
            tree = await place.open(ROOT)
        except ChainBroken:
            return True
        assert tree.rows() == self.rows[ROOT]
        await place.close(tree)
        return False


@pytest.fixture
async def archived(tmp_path: Path) -> Archived:
    """Trees that stand on their second snapshot."""
    archived = Archived(World(tmp_path))
    place = archived.world.node("a")
    for root in (ROOT, OTHER):
        await archived.write(place, root, snapshot=True)
        if root == ROOT:
            archived.older[SNAPSHOTS] = archived.objects[archived.keys(SNAPSHOTS)[0]]
        await archived.write(place, root, snapshot=True)
    return archived


@pytest.fixture
async def parked(archived: Archived) -> Archived:
    """The same trees, parked a second time."""
    place = archived.world.node("b")
    for _ in range(2):
        assert await place.keeper.idle_trees.sweep((), [SHARD]) == 2
        (key,) = archived.keys(MARKS)
        archived.older.setdefault(MARKS, archived.objects[key])
        if archived.objects[key] == archived.older[MARKS]:
            for root in (ROOT, OTHER):
                await archived.write(place, root)
    return archived


@pytest.mark.parametrize("kind", CHANGES)
async def test_a_changed_snapshot_is_refused(archived: Archived, kind: str) -> None:
    key = archived.keys(SNAPSHOTS)[-1]
    whole = archived.objects[key]

    archived.objects[key] = CHANGES[kind](whole, archived.older[SNAPSHOTS])
    assert await archived.is_refused()

    archived.objects[key] = whole
    assert not await archived.is_refused()


async def test_a_missing_snapshot_is_refused(archived: Archived) -> None:
    del archived.objects[archived.keys(SNAPSHOTS)[-1]]

    assert await archived.is_refused()


@pytest.mark.parametrize("kind", CHANGES)
async def test_a_changed_mark_of_a_parked_tree_is_refused(parked: Archived, kind: str) -> None:
    (key,) = parked.keys(MARKS)
    whole = parked.objects[key]
    assert not await parked.is_refused()

    parked.objects[key] = CHANGES[kind](whole, parked.older[MARKS])
    assert await parked.is_refused()
    lost: dict[str, str] = {}
    found = [state.tail.root async for state in parked.world.node("c").keeper.trees.every(lost)]

    assert found == [str(OTHER)]
    assert lost.keys() == {TREE}


@pytest.mark.parametrize("kind", [*CHANGES, "deletion"])
async def test_a_damaged_mark_of_a_tree_that_the_log_has_is_written_again(parked: Archived, kind: str) -> None:
    await parked.write(parked.world.node("c"), ROOT)  # its messages follow what was parked
    (key,) = parked.keys(MARKS)
    if kind == "deletion":
        del parked.objects[key]
    else:
        parked.objects[key] = CHANGES[kind](parked.objects[key], parked.older[MARKS])
    assert not await parked.is_refused()

    place = parked.world.node("d")
    tree = await place.open(ROOT)
    tree.write("root", 10, random.Random(1))
    await tree.flush()
    place.keeper._look_at(tree)  # as it does every few seconds
    await asyncio.gather(*place.keeper._tasks)
    parked.rows[ROOT] = tree.rows()
    await place.close(tree)

    (key,) = parked.keys(MARKS)
    assert key.endswith("-live")
    assert not await parked.is_refused()


@pytest.mark.parametrize("kind", [MARKS, SNAPSHOTS])
async def test_a_tree_that_is_damaged_in_the_archive_is_restored_from_a_backup(tmp_path: Path, kind: str) -> None:
    root = Address.root_of("Branch", "bad")
    async with running_replicated(App(agents=[Branch]), slow_slices="allow") as world:
        await (await world.get_agent(Branch, "bad")).note("kept")
        await world.app.backup(tmp_path / "backup")
        await world.restart()
        keeper = world.node.keeper
        assert keeper is not None
        keeper.idle_trees.park_after = 0.0
        assert await keeper.idle_trees.sweep((), [shard_of(root)]) == 1
        assert isinstance(keeper.archive, MemoryArchive)
        objects = keeper.archive.objects
        (key,) = [key for key in objects if key.startswith(f"{kind}/{tree_id(root)}/")]
        objects[key] = flip(objects[key])
        with pytest.raises(StoredDataError, match="was changed after it was written"):
            await (await world.get_agent(Branch, "bad")).notes()

        await world.app.restore(tmp_path / "backup", Branch, "bad")

        assert await (await world.get_agent(Branch, "bad")).notes() == ["kept"]
        await world.crash()  # another machine reads it from the log
        assert await (await world.get_agent(Branch, "bad")).notes() == ["kept"]


# The second copy of the log.


def line(place: int) -> SegmentLine:
    return SegmentLine(place, time.time(), NAMES.tree(SHARD, TREE), b"message %d" % place)


async def copied(*places: int) -> MemoryArchive:
    """Return an archive with a segment for each of these places of a stream."""
    archive = MemoryArchive()
    for place in places:
        await archive.put(segment_key(0, place), pack_segment(0, place, place, [line(place)]))
    return archive


async def lacking(archive: MemoryArchive) -> tuple[list[int], dict[str, str]]:
    """Return the places of the intact segments, and what is wrong with the others."""
    found: dict[str, str] = {}
    return [segment.first async for segment in segments(archive, 0, found)], found


@pytest.mark.parametrize("kind", CHANGES)
async def test_a_changed_segment_is_named_and_the_others_are_read(kind: str) -> None:
    archive = await copied(1, 2, 3)
    assert await lacking(archive) == ([1, 2, 3], {})
    key = segment_key(0, 2)
    archive.objects[key] = CHANGES[kind](archive.objects[key], archive.objects[segment_key(0, 1)])

    places, found = await lacking(archive)

    assert places == [1, 3]
    assert found.keys() == {key}
    assert repr(key) in found[key]
    assert [one.sequence for one in await tree_from_segments(archive, 0, TREE, {})] == [1, 3]


async def test_a_missing_segment_is_named() -> None:
    archive = await copied(1, 2, 3, 4)
    del archive.objects[segment_key(0, 2)]

    places, found = await lacking(archive)

    assert places == [1, 3, 4]
    assert "messages 2 to 2 of stream 0" in found[segment_key(0, 3)]


class Shipping(Shipper):
    """Ships what a stream still has: all places but the second."""

    async def _read(self, begin: int, end: int) -> tuple[list[SegmentLine], int]:
        return [line(place) for place in range(begin, end + 1) if place != 2], end

    async def index(self) -> None:
        pass


@pytest.mark.parametrize("kind", [*CHANGES, "deletion"])
async def test_a_damaged_segment_at_the_end_is_copied_again(kind: str) -> None:
    archive = await copied(1, 2, 3)
    key = segment_key(0, 3)
    if kind == "deletion":
        del archive.objects[key]
    else:
        archive.objects[key] = CHANGES[kind](archive.objects[key], archive.objects[segment_key(0, 1)])
    end = await last_copied(archive, 0)
    assert end is not None
    assert end.last == 2

    await Shipping(None, NAMES, 0, archive).ship(StreamBounds(1, 4))

    assert await lacking(archive) == ([1, 2, 3], {})
    assert [one.sequence for one in await tree_from_segments(archive, 0, TREE, {})] == [1, 2, 3, 4]


async def test_a_damaged_segment_is_swept_with_the_old_ones() -> None:
    archive = await copied(1, 2, 3)
    archive.objects[segment_key(0, 1)] = b"damaged"

    assert await Shipping(None, NAMES, 0, archive, history=-60.0).sweep() == 2

    assert list(archive.objects) == [segment_key(0, 3)]


async def test_a_damaged_segment_before_young_ones_stays_so_that_verify_finds_it() -> None:
    archive = await copied(1, 2, 3)
    archive.objects[segment_key(0, 1)] = b"damaged"

    assert await Shipping(None, NAMES, 0, archive, history=3600.0).sweep() == 0

    assert segment_key(0, 1) in archive.objects


async def test_trees_of_an_earlier_time_are_copied_beside_a_damaged_segment(tmp_path: Path) -> None:
    archived, archive = Archived(World(tmp_path)), MemoryArchive()
    place = archived.world.node("a")
    records: list[Any] = []
    for root in (OTHER, ROOT):
        await archived.write(place, root)
        records += await archived.world.log.read(SHARD, tree_id(root))
    for number, record in enumerate(records, start=1):
        stored = SegmentLine(number, time.time(), NAMES.tree(SHARD, record.tree), record.data)
        await archive.put(segment_key(0, number), pack_segment(0, number, number, [stored]))
    archive.objects[segment_key(0, 1)] = flip(archive.objects[segment_key(0, 1)])
    lost: dict[str, str] = {}

    found = [state.tail.root async for state in every_tree_at(archive, NAMES, time.time() + 60, lost)]

    assert found == [str(ROOT)]
    assert lost.keys() == {segment_key(0, 1)}


@pytest.mark.parametrize("kind", ["header", "truncation", "emptied", "zeroing"])
async def test_a_damaged_setup_is_an_error_with_a_remedy(kind: str) -> None:
    archive = MemoryArchive()
    archive.objects[SETUP] = CHANGES[kind](b'{"cluster":"c","layout":{"streams":1}}', b"")

    with pytest.raises(UsageError, match=r"'setup' of the archive .* is damaged: .* Delete it"):
        await setup_of(archive)
