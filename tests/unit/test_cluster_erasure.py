"""An erasure in a cluster leaves no message of the tree in the log and its second copy, whatever interrupts it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.replicated import Storage, running_replicated, storage_of

from sapwood import Agent, App, NotFound, Unavailable, agent
from sapwood.kernel.log.idle_trees import IdleTrees
from sapwood.kernel.ports.shards import SHARDS, shard_of
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.base.segments import (
    SegmentLine,
    last_copied,
    lines_of,
    pack_segment,
    segment_key,
    unpack_segment,
)
from sapwood.runtimes.cluster.copies.segment_erasure import SegmentErasure
from sapwood.testing import World
from sapwood.testing.memory_log import MemoryArchive
from sapwood.types import Address

SECRET = "5eC3e7" + "0f1e2d3c4b5a69788796a5b4c3d2e1f0" * 2
ANN = Address.parse("ClusterTrunk:ann")
NAMES = Names("memory", Layout(streams=2))


class ClusterTrunk(Agent[str]):
    initial_state = ""

    async def keep(self, text: str) -> None:
        self.set_state(text)

    async def read(self) -> str:
        return self.state

    async def end(self) -> None:
        await self.destroy()


class MemorySegments(SegmentErasure):
    """The second copy of a log in memory, which gets what the log has when `ship` is called."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(None, storage.archive, NAMES)
        self.storage = storage

    async def last_place(self, root: Address) -> int:
        await self.ship()
        return self.storage.log._last[NAMES.layout.stream_of(shard_of(root))]  # pyright: ignore[reportPrivateUsage]

    async def erase(self, root: Address, up_to: int) -> tuple[int, bool]:
        await self.ship()
        return await super().erase(root, up_to)

    async def ship(self) -> None:
        """Have the archive take what the log got since the last time."""
        log = self.storage.log
        for stream, stored in enumerate(log._stored):  # pyright: ignore[reportPrivateUsage]
            copied = await last_copied(self.storage.archive, stream)
            first, last = 1 if copied is None else copied.last + 1, log._last[stream]  # pyright: ignore[reportPrivateUsage]
            lines = [
                SegmentLine(one.record.sequence, 1.0, subject(one), one.record.data)
                for one in stored
                if one.record.sequence >= first
            ]
            if first <= last:
                await self.storage.archive.put(segment_key(stream, first), pack_segment(stream, first, last, lines))


def subject(stored: Any) -> str:
    return (NAMES.alarm if stored.is_alarm else NAMES.tree)(stored.shard, stored.record.tree)


def second_copy(world: World) -> MemorySegments:
    keeper = world.node.keeper
    assert keeper is not None
    copy = keeper.second_copy = MemorySegments(storage_of(world.data))
    return copy


def segments_with(world: World, text: str) -> list[str]:
    """Return the segments that have a text."""
    objects = storage_of(world.data).archive.objects
    found = {key: unpack_segment(data, key) for key, data in objects.items() if key.startswith("segments/")}
    return [key for key, one in found.items() if any(text.encode() in line.data for line in lines_of(one))]


async def grown(world: World) -> ClusterTrunk:
    ann = await world.get_agent(ClusterTrunk, "ann")
    await ann.keep(SECRET)
    await world.settled()
    return ann


async def park_all(world: World) -> None:
    """Have all trees that are not open leave the log."""
    keeper = world.node.keeper
    assert keeper is not None
    idle: IdleTrees = keeper.idle_trees
    idle.park_after = 0
    for _ in range(3):
        await idle.sweep(set(), list(range(SHARDS)))


async def test_the_second_copy_is_searched_also_if_the_log_was_dropped_before_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_replicated(App(agents=[ClusterTrunk])) as world:
        copy = second_copy(world)
        await grown(world)
        await copy.ship()
        assert segments_with(world, SECRET)
        remove = MemoryArchive.remove

        async def refuse(self: MemoryArchive, keys: Sequence[str]) -> None:
            raise Unavailable("The archive does not answer.")

        monkeypatch.setattr(MemoryArchive, "remove", refuse)
        with pytest.raises(Unavailable):
            await world.app.erase(ClusterTrunk, "ann", id="t")
        monkeypatch.setattr(MemoryArchive, "remove", remove)

        receipt = await world.app.erase(ClusterTrunk, "ann", id="t")
        assert [place.state for place in receipt.places if place.place == "second copy of the log"] == ["erased"]
        assert segments_with(world, SECRET) == []


