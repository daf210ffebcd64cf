"""Removes the folders of trees: a folder is renamed at once, and deleted in the background."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from sapwood.errors import StoredDataError, Unavailable
from sapwood.kernel.node.background import Background
from sapwood.kernel.node.data_folder import COPYING, REMOVED, RESTORED, unfinished
from sapwood.kernel.ports.durability import Gate
from sapwood.storage.availability import refusals
from sapwood.storage.blobs import blob_folders, remove_blobs
from sapwood.storage.files import Files

LOOKS = 1000
LOOK_AGAIN = 0.1
"""Seconds until to look again at a copy of a tree that is being made."""


class FolderRemoval:
    """Removes the folders of one node's trees."""

    def __init__(self, files: Files, gate: Gate, background: Background, damage: dict[Path, StoredDataError]) -> None:
        self._files = files
        self._gate = gate
        self._background = background
        self._damage = damage
        """The databases that were found damaged. A removed one is forgotten."""
        self._running: dict[Path, asyncio.Task[None]] = {}
        """What deletes a folder now."""

    def move_away(self, folder: Path) -> None:
        """Free the name of a folder, and delete it later."""
        away = self._files.unused_path(folder, REMOVED)
        self._files.rename(folder, away)
        for path in [path for path in self._damage if path.parent == folder]:
            del self._damage[path]
        self._gate.moved(folder)
        self.remove(away)

    def finish(self, data: Path, is_own: Callable[[Path], bool], *, restores: bool) -> None:
        """Finish the removals and, with `restores`, the restores that a crash interrupted."""
        for one in unfinished(data):
            if not is_own(one):
                continue
            if restores and one.suffix == RESTORED and not one.with_suffix("").exists():
                self._files.rename(one, one.with_suffix(""))
            else:
                self.remove(one)

    def remove(self, folder: Path) -> asyncio.Task[None]:
        """Delete a folder in the background, and return the task that does."""
        running = self._running.get(folder)
        if running is None:
            running = self._running[folder] = self._background.start(self._remove(folder))
            running.add_done_callback(lambda _: self._running.pop(folder, None))
        return running

    async def remove_all_of(self, folder: Path) -> None:
        """Return once nothing is left of a tree's folder, whatever suffix it has got, and that is durable.

        A copy that is being made is waited for: who makes it removes it, or puts it in its place.
        """
        with refusals():
            for _ in range(LOOKS):
                left = list(folder.parent.glob(f"{folder.name}*"))
                if not left:
                    await self._gate.sync_folder(folder.parent)
                    return
                for path in left:
                    if path.suffix == COPYING:
                        await asyncio.sleep(LOOK_AGAIN)
                    else:
                        await asyncio.shield(self.remove(path))
        raise Unavailable(f"A copy of the tree in {folder.name} is still being made.")

    async def _remove(self, folder: Path) -> None:
        await self._gate.sync_folder(folder.parent)
        if not _is_folder(folder):
            self._files.remove(folder)
            return
        for below in blob_folders(folder):
            for _ in remove_blobs(below, self._files):
                await asyncio.sleep(0)
        for number, file in enumerate(_files_in(folder), start=1):
            self._files.remove(file)
            if number % 200 == 0:
                await asyncio.sleep(0)
        self._files.remove_folder(folder)


def _is_folder(path: Path) -> bool:
    return path.is_dir()


def _files_in(folder: Path) -> list[Path]:
    """Return the files of a tree that is removed. Folders in it are removed at once: they are not sapwood's."""
    files: list[Path] = []
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            files.append(Path(entry.path))
    return sorted(files)
