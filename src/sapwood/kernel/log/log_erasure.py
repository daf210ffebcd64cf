"""Takes what was erased out of the log and out of what the archive leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.errors import Unavailable
from sapwood.kernel.log.archive_objects import name_of
from sapwood.kernel.log.records import tree_id, unseal
from sapwood.kernel.log.snapshots import mark_live_since
from sapwood.kernel.ports.log import Archive, FencedLog
from sapwood.kernel.ports.shards import shard_of


class LogErasure:
    """Erases trees of one node from the log."""

    def __init__(
        self,
        log: FencedLog,
        archive: Archive,
        clock: Clock,
        lock: Callable[[str], asyncio.Lock],
        note_live: Callable[[str], None],
    ) -> None:
        """`note_live` is told that the archive knows that the log has messages of a tree."""
        self._log = log
        self._archive = archive
        self._clock = clock
        self._lock = lock
        self._note_live = note_live

    async def end_of(self, root: Address, *, is_former: bool = False) -> int:
        """Return where the log of a destroyed tree ends, or 0 if the log has nothing of it.

        `is_former`: the tree has another address now, and no tree can have this one.
        """
        records = await self._log.read(shard_of(root), tree_id(root))
        if not records:
            return 0
        if not is_former and not unseal(records[-1]).message.is_end:
            raise Unavailable(f"{root} was created again while it was erased.")
        return records[-1].sequence

    async def drop(self, root: Address, up_to: int) -> None:
        """Drop what the log has of a tree up to a place. Again is safe."""
        tree = tree_id(root)
        async with self._lock(tree):
            await self._log.drop(shard_of(root), tree, up_to)

    async def forget_past(self, root: Address) -> tuple[set[str], int]:
        """Have the archive not lead to anything that is older than the last snapshot of an open tree.

        Returns which objects count from now on, and where the log of the tree begins.
        """
        shard, tree = shard_of(root), tree_id(root)
        async with self._lock(tree):
            records = await self._log.read(shard, tree)
            first = unseal(records[0]).message if records else None
            if first is None or first.base is None or not name_of(first.base.key).has_files:
                raise Unavailable(f"The log of {root} does not begin with a snapshot. Try again.")
            key = await mark_live_since(self._archive, root, first.epoch, records[0].sequence, first.base, self._clock)
            self._note_live(tree)
            return {key, first.base.key}, records[0].sequence
