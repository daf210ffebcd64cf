"""Sharing one data folder: every tree has one worker, and another number of workers loses nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.conformance.two_nodes import running_on_two_nodes

from sapwood import Agent, App
from sapwood.address import Address
from sapwood.clock import SystemClock
from sapwood.errors import FolderInUse, Unavailable
from sapwood.kernel.alarms.index_file import alarms_file
from sapwood.kernel.alarms.node_index import NodeAlarms
from sapwood.kernel.durability.local_gates import ProcessGate
from sapwood.kernel.ports.shards import SHARDS, shard_of
from sapwood.runtimes.repartition import arrange, suffixes
from sapwood.runtimes.workers.placement import ShardPlan, WorkerPart
from sapwood.storage.files import Files, FolderLock

ROOTS = [Address.root_of("Inbox", f"user-{number}") for number in range(500)]


def index(folder: Path, part: str) -> NodeAlarms:
    loop = asyncio.get_running_loop()
    return NodeAlarms(folder / alarms_file(part), files=Files(), gate=ProcessGate(), clock=SystemClock(), loop=loop)


def indexed(folder: Path, sharing: ShardPlan) -> dict[str, float | None]:
    """Return what all indexes say; none may speak of another's tree."""
    found: dict[str, float | None] = {}
    for number, part in enumerate(suffixes(sharing)):
        one = index(folder, part)
        assert one.is_whole
        for root, due, _ in one.rows():
            assert not sharing.count or WorkerPart(number, sharing).is_here(Address.parse(root))
            assert root not in found
            found[root] = due
        one.close()
    return found


def names(folder: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_every_tree_has_one_worker_and_every_worker_has_trees(count: int) -> None:
    parts = ShardPlan(count).parts

    for root in ROOTS:
        assert sum(part.is_here(root) for part in parts) == 1
    for part in parts:
        assert any(part.is_here(root) for root in ROOTS)


async def test_the_worker_that_has_a_tree_is_the_one_that_others_ask_for_it() -> None:
    for root in ROOTS[:50]:
        owner = await WorkerPart(0, ShardPlan(3)).owner(root)

        assert [str(number) for number in range(3) if WorkerPart(number, ShardPlan(3)).is_here(root)] == [owner]


def test_roots_of_one_name_are_neighbours_and_stay_where_they_are() -> None:
    assert shard_of(Address.root_of("Inbox", "alice")) == shard_of(Address.root_of("Chat", "alice"))
    assert shard_of(Address.root_of("Inbox", "alice")) == 2697
    assert SHARDS == 4096


async def test_another_number_of_workers_takes_over_every_alarm(tmp_path: Path) -> None:
    (tmp_path / "trees").mkdir()
    alone = index(tmp_path, "")
    alone.take_over([(str(root), float(at), 0) for at, root in enumerate(ROOTS)], is_whole=True)
    alone.close()
    expected = {str(root): float(at) for at, root in enumerate(ROOTS)}

    for count in (2, 5, 1, 3, 0):
        arrange(tmp_path, ShardPlan(count), Files())
        assert indexed(tmp_path, ShardPlan(count)) == expected

    assert names(tmp_path, "alarms*.db") == ["alarms.db"]


async def test_a_change_that_a_crash_interrupted_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "trees").mkdir()
    alone = index(tmp_path, "")
    alone.take_over([(str(ROOTS[0]), 1.0, 0)], is_whole=True)
    alone.close()

    class Dying(Files):
        def rename(self, old: Path, new: Path) -> None:
            raise OSError("the power failed")

    with pytest.raises(OSError, match="the power failed"):
        arrange(tmp_path, ShardPlan(2), Dying())
    later = index(tmp_path, "")
    later.earlier(ROOTS[1], 2.0, 0)
    later.close()
    arrange(tmp_path, ShardPlan(2), Files())

    assert indexed(tmp_path, ShardPlan(2)) == {str(ROOTS[0]): 1.0, str(ROOTS[1]): 2.0}


async def test_all_have_ended_well_only_if_each_of_the_last_has(tmp_path: Path) -> None:
    (tmp_path / "trees").mkdir()
    (tmp_path / "stopped").touch()

    arrange(tmp_path, ShardPlan(2), Files())
    assert names(tmp_path, "stopped*") == ["stopped-0-of-2", "stopped-1-of-2"]

    (tmp_path / "stopped-1-of-2").unlink()  # as a running node does
    arrange(tmp_path, ShardPlan(3), Files())
    assert not names(tmp_path, "stopped*")


class Placed(Agent):
    async def here(self) -> str:
        return self.name


async def test_a_node_opens_no_tree_that_is_not_in_its_share() -> None:
    async with running_on_two_nodes(App(agents=[Placed]), slow_slices="allow") as world:
        assert await (await world.get_agent(Placed, "p")).here() == "p"

        with pytest.raises(Unavailable, match="is run by another process"):
            world.app.node.loader.tree(Address.root_of("Placed", "p"))
        assert list(world.node.trees) == [Address.root_of("Placed", "p")]
        assert not world.app.node.trees


def test_nobody_runs_on_a_worker_s_share_while_it_lives(tmp_path: Path) -> None:
    first = FolderLock(tmp_path, "lock-0")

    with pytest.raises(FolderInUse):
        FolderLock(tmp_path, "lock-0")
    FolderLock(tmp_path, "lock-1").release()

    first.release()
    FolderLock(tmp_path, "lock-0").release()
