"""The file of a node's index of alarms."""

from __future__ import annotations

from pathlib import Path

from sapwood.storage.files import Files

FILE = "alarms.db"
MARKS = ".marks"
"""The suffix of the file that says how far the index was written."""


def alarms_file(part: str) -> str:
    """Return the name of the file that a node keeps its index in, by the part of the trees it runs; "": all."""
    return FILE.replace(".", f"{part}.")


def remove_index(path: Path, files: Files) -> None:
    """Remove a node's index. A folder in its place is not ours: it gets another name."""
    sides = (path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm"), path.with_suffix(MARKS))
    for one in (path, *sides):  # without the first, the next start removes the others
        if one.is_dir():
            files.rename(one, files.unused_path(one, ".odd"))
        else:
            files.remove(one)