@pytest.mark.parametrize("has_snapshot", [False, True])
async def test_a_destroyed_tree_is_erased_from_the_second_copy_of_the_log(has_snapshot: bool) -> None:
    async with running_replicated(App(agents=[ClusterTrunk])) as world:
        copy = second_copy(world)
        ann = await grown(world)
        await copy.ship()
        if has_snapshot:
            assert world.node.keeper is not None
            await world.node.keeper.snapshot(ANN)
        await ann.end()
        await world.settled()
        await copy.ship()
        await park_all(world)

        receipt = await world.app.erase(ClusterTrunk, "ann")

        assert [place.state for place in receipt.places if place.place == "second copy of the log"] == ["erased"]
        assert segments_with(world, SECRET) == []
        with pytest.raises(NotFound):
            await world.app.erase(ClusterTrunk, "ann")


async def test_a_new_owner_of_a_shard_does_not_create_a_tree_again_before_its_erasure_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_replicated(App(agents=[ClusterTrunk])) as world:
        await grown(world)
        remove = MemoryArchive.remove

        async def refuse(self: MemoryArchive, keys: Sequence[str]) -> None:
            raise Unavailable("The archive does not answer.")

        monkeypatch.setattr(MemoryArchive, "remove", refuse)
        with pytest.raises(Unavailable):
            await world.app.erase(ClusterTrunk, "ann", id="t")
        monkeypatch.setattr(MemoryArchive, "remove", remove)
        world.node.erasing.end(ANN)  # the new owner has not looked for erasures yet
        await lose_and_gain(world)

        with pytest.raises(NotFound, match="being erased"):
            await world.get_agent(ClusterTrunk, "ann")
        receipt = await world.app.erase(ClusterTrunk, "ann", id="t")

        assert receipt.is_about(str(ANN))
        assert await (await world.get_agent(ClusterTrunk, "ann")).read() == ""


async def test_a_shard_that_comes_back_serves_what_another_node_has_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_replicated(App(agents=[ClusterTrunk])) as world:
        await grown(world)
        world.node.erasing.begin(ANN)  # as of an erasure that another node has finished since
        await lose_and_gain(world)
        assert await (await world.get_agent(ClusterTrunk, "ann")).read() == SECRET


async def lose_and_gain(world: World) -> None:
    """Have the node of a world lose the shard of the tree, and get it again."""
    runtime: Any = world.app._runtime  # pyright: ignore[reportPrivateUsage]
    holding = runtime._member.holding
    holding.lost([shard_of(ANN)])
    await holding.gained({shard_of(ANN): True})


async def test_a_tree_is_erased_from_the_log_of_the_type_id_that_its_class_had(tmp_path: Path) -> None:
    class OldRing(Agent[str]):
        initial_state = ""

        async def keep(self, text: str) -> None:
            self.set_state(text)

    @agent(type="NewRing", aliases=("OldRing",))
    class NewRing(OldRing):
        async def read(self) -> str:
            return self.state

    old, new = App(agents=[OldRing]), App(agents=[NewRing])
    async with running_replicated(old, data=tmp_path / "data") as world:
        await (await world.get_agent(OldRing, "ann")).keep(SECRET)
    async with running_replicated(new, data=tmp_path / "data") as world:
        storage = storage_of(world.data)
        await world.app.erase(NewRing, "ann")
        left = [one for stored in storage.log._stored for one in stored]  # pyright: ignore[reportPrivateUsage]
        assert not any(SECRET.encode() in one.record.data for one in left)
        assert await (await world.get_agent(NewRing, "ann")).read() == ""


async def test_a_tree_that_is_created_again_does_not_follow_the_erased_one_in_the_log() -> None:
    async with running_replicated(App(agents=[ClusterTrunk])) as world:
        await grown(world)
        await world.app.erase(ClusterTrunk, "ann")
        await (await world.get_agent(ClusterTrunk, "ann")).keep("new")
        await world.crash()  # what is read now is in the log only
        assert await (await world.get_agent(ClusterTrunk, "ann")).read() == "new"
