"""A tree is copied while it works: all its files as they were at one moment."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.runtimes import running
from tests.conformance.worlds import Probe, Run, asleep, happens, until
from tests.machine import patience

from sapwood import Agent, App, NotFound, Settings, Unavailable
from sapwood.errors import Quarantined, UsageError
from sapwood.kernel.node import backup, stored_copies
from sapwood.kernel.node.data_folder import RESTORED, roots_in, tree_folder
from sapwood.kernel.node.tree_check import check_folder
from sapwood.testing import World
from sapwood.testing import running as running_here
from sapwood.testing.faults import CountingFiles
from sapwood.types import Address

pytestmark = pytest.mark.core("workers", "cluster")

WAYS = ((backup, "copy_elsewhere"), (stored_copies, "write_elsewhere"))
"""What copies a tree: from the folder of a node, or from the log of a cluster."""


class Shelf(Agent):
    migrations = ("CREATE TABLE books (number INTEGER PRIMARY KEY) STRICT",)

    async def put(self, number: int) -> None:
        self.sql("INSERT INTO books VALUES (?)", number)

    async def numbers(self) -> list[int]:
        return [int(str(row["number"])) for row in self.sql("SELECT number FROM books ORDER BY number")]


class Library(Agent):
    migrations = ("CREATE TABLE books (number INTEGER PRIMARY KEY) STRICT",)

    async def put(self, number: int) -> None:
        """First here, then on one of three shelves: no shelf ever has what the library does not know."""
        self.sql("INSERT INTO books VALUES (?)", number)
        await (await self.sub_agent(Shelf, str(number % 3))).put(number)

    async def build(self, shelf: str) -> None:
        await self.sub_agent(Shelf, shelf)

    async def known(self) -> list[int]:
        return [int(str(row["number"])) for row in self.sql("SELECT number FROM books ORDER BY number")]

    async def shelved(self) -> list[int]:
        shelves = [await self.sub_agent(Shelf, child.name) for child in self.children.list(Shelf)]
        return sorted([number for shelf in shelves for number in await shelf.numbers()])

    async def burn(self) -> None:
        for child in self.children.list(Shelf):
            await self.children.delete(Shelf, child.name)

    async def end(self) -> None:
        await self.destroy()


@pytest.mark.slow
async def test_a_backup_under_load_is_the_tree_at_one_moment_and_opens_elsewhere(run: Run, tmp_path: Path) -> None:
    async with run(Library) as world:
        library = await world.get_agent(Library, "l")
        for number in range(300):
            await library.put(number)
        done = asyncio.Event()

        async def work() -> None:
            number = 300
            while not done.is_set():
                await library.put(number)
                number += 1

        worker = asyncio.create_task(work())
        await asyncio.sleep(0.01)
        assert await world.app.backup(tmp_path / "copy") == 1
        done.set()
        await worker
        live = await library.known()

    async with App(agents=[Library], settings=Settings(data=tmp_path / "copy")) as elsewhere:
        copy = await elsewhere.get_agent(Library, "l")
        known, shelved = await copy.known(), await copy.shelved()

        assert known == list(range(len(known)))
        assert 300 <= len(known) <= len(live)
        assert shelved == known or shelved == known[:-1]
        await copy.put(10_000)


@pytest.mark.slow
async def test_more_commits_than_a_checkpoint_waits_for_do_not_spoil_a_backup(run: Run, tmp_path: Path) -> None:
    async with run(Library) as world:
        library = await world.get_agent(Library, "l")
        await library.put(0)
        tree = world.node.loader.tree(next(roots_in(world.data)))

        with tree.kept_still():
            before = (tree.folder / "root.db").read_bytes()
            for number in range(1, 1200):
                await library.put(number)
            assert (tree.folder / "root.db").read_bytes() == before

        await library.put(1200)
        assert (tree.folder / "root.db").read_bytes() != before
        assert await library.known() == list(range(1201))


@pytest.mark.slow
async def test_a_restored_tree_is_what_it_was_and_goes_on_from_there(run: Run, tmp_path: Path) -> None:
    async with run(Library) as world:
        library = await world.get_agent(Library, "l")
        for number in range(5):
            await library.put(number)
        await world.app.backup(tmp_path, Library, "l")
        await library.burn()
        await library.put(77)

        assert await world.app.restore(tmp_path, Library, "l") == 1

        assert await library.known() == await library.shelved() == [0, 1, 2, 3, 4]
        await library.put(5)
        await world.crash()
        library = await world.get_agent(Library, "l")
        assert await library.shelved() == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
async def test_a_whole_folder_comes_back_with_every_tree_in_it(run: Run, tmp_path: Path) -> None:
    async with run(Library) as world:
        names = ["a", "b", "../x", "ä/ö"]
        for name in names:
            await (await world.get_agent(Library, name)).put(len(name))
        assert await world.app.backup(tmp_path / "all") == len(names)
        await (await world.get_agent(Library, "a")).end()
        await (await world.get_agent(Library, "b")).put(500)

        assert await world.app.restore(tmp_path / "all") == len(names)

        for name in names:
            assert await (await world.get_agent(Library, name)).known() == [len(name)]


@pytest.mark.nightly
@pytest.mark.slow
async def test_all_trees_or_one_are_verified_while_they_run(run: Run) -> None:
    async with run(Library) as world:
        for name in "ab":
            for number in range(3):
                await (await world.get_agent(Library, name)).put(number)

        report = await backup.verify(world.node, None)
        one = await backup.verify(world.node, Address.root_of("Library", "b"))
        with pytest.raises(NotFound, match="has no data"):
            await backup.verify(world.node, Address.root_of("Library", "nobody"))

        assert (report.trees, report.damaged, report.odd) == (2, [], [])
        assert (one.trees, one.is_whole) == (1, True)
        assert not [name for name in folders(world) if "." in name]  # no copy is left


@pytest.mark.nightly
@pytest.mark.slow
async def test_a_tree_in_quarantine_is_copied_and_put_back_with_the_others_and_stays_there(
    run: Run, tmp_path: Path
) -> None:
    async with run(Library, strikes=1) as world:
        for name in "ab":
            await (await world.get_agent(Library, name)).put(1)
        (world.data / "strikes.jsonl").write_text(json.dumps({"root": "Library:a", "at": 0.0}))
        await world.restart()

        assert await world.app.backup(tmp_path / "copy") == 2
        await (await world.get_agent(Library, "b")).put(2)
        assert await world.app.restore(tmp_path / "copy") == 2

        assert await (await world.get_agent(Library, "b")).known() == [1]
        with pytest.raises(Quarantined):
            await world.get_agent(Library, "a")
        world.node.strikes.release(root := Address.root_of("Library", "a"))
        await until(lambda: world.node.loader.held_back(root) is None)  # other nodes are told
        assert await (await world.get_agent(Library, "a")).shelved() == [1]


@pytest.mark.slow
async def test_a_crash_between_the_two_renames_of_a_restore_is_finished_at_the_next_start(
    run: Run, tmp_path: Path
) -> None:
    async with run(Library) as world:
        library = await world.get_agent(Library, "l")
        await library.put(1)
        await world.app.backup(tmp_path, Library, "l")
        await library.put(2)
        (root,) = roots_in(world.data)
        folder = tree_folder(world.data, root)
        await world.node.die()
        tree_folder(tmp_path, root).rename(folder.with_name(folder.name + RESTORED))
        folder.rename(folder.with_name(f"{folder.name}-1.removed"))

        await world.crash()

        assert await (await world.get_agent(Library, "l")).known() == [1]
        await world.restart()
        assert {entry.name for entry in (world.data / "trees").iterdir()} == {folder.name}


@pytest.mark.slow
async def test_a_backup_never_overwrites_one_and_says_when_there_is_nothing(run: Run, tmp_path: Path) -> None:
    async with run(Library) as world:
        library = await world.get_agent(Library, "l")
        with pytest.raises(NotFound, match="has no data"):
            await world.app.backup(tmp_path, Library, "nobody")
        with pytest.raises(NotFound, match="has no Library:l"):
            await world.app.restore(tmp_path, Library, "l")
        await library.put(1)
        await world.app.backup(tmp_path, Library, "l")

        with pytest.raises(UsageError, match="holds a copy"):
            await world.app.backup(tmp_path, Library, "l")


@pytest.mark.slow
async def test_one_that_was_not_finished_is_no_backup_of_everything_and_can_be_repeated(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run(Library) as world:
        for name in "abc":
            await (await world.get_agent(Library, name)).put(1)
        copied: list[Any] = []

        def failing_at_the_second(copy: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def one(*what: Any) -> Any:
                copied.append(what)
                if len(copied) == 2:
                    raise Unavailable("The disk is full.")
                return await copy(*what)

            return one

        with monkeypatch.context() as patch:
            for module, name in WAYS:
                patch.setattr(module, name, failing_at_the_second(getattr(module, name)))
            with pytest.raises(Unavailable, match="The disk is full"):
                await world.app.backup(tmp_path / "copy")
        with pytest.raises(UsageError, match="is incomplete: trees are missing"):
            await world.app.restore(tmp_path / "copy")
        (whole,) = roots_in(tmp_path / "copy")
        await world.app.restore(tmp_path / "copy", Library, whole.name)
        await (await world.get_agent(Library, whole.name)).end()

        assert await world.app.backup(tmp_path / "copy") == 2

        assert {root.name for root in roots_in(tmp_path / "copy")} == set("abc") - {whole.name}
        assert await world.app.restore(tmp_path / "copy") == 2
        with pytest.raises(UsageError, match="holds a copy"):
            await world.app.backup(tmp_path / "copy")


@pytest.mark.slow
async def test_one_into_a_folder_that_another_is_written_to_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run(Library) as world:
        await (await world.get_agent(Library, "l")).put(1)
        copies = held(monkeypatch)
        first = asyncio.create_task(world.app.backup(tmp_path / "copy"))
        await copies.made.wait()

        with pytest.raises(UsageError, match="is in progress"):
            await world.app.backup(tmp_path / "copy")

        copies.go_on.set()
        assert await first == 1


@pytest.mark.slow
async def test_what_was_not_finished_but_is_served_meanwhile_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    async with run(Library) as world:
        await (await world.get_agent(Library, "l")).put(1)
        await world.app.backup(tmp_path / "copy")
        (tmp_path / "copy" / backup.UNFINISHED).write_text("Not all trees were copied.")
        (tmp_path / "copy" / "lock").touch()

        with pytest.raises(UsageError, match="already holds copies"):
            await world.app.backup(tmp_path / "copy")

        assert [str(root) for root in roots_in(tmp_path / "copy")] == ["Library:l"]


# While a copy is in progress


class Copies:
    """Copies files as usual, and then waits until it is told to go on."""

    def __init__(self) -> None:
        self.made = asyncio.Event()
        self.go_on = asyncio.Event()

    def holding(self, copy: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def one(*what: Any) -> Any:
            done = await copy(*what)
            self.made.set()
            await self.go_on.wait()
            return done

        return one


def held(monkeypatch: pytest.MonkeyPatch) -> Copies:
    """Hold every copy that is made from now on."""
    copies = Copies()
    for module, name in WAYS:
        monkeypatch.setattr(module, name, copies.holding(getattr(module, name)))
    return copies


async def one_book(world: World, folder: Path) -> Library:
    """Return a library whose backup has book 1, and which has gone on to book 2."""
    library = await world.get_agent(Library, "l")
    await library.put(1)
    await world.app.backup(folder, Library, "l")
    await library.put(2)
    return library


def folders(world: World) -> set[str]:
    """Return the names of all that lies beside the trees, too."""
    return {entry.name for entry in (world.data / "trees").iterdir()}


@pytest.mark.nightly
@pytest.mark.slow
async def test_a_tree_that_is_destroyed_while_its_copy_is_made_is_there_again_after_the_restore(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(patience()), run(Library) as world:
        library = await one_book(world, tmp_path)
        copies = held(monkeypatch)
        restore = asyncio.create_task(world.app.restore(tmp_path, Library, "l"))
        await copies.made.wait()

        await library.end()
        copies.go_on.set()

        assert await restore == 1
        assert await library.known() == await library.shelved() == [1]
        await world.restart()
        assert await (await world.get_agent(Library, "l")).known() == [1]


@pytest.mark.nightly
@pytest.mark.slow
async def test_restores_of_one_tree_at_the_same_time_follow_each_other(run: Run, tmp_path: Path) -> None:
    async with asyncio.timeout(patience()), run(Library) as world:
        library = await one_book(world, tmp_path)

        restores = [world.app.restore(tmp_path, Library, "l") for _ in range(3)]

        assert await asyncio.gather(*restores) == [1, 1, 1]
        assert await library.known() == await library.shelved() == [1]
        await library.put(3)
        await world.restart()
        assert await (await world.get_agent(Library, "l")).known() == [1, 3]
        assert len(folders(world)) == 1


@pytest.mark.nightly
@pytest.mark.slow
async def test_a_tree_that_sleeps_and_wakes_while_its_copy_is_made_is_replaced_and_not_doubled(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(patience()), run(Library) as world:
        library = await one_book(world, tmp_path)
        copies = held(monkeypatch)
        restore = asyncio.create_task(world.app.restore(tmp_path, Library, "l"))
        await copies.made.wait()

        await asleep(world)
        await library.put(3)
        copies.go_on.set()
        await restore

        assert await library.known() == [1]
        await library.put(4)
        assert await (await world.get_agent(Library, "l")).known() == [1, 4]
        await world.crash()
        assert await (await world.get_agent(Library, "l")).known() == [1, 4]


class Stubborn(Library):
    deps: Probe

    async def stay(self) -> None:
        self.deps.log.append("stays")
        try:
            await asyncio.Event().wait()
        finally:
            self.deps.log.append("told to go")
            await self.deps.go.wait()


@pytest.mark.nightly
@pytest.mark.slow
async def test_what_reads_a_tree_while_it_is_replaced_waits_and_reads_what_was_restored(
    run: Run, probe: Probe, tmp_path: Path
) -> None:
    async with asyncio.timeout(patience()), run(Stubborn, deps=probe) as world:
        agent = await world.get_agent(Stubborn, "l")
        await agent.put(1)
        await world.app.backup(tmp_path, Stubborn, "l")
        await agent.put(2)
        staying = asyncio.create_task(agent.stay())
        await probe.seen("stays")
        restore = asyncio.create_task(world.app.restore(tmp_path, Stubborn, "l"))
        await happens(lambda: "told to go" in probe.log)

        again = asyncio.create_task(world.app.restore(tmp_path, Stubborn, "l"))
        check = asyncio.create_task(backup.verify(world.node, Address.root_of("Stubborn", "l")))
        copy = asyncio.create_task(world.app.backup(tmp_path / "second", Stubborn, "l"))
        await asyncio.wait({again, check, copy}, timeout=0.5)
        probe.go.set()

        assert await restore == await again == await copy == 1
        assert (await check).is_whole
        with pytest.raises(Unavailable, match="restored"):
            await staying
        assert await agent.known() == [1]
        assert (await asyncio.to_thread(check_folder, tmp_path / "second", None, world.node.content_checks)).is_whole


@pytest.mark.nightly
@pytest.mark.slow
async def test_a_restore_whose_caller_is_cancelled_is_finished_all_the_same(
    run: Run, probe: Probe, tmp_path: Path
) -> None:
    async with asyncio.timeout(patience()), run(Stubborn, deps=probe) as world:
        agent = await world.get_agent(Stubborn, "l")
        await agent.put(1)
        await world.app.backup(tmp_path, Stubborn, "l")
        await agent.put(2)
        staying = asyncio.create_task(agent.stay())
        await probe.seen("stays")
        restore = asyncio.create_task(world.app.restore(tmp_path, Stubborn, "l"))
        await happens(lambda: "told to go" in probe.log)

        restore.cancel()
        await asyncio.wait({restore})
        probe.go.set()

        with pytest.raises(Unavailable, match="restored"):
            await staying
        assert await agent.known() == await agent.shelved() == [1]
        await agent.put(3)
        await world.restart()
        assert await (await world.get_agent(Stubborn, "l")).known() == [1, 3]
        assert len(folders(world)) == 1


@pytest.mark.nightly
@pytest.mark.slow
async def test_a_tree_destroyed_after_a_cancelled_restore_does_not_come_back(run: Run, tmp_path: Path) -> None:
    async with asyncio.timeout(patience()), run(Library) as world:
        library = await one_book(world, tmp_path)
        tree = world.node.loader.tree(next(roots_in(world.data)))
        with tree.kept_still():  # as by a backup: the restore has to wait
            restore = asyncio.create_task(world.app.restore(tmp_path, Library, "l"))
            await happens(lambda: tree.destroyed is not None)
            restore.cancel()
            await asyncio.wait({restore})

        await library.end()
        await world.restart()

        assert await (await world.get_agent(Library, "l")).known() == []


@pytest.mark.nightly
@pytest.mark.slow
async def test_a_backup_can_be_made_where_one_was_cancelled(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(patience()), run(Library) as world:
        await (await world.get_agent(Library, "l")).put(1)
        copies = held(monkeypatch)
        cancelled = asyncio.create_task(world.app.backup(tmp_path, Library, "l"))
        await copies.made.wait()

        cancelled.cancel()
        await asyncio.wait({cancelled})
        copies.go_on.set()

        assert await world.app.backup(tmp_path, Library, "l") == 1
        assert await world.app.restore(tmp_path, Library, "l") == 1


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let no log reach the disk until the event is set; at first it is set."""
    disk = threading.Event()
    disk.set()
    sync = CountingFiles.sync_descriptor

    def sync_descriptor(self: CountingFiles, path: Path, descriptor: int) -> None:
        disk.wait(5)
        sync(self, path, descriptor)

    monkeypatch.setattr(CountingFiles, "sync_descriptor", sync_descriptor)
    yield disk
    disk.set()


