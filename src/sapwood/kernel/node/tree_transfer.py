"""Exports of trees to a file, and imports: a copy that leaves the data folder, and comes back under any name.

A file may come from another app, another version of the program, or a damaged disk. So everything is checked before a
tree is made of it.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sapwood.address import Address
from sapwood.errors import StoredDataError, UsageError
from sapwood.kernel.actors.fork_origin import WorkRule
from sapwood.kernel.aio import to_the_end
from sapwood.kernel.forks.fork_files import ForkOrder, make_fork
from sapwood.kernel.forks.forked_tree import HeldWork
from sapwood.kernel.forks.tree_file import Manifest, manifest_of, read_tree_file, write_tree_file
from sapwood.kernel.history.moments import At
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.fork import (
    Fork,
    being_made,
    check_target,
    check_work,
    copy_at,
    finish_folder,
    place,
    remove_left,
)
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.stored_copies import half_of
from sapwood.kernel.node.tree_placement import place_anywhere
from sapwood.storage.availability import refusals
from sapwood.storage.integrity import damage_in, foreign_in
from sapwood.storage.offline_edit import compact

MOST_MISFITS = 3
"""How many reasons a refusal names."""


async def export_tree(node: Node, source: Address, target: Path, at: At | None = None) -> int:
    """Write an agent and all below it, as they are now or were at a moment, to a new file; return how many."""
    _check_free(target)
    copy = await copy_at(node, source, Address.root_of(source.type, source.name), None, at)
    folder = Path(copy.folder)
    try:
        with refusals():
            await to_the_end(_compact, folder)
            await to_the_end(write_tree_file, folder, target, source, copy.at, copy.agents)
    finally:
        await to_the_end(shutil.rmtree, folder, ignore_errors=True)
    return copy.agents


def _check_free(target: Path) -> None:
    if target.exists():
        raise UsageError(f"{str(target)!r} exists already. Choose another name.")
    if not target.parent.is_dir():
        raise UsageError(f"{str(target.parent)!r} is not a folder.")


def _compact(folder: Path) -> None:
    for path in sorted(folder.glob("*.db")):
        compact(path)


async def import_tree(node: Node, source: Path, name: str | None, work: WorkRule) -> Fork:
    """Make a tree of an exported one. Everything in the file is checked first."""
    check_work(work)
    manifest = await to_the_end(manifest_of, source)
    target = Address.root_of(manifest.root.type, name or manifest.root.name)
    check_target(node, manifest.address, target)
    made: list[tuple[int, HeldWork]] = []

    async def make() -> Path:
        folder, agents, held = await _made(node, source, target, work)
        made.append((agents, held))
        return folder

    if node.keeper is None:
        await place(node, target, await make())
    else:
        await place_anywhere(node, target, make, being_made(target), is_new=True)
    return Fork(target, manifest.address, datetime.fromtimestamp(manifest.at, UTC), *made[-1])


async def _made(node: Node, source: Path, target: Address, work: WorkRule) -> tuple[Path, int, HeldWork]:
    """Unpack and check a file, and make a folder of it that can become a tree."""
    half, folder = (half_of(tree_folder(node.folder, target), node.files) for _ in range(2))
    try:
        with refusals():
            manifest = await to_the_end(read_tree_file, source, partial(tree_folder, half))
            await to_the_end(_check, node, source, half, manifest)
            order = ForkOrder(manifest.address, target, work, manifest.at, node.clock.now(), is_cut=True)
            copy = tree_folder(half, manifest.root)
            agents, held = await to_the_end(make_fork, copy, folder, order, node.unfinished_work())
            await to_the_end(finish_folder, folder, is_durable=node.gate.synced)
        await to_the_end(shutil.rmtree, half, ignore_errors=True)
    except BaseException:
        await to_the_end(shutil.rmtree, folder, ignore_errors=True)
        raise
    finally:
        await remove_left(half)
    return folder, agents, held


def _check(node: Node, source: Path, folder: Path, manifest: Manifest) -> None:
    """Refuse a file whose databases are damaged, or do not fit the classes of the app."""
    if problems := list(foreign_in(tree_folder(folder, manifest.root))):
        raise StoredDataError(f"{str(source)!r} was not written by sapwood, and nothing was imported. {problems[0]}")
    if problems := damage_in(tree_folder(folder, manifest.root), node.content_checks):
        raise StoredDataError(f"{str(source)!r} is damaged, and nothing was imported. {' '.join(problems)}")
    if not node.roots:
        return  # a command that opened the folder knows no classes
    if misfits := misfits_in(node, folder):
        raise UsageError(f"{str(source)!r} does not fit the classes of this app, and nothing was imported. {misfits}")


def misfits_in(node: Node, data: Path) -> str:
    """Return what is stored in a data folder and does not fit the classes of the app; an empty string for nothing."""
    misfits = list(node.stored_data_check(data, node.roots))
    told = " ".join(f"{one.agent}: {one.why} {one.remedy}" for one in misfits[:MOST_MISFITS])
    return f"{told} And {len(misfits) - MOST_MISFITS} more." if len(misfits) > MOST_MISFITS else told
