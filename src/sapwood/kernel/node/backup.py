"""Backups of trees while they run, and their way back.

A backup is a data folder: it can be opened as it is, elsewhere, or put back in place of
a tree. All files of a tree are from one moment, between two commits; trees among
themselves are not. Each copy is checked before it counts: a damaged tree is named and left out,
and the others are copied. A verification is a copy that is checked and removed.

In a cluster nodes share no disk. The node that gets the command makes a backup of what the log and the archive have,
which is everything, and to put one back it hands each tree to its owner through the archive.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from sapwood.address import Address
from sapwood.errors import FolderInUse, NotFound, StoredDataError, Unavailable, UsageError
from sapwood.kernel.actors.objects_table import folder_of
from sapwood.kernel.log.archive_objects import Image, Snapshot, handed_key, pack_snapshot, unpack_snapshot
from sapwood.kernel.log.records import ChainBroken, program, tree_id
from sapwood.kernel.log.restore import TreeContent, put_together, write
from sapwood.kernel.log.tree_cache import Keeper
from sapwood.kernel.marshal.values import pack
from sapwood.kernel.node.data_folder import odd_in, roots_in, tree_folder
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.stored_copies import (
    UNFINISHED,
    back_up_stored,
    half_of,
    settle_copy,
    until_finished,
    verify_stored,
)
from sapwood.kernel.node.tree_check import check_folder, record_left_out
from sapwood.kernel.node.tree_report import TreeReport, read_report
from sapwood.kernel.ports.file_copies import OfFolder, without_files
from sapwood.kernel.ports.placement import Moved
from sapwood.kernel.trees.lost_children import lost_children
from sapwood.kernel.trees.tree import Tree
from sapwood.kernel.trees.tree_files import LABEL
from sapwood.randomness import new_id
from sapwood.storage.blobs import blobs_in
from sapwood.storage.copies import Copier, FilePart, Order, copy_elsewhere
from sapwood.storage.copy_marks import mark_copies
from sapwood.storage.files import held_still
from sapwood.storage.image import PAGE_SIZE, wal_bytes
from sapwood.storage.integrity import damage_in
from sapwood.storage.wal_frames import whole_image

BACK_UP = "back up"
RESTORE = "restore"
VERIFY = "verify"
TAKE = "take a tree from the archive"
OnDamage = Literal["refuse", "skip", "restore"]
"""What a restore does if trees of the backup are damaged: restore nothing, only the others, or all."""


class BackupRequest(msgspec.Struct, array_like=True):
    """What another node is asked to back up, to restore or to verify."""

    folder: str
    root: str | None
    """`None` means all that it runs."""
    skipped: list[str] = []
    """The roots that are not restored."""


read_backup_request = msgspec.msgpack.Decoder(BackupRequest).decode


async def back_up_tree(node: Node, root: Address, target: Path, copier: Copier) -> list[str]:
    """Copy one tree into the data folder `target`, which may hold other trees.

    Returns what is damaged, in sentences: then there is no copy.
    """
    final = tree_folder(target, root)
    if final.exists():
        raise UsageError(f"{str(target)!r} already holds a copy of {root}. Choose another folder.")
    half = half_of(final, node.files)
    problems = await _copy(node, root, half, copier)
    return await settle_copy(half, final, problems)


async def verify_tree(node: Node, root: Address, copier: Copier) -> list[str]:
    """Check one tree as it is at this moment; return what is damaged, in sentences."""
    half = half_of(tree_folder(node.folder, root), node.files)
    try:
        return await _copy(node, root, half, copier)
    finally:
        shutil.rmtree(half, ignore_errors=True)


async def _copy(node: Node, root: Address, half: Path, copier: Copier) -> list[str]:
    """Copy a tree as it is at one moment to a new folder; return what is damaged, in sentences."""
    tree = await node.loader.load_files(root)
    if not tree.folder.exists():
        raise NotFound(f"{root} has no data.", path=root.segments)
    try:
        with tree.kept_still():
            parts, frames = _cut(tree)
            await copy_elsewhere(Order(str(tree.folder), str(half), parts), copier)
    except StoredDataError as error:
        return [str(error)]
    return await asyncio.to_thread(damage_in, half, [*node.content_checks, lost_children(tree.folder)], frames)


def _cut(tree: Tree) -> tuple[list[FilePart], dict[str, int]]:
    """Return what to copy, so that it is the tree at this very moment, and how many frames each open log has.

    Nothing of it may be awaited.
    """
    tree.slices.commit()
    open_ = {database.path.name: database for database in tree.databases.values() if database.is_open}
    lengths = {f"{name}-wal": wal_bytes(database.frames) for name, database in open_.items()}
    return _parts(tree.folder, lengths), {name: database.frames for name, database in open_.items()}


def _parts(folder: Path, lengths: Mapping[str, int]) -> list[FilePart]:
    """Return the files of a tree, and how much of each; `StoredDataError` if one of them is not a file."""
    parts: list[FilePart] = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if entry.name.endswith((".db", ".db-wal")) and not entry.is_file():
                    raise StoredDataError(f"{entry.name} is not a file.")
                if entry.name.endswith("-wal"):
                    parts.append(FilePart(entry.name, lengths.get(entry.name, entry.stat().st_size)))
                elif entry.name.endswith(".db") or entry.name == LABEL:
                    parts.append(FilePart(entry.name))
        parts += [FilePart(str(path.relative_to(folder))) for path in blobs_in(folder)]
    except OSError as error:
        raise StoredDataError(f"The folder of the tree cannot be read: {error.strerror}.") from None
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


async def backup(node: Node, target: Path, root: Address | None) -> TreeReport:
    """Copy one tree, or all, whichever node runs them. Damaged trees are named, and not copied."""
    if node.keeper is not None:
        return await back_up_stored(node.keeper.trees, target, root, node.content_checks, _fetching(node, node.keeper))
    if root is not None:
        return await _at_owner(node, BACK_UP, _order(target, root))
    await _hear(node, [] if node.far is None else await node.far.others())
    with until_finished(target) as left:
        if left is not None:
            await asyncio.to_thread(shutil.rmtree, left)
        report = await _everywhere(node, BACK_UP, _order(target, None))
        report.odd = odd_in(node.folder)
        record_left_out(target, report)
        return report


async def verify(node: Node, root: Address | None) -> TreeReport:
    """Check one tree, or all, whichever node runs them. The trees keep running."""
    if node.keeper is not None:
        verify = _verifying(node, node.keeper)
        return await verify_stored(node.keeper.trees, node.folder, root, node.database_checks, verify)
    if root is not None:
        return await _at_owner(node, VERIFY, BackupRequest("", str(root)))
    await _hear(node, [] if node.far is None else await node.far.others())
    report = await _everywhere(node, VERIFY, BackupRequest("", None))
    report.odd = odd_in(node.folder)
    return report


def _fetching(node: Node, keeper: Keeper) -> OfFolder:
    copies = node.file_copies
    return without_files if copies is None else partial(copies.fetch, archive=keeper.archive)


def _verifying(node: Node, keeper: Keeper) -> OfFolder:
    copies = node.file_copies
    return without_files if copies is None else partial(copies.verify, archive=keeper.archive)


async def restore(node: Node, source: Path, root: Address | None, damaged: OnDamage = "refuse") -> TreeReport:
    """Put back one tree, or all, whichever node runs them.

    The backup is checked first. If trees in it are damaged, `damaged` says whether nothing is restored, only the
    others are, or all are.
    """
    if _is_same(source, node.folder):
        raise UsageError(f"{str(source)!r} is the data folder of this server. Pass a backup of it.")
    if root is None and (source / UNFINISHED).exists():
        raise UsageError(
            f"The backup {str(source)!r} is incomplete: trees are missing. Restore one tree by its root, or "
            f"remove the file {UNFINISHED!r} from the backup to restore the trees that it has."
        )
    if root is not None and not tree_folder(source, root).exists():
        raise NotFound(f"The backup {str(source)!r} has no {root}.", path=root.segments)
    try:
        with held_still(source):
            return await _restore_checked(node, source, root, damaged)
    except FolderInUse as error:
        raise UsageError(f"{error} Its files change. Make a backup with `sapwood backup`, and restore that.") from None


async def _restore_checked(node: Node, source: Path, root: Address | None, damaged: OnDamage) -> TreeReport:
    found = await asyncio.to_thread(check_folder, source, root, node.content_checks)
    if not found.is_whole and damaged == "refuse":
        raise StoredDataError(
            f"The backup {str(source)!r} is damaged, and nothing was restored. {found.summary()} Use an older backup. "
            "Or set `damaged` (--damaged) to 'skip', to restore the other trees, or to 'restore', to restore all."
        )
    skipped = [one.root for one in found.damaged] if damaged == "skip" else []
    report = await _restored(node, source, root, skipped)
    report.odd = found.odd
    report.damaged = found.damaged
    return report


async def _restored(node: Node, source: Path, root: Address | None, skipped: list[str]) -> TreeReport:
    order = _order(source, root, skipped)
    if node.keeper is not None:
        wanted = [one for one in ([root] if root is not None else roots_in(source)) if str(one) not in skipped]
        async with Copier() as copier:
            for one in wanted:
                await _restore_anywhere(node, node.keeper, one, source, copier)
        return TreeReport(len(wanted))
    if root is not None:
        return await _at_owner(node, RESTORE, order) if str(root) not in skipped else TreeReport()
    await _hear(node, [] if node.far is None else await node.far.others())
    return await _everywhere(node, RESTORE, order)


def _order(folder: Path, root: Address | None, skipped: Sequence[str] = ()) -> BackupRequest:
    return BackupRequest(str(folder.resolve()), None if root is None else str(root), list(skipped))


def _is_same(folder: Path, other: Path) -> bool:
    return folder.resolve() == other.resolve()


async def _at_owner(node: Node, verb: str, order: BackupRequest) -> TreeReport:
    """Have the node that runs a tree do something to it."""
    root = Address.parse(order.root or "")
    if node.far is None or node.owns(root):
        return await ORDERS[verb](node, order)
    await _hear(node, [await node.far.directory.owner(root)])
    return read_report(await node.far.ask_owner(root, verb, pack(order)))


async def _everywhere(node: Node, verb: str, order: BackupRequest) -> TreeReport:
    """Have every node do something to its trees, one node after the other: they share the folder."""
    report = await ORDERS[verb](node, order)
    for other in [] if node.far is None else await node.far.others():
        report.add(read_report(await node.far.ask(other, verb, pack(order))))  # pyright: ignore[reportOptionalMemberAccess]
    return report


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


async def back_up_own(node: Node, order: BackupRequest) -> TreeReport:
    """Copy one tree of this node, or all of them, into a data folder."""
    target = Path(order.folder)
    async with Copier() as copier:
        return await _each(node, order, lambda root: back_up_tree(node, root, target, copier))


async def verify_own(node: Node, order: BackupRequest) -> TreeReport:
    """Check one tree of this node, or all of them."""
    async with Copier() as copier:
        return await _each(node, order, lambda root: verify_tree(node, root, copier))


async def _each(node: Node, order: BackupRequest, act: Callable[[Address], Awaitable[list[str]]]) -> TreeReport:
    report = TreeReport()
    if order.root is not None:
        report.note(order.root, await act(Address.parse(order.root)))
        return report
    for root in [root for root in roots_in(node.folder) if node.owns(root)]:
        with suppress(NotFound):  # destroyed since
            report.note(str(root), await act(root))
    return report


async def restore_own(node: Node, order: BackupRequest) -> TreeReport:
    """Put back one tree of a backup that this node runs, or all of them."""
    source = Path(order.folder)
    wanted = [Address.parse(order.root)] if order.root is not None else [r for r in roots_in(source) if node.owns(r)]
    wanted = [root for root in wanted if str(root) not in order.skipped]
    async with Copier() as copier:
        for root in wanted:
            await restore_tree(node, root, source, copier)
    return TreeReport(len(wanted))


ORDERS: Mapping[str, Callable[[Node, BackupRequest], Awaitable[TreeReport]]] = {
    BACK_UP: back_up_own,
    RESTORE: restore_own,
    VERIFY: verify_own,
}
"""What a node does if another one asks it to."""


async def restore_tree(node: Node, root: Address, source: Path, copier: Copier) -> None:
    """Put a tree back as it is in a backup, in place of what it is now. Calls to it wait until then."""
    half = await _copied(node, root, source, copier)
    await asyncio.to_thread(mark_copies, half, is_durable=node.gate.synced)
    await _replace(node, root, half)


async def _copied(node: Node, root: Address, source: Path, copier: Copier) -> Path:
    """Copy a tree of a backup into the node's folder, for exclusive use, and return the path of the copy."""
    copy = tree_folder(source, root)
    if not copy.exists():
        raise NotFound(f"The backup {str(source)!r} has no {root}.", path=root.segments)
    half = half_of(tree_folder(node.folder, root), node.files)
    await copy_elsewhere(Order(str(copy), str(half), _parts(copy, {})), copier)
    return half


