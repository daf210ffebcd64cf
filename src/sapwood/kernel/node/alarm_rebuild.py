"""Makes the index of alarms from what the trees hold, if it is missing, incomplete or damaged."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Sequence

from sapwood.address import Address
from sapwood.errors import SapwoodError, UnknownAgent
from sapwood.kernel.node.data_folder import OddEntry, entries
from sapwood.kernel.node.dispatcher import AlarmDispatcher
from sapwood.kernel.node.tree_host import TreeHost
from sapwood.kernel.node.tree_loader import TreeLoader

log = logging.getLogger(__name__)

PAUSE = 5.0
"""Seconds until an index of alarms is rebuilt again that was damaged while it was rebuilt."""


class AlarmRebuild:
    """Rebuilds the index of alarms of one node."""

    def __init__(self, node: TreeHost, loader: TreeLoader, waking: AlarmDispatcher) -> None:
        self._node = node
        self._loader = loader
        self._waking = waking
        self._task: Task[None] | None = None

    def start(self) -> None:
        """Make the index of alarms from what the trees hold, until it has all of them."""
        if self._task is None or self._task.done():
            known = self._indexed_trees()
            if not known and self._node.keeper is None:
                self._node.alarms.complete()
                return
            self._task = self._node.background.start(self._rebuild_until_whole(known))

    def _indexed_trees(self) -> list[Address]:
        """Return the trees that the index of alarms has to be made from."""
        if self._node.keeper is not None:
            return []
        found = list(entries(self._node.folder))
        for entry in found:
            if isinstance(entry, OddEntry) and entry.has_data:
                log.warning("alarms of an entry that is not a tree are not known: %s %s", entry.problem, entry.remedy)
        return [root for root in found if isinstance(root, Address) and self._node.owns(root)]

    async def _rebuild_until_whole(self, known: Sequence[Address]) -> None:
        if not self._node.alarms.losses:  # or it was logged why
            log.info("alarm index is missing or incomplete; rebuilding it from %d trees", len(known))
        while True:
            losses = self._node.alarms.losses
            self._node.alarms.prepare()
            if self._node.keeper is None:
                await self._index(known)
            elif (cluster := self._node.cluster) is not None:
                await cluster.read_alarms()
            if self._node.alarms.losses == losses:
                self._node.alarms.complete()
            if self._node.alarms.losses == losses:
                return
            await asyncio.sleep(PAUSE)
            known = self._indexed_trees()

    async def _index(self, roots: Sequence[Address]) -> None:
        """Enter the alarms of these trees."""
        for root in roots:
            try:
                known, kind = self._waking.root_known_as(root)
            except UnknownAgent:
                known, kind = root, None  # what it has to do waits for its class
            try:
                tree = self._loader.tree(known, kind, only_files=True)
                if tree.destroyed is None and tree.root.exists:
                    due, dead = tree.alarms.summary()
                    if due is not None or dead:
                        self._node.alarms.earlier(known, due, dead)
            except SapwoodError:
                log.exception("reading the alarms of a tree failed: %s", root, extra={"root": str(root)})
                self._node.alarms.earlier(root, self._node.clock.now(), 0)  # so that it is tried again
            await asyncio.sleep(0)

    def stop(self) -> None:
        """End an unfinished rebuild: the next start begins it again."""
        if self._task is not None:
            self._task.cancel()
