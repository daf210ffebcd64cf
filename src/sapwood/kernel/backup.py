"""Backups of trees while they run, and their way back.

A backup is a data folder: it can be opened as it is, elsewhere, or put back in place of
a tree. All files of a tree are from one moment, between two commits; trees among
themselves are not.

In a cluster nodes share no disk. The node that gets the command makes a backup of what the log and the archive have,
which is everything, and to put one back it hands each tree to its owner through the archive.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sapwood.address import Address
from sapwood.errors import NotFound, Unavailable, UsageError
from sapwood.kernel.chain import program, tree_id
from sapwood.kernel.keeping import Keeper
from sapwood.kernel.kept import Image, Snapshot, handed_key, pack_snapshot, unpack_snapshot
from sapwood.kernel.node import COPYING, TREES, Node, roots_in, tree_folder
from sapwood.kernel.parcels import pack
from sapwood.kernel.ports import Moved
from sapwood.kernel.restoring import State, put_together, write
from sapwood.kernel.stored import StoredTrees
from sapwood.kernel.tree import LABEL, Tree
from sapwood.storage.copies import Order, Part, copy_elsewhere
from sapwood.storage.files import make_private_folder, open_private
from sapwood.storage.image import PAGE_SIZE, wal_bytes
from sapwood.storage.walframes import whole_image

BACK_UP = "back up"
RESTORE = "restore"
TAKE = "take a tree from the archive"
UNFINISHED = "unfinished"
"""The file in a backup of everything that says that it is not finished; who makes it holds it locked."""


class Copying(msgspec.Struct, array_like=True):
    """What another node is asked to back up or to restore."""

    folder: str
    root: str | None
    """None: all that it runs."""


read_copying = msgspec.msgpack.Decoder(Copying).decode


async def back_up_tree(node: Node, root: Address, target: Path) -> int:
    """Copy one tree into the data folder `target`, which may hold other trees; return how many bytes that were."""
    tree = await node.brought(root, only_files=True)
    if not tree.folder.exists():
        raise NotFound(f"{root} has no data.", path=root.segments)
    final = tree_folder(target, root)
    if final.exists():
        raise UsageError(f"{str(target)!r} already holds a copy of {root}. Choose another folder.")
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


def root_of(address: str | None) -> Address | None:
    """Return the root whose tree is meant. `None` means all trees."""
    if address is None:
        return None
    found = Address.parse(address)
    if found != found.root:
        raise UsageError(
            f"{found} is part of the tree of {found.root}, and trees are copied and restored as a whole. Pass "
            f"{found.root}."
        )
    return found


async def backup(node: Node, target: Path, root: Address | None) -> int:
    """Copy one tree, or all, whichever node runs them; return how many there were."""
    if node.keeper is not None:
        return await back_up_stored(node.keeper.trees, target, root)
    if root is None:
        await _hear(node, [] if node.far is None else await node.far.others())
        with until_finished(target) as left:
            if left is not None:
                await asyncio.to_thread(shutil.rmtree, left)
            return await back_up_all(node, target) + await _by_others(node, BACK_UP, target)
    if node.far is not None and not node.owns(root):
        await _hear(node, [await node.far.directory.owner(root)])
        return int(await node.far.ask_owner(root, BACK_UP, _order(target, root)))
    await back_up_tree(node, root, target)
    return 1


async def restore(node: Node, source: Path, root: Address | None) -> int:
    """Put back one tree, or all, whichever node runs them; return how many there were."""
    if root is None:
        if (source / UNFINISHED).exists():
            raise UsageError(
                f"The backup {str(source)!r} is incomplete: trees are missing. Restore one tree by its root, or "
                f"remove the file {UNFINISHED!r} from the backup to restore the trees that it has."
            )
        if node.keeper is not None:
            wanted = list(roots_in(source))
            for one in wanted:
                await _restore_anywhere(node, node.keeper, one, source)
            return len(wanted)
        await _hear(node, [] if node.far is None else await node.far.others())
        return await restore_all(node, source) + await _by_others(node, RESTORE, source)
    if node.keeper is not None:
        await _restore_anywhere(node, node.keeper, root, source)
        return 1
    if node.far is not None and not node.owns(root):
        await _hear(node, [await node.far.directory.owner(root)])
        return int(await node.far.ask_owner(root, RESTORE, _order(source, root)))
    await restore_tree(node, root, source)
    return 1


async def _hear(node: Node, others: Sequence[str]) -> None:
    """Make sure that other nodes answer, before anything is done that they have their part in."""
    far = node.far
    if far is None:
        return
    there = await asyncio.gather(*(far.is_there(other) for other in others))
    silent = [other for other, answers in zip(others, there, strict=True) if not answers]
    if silent:
        who = f"Worker {silent[0]} does" if len(silent) == 1 else f"Workers {', '.join(silent)} do"
        raise Unavailable(
            f"{who} not answer, and no other process may access the files of its trees. Nothing was changed."
        )


@contextmanager
def until_finished(target: Path) -> Generator[Path | None, None, None]:
    """Mark a backup as unfinished until it is finished; yield what one that never was has left there, if anything."""
    import fcntl

    trees, mark = target / TREES, target / UNFINISHED
    if trees.exists() and not mark.exists():  # other copies, which are finished
        yield None
        return
    make_private_folder(target)
    with open_private(mark, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"Another backup to {str(target)!r} is in progress.") from None
        left = trees if trees.exists() else None
        if left is not None:
            is_new = file.tell() == 0
            if is_new:
                mark.unlink()  # the one that was there is gone: that backup has just been finished
            if is_new or os.fstat(file.fileno()).st_nlink == 0 or (target / "lock").exists():
                # It is finished, or has been served since: more than what is left of a copy.
                raise UsageError(f"{str(target)!r} already holds copies. Choose another folder.")
        file.write("Not all trees were copied. Another backup to the same folder starts from the beginning.\n")
        file.flush()
        yield left
        mark.unlink()


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
    """Put a tree back as it is in a backup, in place of what it is now. Calls to it wait until then."""
    await _replace(node, root, await _copied(node, root, source))


async def _copied(node: Node, root: Address, source: Path) -> Path:
    """Return a copy of a tree in a backup, which is nobody else's, in the node's folder."""
    copy = tree_folder(source, root)
    if not copy.exists():
        raise NotFound(f"The backup {str(source)!r} has no {root}.", path=root.segments)
    half = _half(tree_folder(node.folder, root))
    await copy_elsewhere(Order(str(copy), str(half), [Part(entry.name) for entry in os.scandir(copy)]))
    return half


def _half(final: Path) -> Path:
    return final.with_name(f"{final.name}-{time.time_ns()}{COPYING}")  # nobody else's, whatever failed before


async def _replace(node: Node, root: Address, half: Path) -> None:
    await node.replace(root, half, Unavailable(f"{root} is being restored from a backup."))


async def back_up_stored(trees: StoredTrees, target: Path, root: Address | None) -> int:
    """Copy one tree of a cluster, or all, as the log and the archive have them; return how many there were."""
    if root is not None:
        state = await trees.tree(root)
        if state is None:
            raise NotFound(f"{root} has no data.", path=root.segments)
        await put_into(target, root, state)
        return 1
    with until_finished(target) as left:
        if left is not None:
            await asyncio.to_thread(shutil.rmtree, left)
        count = 0
        async for state in trees.every():
            await put_into(target, Address.parse(state.tail.root), state)
            count += 1
        return count


async def put_into(target: Path, root: Address, state: State) -> None:
    """Have a backup hold a tree."""
    final = tree_folder(target, root)
    if final.exists():
        raise UsageError(f"{str(target)!r} already holds a copy of {root}. Choose another folder.")
    half = _half(final)
    await write_elsewhere(state, root, half)
    half.rename(final)


async def write_elsewhere(state: State, root: Address, folder: Path) -> None:
    """Write the files of a tree to a new folder, durably."""
    await asyncio.to_thread(_write, state, root, folder)


def _write(state: State, root: Address, folder: Path) -> None:
    make_private_folder(folder)
    files = {f"{stem}.db": content for stem, content in state.files.items()}
    for name, content in {**files, LABEL: str(root).encode()}.items():
        with open_private(folder / name, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


async def _restore_anywhere(node: Node, keeper: Keeper, root: Address, source: Path) -> None:
    """Put a tree of a cluster back, whoever runs it."""
    far = node.far

    async def put_back() -> None:
        half = await _copied(node, root, source)
        if far is None or node.owns(root):
            await _replace(node, root, half)
            return
        key = handed_key(tree_id(root))
        await keeper.archive.put(key, await asyncio.to_thread(_packed, root, half))
        try:
            await far.ask(await far.directory.owner(root), TAKE, pack(Copying(key, str(root))))
        finally:
            await keeper.archive.remove([key])

    if far is None:
        await put_back()
    else:
        await far.follow(root, put_back)


def _packed(root: Address, folder: Path) -> bytes:
    """Return the files of a folder as one object, and remove it."""
    images = [Image(path.stem, PAGE_SIZE, whole_image(path)) for path in sorted(folder.glob("*.db"))]
    shutil.rmtree(folder)
    whole = Snapshot(root=str(root), epoch=0, sequence=0, chain=b"", at=time.time(), version=program(), images=images)
    return pack_snapshot(whole)[0]


async def take(node: Node, key: str, root: Address) -> int:
    """Put a tree back that another node has put into the archive."""
    if not node.owns(root):
        raise Moved(root)
    assert node.keeper is not None
    data = await node.keeper.archive.get(key)
    if data is None:
        raise NotFound(f"The archive has no {key!r}.", path=root.segments)
    half = _half(tree_folder(node.folder, root))
    await write(await asyncio.to_thread(_unpacked, data, key), root, half, node.files)
    await _replace(node, root, half)
    return 1


def _unpacked(data: bytes, key: str) -> State:
    return put_together(unpack_snapshot(data, key, None), None, [], None)
