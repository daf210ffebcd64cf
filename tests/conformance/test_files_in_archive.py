"""Larger files of a cluster: in the archive, once, and neither lost nor left there by whatever ends a node."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import replicated
from tests.conformance.replicated import running_replicated
from tests.conformance.test_files import ACTS, Shelf, blobs, large
from tests.conformance.worlds import asleep, until

from sapwood import App, NotFound, Unavailable, agent
from sapwood.address import Address
from sapwood.capabilities.archived_files import COPY_RESERVE
from sapwood.capabilities.files import FileStore
from sapwood.errors import SapwoodError, StoredDataError
from sapwood.kernel.log.archive_files import (
    FILES,
    REMOVALS,
    RESTORE,
    Removal,
    check_later_removals,
    note_removal,
    removals,
    sweep_removals,
)
from sapwood.kernel.log.records import tree_id
from sapwood.kernel.node.backup import restore, verify
from sapwood.kernel.node.tree_removal import TreeRemoval
from sapwood.kernel.trees import deletion
from sapwood.kernel.trees.tree import Tree
from sapwood.testing import POINTS, World
from sapwood.testing.memory_log import MemoryArchive


class FaultyArchive(MemoryArchive):
    """An archive that dies, waits or fails where a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        """What it was asked, in order."""
        self.is_down = False
        self.gate = asyncio.Event()
        """Uploads wait for it."""
        self.gate.set()
        self.late: list[tuple[str, bytes]] = []
        """What waited for it when its node died."""
        self.die_at: tuple[str, int] | None = None
        """Before or after which question the node dies."""
        self.die: Callable[[], None] = lambda: None

    def _passes(self, when: str) -> None:
        if self.is_down:
            raise Unavailable("The archive does not answer.")
        if self.die_at == (when, len(self.asked)):
            self.die_at = None
            self.die()
            raise Unavailable("The node died.")

    @asynccontextmanager
    async def _question(self, name: str) -> AsyncIterator[None]:
        self.asked.append(name)
        self._passes("before")
        yield
        self._passes("after")

    async def put(self, key: str, data: bytes, *, only_new: bool = False) -> bool:
        async with self._question("put"):
            return await super().put(key, data, only_new=only_new)

    async def put_file(self, key: str, path: Path) -> None:
        async with self._question("put_file"):
            if not self.gate.is_set():
                self.late.append((key, await asyncio.to_thread(path.read_bytes)))
            await self.gate.wait()
            await super().put_file(key, path)

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        async with self._question("get_range"):
            return await super().get_range(key, start, end)

    async def size(self, key: str) -> int | None:
        async with self._question("size"):
            return await super().size(key)

    async def get(self, key: str) -> bytes | None:
        if self.is_down:
            raise Unavailable("The archive does not answer.")
        return await super().get(key)

    async def remove(self, keys: Sequence[str]) -> None:
        async with self._question("remove"):
            await super().remove(keys)

    @property
    def files(self) -> dict[str, bytes]:
        """All objects of files."""
        return {key: data for key, data in self.objects.items() if key.startswith(f"{FILES}/")}

    @property
    def noted(self) -> list[str]:
        return [key for key in self.objects if key.startswith(f"{REMOVALS}/")]


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> FaultyArchive:
    """Give the world an archive that obeys the test."""
    found = FaultyArchive()
    monkeypatch.setattr(replicated, "MemoryArchive", lambda: found)
    return found


def running(**settings: Any) -> Any:
    return running_replicated(App(agents=[Shelf]), slow_slices="allow", **settings)


def store_of(world: World, *below: str) -> FileStore:
    """Return the files of an agent that is awake."""
    (tree,) = world.node.trees.values()
    address = tree.address
    for name in below:
        address = address.child("Shelf", name)
    return tree.actors[address].of(FileStore)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def noted(world: World) -> None:
    """Return when the archive was told what the trees in memory know of."""

    def is_told() -> bool:
        trees = list(world.node.trees.values())
        stores = [actor.of(FileStore).archived for tree in trees for actor in tree.actors.values() if actor.ready]
        return not any(tree.deletions for tree in trees) and not any(store and store.has_removals for store in stores)

    await until(is_told)


async def sweep(world: World, archive: FaultyArchive) -> None:
    """Let the history of all removals pass, and the archive be swept."""
    await noted(world)
    history = world.settings.history_seconds
    await world.clock.advance(history + RESTORE + 2 * world.timings.upload_grace)
    assert world.node.keeper is not None
    await sweep_removals(archive, world.clock.now() - history, world.node.keeper.trees.named)
    assert not archive.noted


