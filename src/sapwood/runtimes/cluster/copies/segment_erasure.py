"""Erases a tree from the second copy of the log: each segment that has lines of it is written again without them."""

from __future__ import annotations

import asyncio
from typing import Any

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.log.records import ChainBroken, tree_id
from sapwood.kernel.ports.log import Archive
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.layout import Names
from sapwood.runtimes.cluster.base.segments import (
    SEGMENTS,
    Segment,
    SegmentLine,
    get_segment,
    last_copied,
    lines_of,
    pack_segment,
)
from sapwood.runtimes.cluster.copies.log_shipper import EVERY, INDEX, position

LOOK_EVERY = 1.0
LOOKS = int(6 * EVERY / LOOK_EVERY)
"""How often to look whether the second copy has what the log has deleted: a segment may be on its way."""


class SegmentErasure:
    """The second copy of the log of one cluster."""

    def __init__(self, connection: Any, archive: Archive, names: Names) -> None:
        self._connection = connection
        self._archive = archive
        self._names = names

    async def last_place(self, root: Address) -> int:
        """Return the last place of the stream that has the log of a tree."""
        return (await position(self._connection, self._names.stream(self._stream_of(root)))).last

    async def has(self, root: Address) -> bool:
        """Return whether a segment has messages of a tree. Takes a while: it reads segments until one has."""
        tree = tree_id(root)
        for key in await self._keys(root):
            if (segment := await self._segment(key)) is None:
                continue
            lines = await asyncio.to_thread(lines_of, segment)
            if any(line.data and _is_of(line, tree, segment.last) for line in lines):
                return True
        return False

    async def erase(self, root: Address, up_to: int) -> tuple[int, bool]:
        """Erase what the stream got of a tree up to a place; return from how many segments, and whether that is all.

        A segment that is being written may have lines of the tree, so this waits until segments cover the place.
        """
        is_covered = False
        for _ in range(LOOKS):
            copied = await last_copied(self._archive, self._stream_of(root))
            is_covered = copied is not None and copied.last >= up_to
            if is_covered:
                break
            await asyncio.sleep(LOOK_EVERY)
        tree = tree_id(root)
        count = 0
        for key in await self._keys(root):
            count += await self._erase(key, tree, up_to)
        return count, is_covered

    def _stream_of(self, root: Address) -> int:
        return self._names.layout.stream_of(shard_of(root))

    async def _keys(self, root: Address) -> list[str]:
        stream = self._stream_of(root)
        return [
            key for kind in (SEGMENTS, INDEX) for key in [k async for k in self._archive.keys(f"{kind}/{stream:04}/")]
        ]

    async def _segment(self, key: str) -> Segment | None:
        try:
            return await get_segment(self._archive, key)
        except ChainBroken as error:
            raise Unavailable(f"{error} It may have data of the tree. Repair the archive, and erase again.") from error

    async def _erase(self, key: str, tree: str, up_to: int) -> bool:
        """Write one object again if it has lines of a tree; return whether it had."""
        if (segment := await self._segment(key)) is None:
            return False
        lines = await asyncio.to_thread(lines_of, segment)
        left = [line for line in lines if not _is_of(line, tree, up_to)]
        if len(left) == len(lines):
            return False
        content = await asyncio.to_thread(pack_segment, segment.stream, segment.first, segment.last, left)
        await self._archive.put(key, content)
        return True


def _is_of(line: SegmentLine, tree: str, up_to: int) -> bool:
    return line.kind in ("tree", "alarm") and line.tree == tree and line.sequence <= up_to
