"""`backup --keep`: a folder of backups by time. Old ones go, but not the last intact copy of a damaged tree."""

from __future__ import annotations

import re
import time
from pathlib import Path

from sapwood.address import Address
from sapwood.errors import InvalidName
from sapwood.kernel.log.records import tree_id
from sapwood.kernel.node.data_folder import TREES
from sapwood.kernel.node.stored_copies import UNFINISHED
from sapwood.kernel.node.tree_report import TreeReport
from sapwood.storage.integrity import damage_in

NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}Z")


def next_backup(folder: Path) -> Path:
    """Return where the next backup goes: a folder named by the time, in UTC."""
    return folder / time.strftime("%Y-%m-%dT%H%M%SZ", time.gmtime())


def superseded(folder: Path, keep: int, report: TreeReport) -> list[Path]:
    """Return the backups that may be removed now that the newest one has been made.

    The newest `keep` stay. Of a tree that is damaged now, so does the newest backup with an intact copy. Incomplete
    backups do not count, and stay. A newest backup without trees supersedes nothing: its data folder may be wrong.
    """
    if not report.trees:
        return []
    lacking = {_id(tree.root) for tree in report.damaged}
    lacking |= {Path(entry.path).name for entry in report.odd if entry.has_data}
    found: list[Path] = []
    for number, backup in enumerate(sorted(_complete(folder), reverse=True)):
        intact = {tree for tree in lacking if _has_intact(backup, tree)}
        if number >= keep and not intact:
            found.append(backup)
        lacking -= intact
    return found


def _complete(folder: Path) -> list[Path]:
    backups = [path for path in folder.iterdir() if NAME.fullmatch(path.name) and (path / TREES).is_dir()]
    return [path for path in backups if not (path / UNFINISHED).exists()]


def _has_intact(backup: Path, tree: str) -> bool:
    copy = backup / TREES / tree
    return copy.is_dir() and not damage_in(copy)


def _id(root: str) -> str:
    try:
        return tree_id(Address.parse(root))
    except InvalidName:  # an id of the archive
        return root
