"""Checks every tree of a data folder or a backup: are its files intact, and is none missing?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from sapwood.address import Address
from sapwood.errors import InvalidName
from sapwood.kernel.node.data_folder import OddEntry, entries, tree_folder
from sapwood.kernel.node.tree_report import DamagedTree, TreeReport
from sapwood.kernel.trees.lost_children import lost_children
from sapwood.storage.files import open_private
from sapwood.storage.integrity import Check, damage_in

LEFT_OUT = "damaged.json"
"""The file in a backup that names the trees it does not have, because they were damaged."""


def check_folder(
    folder: Path,
    root: Address | None = None,
    checks: Iterable[Check] = (),
    progress: Callable[[TreeReport], object] = lambda so_far: None,
) -> TreeReport:
    """Check all trees of a data folder or a backup, or one, that no process has open. Changes nothing."""
    report = TreeReport()
    if root is not None:
        report.note(str(root), _damage(tree_folder(folder, root), checks))
        return report
    for entry in entries(folder):
        if isinstance(entry, OddEntry):
            report.odd.append(entry)
        else:
            report.note(str(entry), _damage(tree_folder(folder, entry), checks))
            progress(report)
    report.damaged += _left_out(folder)
    return report


def _damage(tree: Path, checks: Iterable[Check]) -> list[str]:
    return damage_in(tree, [*checks, lost_children(tree)])


def record_left_out(folder: Path, report: TreeReport) -> None:
    """Let a backup say which trees it does not have, because they were damaged."""
    path = folder / LEFT_OUT
    if report.is_whole:
        path.unlink(missing_ok=True)
        return
    with open_private(path, "wb") as file:
        file.write(msgspec.json.encode(report))
        file.flush()
        os.fsync(file.fileno())


def _left_out(folder: Path) -> list[DamagedTree]:
    try:
        report = msgspec.json.decode((folder / LEFT_OUT).read_bytes(), type=TreeReport)
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError):
        return [DamagedTree(LEFT_OUT, ["It names the trees that the backup does not have, and cannot be read."])]
    problem = "It was damaged when the backup was made, and is not in it."
    missing = [one.root for one in report.damaged if not _has(folder, one.root)]
    missing += [one.path for one in report.odd if one.has_data and not (folder / one.path).exists()]
    return [DamagedTree(name, [problem]) for name in missing]


def _has(folder: Path, root: str) -> bool:
    try:
        return tree_folder(folder, Address.parse(root)).exists()
    except InvalidName:  # an id of the archive
        return False
