"""Removes copies of files from the disk of a node that has not had their trees open for a while.

The archive has these files. So the disk holds those of open trees, and of trees that were closed a short time ago.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from sapwood.storage.blobs import PART, blob_folders

log = logging.getLogger(__name__)


class CopySweep:
    """The copies of files in one data folder."""

    def __init__(self, lock: Callable[[str], asyncio.Lock], after: Callable[[], float], uploads: float) -> None:
        """`lock`: is held while a tree is loaded or put away. `after`: seconds for which copies stay.

        `uploads`: those for which unfinished uploads stay.
        """
        self._lock = lock
        self._after = after
        self._uploads = uploads
        self._closed: dict[Path, float] = {}
        """The folders of closed trees that may have copies, and since when."""
        self._with_uploads: set[Path] = set()
        """Those of them that have only unfinished uploads."""

    async def find(self, trees: Path, open_trees: Callable[[], Collection[str]]) -> None:
        """Take note of what an earlier process left."""
        found = await asyncio.to_thread(_folders_in, trees)
        in_use = open_trees()
        for folder in found:
            is_loading = self._lock(folder.name).locked()
            if not is_loading and folder.name not in in_use and folder not in self._closed:
                self.closed(folder)

    def opened(self, folder: Path) -> None:
        """A tree is being opened."""
        self._closed.pop(folder, None)
        self._with_uploads.discard(folder)

    def closed(self, folder: Path) -> None:
        """A tree was closed, or is another node's now."""
        self._closed[folder] = asyncio.get_running_loop().time()

    async def sweep(self) -> None:
        """Remove the copies of trees that were closed for long enough."""
        now = asyncio.get_running_loop().time()
        for folder, since in list(self._closed.items()):
            is_over = since <= now - self._uploads
            if since > now - self._after() or (folder in self._with_uploads and not is_over):
                continue
            async with self._lock(folder.name):
                if self._closed.get(folder) != since:
                    continue
                if await asyncio.to_thread(_remove_copies, folder, with_uploads=is_over):
                    self._with_uploads.add(folder)
                else:
                    self.opened(folder)  # nothing is left to look at


def _folders_in(trees: Path) -> list[Path]:
    return [folder for folder in trees.iterdir() if folder.is_dir()] if trees.exists() else []


def _remove_copies(folder: Path, *, with_uploads: bool) -> bool:
    """Remove the files of a tree; return whether unfinished uploads are left."""
    has_uploads = False
    try:
        for copies in blob_folders(folder):
            if with_uploads:
                shutil.rmtree(copies)
                continue
            for path in copies.iterdir():
                if path.name.endswith(PART):
                    has_uploads = True
                else:
                    path.unlink()
            if not any(copies.iterdir()):
                copies.rmdir()
    except FileNotFoundError:
        pass  # the tree went, too
    except OSError as error:
        log.warning("copies of files not removed folder=%s error=%s", folder, error)
    return has_uploads
