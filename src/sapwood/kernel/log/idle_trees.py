"""Trees that no node has open leave the log: the archive has all of them, and they are read from there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from sapwood.clock import Clock
from sapwood.errors import SapwoodError
from sapwood.kernel.log.archive_files import Named, sweep_removals
from sapwood.kernel.log.archive_objects import sweep_ended, sweep_handed
from sapwood.kernel.log.snapshots import park
from sapwood.kernel.ports.log import Archive, Epoch, FencedLog
from sapwood.timings import Timings

log = logging.getLogger(__name__)

AT_ONCE = 4
"""How many trees are parked at the same time."""
RETRY_AFTER = 30.0
"""Seconds until what failed is tried again."""
LEFTOVERS = 600.0
"""Seconds between looks at what is left of trees that were handed over, or destroyed."""
SWEEPER = 0
"""The shard whose owner looks after what belongs to no shard."""


class IdleTrees:
    """Parks the idle trees of one node's shards."""

    def __init__(
        self,
        stored: FencedLog,
        archive: Archive,
        clock: Clock,
        *,
        epoch_of: Callable[[int], Epoch | None],
        lock: Callable[[str], asyncio.Lock],
        retry_at: dict[str, float],
        park_after: float,
        history: float,
        named: Named,
        timings: Timings,
    ) -> None:
        """`lock`: is held while a tree is loaded, put away or parked. `retry_at`: when what failed is tried again.

        `named`: tells which objects of files a tree names.
        """
        self._stored = stored
        self._archive = archive
        self._clock = clock
        self._epoch_of = epoch_of
        self._lock = lock
        self._retry_at = retry_at
        self.park_after = park_after
        self._history = history
        self._named = named
        self._timings = timings
        self._idle: dict[str, tuple[int, float]] = {}
        """Trees that are not open: how many messages they have in the log, and since when."""
        self._next_leftovers = 0.0
        """When to look next at what was left of trees that were handed over, or destroyed."""

    def forget(self, tree: str) -> None:
        """A tree is being opened."""
        self._idle.pop(tree, None)

    async def run(self, open_trees: Callable[[], Collection[str]], owned: Callable[[], Collection[int]]) -> None:
        """Park trees at intervals. Does not return."""
        while True:
            await asyncio.sleep(self._pause)
            try:
                await self.sweep(open_trees(), owned())
            except SapwoodError as error:
                log.warning("parking idle trees failed: %s", error)
            except Exception:
                log.exception("parking idle trees failed")

    async def run_leftovers(self) -> None:
        """Sweep at intervals what other nodes, and trees and files that are gone, left behind. Does not return.

        It may take long, so no tree waits for it.
        """
        while True:
            await asyncio.sleep(self._pause)
            if self._epoch_of(SWEEPER) is None or asyncio.get_running_loop().time() < self._next_leftovers:
                continue
            self._next_leftovers = asyncio.get_running_loop().time() + LEFTOVERS
            try:
                await sweep_handed(self._archive, self._clock.now() - self._timings.handover_expiry)
                await sweep_ended(self._archive, self._clock.now() - self._history)
                await sweep_removals(self._archive, self._clock.now() - self._history, self._named)
            except SapwoodError as error:
                log.warning("sweeping the archive failed: %s", error)
            except Exception:
                log.exception("sweeping the archive failed")

    @property
    def _pause(self) -> float:
        return min(max(self.park_after / 4, self._timings.snapshot_interval / 4), 60.0)

    async def sweep(self, open_trees: Collection[str], owned: Collection[int]) -> int:
        """Park the trees of these shards that were closed for long enough; return their number.

        They may be left from a node that died: what counts is that nothing was written since it was first looked at.
        """
        now = asyncio.get_running_loop().time()
        there = await self._stored.trees(owned)
        idle: dict[str, tuple[int, float]] = {}
        ready: list[tuple[int, str]] = []
        for shard, trees in there.items():
            for tree, count in trees.items():
                if tree in open_trees or not count:
                    continue
                known = self._idle.get(tree)
                idle[tree] = known if known is not None and known[0] == count else (count, now)
                if now - idle[tree][1] >= self.park_after and self._retry_at.get(tree, 0.0) <= now:
                    ready.append((shard, tree))
        self._idle = idle
        slots = asyncio.Semaphore(AT_ONCE)
        done = await asyncio.gather(*(self._park(shard, tree, slots) for shard, tree in ready))
        return sum(done)

    async def _park(self, shard: int, tree: str, slots: asyncio.Semaphore) -> bool:
        async with slots, self._lock(tree):
            epoch = self._epoch_of(shard)
            if tree not in self._idle or epoch is None:
                return False  # opened since, or another node's

            def is_ours() -> bool:
                return self._epoch_of(shard) == epoch

            try:
                parked = await park(
                    self._stored,
                    self._archive,
                    shard,
                    tree,
                    clock=self._clock,
                    history=self._history,
                    is_ours=is_ours,
                )
            except SapwoodError as error:
                self._retry_at[tree] = asyncio.get_running_loop().time() + RETRY_AFTER
                log.warning("parking tree %s failed: %s", tree, error)
                return False
            self._idle.pop(tree, None)
            return parked
