"""The names of all trees of a data folder, sorted, kept in memory from one request to the next.

A tree's folder has a name that says nothing, so its label has to be read: once, and in small parts, so that agents are
not held up. The folder of the trees is listed again only if it has changed.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_right, insort
from pathlib import Path

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.kernel.node.data_folder import TRANSIENT, TREES, labelled
from sapwood.kernel.node.node import Node
from sapwood.settings import Settings

READ_AT_ONCE = 50
"""Labels that are read before other tasks have a turn."""
LISTED_AT_ONCE = 2000
"""And entries of the folder that are listed."""
SURE_AFTER = 1.0
"""Seconds after which a change of a folder has another time than the one before."""


class RootNames:
    """The trees of one data folder."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._by_folder: dict[str, str] = {}
        self._sorted: list[str] = []
        self._listed_at: tuple[int, float] | None = None
        """When the folder had changed, and when it was listed; `None` if it has to be listed again."""
        self._lock = asyncio.Lock()

    async def sorted_after(self, node: Node, after: str | None) -> tuple[list[str], int]:
        """Return all names, sorted, and the place of the first one after a name. The list may change at any await."""
        async with self._lock:
            await self._refresh(node.folder / TREES)
        known = self._sorted
        for root, tree in list(node.trees.items()):  # those that have stored nothing yet have no folder
            if tree.actors and not _has(known, text := str(root)):
                known = known if known is not self._sorted else known.copy()
                insort(known, text)
        return known, 0 if after is None else bisect_right(known, after)

    async def _refresh(self, folder: Path) -> None:
        changed = _changed_at(folder)
        if self._listed_at is not None and self._listed_at[0] == changed and self._is_sure():
            return
        listed_at, self._listed_at = time.time(), None  # until it is read to its end: a client may go away before
        names = await _names(folder)
        for name in self._by_folder.keys() - names:
            self._sorted.remove(self._by_folder.pop(name))
        new = sorted(names - self._by_folder.keys())
        is_first, is_whole = not self._sorted, True
        try:
            for count, name in enumerate(new, 1):
                if isinstance(root := labelled(folder / name), Address):
                    self._by_folder[name] = text = str(root)
                    self._sorted.append(text) if is_first else insort(self._sorted, text)
                else:
                    is_whole = False  # it may get its label at any time
                if count % READ_AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            if is_first:
                self._sorted.sort()
        if is_whole:
            self._listed_at = (changed, listed_at)  # as the file system, not the clock of the agents

    def _is_sure(self) -> bool:
        """Return whether the folder was listed long enough after its change to have all of it."""
        assert self._listed_at is not None
        changed, at = self._listed_at
        return at - changed / 1e9 > SURE_AFTER


def _changed_at(folder: Path) -> int:
    return folder.stat().st_mtime_ns


async def _names(folder: Path) -> set[str]:
    found: set[str] = set()
    with os.scandir(folder) as entries:
        for count, entry in enumerate(entries, 1):
            if not entry.name.endswith(TRANSIENT):
                found.add(entry.name)
            if count % LISTED_AT_ONCE == 0:
                await asyncio.sleep(0)
    return found


def _has(known: list[str], text: str) -> bool:
    place = bisect_right(known, text)
    return place > 0 and known[place - 1] == text
