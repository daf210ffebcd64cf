"""What wants to leave waits for the disk exactly as long as it has to."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.machine import patience
from tests.unit.helpers import a_database
from tests.unit.test_slices import SliceOwner, write

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.durability.local_gates import DiskGate, ProcessGate
from sapwood.kernel.durability.slices import Slices
from sapwood.storage.database import Database
from sapwood.storage.files import Files
from sapwood.testing.loop import VirtualLoop, until


class HeldFiles(Files):
    """A disk that syncs only when it is let, counts, and may refuse."""

    def __init__(self) -> None:
        self.syncs: Counter[str] = Counter()
        self.threads: set[str] = set()
        self.let = threading.Event()
        self.let.set()
        self.refuse: str | None = None

    def _sync(self, what: str) -> None:
        self.threads.add(threading.current_thread().name)
        assert self.let.wait(10)
        self.syncs[what] += 1
        if self.refuse is not None and self.refuse in what:
            raise OSError(5, "Input/output error")

    def sync_file(self, path: Path) -> None:
        self._sync(path.name)
        super().sync_file(path)

    def sync_descriptor(self, path: Path, descriptor: int) -> None:
        self._sync(path.name)
        super().sync_descriptor(path, descriptor)

    def sync_folder(self, path: Path) -> None:
        self._sync(f"folder {path.name}")
        super().sync_folder(path)


class Disk:
    """Two databases behind one gate, on a disk that can be held."""

    def __init__(self, folder: Path) -> None:
        self.files = HeldFiles()
        self.gate = DiskGate(self.files, asyncio.get_running_loop())
        self.folder = folder / "tree"
        self.folder.mkdir()
        self.slices = Slices(Address.root_of("Tree", "one"), self.gate, asyncio.get_running_loop())
        self.owner = SliceOwner(self.slices)

    def database(self, name: str) -> Database:
        database = a_database(self.folder / f"{name}.db", self.owner, files=self.files, synced=True)
        database.run("CREATE TABLE IF NOT EXISTS t (v)", ())
        self.slices.commit()
        return database

    async def settled(self, name: str) -> Database:
        database = self.database(name)
        await self.kept(database)
        self.files.syncs.clear()
        return database

    async def kept(self, database: Database) -> None:
        while (waiting := self.gate.wait(database)) is not None:
            await waiting

    def commit(self, database: Database, value: object = 1) -> None:
        write(database, value)
        self.slices.commit()


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    disk.files.let.set()
    disk.gate.close()


async def test_under_process_nothing_ever_waits(tmp_path: Path) -> None:
    gate = ProcessGate()
    slices = Slices(Address.root_of("Tree", "one"), gate, asyncio.get_running_loop())
    database = a_database(tmp_path / "a.db", SliceOwner(slices))
    database.run("CREATE TABLE t (v)", ())
    slices.commit()

    assert gate.wait(database) is None
    assert gate.is_quiet(database)
    await gate.sync_folder(tmp_path)
    database.close()


async def test_nobody_waits_for_a_database_that_was_never_written(disk: Disk, tmp_path: Path) -> None:
    assert disk.gate.wait(a_database(tmp_path / "never.db", disk.owner)) is None


async def test_the_first_commit_of_a_file_brings_its_name_to_the_disk_too(disk: Disk) -> None:
    a = disk.database("a")
    await disk.kept(a)

    assert disk.files.syncs == {
        "a.db": 1,
        "a.db-wal": 1,
        "folder tree": 1,
        f"folder {disk.folder.parent.name}": 1,
    }


async def test_later_commits_sync_the_wal_alone(disk: Disk) -> None:
    a = await disk.settled("a")

    for _ in range(5):
        disk.commit(a)
        await disk.kept(a)

    assert disk.files.syncs == {"a.db-wal": 5}


async def test_a_sync_runs_off_the_loop(disk: Disk) -> None:
    a = await disk.settled("a")
    disk.commit(a)
    await disk.kept(a)

    assert disk.files.threads
    assert all(name.startswith("sapwood-flush") for name in disk.files.threads)


async def test_an_exit_waits_until_the_disk_has_what_was_committed_before_it(disk: Disk) -> None:
    a = await disk.settled("a")
    disk.files.let.clear()

    disk.commit(a)
    leaving = disk.gate.wait(a)

    assert leaving is not None
    await asyncio.sleep(0.02)
    assert not leaving.done()
    disk.files.let.set()
    await leaving
    assert disk.gate.wait(a) is None


async def test_an_exit_of_another_agent_does_not_wait(disk: Disk) -> None:
    a, b = await disk.settled("a"), await disk.settled("b")
    disk.files.let.clear()

    disk.commit(a)

    assert disk.gate.wait(b) is None
    assert not disk.gate.is_quiet(a)
    assert disk.gate.is_quiet(b)


async def test_an_exit_does_not_wait_for_what_was_committed_after_it(disk: Disk) -> None:
    a = await disk.settled("a")
    disk.files.let.clear()
    disk.commit(a)
    early = disk.gate.wait(a)
    await asyncio.sleep(0.02)  # the flush of the first commit is under way
    disk.commit(a)
    late = disk.gate.wait(a)

    disk.files.let.set()
    assert early is not None
    assert late is not None
    await early

    assert not late.done()
    await late


async def test_a_flush_that_began_before_a_commit_does_not_count_for_it(disk: Disk) -> None:
    a = await disk.settled("a")
    disk.files.let.clear()
    disk.commit(a)
    await asyncio.sleep(0.02)

    disk.commit(a)
    late = disk.gate.wait(a)
    disk.files.let.set()
    assert late is not None
    await late

    assert disk.files.syncs["a.db-wal"] == 2


async def test_commits_that_gather_behind_a_flush_share_the_next_one(disk: Disk) -> None:
    a = await disk.settled("a")
    disk.files.let.clear()
    for number in range(100):
        disk.commit(a, number)
        await asyncio.sleep(0)

    disk.files.let.set()
    await disk.kept(a)

    assert disk.files.syncs["a.db-wal"] == 2


async def test_files_are_flushed_side_by_side(disk: Disk) -> None:
    files = [await disk.settled(name) for name in "abcd"]
    disk.files.let.clear()
    disk.files.threads.clear()
    for database in files:
        disk.commit(database)

    for _ in range(100):
        if len(disk.files.threads) == 4:
            break
        await asyncio.sleep(0.01)

    assert len(disk.files.threads) == 4


async def test_a_sync_that_fails_is_never_forgiven(disk: Disk) -> None:
    a, b = await disk.settled("a"), await disk.settled("b")
    disk.files.refuse = "a.db-wal"
    disk.commit(a)
    leaving = disk.gate.wait(a)
    assert leaving is not None

    with pytest.raises(Unavailable, match=r"failed to store a\.db"):
        await leaving

    # A later fsync may well succeed, and mean nothing.
    disk.files.refuse = None
    for _ in range(3):
        with pytest.raises(Unavailable, match="Restart the process"):
            disk.gate.wait(a)
        disk.commit(a)
        await asyncio.sleep(0.01)
    a.close()
    disk.gate.forget(a)
    again = disk.database("a")  # as after a sleep: another object for the same file
    with pytest.raises(Unavailable):
        disk.gate.wait(again)
    assert disk.gate.is_quiet(again)
    disk.commit(b)
    await disk.kept(b)


async def test_each_who_waited_in_vain_gets_an_error_of_its_own(disk: Disk) -> None:
    a = await disk.settled("a")
    disk.files.refuse = "a.db-wal"
    disk.commit(a)
    waiting = [disk.gate.wait(a) for _ in range(3)]

    errors = await asyncio.gather(*(one for one in waiting if one is not None), return_exceptions=True)

    assert all(isinstance(error, Unavailable) for error in errors)
    assert len({id(error) for error in errors}) == 3


async def test_a_thread_that_syncs_a_folder_counts_as_work_after_the_call_was_cancelled(disk: Disk) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    disk.files.let.clear()
    task = asyncio.create_task(disk.gate.sync_folder(disk.folder))
    await until(lambda: bool(disk.files.threads))

    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert loop.is_outside_busy

    disk.files.let.set()
    await until(lambda: not loop.is_outside_busy)
    assert disk.files.syncs["folder tree"] == 1


async def test_a_folder_that_cannot_be_synced_is_an_error_and_the_threads_live_on(disk: Disk) -> None:
    a = await disk.settled("a")
    disk.files.refuse = "folder"
    for _ in range(10):
        with pytest.raises(Unavailable, match="names in tree"):
            await asyncio.wait_for(disk.gate.sync_folder(disk.folder), patience())

    disk.files.refuse = None
    await asyncio.wait_for(disk.gate.sync_folder(disk.folder), patience())
    disk.commit(a)
    await asyncio.wait_for(disk.kept(a), patience())


async def test_closing_finishes_the_flush_that_is_under_way(disk: Disk) -> None:
    a = await disk.settled("a")
    disk.commit(a)

    disk.gate.close()

    assert disk.files.syncs["a.db-wal"] == 1


async def test_somebody_who_no_longer_waits_harms_nobody(disk: Disk) -> None:
    a = await disk.settled("a")
    disk.files.let.clear()
    disk.commit(a)
    gone, stays = disk.gate.wait(a), disk.gate.wait(a)
    assert gone is not None
    assert stays is not None

    gone.cancel()
    disk.files.let.set()

    await stays
