"""Backups of trees while they run, and their way back.

A backup is a data folder: it can be opened as it is, elsewhere, or put back in place of
a tree. All files of a tree are from one moment, between two commits; trees among
themselves are not.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from sapwood.address import Address
from sapwood.errors import NotFound, Unavailable, UsageError
from sapwood.kernel.node import COPYING, Node, roots_in, tree_folder
from sapwood.kernel.parcels import pack
from sapwood.kernel.tree import LABEL, Tree
from sapwood.storage.copies import Order, Part, copy_elsewhere
from sapwood.storage.image import wal_bytes

BACK_UP = "back up"
RESTORE = "restore"


class Copying(msgspec.Struct, array_like=True):
    """What another node is asked to back up or to restore."""

    folder: str
    root: str | None
    """None: all that it runs."""


read_copying = msgspec.msgpack.Decoder(Copying).decode


async def back_up_tree(node: Node, root: Address, target: Path) -> int:
    """Copy one tree into the data folder `target`, which may hold other trees; return how many bytes that were."""
    tree = node.tree(root, only_files=True)
    if not tree.folder.exists():
        raise NotFound(f"{root} has no data.", path=root.steps)
    final = tree_folder(target, root)
    if final.exists():
        raise UsageError(f"{str(target)!r} holds a copy of {root} already. Choose another folder.")
    with tree.kept_still():
        parts = _cut(tree)
        half = final.with_name(f"{final.name}-{time.time_ns()}{COPYING}")
        size = await copy_elsewhere(Order(str(tree.folder), str(half), parts))
    half.rename(final)
    return size


def _cut(tree: Tree) -> list[Part]:
    """Return what to copy, so that it is the tree at this very moment. Nothing of it may be awaited."""
    tree.slices.commit()
    open_ = {database.path.name: database for database in tree.databases.values() if database.is_open}
    parts: list[Part] = []
    for entry in os.scandir(tree.folder):
        if entry.name.endswith(".db"):
            parts.append(Part(entry.name))
        elif entry.name.endswith("-wal"):
            database = open_.get(entry.name.removesuffix("-wal"))
            parts.append(Part(entry.name, entry.stat().st_size if database is None else wal_bytes(database.frames)))
        elif entry.name == LABEL:
            parts.append(Part(entry.name))
    return parts


async def back_up(node: Node, target: Path, root: Address | None) -> int:
    """Copy one tree, or all, whichever node runs them; return how many there were."""
    if root is None:
        return await back_up_all(node, target) + await _by_others(node, BACK_UP, target)
    if node.far is not None and not node.owns(root):
        return int(await node.far.ask_owner(root, BACK_UP, _order(target, root)))
    await back_up_tree(node, root, target)
    return 1


async def restore(node: Node, source: Path, root: Address | None) -> int:
    """Put back one tree, or all, whichever node runs them; return how many there were."""
    if root is None:
        return await restore_all(node, source) + await _by_others(node, RESTORE, source)
    if node.far is not None and not node.owns(root):
        return int(await node.far.ask_owner(root, RESTORE, _order(source, root)))
    await restore_tree(node, root, source)
    return 1


async def _by_others(node: Node, verb: str, folder: Path) -> int:
    """Have all other nodes do it, one after the other: they share the folder."""
    if node.far is None:
        return 0
    return sum([int(await node.far.ask(other, verb, _order(folder, None))) for other in await node.far.others()])


def _order(folder: Path, root: Address | None) -> bytes:
    return pack(Copying(str(folder.resolve()), None if root is None else str(root)))


async def back_up_all(node: Node, target: Path) -> int:
    """Copy every tree of the node into the new data folder `target`; return how many there were."""
    count = 0
    for root in [root for root in roots_in(node.folder) if node.owns(root)]:
        try:
            await back_up_tree(node, root, target)
        except NotFound:
            continue  # destroyed meanwhile
        count += 1
    return count


async def restore_all(node: Node, source: Path) -> int:
    """Put back every tree of a backup that this node runs; return how many there were."""
    wanted = [root for root in roots_in(source) if node.owns(root)]
    for root in wanted:
        await restore_tree(node, root, source)
    return len(wanted)


async def restore_tree(node: Node, root: Address, source: Path) -> None:
    """Put a tree back as it is in a backup, in place of what it is now. Calls to it wait meanwhile."""
    copy = tree_folder(source, root)
    if not copy.exists():
        raise NotFound(f"The backup {str(source)!r} has no {root}.", path=root.steps)
    final = tree_folder(node.folder, root)
    half = final.with_name(f"{final.name}-{time.time_ns()}{COPYING}")  # nobody else's, whatever failed before
    parts = [Part(entry.name) for entry in os.scandir(copy)]
    await copy_elsewhere(Order(str(copy), str(half), parts))
    await node.replace(root, half, Unavailable(f"{root} is being restored from a backup."))