@pytest.mark.slow
async def test_whoever_is_on_the_way_to_an_agent_of_a_restored_tree_does_not_end_up_in_the_old_one(
    tmp_path: Path, slow_disk: threading.Event
) -> None:
    app = App(agents=[Library])
    async with asyncio.timeout(patience()), running(app, slow_slices="allow", durability="disk") as world:
        library = await world.get_agent(Library, "l")
        await library.build("new")  # it has no file yet, and may have one only when its name is on the disk
        await one_book(world, tmp_path)
        await world.restart()
        library = await world.get_agent(Library, "l")
        tree = world.node.loader.tree(next(roots_in(world.data)))
        await happens(lambda: world.node.gate.is_quiet(tree.databases["root"]))
        slow_disk.clear()
        writing = asyncio.create_task(library.put(3))
        await until(lambda: not world.node.gate.is_quiet(tree.databases["root"]))
        shelf = [(Shelf, "new")]
        visiting = asyncio.create_task(world.get_agent(Library, "l", sub=shelf))
        await happens(lambda: tree.visitors > 0)

        restore = asyncio.create_task(world.app.restore(tmp_path, Library, "l"))
        await happens(lambda: tree.destroyed is not None)
        slow_disk.set()
        await asyncio.wait({writing, visiting, restore})

        assert await restore == 1
        with pytest.raises(Unavailable):
            await writing
        assert await (await visiting).numbers() == []
        assert await library.known() == await library.shelved() == [1]
        await (await world.get_agent(Library, "l", sub=shelf)).put(4)
        assert await library.shelved() == [1, 4]


class Wanderer(Agent[str]):
    initial_state = ""

    async def keep(self, text: str) -> None:
        self.set_state(text)


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
async def test_a_backup_has_one_copy_of_a_tree_that_is_moved_while_it_is_made(
    first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up_tree, done = backup.back_up_tree, list[Address]()

    async def moving(node: Any, root: Address, *arguments: Any, **options: Any) -> list[str]:
        problems = await back_up_tree(node, root, *arguments, **options)
        done.append(root)
        if len(done) == 1:
            other = next(name for name in ("a", "b") if (name == root.name) is first)
            await world.app.move(Wanderer, other, to="c")
            await world.app.move(Wanderer, "c", to="d")
        return problems

    monkeypatch.setattr(backup, "back_up_tree", moving)
    async with running_here(App(agents=[Wanderer])) as world:
        for name in ("a", "b"):
            await (await world.get_agent(Wanderer, name)).keep(name)
        count = await world.app.backup(tmp_path / "copy")
    roots = {str(root) for root in roots_in(tmp_path / "copy")}
    assert count == len(roots) == 2
    assert roots == ({"Wanderer:a", "Wanderer:b"} if first else {f"Wanderer:{done[0].name}", "Wanderer:d"})
