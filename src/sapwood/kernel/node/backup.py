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
from sapwood.kernel.log.tree_cache import Keeper
from sapwood.kernel.marshal.values import pack
from sapwood.kernel.node.backup_notes import note_archived_backup, note_backup
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
from sapwood.kernel.node.tree_placement import place_anywhere, replace_tree
from sapwood.kernel.node.tree_report import TreeReport, read_report
from sapwood.kernel.ports.file_copies import OfFolder, without_files
from sapwood.kernel.trees.lost_children import lost_children
from sapwood.kernel.trees.tree import Tree
from sapwood.kernel.trees.tree_files import LABEL
from sapwood.storage.blobs import blobs_in
from sapwood.storage.copies import Copier, FilePart, Order, copy_elsewhere
from sapwood.storage.copy_marks import mark_copies
from sapwood.storage.files import held_still
from sapwood.storage.image import wal_bytes
from sapwood.storage.integrity import damage_in

BACK_UP = "back up"
RESTORE = "restore"
VERIFY = "verify"
OnDamage = Literal["refuse", "skip", "restore"]
"""What a restore does if trees of the backup are damaged: restore nothing, only the others, or all."""


class BackupRequest(msgspec.Struct, array_like=True):
    """What another node is asked to back up, to restore or to verify."""

    folder: str
    root: str | None
    """`None` means all that it runs."""
    skipped: list[str] = []
    """The roots that are not restored."""
    with_files: bool = True
    """Whether a copy has the larger files of agents, which are no databases."""


read_backup_request = msgspec.msgpack.Decoder(BackupRequest).decode


async def back_up_tree(
    node: Node, root: Address, target: Path, copier: Copier, *, with_files: bool = True
) -> list[str]:
    """Copy one tree into the data folder `target`, which may hold other trees.

    Returns what is damaged, in sentences: then there is no copy.
    """
    final = tree_folder(target, root)
    if final.exists():
        raise UsageError(f"{str(target)!r} already holds a copy of {root}. Choose another folder.")
    half = half_of(final, node.files)
    problems = await copy_tree(node, root, half, copier, with_files=with_files)
    return await settle_copy(half, final, problems)


async def verify_tree(node: Node, root: Address, copier: Copier) -> list[str]:
    """Check one tree as it is at this moment; return what is damaged, in sentences."""
    half = half_of(tree_folder(node.folder, root), node.files)
    try:
        return await copy_tree(node, root, half, copier, is_durable=False)
    finally:
        shutil.rmtree(half, ignore_errors=True)


async def copy_tree(
    node: Node, root: Address, half: Path, copier: Copier, *, with_files: bool = True, is_durable: bool = True
) -> list[str]:
    """Copy a tree as it is at one moment to a new folder; return what is damaged, in sentences."""
    tree = await node.loader.load_files(root)
    if not tree.folder.exists():
        raise NotFound(f"{root} has no data.", path=root.segments)
    try:
        with tree.kept_still():
            parts, frames = _cut(tree)
            copied = [part for part in parts if with_files or Path(part.name).parent == Path()]
            await copy_elsewhere(Order(str(tree.folder), str(half), copied, is_durable), copier)
    except StoredDataError as error:
        return [str(error)]
    checks = node.content_checks if with_files else node.database_checks
    return await asyncio.to_thread(damage_in, half, [*checks, lost_children(tree.folder)], frames)


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
    # First the note: the copy of a crashed backup holds data, too.
    if node.keeper is None:
        note_backup(node.folder, target, node.clock.now())
    else:
        here = "" if node.far is None else node.far.directory.here
        await note_archived_backup(node.keeper.archive, await asyncio.to_thread(target.resolve), node.clock.now(), here)
        return await back_up_stored(node.keeper.trees, target, root, node.content_checks, fetching(node, node.keeper))
    if root is not None:
        return await _at_owner(node, BACK_UP, _order(target, root))
    await hear(node, [] if node.far is None else await node.far.others())
    with until_finished(target) as left:
        if left is not None:
            await asyncio.to_thread(shutil.rmtree, left)
        report = await _everywhere(node, BACK_UP, _order(target, None))
        await _add_moved(node, target, report)
        report.odd = odd_in(node.folder)
        record_left_out(target, report)
        return report


