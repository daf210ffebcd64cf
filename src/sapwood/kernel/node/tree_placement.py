"""Puts a folder in the place of a tree, or makes a new tree of it, on the node that runs that tree.

In a cluster nodes share no disk: the files go to the owner through the archive.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from sapwood.address import Address
from sapwood.errors import NotFound, StoredDataError, Unavailable
from sapwood.kernel.actors.objects_table import folder_of
from sapwood.kernel.aio import to_the_end
from sapwood.kernel.log.archive_objects import Image, Snapshot, handed_key, pack_snapshot, unpack_snapshot
from sapwood.kernel.log.records import ChainBroken, program, tree_id
from sapwood.kernel.log.restore import TreeContent, put_together, write
from sapwood.kernel.marshal.values import pack
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.past import settle
from sapwood.kernel.node.stored_copies import half_of
from sapwood.kernel.ports.placement import Moved
from sapwood.randomness import new_id
from sapwood.storage.image import PAGE_SIZE
from sapwood.storage.wal_frames import whole_image

TAKE = "take a tree from the archive"


class TakeRequest(msgspec.Struct, array_like=True):
    """A tree that another node has put into the archive."""

    key: str
    root: str
    error: str
    """Why its calls end."""
    is_new: bool = False
    """Whether there must not be such a tree yet."""
    is_rewind: bool = False
    """Whether there must be such a tree."""


read_take_request = msgspec.msgpack.Decoder(TakeRequest).decode


async def replace_tree(
    node: Node,
    root: Address,
    half: Path,
    error: Unavailable,
    *,
    is_new: bool = False,
    is_rewind: bool = False,
    arrival: str | None = None,
) -> None:
    """Put a folder in the place of a tree that this node runs. Calls to the tree wait until then.

    `is_new`: there must not be such a tree yet. `is_rewind`: there must be one. `arrival`: the id of the move from
    another server that the folder comes from.
    """
    try:
        if not is_new and node.file_archive is not None and await _may_have_objects(node, root):
            await node.file_archive.note_check(root)  # first: a crash must not leave what is replaced in the archive
    except BaseException:
        await to_the_end(shutil.rmtree, half, ignore_errors=True)
        raise
    await node.removal.replace(root, half, error, is_new=is_new, is_rewind=is_rewind, arrival=arrival)
    await settle(node, root)  # from this moment on, the past has the new files


async def _may_have_objects(node: Node, root: Address) -> bool:
    """Return whether a tree, as it is now, may have files in the archive."""
    try:
        return folder_of((await node.loader.load_files(root)).root) is not None
    except (ChainBroken, StoredDataError):
        return True


async def place_anywhere(
    node: Node,
    root: Address,
    make: Callable[[], Awaitable[Path]],
    error: Unavailable,
    *,
    is_new: bool = False,
    is_rewind: bool = False,
) -> None:
    """Put the folder that `make` returns in the place of a tree of a cluster, whichever node runs it."""
    far, keeper = node.far, node.keeper
    assert keeper is not None

    async def place() -> None:
        half = await make()
        try:
            if node.file_copies is not None:
                await node.file_copies.store(half, root, keeper.file_archive)
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, half, ignore_errors=True)
            raise
        if far is None or node.owns(root):
            await replace_tree(node, root, half, error, is_new=is_new, is_rewind=is_rewind)
            return
        key = handed_key(tree_id(root), node.clock.now(), new_id(node.random))
        await keeper.archive.put(key, await asyncio.to_thread(_packed, root, half, node.clock.now()))
        try:
            order = TakeRequest(key, str(root), str(error), is_new, is_rewind)
            await far.ask(await far.directory.owner(root), TAKE, pack(order))
        finally:
            await keeper.archive.remove([key])

    if far is None:
        await place()
    else:
        await far.follow(root, place)


def _packed(root: Address, folder: Path, at: float) -> bytes:
    """Return the files of a folder as one object, and remove it."""
    images = [Image(path.stem, PAGE_SIZE, whole_image(path)) for path in sorted(folder.glob("*.db"))]
    shutil.rmtree(folder)
    whole = Snapshot(root=str(root), epoch=0, sequence=0, chain=b"", at=at, version=program(), images=images)
    return pack_snapshot(whole)[0]


async def take(node: Node, order: TakeRequest) -> int:
    """Put a tree in its place that another node has put into the archive."""
    root = Address.parse(order.root)
    if not node.owns(root):
        raise Moved(root)
    assert node.keeper is not None
    data = await node.keeper.archive.get(order.key)
    if data is None:
        raise NotFound(f"The archive has no {order.key!r}.", path=root.segments)
    half = half_of(tree_folder(node.folder, root), node.files)
    await write(await asyncio.to_thread(_unpacked, data, order.key), root, half, node.files)
    error = Unavailable(order.error)
    await replace_tree(node, root, half, error, is_new=order.is_new, is_rewind=order.is_rewind)
    return 1


def _unpacked(data: bytes, key: str) -> TreeContent:
    return put_together(unpack_snapshot(data, key, None), None, [], None)
