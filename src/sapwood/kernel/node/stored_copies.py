"""Copies of trees of a cluster, made from what the log and the archive have, whichever node runs them.

Each copy is checked before it counts, and gets its name when it is complete.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from sapwood.address import Address
from sapwood.errors import NotFound, Unavailable, UsageError
from sapwood.kernel.log.reader import ClusterReader
from sapwood.kernel.log.records import ChainBroken
from sapwood.kernel.log.restore import TreeContent
from sapwood.kernel.node.data_folder import COPYING, TREES, tree_folder
from sapwood.kernel.node.tree_check import record_left_out
from sapwood.kernel.node.tree_report import DamagedTree, TreeReport
from sapwood.kernel.ports.file_copies import OfFolder, without_files
from sapwood.kernel.trees.tree_files import LABEL
from sapwood.storage.copy_marks import mark_copies
from sapwood.storage.files import Files, make_private_folder, open_private
from sapwood.storage.integrity import Check, damage_in

UNFINISHED = "unfinished"
"""The file in a backup of everything that says that it is not finished; who makes it holds it locked."""


async def back_up_stored(
    trees: ClusterReader,
    target: Path,
    root: Address | None,
    checks: Iterable[Check] = (),
    fetch: OfFolder = without_files,
) -> TreeReport:
    """Copy one tree of a cluster, or all, as the log and the archive have them. `fetch` adds the files of a tree."""
    if root is not None:
        return await _each_stored(trees, root, lambda one, state: put_into(target, one, state, checks, fetch))
    with until_finished(target) as left:
        if left is not None:
            await asyncio.to_thread(shutil.rmtree, left)
        report = await _each_stored(trees, None, lambda one, state: put_into(target, one, state, checks, fetch))
        record_left_out(target, report)
        return report


async def verify_stored(
    trees: ClusterReader,
    folder: Path,
    root: Address | None,
    checks: Iterable[Check],
    verify: OfFolder = without_files,
) -> TreeReport:
    """Check one tree of a cluster, or all, as the log and the archive have them. `folder` has room for one copy.

    `verify` checks the files of a tree.
    """

    async def check(one: Address, state: TreeContent) -> list[str]:
        return await check_stored(folder, one, state, checks, verify)

    return await _each_stored(trees, root, check)


async def check_stored(
    folder: Path, root: Address, state: TreeContent, checks: Iterable[Check], verify: OfFolder
) -> list[str]:
    """Check a copy of one tree, which is removed then; return what is damaged, in sentences."""
    half = half_of(tree_folder(folder, root), Files())
    try:
        await write_elsewhere(state, root, half)
        return [*await asyncio.to_thread(damage_in, half, checks), *await verify(half)]
    finally:
        shutil.rmtree(half, ignore_errors=True)


async def _each_stored(
    trees: ClusterReader, root: Address | None, act: Callable[[Address, TreeContent], Awaitable[list[str]]]
) -> TreeReport:
    report = TreeReport()
    if root is not None:
        try:
            state = await trees.tree(root)
        except ChainBroken as error:
            report.note(str(root), [str(error)])
            return report
        if state is None:
            raise NotFound(f"{root} has no data.", path=root.segments)
        report.note(str(root), await act(root, state))
        return report
    lost: dict[str, str] = {}
    async for state in trees.every(lost):
        report.note(state.tail.root, await act(Address.parse(state.tail.root), state))
    report.damaged += [DamagedTree(tree, [why]) for tree, why in lost.items()]
    return report


async def put_into(
    target: Path, root: Address, state: TreeContent, checks: Iterable[Check] = (), fetch: OfFolder = without_files
) -> list[str]:
    """Copy a tree into a backup; return what is damaged, in sentences: then there is no copy."""
    final = tree_folder(target, root)
    if final.exists():
        raise UsageError(f"{str(target)!r} already holds a copy of {root}. Choose another folder.")
    half = half_of(final, Files())
    await write_elsewhere(state, root, half)
    try:
        problems = await fetch(half)
    except Unavailable:
        await asyncio.to_thread(shutil.rmtree, half, ignore_errors=True)
        raise
    return await settle_copy(half, final, problems or await asyncio.to_thread(damage_in, half, checks))


async def write_elsewhere(state: TreeContent, root: Address, folder: Path) -> None:
    """Write the files of a tree to a new folder, durably."""
    await asyncio.to_thread(_write, state, root, folder)


def _write(state: TreeContent, root: Address, folder: Path) -> None:
    files = Files()
    files.make_folder(folder)
    for stem, content in state.files.items():
        files.create_database(folder / f"{stem}.db", content)
    files.close(files.create(folder / LABEL, str(root).encode()))
    for path in folder.iterdir():
        files.sync_file(path)


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


async def settle_copy(half: Path, final: Path, problems: list[str]) -> list[str]:
    """Give a copy its place, unless it is damaged: then it is removed."""
    if problems:
        await asyncio.to_thread(shutil.rmtree, half, ignore_errors=True)
    else:
        await asyncio.to_thread(mark_copies, half, is_durable=True)
        _give_place(half, final)
    return problems


def _give_place(half: Path, final: Path) -> None:
    half.rename(final)


def half_of(final: Path, files: Files) -> Path:
    return files.unused_path(final, COPYING)  # also if an earlier copy failed
