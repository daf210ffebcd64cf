"""Files in backups, restores and verifications: whole, from one moment, and checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conformance.test_files import Shelf, blobs, large
from tests.conformance.worlds import Run

from sapwood.app import CONTENT_CHECKS
from sapwood.errors import StoredDataError
from sapwood.kernel.node.tree_check import check_folder
from sapwood.testing import World


async def filled(world: World) -> None:
    """Store files in a root and in its child."""
    shelf = await world.get_agent(Shelf, "s")
    await shelf.put(large())
    await shelf.put(b"small")
    await shelf.put_below("a", large(1))


@pytest.mark.slow
async def test_files_come_back_from_a_backup(run: Run, tmp_path: Path) -> None:
    async with run(Shelf) as world:
        await filled(world)
        before = blobs(world)
        await world.app.backup(tmp_path / "copy")
        shelf = await world.get_agent(Shelf, "s")
        for file in await shelf.stored():
            await shelf.delete(file)
        await shelf.cut("a")
        await shelf.put(large(7))

        await world.app.restore(tmp_path / "copy")

        shelf = await world.get_agent(Shelf, "s")
        assert [await shelf.get(file) for file in await shelf.stored()] == [large(), b"small"]
        assert [file.size for file in await shelf.stored_below("a")] == [len(large(1))]
        assert blobs(world) == before


async def test_a_backup_is_a_data_folder_with_the_files(run: Run, tmp_path: Path) -> None:
    async with run(Shelf) as world:
        await filled(world)
        await world.app.backup(tmp_path / "copy")
    async with run(Shelf, data=str(tmp_path / "copy")) as world:
        shelf = await world.get_agent(Shelf, "s")

        assert [await shelf.get(file) for file in await shelf.stored()] == [large(), b"small"]


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def change(path: Path) -> None:
    path.write_bytes(b"!" + path.read_bytes()[1:])


@pytest.mark.slow
@pytest.mark.parametrize("damage", [Path.unlink, shorten, change])
async def test_a_damaged_file_is_noticed(run: Run, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    async with run(Shelf) as world:
        await filled(world)
        await world.app.backup(tmp_path / "copy")
        for folder in (world.data, tmp_path / "copy"):
            damage(min(folder.glob("trees/*/*.files/*")))

        with pytest.raises(StoredDataError, match=r"The file [0-9a-f]{64} in .*\.files"):
            await world.app.backup(tmp_path / "second")

        assert len(check_folder(tmp_path / "copy", None, CONTENT_CHECKS).damaged) == 1
