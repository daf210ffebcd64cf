"""A tree is copied while it works: all its files as they were at one moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.conformance.worlds import Run

from sapwood import Agent, App, NotFound, Settings, UsageError
from sapwood.kernel.backup import roots
from sapwood.kernel.node import RESTORED, tree_folder


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

    async def known(self) -> list[int]:
        return [int(str(row["number"])) for row in self.sql("SELECT number FROM books ORDER BY number")]

    async def shelved(self) -> list[int]:
        shelves = [await self.sub_agent(Shelf, child.name) for child in self.list_sub_agents(Shelf)]
        return sorted([number for shelf in shelves for number in await shelf.numbers()])

    async def burn(self) -> None:
        for child in self.list_sub_agents(Shelf):
            await self.delete_sub_agent(Shelf, child.name)

    async def end(self) -> None:
        await self.destroy()


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
        assert await world.app.back_up(tmp_path / "copy") == 1
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


async def test_more_commits_than_a_checkpoint_waits_for_do_not_spoil_a_backup(run: Run, tmp_path: Path) -> None:
    async with run(Library) as world:
        library = await world.get_agent(Library, "l")
        await library.put(0)
        tree = world.node.tree(next(roots(world.data)))

        with tree.kept_still():
            before = (tree.folder / "root.db").read_bytes()
            for number in range(1, 1200):
                await library.put(number)
            assert (tree.folder / "root.db").read_bytes() == before

        await library.put(1200)
        assert (tree.folder / "root.db").read_bytes() != before
        assert await library.known() == list(range(1201))


async def test_a_restored_tree_is_what_it_was_and_goes_on_from_there(run: Run, tmp_path: Path) -> None:
    async with run(Library) as world:
        library = await world.get_agent(Library, "l")
        for number in range(5):
            await library.put(number)
        await world.app.back_up(tmp_path, Library, "l")
        await library.burn()
        await library.put(77)

        assert await world.app.restore(tmp_path, Library, "l") == 1

        assert await library.known() == await library.shelved() == [0, 1, 2, 3, 4]
        await library.put(5)
        await world.crash()
        library = await world.get_agent(Library, "l")
        assert await library.shelved() == [0, 1, 2, 3, 4, 5]


async def test_a_whole_folder_comes_back_with_every_tree_in_it(run: Run, tmp_path: Path) -> None:
    async with run(Library) as world:
        names = ["a", "b", "../x", "ä/ö"]
        for name in names:
            await (await world.get_agent(Library, name)).put(len(name))
        assert await world.app.back_up(tmp_path / "all") == len(names)
        await (await world.get_agent(Library, "a")).end()
        await (await world.get_agent(Library, "b")).put(500)

        assert await world.app.restore(tmp_path / "all") == len(names)

        for name in names:
            assert await (await world.get_agent(Library, name)).known() == [len(name)]


async def test_a_crash_between_the_two_renames_of_a_restore_is_finished_at_the_next_start(
    run: Run, tmp_path: Path
) -> None:
    async with run(Library) as world:
        library = await world.get_agent(Library, "l")
        await library.put(1)
        await world.app.back_up(tmp_path, Library, "l")
        await library.put(2)
        (root,) = roots(world.data)
        folder = tree_folder(world.data, root)
        await world.node.die()
        tree_folder(tmp_path, root).rename(folder.with_name(folder.name + RESTORED))
        folder.rename(folder.with_name(f"{folder.name}-1.removed"))

        await world.crash()

        assert await (await world.get_agent(Library, "l")).known() == [1]
        await world.restart()
        assert {entry.name for entry in (world.data / "trees").iterdir()} == {folder.name}


async def test_a_backup_never_overwrites_one_and_says_when_there_is_nothing(run: Run, tmp_path: Path) -> None:
    async with run(Library) as world:
        library = await world.get_agent(Library, "l")
        with pytest.raises(NotFound, match="has no data"):
            await world.app.back_up(tmp_path, Library, "nobody")
        with pytest.raises(NotFound, match="has no Library:l"):
            await world.app.restore(tmp_path, Library, "l")
        await library.put(1)
        await world.app.back_up(tmp_path, Library, "l")

        with pytest.raises(UsageError, match="holds a copy"):
            await world.app.back_up(tmp_path, Library, "l")
