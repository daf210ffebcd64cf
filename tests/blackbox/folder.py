"""The files of a data folder, and the ways to damage one."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

PAGE = 4096
SIDES = ("-wal", "-shm")


class DataFolder:
    """A data folder that no server uses."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def trees(self) -> Path:
        return self.path / "trees"

    @property
    def alarms(self) -> Path:
        return self.path / "alarms.db"

    def tree(self, root: str) -> Path:
        """Return the folder of a tree, by the name of its root."""
        labels = {label: label.read_text() for label in self.trees.glob("*/address")}
        return next(label.parent for label, text in labels.items() if text.strip().endswith(f":{root}"))

    def root_database(self, root: str) -> Path:
        return self.tree(root) / "root.db"

    def child_database(self, root: str, content: bytes) -> Path:
        """Return the database of a child that holds this content."""
        children = [file for file in self.tree(root).glob("*.db") if file.name != "root.db"]
        (found,) = [file for file in children if content in file.read_bytes() + _bytes(wal_of(file))]
        return found

    def is_marked(self, root: str) -> bool:
        """Return whether the server has stored how far it has written each database of a tree."""
        marked = (self.tree(root) / "marks").stat().st_mtime_ns
        return all(log.stat().st_mtime_ns <= marked for log in self.tree(root).glob("*-wal"))

    def copy_to(self, path: Path) -> DataFolder:
        shutil.copytree(self.path, path)
        return DataFolder(path)


def wal_of(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def _bytes(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def overwrite(file: Path, offset: int, length: int) -> None:
    """Replace some bytes by others, the same ones each time."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(random.Random(offset).randbytes(length))


def damage_header(file: Path) -> None:
    overwrite(file, 0, 32)


def damage_middle(file: Path) -> None:
    """Overwrite a whole page in the middle."""
    overwrite(file, file.stat().st_size // PAGE // 2 * PAGE, PAGE)


def damage_tail(file: Path) -> None:
    """Overwrite the last page."""
    overwrite(file, file.stat().st_size - PAGE, PAGE)


def flip_bit(file: Path, content: bytes) -> None:
    """Change one bit inside a stored value."""
    offset = file.read_bytes().rindex(content) + len(content) - 1
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ 1]))


def cut_in_half(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2 // PAGE * PAGE)


def empty(file: Path) -> None:
    """Truncate a file to zero bytes, and remove what SQLite keeps beside it."""
    os.truncate(file, 0)
    remove_sides(file)


def zero(file: Path) -> None:
    """Overwrite the whole file with zeros."""
    file.write_bytes(bytes(file.stat().st_size))


def remove(file: Path) -> None:
    """Remove a database with what SQLite keeps beside it."""
    file.unlink()
    remove_sides(file)


def remove_sides(file: Path) -> None:
    for side in SIDES:
        file.with_name(file.name + side).unlink(missing_ok=True)