def contents(archive: FaultyArchive) -> list[bytes]:
    return sorted(archive.files.values())


async def test_a_file_is_uploaded_once_before_the_commit_that_names_it(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put(large())
        await shelf.put(large())
        await world.crash()

        shelf = await world.get_agent(Shelf, "s")
        assert await shelf.get(file) == large()
        assert contents(archive) == [large()]
        assert archive.asked.count("put_file") == 1


async def test_the_same_bytes_that_are_stored_twice_at_once_are_uploaded_once(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        files = await asyncio.gather(*(shelf.put(large()) for _ in range(3)))
        await noted(world)

        assert len({file.digest for file in files}) == 1
        assert archive.asked.count("put_file") == 1
        assert not archive.noted


async def test_what_is_deleted_stays_for_the_history_and_what_is_stored_again_stays_for_good(
    archive: FaultyArchive,
) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put(large())
        await shelf.delete(file)
        await noted(world)
        assert contents(archive) == [large()]

        await shelf.put(large())
        await noted(world)
        assert contents(archive) == [large(), large()]
        await sweep(world, archive)

        assert contents(archive) == [large()]
        await world.crash()
        assert await (await world.get_agent(Shelf, "s")).get(file) == large()


async def test_files_of_deleted_agents_are_removed_with_those_below_them(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        await shelf.put(large())
        await shelf.put_below("a", large(1))
        await shelf.put_below("a", b"small")
        await shelf.cut("a")
        await shelf.put_below("a", large(2))
        await sweep(world, archive)

        assert contents(archive) == sorted([large(), large(2)])


async def test_an_agent_is_deleted_also_while_the_archive_is_down(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        await shelf.put_below("a", large(1))
        archive.is_down = True
        await shelf.cut("a")
        assert await shelf.stored_below("a") == []
        archive.is_down = False

        await world.crash()
        await world.get_agent(Shelf, "s")
        await sweep(world, archive)

        assert contents(archive) == []


async def test_what_is_removed_by_two_tasks_at_once_is_free_for_the_tree_once(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        gone, _ = await shelf.put(large()), await shelf.put(large(1))
        archive.is_down = True
        await shelf.delete(gone)
        await until(lambda: not blobs(world) & {gone.digest})
        archive.is_down = False
        archived = store_of(world).archived
        (tree,) = world.node.trees.values()
        assert archived is not None
        freed: list[int] = []
        tree.forget_file = freed.append  # type: ignore[method-assign]

        actor = tree.actors[tree.address]
        await asyncio.gather(*(actor.handle("note", archived.note_removals)[1] for _ in range(2)))

        assert sum(freed) == len(large())


async def test_a_deletion_continues_when_the_archive_is_there_again(
    archive: FaultyArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "AGAIN", 0.01)
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        await shelf.put_below("a", large(1))
        archive.is_down = True
        await shelf.cut("a")
        (tree,) = world.node.trees.values()
        await until(lambda: not tree.deletions)
        assert len(list(world.data.glob("trees/*/*.db"))) == 2
        archive.is_down = False

        await until(lambda: len(list(world.data.glob("trees/*/*.db"))) == 1)
        await sweep(world, archive)

        assert contents(archive) == []


class Mortal(Shelf):
    """An agent that ends itself."""

    async def end(self) -> None:
        await self.destroy()


async def test_files_of_a_destroyed_tree_are_removed_and_those_of_the_next_of_its_name_stay(
    archive: FaultyArchive,
) -> None:
    async with running_replicated(App(agents=[Mortal]), slow_slices="allow") as world:
        mortal = await world.get_agent(Mortal, "m")
        await mortal.put(large())
        await mortal.put_below("a", large(1))
        await mortal.end()
        await until(lambda: len(archive.noted) == 1)

        await (await world.get_agent(Mortal, "m")).put(large(2))
        await sweep(world, archive)

        assert contents(archive) == [large(2)]


async def test_while_the_archive_is_down_only_what_needs_it_fails(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        here, elsewhere = await shelf.put(large()), await shelf.put(large(1))
        (path,) = world.data.glob(f"trees/*/*.files/{elsewhere.digest}")
        path.unlink()
        archive.is_down = True

        with pytest.raises(Unavailable, match="does not answer"):
            await shelf.put(large(2))
        with pytest.raises(Unavailable, match="does not answer"):
            await shelf.get(elsewhere)
        small = await shelf.put(b"small")
        assert await shelf.get(small) == b"small"
        assert await shelf.get(here) == large()

        archive.is_down = False
        assert await shelf.get(elsewhere) == large(1)
        assert len(await shelf.stored()) == 3
        assert await shelf.get(await shelf.put(large(2))) == large(2)
        await sweep(world, archive)
        assert contents(archive) == sorted(large(seed) for seed in range(3))


@pytest.mark.parametrize("damage", ["missing", "shorter", "changed"])
async def test_what_is_damaged_in_the_archive_is_noticed_and_mended_when_it_is_stored_again(
    archive: FaultyArchive, tmp_path: Path, damage: str
) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put(large())
        await world.crash()  # with its folder
        ((key, content),) = archive.files.items()
        archive.objects[key] = {"missing": b"", "shorter": content[:-1], "changed": b"!" + content[1:]}[damage]
        if damage == "missing":
            del archive.objects[key]

        shelf = await world.get_agent(Shelf, "s")
        for read in (shelf.get, shelf.lengths):
            with pytest.raises(StoredDataError, match=file.digest):
                await read(file)
        with pytest.raises(StoredDataError, match=file.digest):
            await world.app.backup(tmp_path / "copy")
        report = await verify(world.node, None)
        assert [one.root for one in report.damaged] == ["Shelf:s"]

        await shelf.put(large())
        assert await shelf.get(file) == large()
        await world.app.backup(tmp_path / "copy")


async def test_a_damaged_copy_on_the_node_is_fetched_again(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put(large())
        (path,) = world.data.glob("trees/*/*.files/*")
        path.write_bytes(b"!" + large()[1:])

        with pytest.raises(Unavailable, match="copy of the file"):
            await shelf.get(file)
        assert await shelf.get(file) == large()

        path.write_bytes(b"short")
        assert await shelf.get(file) == large()


async def test_readers_at_the_same_time_share_one_fetch(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        content = large() * 20
        file = await shelf.put(content)
        await world.crash()
        shelf = await world.get_agent(Shelf, "s")
        archive.asked.clear()

        assert await asyncio.gather(*(shelf.get(file) for _ in range(4))) == [content] * 4

        assert archive.asked.count("get_range") == 2  # in two pieces
        await until(lambda: blobs(world) == {file.digest})
        assert await shelf.get(file) == content
        assert archive.asked.count("get_range") == 2


async def test_copies_on_a_node_are_removed_once_their_tree_was_closed_for_a_while(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put(large())
        keeper = world.node.keeper
        assert keeper is not None
        keeper.idle_trees.park_after = 0.0
        await keeper.copies.sweep()
        assert blobs(world) == {file.digest}

        await asleep(world)
        await until(lambda: not world.node.loader.closed_trees(lambda root: True))
        await keeper.copies.find(world.data / "trees", list)
        (folder,) = world.data.glob("trees/*/root.files")
        part = folder / "upload-0123456789abcdef.part"
        part.write_bytes(b"received")
        await keeper.copies.sweep()
        assert blobs(world) == {part.name}
        keeper.copies._uploads = 0.0
        await keeper.copies.sweep()

        assert not folder.exists()
        assert await (await world.get_agent(Shelf, "s")).get(file) == large()
        await until(lambda: blobs(world) == {file.digest})


async def test_copies_of_a_tree_that_is_loaded_while_a_node_starts_stay(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put(large())
        keeper = world.node.keeper
        (folder,) = (world.data / "trees").iterdir()
        assert keeper is not None
        keeper.idle_trees.park_after = 0.0

        async with keeper._lock(folder.name):
            await keeper.copies.find(folder.parent, list)
        await keeper.copies.sweep()

        assert blobs(world) == {file.digest}


async def test_a_part_of_a_huge_file_is_read_without_fetching_the_rest(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        content = large() * 80
        file = await shelf.put(content)
        await world.crash()
        await world.get_agent(Shelf, "s")
        store = store_of(world)
        start = len(content) - 700_000

        parts = [chunk async for chunk in store.chunks(store.row(file.digest), start, start + 600_000)]

        assert b"".join(parts) == content[start : start + 600_000]
        assert blobs(world) == set()


async def test_copies_leave_the_disk_to_databases_and_uploads(
    archive: FaultyArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        files = [await shelf.put(large(seed)) for seed in range(3)]
        assert blobs(world) == {file.digest for file in files}
        await world.crash()
        shelf = await world.get_agent(Shelf, "s")
        free = COPY_RESERVE + len(large()) * 2
        disk = shutil.disk_usage(world.data)._replace(total=100 * COPY_RESERVE, free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: disk)

        contents = await asyncio.gather(*(shelf.get(file) for file in files))
        assert contents == [large(seed) for seed in range(3)]
        await until(lambda: world.node.file_archive is not None and not world.node.file_archive.arriving)
        assert len(blobs(world)) == 2

        disk = disk._replace(free=COPY_RESERVE - 1)
        file = await shelf.put(large(3))
        assert len(blobs(world)) == 2
        assert await shelf.get(file) == large(3)


async def test_a_file_that_is_deleted_while_it_is_read_is_read_to_its_end(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        content = large() * 20
        file = await shelf.put(content)
        await world.crash()
        shelf = await world.get_agent(Shelf, "s")
        store = store_of(world)
        chunks = store.chunks(store.row(file.digest))
        first = await anext(chunks)
        await shelf.delete(file)

        assert b"".join([first, *[chunk async for chunk in chunks]]) == content
        await noted(world)
        await until(lambda: not blobs(world))


async def test_an_upload_of_a_node_that_lost_its_tree_is_removed_however_late_it_comes(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        archive.gate.clear()
        lost = asyncio.ensure_future(shelf.put(large()))
        await until(lambda: bool(archive.late))
        await world.crash()
        with pytest.raises(Unavailable):
            await lost
        archive.gate.set()
        shelf = await world.get_agent(Shelf, "s")
        assert await shelf.stored() == []
        file = await shelf.put(large())
        await noted(world)

        archive.objects.update(archive.late)  # now the zombie's upload is complete
        assert contents(archive) == [large(), large()]
        await sweep(world, archive)

        assert contents(archive) == [large()]
        await world.crash()
        assert await (await world.get_agent(Shelf, "s")).get(file) == large()


async def test_a_cancelled_upload_leaves_nothing(archive: FaultyArchive) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        archive.gate.clear()
        store = store_of(world)
        (tree,) = world.node.trees.values()

        async def put() -> None:
            writer = store.writer()
            try:
                await writer.write(large())
                await writer.finish(None, "code")
            finally:
                writer.close()

        call, done = tree.actors[tree.address].handle("put", put)
        await until(lambda: bool(archive.late))
        tree.actors[tree.address].cancel(call)
        with pytest.raises(RuntimeError, match="cancelled"):
            await done
        archive.gate.set()
        await until(lambda: not blobs(world))
        archive.objects.update(archive.late)
        await sweep(world, archive)

        assert contents(archive) == []
        assert await shelf.stored() == []


async def test_an_incarnation_that_ended_stores_nothing_in_a_task_of_its_own(
    archive: FaultyArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put(large())
        store = store_of(world)
        (tree,) = world.node.trees.values()
        asked, answered = asyncio.Event(), asyncio.Event()

        async def size(key: str) -> int | None:
            asked.set()
            await answered.wait()
            return len(large())

        async def put() -> None:
            writer = store.writer()
            try:
                await writer.write(large())
                await writer.finish(None, "late")
            finally:
                writer.close()

        monkeypatch.setattr(archive, "size", size)
        late = asyncio.ensure_future(put())
        await asked.wait()
        tree.drop(tree.actors[tree.address], Unavailable("It ended."))
        answered.set()
        with pytest.raises(Unavailable, match="ended"):
            await late
        monkeypatch.undo()

        await world.get_agent(Shelf, "s")
        assert store_of(world).table.held_by("late") == []
        assert await (await world.get_agent(Shelf, "s")).get(file) == large()


async def test_a_restored_tree_has_files_of_its_own_and_those_it_replaces_are_removed(
    archive: FaultyArchive, tmp_path: Path
) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put(large())
        await shelf.put_below("a", large(1))
        await world.app.backup(tmp_path / "copy")
        await shelf.delete(file)
        await shelf.put(large(2))
        await shelf.cut("a")

        await world.app.restore(tmp_path / "copy")
        shelf = await world.get_agent(Shelf, "s")
        assert await shelf.get(file) == large()
        await sweep(world, archive)

        assert contents(archive) == sorted([large(), large(1)])
        await world.crash()
        shelf = await world.get_agent(Shelf, "s")
        assert await shelf.get(file) == large()
        (below,) = await shelf.stored_below("a")
        assert below.size == len(large(1))


@pytest.mark.parametrize("damage", ["file", "database"])
async def test_a_backup_with_a_missing_file_or_an_empty_database_can_be_restored_nevertheless(
    archive: FaultyArchive, tmp_path: Path, damage: str
) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        files = [await shelf.put(large(seed)) for seed in range(2)]
        await shelf.put_below("a", b"small")
        await world.app.backup(tmp_path / "copy")
        if damage == "file":
            (path,) = (tmp_path / "copy").glob(f"trees/*/root.files/{files[1].digest}")
            path.unlink()
        else:
            (path,) = set((tmp_path / "copy").glob("trees/*/*.db")) - set((tmp_path / "copy").glob("trees/*/root.db"))
            path.write_bytes(b"")
        with pytest.raises(StoredDataError):
            await restore(world.node, tmp_path / "copy", None)

        report = await restore(world.node, tmp_path / "copy", None, "restore")

        assert [one.root for one in report.damaged] == ["Shelf:s"]
        shelf = await world.get_agent(Shelf, "s")
        assert await shelf.get(files[0]) == large()
        if damage == "file":
            with pytest.raises(StoredDataError, match="not in the archive"):
                await shelf.get(files[1])
            await shelf.put(large(1))
        assert await shelf.get(files[1]) == large(1)
        assert not list(world.data.glob("trees/*.copying*"))


async def test_what_was_deleted_after_the_time_that_a_cluster_is_set_back_to_is_not_removed(
    archive: FaultyArchive,
) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        kept, gone = await shelf.put(large()), await shelf.put(large(1))
        await shelf.delete(gone)
        await noted(world)
        ((key, _),) = [one async for one in removals(archive)]
        (object_of_kept,) = [one for one in archive.files if one.endswith(kept.digest)]
        assert world.node.file_archive is not None
        # The tree was set back, and names again what was deleted later.
        at = world.clock.now()
        await world.node.file_archive.note_removal(next(iter(world.node.trees)), [object_of_kept], at)

        await check_later_removals(archive, at - 1)
        await sweep(world, archive)

        assert key not in archive.objects
        assert contents(archive) == [large()]


async def test_files_of_a_destroyed_tree_are_removed_also_after_the_cluster_was_restored(
    archive: FaultyArchive,
) -> None:
    async with running_replicated(App(agents=[Mortal]), slow_slices="allow") as world:
        mortal = await world.get_agent(Mortal, "m")
        await mortal.put(large())
        await mortal.end()
        await until(lambda: len(archive.noted) == 1)

        await check_later_removals(archive, 0.0)
        await sweep(world, archive)

        assert contents(archive) == []


async def test_files_of_a_tree_are_found_by_each_address_that_it_had(archive: FaultyArchive, tmp_path: Path) -> None:
    @agent(type="MortalOfToday", aliases=("MortalOfOld",))
    class Renamed(Shelf):
        """An agent whose class had another name."""

    async with running_replicated(App(agents=[Renamed]), slow_slices="allow") as world:
        await (await world.get_agent(Renamed, "m")).put(large())
        (key,) = archive.files
        folder = "/".join(key.split("/")[1:3])
        removal = Removal(root="MortalOfOld:m", at=world.clock.now(), prefixes=[f"{FILES}/{folder}/"])
        await note_removal(archive, removal, "end1")

        await check_later_removals(archive, 0.0)
        await sweep(world, archive)
        assert contents(archive) == [large()]

        archive.objects[f"{FILES}/{tree_id(Address.root_of('MortalOfOld', 'm'))}/0/root/1-2"] = b"of a former life"
        await world.app.backup(tmp_path / "copy")
        await world.app.restore(tmp_path / "copy")
        await sweep(world, archive)
        assert contents(archive) == [large()]


async def test_only_removals_of_the_same_tree_are_read_for_one_that_is_checked(
    archive: FaultyArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as world:
        for name in ("a", "b"):
            shelf = await world.get_agent(Shelf, name)
            files = [await shelf.put(large(seed)) for seed in range(2)]
            for file in files:
                await shelf.delete(file)
                await noted(world)
        await check_later_removals(archive, world.clock.now() - 1)
        archive.objects[f"{REMOVALS}/.folder"] = b"made by some other program"
        read: list[str] = []
        get = archive.get

        async def counted(key: str) -> bytes | None:
            read.append(key)
            return await get(key)

        monkeypatch.setattr(archive, "get", counted)
        history = world.settings.history_seconds
        await world.clock.advance(history + 10)
        assert world.node.keeper is not None
        assert await sweep_removals(archive, world.clock.now() - history, world.node.keeper.trees.named) == 4

        assert contents(archive) == []
        assert sum(key.startswith(REMOVALS) for key in read) == 6  # each, and of each tree the first with the second
        assert archive.noted == [f"{REMOVALS}/.folder"]


async def test_a_file_that_was_deleted_after_a_restore_stays_for_the_history_too(
    archive: FaultyArchive, tmp_path: Path
) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        file = await shelf.put(large())
        await world.app.backup(tmp_path / "copy")
        await world.app.restore(tmp_path / "copy")
        history = world.settings.history_seconds
        assert world.node.keeper is not None

        async def sweep_now() -> None:
            assert world.node.keeper is not None
            await sweep_removals(archive, world.clock.now() - history, world.node.keeper.trees.named)

        await world.clock.advance(history / 2)
        shelf = await world.get_agent(Shelf, "s")
        await shelf.delete(file)
        await noted(world)
        await world.clock.advance(history / 2 + RESTORE + 10)
        await sweep_now()
        assert contents(archive) == [large()]
        await world.clock.advance(history)
        await sweep_now()
        assert contents(archive) == []


async def test_a_restore_by_a_node_that_loses_the_tree_in_between_fails_and_removes_no_files(
    archive: FaultyArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as world:
        shelf = await world.get_agent(Shelf, "s")
        await shelf.put(large())
        await world.app.backup(tmp_path / "copy")
        later = await shelf.put(large(1))
        end = TreeRemoval.end

        async def end_and_lose(self: TreeRemoval, tree: Tree, error: SapwoodError) -> None:
            await end(self, tree, error)
            self.lose(tree)

        monkeypatch.setattr(TreeRemoval, "end", end_and_lose)
        with pytest.raises(Unavailable, match="another process"):
            await world.app.restore(tmp_path / "copy")
        monkeypatch.undo()
        shelf = await world.get_agent(Shelf, "s")
        await sweep(world, archive)

        assert contents(archive) == sorted([large(), large(1)])
        await world.crash()
        assert await (await world.get_agent(Shelf, "s")).get(later) == large(1)
        assert not list(world.data.glob("trees/*.copying*"))


async def check(world: World, archive: FaultyArchive, act: str, *, is_done: bool) -> None:
    """What a row names can be read, what was acknowledged is there, and the swept archive has nothing else."""
    shelf = await world.get_agent(Shelf, "s")
    stored = {file.digest for file in await shelf.stored()}
    digests = [digest_of(large(seed)) for seed in range(3)]
    if is_done:
        assert stored == {"stores": set(digests[:2]), "deletes": set(), "cuts": {digests[0]}}[act]
    for file in await shelf.stored():
        assert digest_of(await shelf.get(file)) == file.digest
    below = {file.digest for file in await shelf.stored_below("a")}
    assert below <= {digests[2]}
    await sweep(world, archive)
    assert sorted(digest_of(content) for content in archive.files.values()) == sorted([*stored, *below])
    assert blobs(world) <= stored | below


async def act_until_death(world: World, act: str) -> bool:
    """Act, and return whether that was acknowledged."""
    try:
        await ACTS[act](world)
    except (Unavailable, NotFound):
        return False
    if not world.points.ended:
        await noted(world)
    return not world.points.ended


async def begin(world: World) -> None:
    shelf = await world.get_agent(Shelf, "s")
    await shelf.put(large())
    await shelf.put_below("a", large(2))


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_anywhere_loses_no_file_and_leaves_none_that_nothing_names(
    archive: FaultyArchive, point: str, act: str
) -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        archive.objects.clear()
        async with running() as world:
            await begin(world)
            before = world.points.passed[point]
            world.crash_at(point, nth)
            is_done = await act_until_death(world, act)
            passed = world.points.passed[point] >= before + nth
            await world.crash()
            await check(world, archive, act, is_done=is_done)


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_kill_at_every_question_to_the_archive_loses_no_file_and_leaves_none(
    archive: FaultyArchive, when: str, act: str
) -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        archive.objects.clear()
        async with running() as world:
            await begin(world)

            def die(world: World = world) -> None:
                world.points.ended = True
                world.node.die_now()

            archive.die, archive.die_at = die, (when, len(archive.asked) + nth)
            is_done = await act_until_death(world, act)
            passed, archive.die_at = archive.die_at is None, None
            await world.crash()
            await check(world, archive, act, is_done=is_done)
