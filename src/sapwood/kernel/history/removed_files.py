"""The larger files of agents that were deleted since: their content is not in the pages of a database."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from sapwood.storage.blobs import DIGEST, SUFFIX, blob_folders
from sapwood.storage.file_reader import FileReader, reading
from sapwood.storage.files import make_private_folder

FOLDER = "files"
"""In the folder of a history: a folder for each agent that had files, named as its database."""
NAME = re.compile(r"([0-9a-f]{64})\.(\d+)")
"""The digest, and the second in which the file was deleted."""


def keep_removed(past: Path, blob: Path, now: float) -> None:
    """Keep a file that is about to be deleted, under a second name. It is not copied."""
    target = past / FOLDER / blob.parent.name.removesuffix(SUFFIX)
    make_private_folder(target)
    with suppress(FileExistsError):
        os.link(blob, target / f"{blob.name}.{int(now)}")


def sweep_removed(past: Path, before: float, max_bytes: int) -> None:
    """Forget the files that were deleted before a time, and the oldest of more than so many bytes."""
    found = [
        (int(match[2]), path.stat().st_size, path)
        for path in (past / FOLDER).glob("*/*")
        if (match := NAME.fullmatch(path.name)) is not None
    ]
    total = sum(size for _, size, _ in found)
    for at, size, path in sorted(found):
        if at > before and total <= max_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size


def link_files(past: Path, tree: Path, copy: Path, named: Callable[[FileReader], Iterable[str]]) -> None:
    """Give the databases in the copy of a tree the files that they name; these may have been deleted since."""
    stems = {path.parent.name for path in (past / FOLDER).glob("*/*")} | {path.stem for path in blob_folders(tree)}
    for stem in stems:
        if (database := copy / f"{stem}.db").exists():
            with reading(database) as file:
                digests = set(named(file))
            _link_named(past, tree, stem, digests, copy)


def _link_named(past: Path, tree: Path, stem: str, digests: set[str], target: Path) -> None:
    names = {path.name: path for path in _entries(past / FOLDER / stem, NAME)}
    found = {name.partition(".")[0]: path for name, path in names.items()}
    found |= {path.name: path for path in _entries(tree / f"{stem}{SUFFIX}", DIGEST)}
    for digest, path in found.items():
        if digest in digests:
            folder = target / f"{stem}{SUFFIX}"
            make_private_folder(folder)
            with suppress(FileNotFoundError):  # deleted since it was listed; the check of the copy names it
                _link(path, folder / digest)


def _entries(folder: Path, name: re.Pattern[str]) -> list[Path]:
    with suppress(FileNotFoundError):
        return [path for path in folder.iterdir() if name.fullmatch(path.name)]
    return []


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system
        shutil.copyfile(source, target)