async def _replace(node: Node, root: Address, half: Path) -> None:
    if node.file_archive is not None and await _may_have_objects(node, root):
        await node.file_archive.note_check(root)  # first: a crash must not leave what is replaced in the archive
    await node.removal.replace(root, half, Unavailable(f"{root} is being restored from a backup."))


async def _may_have_objects(node: Node, root: Address) -> bool:
    """Return whether a tree, as it is now, may have files in the archive."""
    try:
        return folder_of((await node.loader.load_files(root)).root) is not None
    except (ChainBroken, StoredDataError):
        return True


async def _restore_anywhere(node: Node, keeper: Keeper, root: Address, source: Path, copier: Copier) -> None:
    """Put a tree of a cluster back, whichever node runs it."""
    far = node.far

    async def put_back() -> None:
        half = await _copied(node, root, source, copier)
        try:
            if node.file_copies is not None:
                await node.file_copies.store(half, root, keeper.file_archive)
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, half, ignore_errors=True)
            raise
        if far is None or node.owns(root):
            await _replace(node, root, half)
            return
        key = handed_key(tree_id(root), node.clock.now(), new_id(node.random))
        await keeper.archive.put(key, await asyncio.to_thread(_packed, root, half, node.clock.now()))
        try:
            await far.ask(await far.directory.owner(root), TAKE, pack(BackupRequest(key, str(root))))
        finally:
            await keeper.archive.remove([key])

    if far is None:
        await put_back()
    else:
        await far.follow(root, put_back)


def _packed(root: Address, folder: Path, at: float) -> bytes:
    """Return the files of a folder as one object, and remove it."""
    images = [Image(path.stem, PAGE_SIZE, whole_image(path)) for path in sorted(folder.glob("*.db"))]
    shutil.rmtree(folder)
    whole = Snapshot(root=str(root), epoch=0, sequence=0, chain=b"", at=at, version=program(), images=images)
    return pack_snapshot(whole)[0]


async def take(node: Node, key: str, root: Address) -> int:
    """Put a tree back that another node has put into the archive."""
    if not node.owns(root):
        raise Moved(root)
    assert node.keeper is not None
    data = await node.keeper.archive.get(key)
    if data is None:
        raise NotFound(f"The archive has no {key!r}.", path=root.segments)
    half = half_of(tree_folder(node.folder, root), node.files)
    await write(await asyncio.to_thread(_unpacked, data, key), root, half, node.files)
    await _replace(node, root, half)
    return 1


def _unpacked(data: bytes, key: str) -> TreeContent:
    return put_together(unpack_snapshot(data, key, None), None, [], None)