async def _add_moved(node: Node, target: Path, report: TreeReport) -> None:
    """Copy the trees that got another address before their old one was copied."""
    tried = {Address.parse(one.root) for one in report.damaged}
    while moved := [root for root in _moved_trees(node, target) if root not in tried]:
        tried.update(moved)
        for root in moved:
            with suppress(NotFound):  # destroyed since, or moved again
                report.add(await _at_owner(node, BACK_UP, _order(target, root)))


def _moved_trees(node: Node, target: Path) -> list[Address]:
    """Return the trees that were moved, and of which a backup has no copy, under any address."""
    former: dict[Address, list[Address]] = {}
    for old, _ in node.forwards.all():
        if (root := node.forwards.target(old)) is not None:
            former.setdefault(root, [root]).append(old)
    missing = [root for root, names in former.items() if not any(tree_folder(target, one).exists() for one in names)]
    return [root for root in missing if node.forwards.has_tree(root)]


async def copy_databases(node: Node, target: Path, roots: Sequence[Address]) -> TreeReport:
    """Copy trees without the larger files of their agents, whichever nodes run them."""
    report = TreeReport()
    async with Copier() as copier:
        for root in roots:
            if node.keeper is not None:
                report.add(await back_up_stored(node.keeper.trees, target, root, node.database_checks))
            elif node.far is None or node.owns(root):
                report.note(str(root), await back_up_tree(node, root, target, copier, with_files=False))
            else:
                order = _order(target, root)
                order.with_files = False
                report.add(await _at_owner(node, BACK_UP, order))
    return report


async def verify(node: Node, root: Address | None) -> TreeReport:
    """Check one tree, or all, whichever node runs them. The trees keep running."""
    if node.keeper is not None:
        verify = _verifying(node, node.keeper)
        return await verify_stored(node.keeper.trees, node.folder, root, node.database_checks, verify)
    if root is not None:
        return await _at_owner(node, VERIFY, BackupRequest("", str(root)))
    await hear(node, [] if node.far is None else await node.far.others())
    report = await _everywhere(node, VERIFY, BackupRequest("", None))
    report.odd = odd_in(node.folder)
    return report


def fetching(node: Node, keeper: Keeper) -> OfFolder:
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
                await place_anywhere(node, one, partial(_copied, node, one, source, copier), restoring(one))
        return TreeReport(len(wanted))
    if root is not None:
        return await _at_owner(node, RESTORE, order) if str(root) not in skipped else TreeReport()
    await hear(node, [] if node.far is None else await node.far.others())
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
    await hear(node, [await node.far.directory.owner(root)])
    return read_report(await node.far.ask_owner(root, verb, pack(order)))


async def _everywhere(node: Node, verb: str, order: BackupRequest) -> TreeReport:
    """Have every node do something to its trees, one node after the other: they share the folder."""
    report = await ORDERS[verb](node, order)
    for other in [] if node.far is None else await node.far.others():
        report.add(read_report(await node.far.ask(other, verb, pack(order))))  # pyright: ignore[reportOptionalMemberAccess]
    return report


async def hear(node: Node, others: Sequence[str]) -> None:
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
        return await _each(
            node, order, lambda root: back_up_tree(node, root, target, copier, with_files=order.with_files)
        )


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
    await replace_tree(node, root, half, restoring(root))


def restoring(root: Address) -> Unavailable:
    """Return the error of calls that a restore ends."""
    return Unavailable(f"{root} is being restored from a backup.")


async def _copied(node: Node, root: Address, source: Path, copier: Copier) -> Path:
    """Copy a tree of a backup into the node's folder, for exclusive use, and return the path of the copy."""
    copy = tree_folder(source, root)
    if not copy.exists():
        raise NotFound(f"The backup {str(source)!r} has no {root}.", path=root.segments)
    half = half_of(tree_folder(node.folder, root), node.files)
    await copy_elsewhere(Order(str(copy), str(half), _parts(copy, {})), copier)
    return half
