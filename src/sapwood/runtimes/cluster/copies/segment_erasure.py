"""Erases a tree from the second copy of the log: each segment that has lines of it is written again without them."""

from __future__ import annotations

import asyncio

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.log.records import ChainBroken, tree_id
from sapwood.kernel.ports.log import Archive
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.layout import Names
from sapwood.runtimes.cluster.base.segments import (
    SEGMENTS,
    SegmentLine,
    get_segment,
    last_copied,
    lines_of,
    pack_segment,
)
from sapwood.runtimes.cluster.copies.log_shipper import EVERY, INDEX

LOOK_EVERY = 1.0
LOOKS = int(6 * EVERY / LOOK_EVERY)
"""How often to look whether the second copy has what the log has deleted: a segment may be on its way."""


async def erase_segments(archive: Archive, names: Names, root: Address, up_to: int) -> tuple[int, bool]:
    """Erase what a stream got of a tree up to a place; return from how many segments, and whether there are no more.

    A segment that is being written may have lines of the tree, so this waits until segments cover the place.
    """
    stream = names.layout.stream_of(shard_of(root))
    is_covered = False
    for _ in range(LOOKS):
        copied = await last_copied(archive, stream)
        is_covered = copied is not None and copied.last >= up_to
        if is_covered:
            break
        await asyncio.sleep(LOOK_EVERY)
    count = 0
    for kind in (SEGMENTS, INDEX):
        for key in [key async for key in archive.keys(f"{kind}/{stream:04}/")]:
            count += await _erase(archive, key, tree_id(root), up_to)
    return count, is_covered


async def _erase(archive: Archive, key: str, tree: str, up_to: int) -> bool:
    """Write one object again if it has lines of a tree; return whether it had."""
    try:
        segment = await get_segment(archive, key)
    except ChainBroken as error:
        raise Unavailable(f"{error} It may have data of the tree. Repair the archive, and erase again.") from error
    if segment is None:
        return False
    lines = await asyncio.to_thread(lines_of, segment)
    left = [line for line in lines if not _is_of(line, tree, up_to)]
    if len(left) == len(lines):
        return False
    await archive.put(key, await asyncio.to_thread(pack_segment, segment.stream, segment.first, segment.last, left))
    return True


def _is_of(line: SegmentLine, tree: str, up_to: int) -> bool:
    return line.kind in ("tree", "alarm") and line.tree == tree and line.sequence <= up_to
