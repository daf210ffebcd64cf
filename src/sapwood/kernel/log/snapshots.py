"""Moves trees from the log to the archive: snapshots of those that write, and those that rest as a whole.

A snapshot is made from the log and the snapshot before it, not from the local files: so commits continue,
nothing is archived that was not checked, and what another node left behind is treated as what is open here.
It costs a second look at what was written since the last one, never more than the tree is large.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.kernel.log.archive_files import note_tree_end
from sapwood.kernel.log.archive_objects import (
    LIVE,
    MARKS,
    PARKED,
    SNAPSHOTS,
    ArchiveMark,
    Image,
    Snapshot,
    TreeEnd,
    end_key,
    ended_key,
    is_parked,
    last_mark,
    mark_key,
    name_of,
    pack_mark,
    pack_snapshot,
    place_of,
    unpack_snapshot,
)
from sapwood.kernel.log.records import Base, ChainBroken, ChainLink, Message, chained, commits, program, tree_id, unseal
from sapwood.kernel.log.restore import TreeContent, read_tree, since_base
from sapwood.kernel.ports.log import Archive, FencedLog, Record
from sapwood.kernel.ports.shards import shard_of

log = logging.getLogger(__name__)

INLINE = 256 * 1024
"""Messages up to this size are archived as they are, and not as the files they make."""


async def snapshot(
    stored: FencedLog, archive: Archive, root: Address, sequence: int, digest: bytes, *, clock: Clock
) -> Base:
    """Have the archive take a tree as it is after one of its messages; return what the log may stand on then.

    Commits continue. `ChainBroken` if the log does not have what leads there.
    """
    tree = tree_id(root)
    records = [record for record in await stored.read(shard_of(root), tree) if record.sequence <= sequence]
    return await _archive_files(archive, tree, records, digest, clock.now())


async def _archive_files(archive: Archive, tree: str, records: Sequence[Record], digest: bytes, now: float) -> Base:
    state = await read_tree(records, archive, tree)
    if state is None or state.tail.digest != digest:
        raise ChainBroken(f"The log of tree {tree} does not lead to the last message that its owner stored.")
    return await archive_state(archive, Address.parse(unseal(records[-1]).message.root), state, now)


async def archive_state(archive: Archive, root: Address, state: TreeContent, now: float) -> Base:
    """Have the archive take the files of a tree."""
    return await _put(
        archive,
        Snapshot(
            root=str(root),
            epoch=state.tail.epoch,
            sequence=state.tail.sequence,
            chain=state.tail.digest,
            at=now,
            version=program(),
            images=[Image(stem, state.page_sizes[stem], bytes(content)) for stem, content in state.files.items()],
        ),
    )


async def _put(archive: Archive, snapshot: Snapshot) -> Base:
    data, base = await asyncio.to_thread(pack_snapshot, snapshot)
    await archive.put(base.key, data)
    return base


async def park(
    stored: FencedLog,
    archive: Archive,
    shard: int,
    tree: str,
    *,
    clock: Clock,
    history: float,
    is_ours: Callable[[], bool] = lambda: True,
) -> bool:
    """Delete a tree without writers from the log. Returns `False` if that was not possible.

    Safe to die anywhere, and to be overtaken by a new owner who writes: first the archive has the tree as a whole, then
    the mark says so, and only then its messages go, up to the last one that the archive has. A reader before that finds
    the log as it was; a new writer follows what was parked, and that is what restoring looks for. A mark of an owner
    that is late sorts before those of later ones, and does not count; if the tree was destroyed since there is none of
    later ones, so no former owner marks it.
    """
    records = await stored.read(shard, tree)
    if not records:
        return False
    links = await asyncio.to_thread(chained, records)
    whole = commits(links)
    if not whole:
        return False
    last = whole[-1][-1]
    if last.message.is_end or last.message.moved_to:
        await forget_tree(archive, tree, last.message, last.sequence)
        await stored.drop(shard, tree, last.sequence)
        return True
    now = clock.now()
    base = await _archive(archive, tree, records, since_base(links), last, now)
    key = mark_key(tree, last.message.epoch, last.sequence, PARKED)
    if not is_ours():
        return False
    await archive.put(key, pack_mark(key, ArchiveMark(root=last.message.root, at=now, parked=base)))
    await stored.drop(shard, tree, last.sequence)
    await _forget_marks(archive, tree, key)
    await sweep_tree(archive, tree, base, before=now - history)
    return True


async def _archive(
    archive: Archive, tree: str, records: Sequence[Record], links: Sequence[ChainLink], last: ChainLink, now: float
) -> Base:
    """Have the archive take a tree, in the form that is less."""
    first = links[0]
    messages = [(one.sequence, one.data) for one in records if first.sequence <= one.sequence <= last.sequence]
    base = first.message.base
    if base is None and first.message.before and not (first.message.is_end or first.message.moved_to):
        marked = await last_mark(archive, tree)
        base = None if marked is None else marked[1].parked
        if base is None or base.chain != first.message.before:
            # A node was parking it and died, or something is missing: reading it as a whole tells.
            return await _archive_files(archive, tree, records, last.digest, now)
    if base is not None and not name_of(base.key).has_files:
        below = unpack_snapshot(await archive.get(base.key) or b"", base.key, base.digest)
        messages = [*below.messages, *messages]
        base = below.base
    if sum(len(data) for _, data in messages) > INLINE:
        return await _archive_files(archive, tree, records, last.digest, now)
    return await _put(
        archive,
        Snapshot(
            root=last.message.root,
            epoch=last.message.epoch,
            sequence=last.sequence,
            chain=last.digest,
            at=now,
            version=program(),
            base=base,
            messages=messages,
        ),
    )


async def mark_live(archive: Archive, root: Address, epoch: int, sequence: int, *, clock: Clock) -> None:
    """Have the archive know that the log has messages of a tree: if it ever has none, something was lost."""
    tree = tree_id(root)
    try:
        marked = await last_mark(archive, tree)
    except ChainBroken as error:
        log.warning("mark of %s is written again: %s", root, error, extra={"root": str(root)})
        marked = None
    if marked is not None and not is_parked(marked[0]):
        return
    key = mark_key(tree, epoch, sequence, LIVE)
    parked = None if marked is None else marked[1].parked
    await archive.put(key, pack_mark(key, ArchiveMark(root=str(root), at=clock.now(), parked=parked)))
    await _forget_marks(archive, tree, key)


async def mark_live_since(archive: Archive, root: Address, epoch: int, sequence: int, base: Base, clock: Clock) -> str:
    """Have the archive know that the log has messages of a tree since a snapshot; return the key of the mark."""
    tree = tree_id(root)
    key = mark_key(tree, epoch, sequence, LIVE)
    await archive.put(key, pack_mark(key, ArchiveMark(root=str(root), at=clock.now(), parked=base)))
    await _forget_marks(archive, tree, key)
    return key


async def _forget_marks(archive: Archive, tree: str, before: str) -> None:
    old = [key async for key in archive.keys(f"{MARKS}/{tree}/") if key < before]
    if old:
        await archive.remove(old)


async def forget_tree(archive: Archive, tree: str, end: Message, sequence: int) -> None:
    """Have the archive forget a tree that ended with this message.

    A restore to an earlier time still finds its snapshots, and the second copy of the log, until they are swept. What
    was archived later is of a tree of the same name that was made since.
    """
    place = end.epoch, sequence
    await note_tree_end(archive, end, sequence)
    snapshots = [key async for key in archive.keys(f"{SNAPSHOTS}/{tree}/") if place_of(key) <= place]
    if snapshots:
        # First, so that they are swept in any case. Rounded up: within the second, the second copy of the log tells.
        await archive.put(end_key(TreeEnd(int(end.at) + 1, tree, *place)), b"")
    for key in snapshots:
        if (data := await archive.get(key)) is not None:
            await archive.put(ended_key(key), data)
    marks = [key async for key in archive.keys(f"{MARKS}/{tree}/") if place_of(key) <= place]
    if marks or snapshots:
        await archive.remove([*marks, *snapshots])


async def sweep_tree(archive: Archive, tree: str, current: Base, *, before: float) -> int:
    """Remove snapshots of a tree that were out of use before this time; return how many.

    `current`: the one that the tree stands on now. What it was made from stays, too.
    """
    keys = [key async for key in archive.keys(f"{SNAPSHOTS}/{tree}/")]
    kept = {current.key}
    for key, after in itertools.pairwise(keys):
        if name_of(after).at >= before:  # it was in use until then
            kept.add(key)
    kept.update(keys[-1:])
    if len(kept) >= len(keys):
        return 0
    for key in [key for key in kept if not name_of(key).has_files]:
        data = await archive.get(key)
        below = None if data is None else unpack_snapshot(data, key, None).base
        if below is not None:
            kept.add(below.key)
    old = [key for key in keys if key not in kept]
    await archive.remove(old)
    return len(old)
