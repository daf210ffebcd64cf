"""Removes copies of files from the disk of a node that has not had their trees open for a while.

The archive has these files. So the disk holds those of open trees, and of trees that were closed a short time ago.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from sapwood.storage.blobs import blob_folders

log = logging.getLogger(__name__)


class CopySweep:
    """The copies of files in one data folder."""

    def __init__(self, lock: Callable[[str], asyncio.Lock], after: Callable[[], float]) -> None:
        """`lock`: is held while a tree is loaded or put away. `after`: seconds for which copies stay."""
        self._lock = lock
        self._after = after
        self._closed: dict[Path, float] = {}
        """The folders of closed trees that may have copies, and since when."""

    async def find(self, trees: Path, is_open: Callable[[str], bool]) -> None:
        """Take note of what an earlier process left."""
        found = await asyncio.to_thread(_folders_in, trees)
        for folder in found:
            if not is_open(folder.name) and folder not in self._closed:
                self.closed(folder)

    def opened(self, folder: Path) -> None:
        """A tree is being opened."""
        self._closed.pop(folder, None)

    def closed(self, folder: Path) -> None:
        """A tree was closed, or is another node's now."""
        self._closed[folder] = asyncio.get_running_loop().time()

    async def sweep(self) -> None:
        """Remove the copies of trees that were closed for long enough."""
        before = asyncio.get_running_loop().time() - self._after()
        for folder, since in list(self._closed.items()):
            if since > before:
                continue
            async with self._lock(folder.name):
                if self._closed.get(folder) == since:
                    del self._closed[folder]
                    await asyncio.to_thread(_remove_copies, folder)


def _folders_in(trees: Path) -> list[Path]:
    return [folder for folder in trees.iterdir() if folder.is_dir()] if trees.exists() else []


def _remove_copies(folder: Path) -> None:
    try:
        for copies in blob_folders(folder):
            shutil.rmtree(copies)
    except FileNotFoundError:
        pass  # the tree went, too
    except OSError as error:
        log.warning("copies of files not removed folder=%s error=%s", folder, error)
