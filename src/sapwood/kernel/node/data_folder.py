"""What the data folder holds: its trees, and the entries that are none.

Each tool that goes through a data folder or a backup uses `entries`: an entry that cannot be read as a tree is named
in a sentence, and the others are not affected by it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sapwood.address import Address
from sapwood.errors import InvalidName
from sapwood.kernel.log.records import tree_id
from sapwood.kernel.trees.tree import DESTROYED
from sapwood.kernel.trees.tree_files import LABEL

TREES = "trees"
REMOVED = ".removed"
COPYING = ".copying"
RESTORED = ".restored"
"""A whole copy that waits to take a tree's place."""
TRANSIENT = (REMOVED, COPYING, RESTORED)
"""The suffixes of folders that exist only while a tree is removed, copied or restored."""
TREE_ID = re.compile(r"[0-9a-f]{40}")
"""What `tree_id` returns."""
MOVE_IT = "Move it out of the data folder."
WRITE_LABEL = (
    "If you know its address, call the agent once on a running server: the server writes the label again. "
    "Otherwise move the folder out of the data folder."
)


@dataclass(frozen=True, slots=True)
class OddEntry:
    """Something in a data folder that is not a tree, or cannot be read as one."""

    path: str
    """Where it is, below the data folder."""
    problem: str
    """What is wrong with it, as a sentence."""
    remedy: str
    """What to do, in sentences."""
    has_data: bool
    """Whether it contains databases, so that the data of a tree may be missing elsewhere."""


def entries(data: Path) -> Iterator[Address | OddEntry]:
    """Yield the root of every tree that has data in a data folder, and each entry that is not one."""
    for path in sorted((data / TREES).iterdir()):
        if path.suffix not in TRANSIENT and not (path / DESTROYED).exists():
            found = _entry(path)
            if found is not None:
                yield found


def roots_in(data: Path) -> Iterator[Address]:
    """Yield the root of every tree that has data in a data folder."""
    return (found for found in entries(data) if isinstance(found, Address))


def odd_in(data: Path) -> list[OddEntry]:
    """Return the entries of a data folder that are not trees, or cannot be read as one."""
    return [found for found in entries(data) if isinstance(found, OddEntry)]


def _entry(path: Path) -> Address | OddEntry | None:
    """Return the root of a tree's folder, or what is odd about it. `None` means that it has no data."""
    found = labelled(path)
    if isinstance(found, Address) and tree_id(found) == path.name:
        return found
    where = f"{TREES}/{os.fsencode(path.name).decode(errors='backslashreplace')}"
    try:
        if not path.is_dir():
            return OddEntry(where, f"{where} is not a folder, so it is not a tree.", MOVE_IT, has_data=False)
        has_data = _has_data(path)
    except OSError as error:
        problem = f"{where} cannot be read: {error.strerror}."
        return OddEntry(where, problem, "Give this user access to it.", has_data=True)
    if isinstance(found, Address):
        problem = f"{where} has the label of {found}, whose folder is {TREES}/{tree_id(found)}."
        return OddEntry(where, problem, WRITE_LABEL, has_data)
    if not has_data:
        if TREE_ID.fullmatch(path.name):
            return None  # the power failed at its birth, before the disk had the label: it holds nothing that counts
        return OddEntry(where, f"{where} is not a tree: it has no databases.", MOVE_IT, has_data=False)
    return OddEntry(where, f"{where} does not say which tree it is: {found}.", WRITE_LABEL, has_data)


def labelled(folder: Path) -> Address | str:
    """Return the root that the label of a folder names, or why it names none."""
    label = folder / LABEL
    try:
        if not label.is_file():
            return f"the file {LABEL!r} in it is {'not a file' if label.exists() else 'missing'}"
        text = label.read_text()
    except UnicodeDecodeError:
        return f"the file {LABEL!r} in it is not text"
    except OSError as error:
        return f"the file {LABEL!r} in it cannot be read: {error.strerror}"
    if not text:
        return f"the file {LABEL!r} in it is empty"
    try:
        found = Address.parse(text)
    except InvalidName:
        return f"the file {LABEL!r} in it has no address"
    return found if found == found.root else f"the file {LABEL!r} in it names {found}, which is not a root"


def _has_data(folder: Path) -> bool:
    with os.scandir(folder) as found:
        return any(entry.name.endswith((".db", "-wal")) and entry.stat().st_size > 0 for entry in found)


def unfinished(data: Path) -> list[Path]:
    """Return the folders of removals, copies and restores that a crash interrupted, or that are in progress."""
    # There may be many trees: they are listed once, and only the names are looked at.
    names = os.listdir(data / TREES)  # noqa: PTH208 - a path for each would take longer than all the rest
    paths = [data / TREES / name for name in names if name.endswith(TRANSIENT)]
    return [path for path in paths if path.is_dir()]


def tree_folder(data: Path, root: Address) -> Path:
    """Return where a tree lies: no name a user chose is part of the path."""
    return data / TREES / tree_id(root)
