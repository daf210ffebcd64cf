"""The folder with the larger files of one agent. A file appears in it under its digest, whole, or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sapwood.storage.availability import refusals
from sapwood.storage.files import Files

SUFFIX = ".files"
"""The folder of `NAME.db` is `NAME.files`, beside it."""
PART = ".part"
"""The suffix of a file that is not complete."""
DIGEST = re.compile(r"[0-9a-f]{64}")


def blob_folder(database: Path) -> Path:
    """Return the folder of the agent that has this database."""
    return database.with_suffix(SUFFIX)


def blobs_in(tree: Path) -> Iterator[Path]:
    """Yield the complete files of all agents of a tree."""
    for folder in blob_folders(tree):
        yield from blobs_of(folder)


def blobs_of(folder: Path) -> list[Path]:
    """Return the complete files of one agent; none if it has no folder."""
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if DIGEST.fullmatch(path.name)]


def blob_folders(tree: Path) -> list[Path]:
    """Return the folders with the files of all agents of a tree."""
    with os.scandir(tree) as found:
        return sorted(Path(entry.path) for entry in found if entry.name.endswith(SUFFIX) and entry.is_dir())


def blob_bytes(tree: Path) -> int:
    """Return the size of all files of a tree, incomplete ones included."""
    return sum(folder_bytes(folder) for folder in blob_folders(tree))


def part_bytes(tree: Path) -> int:
    """Return the size of all incomplete files of a tree."""
    return sum(folder_bytes(folder, PART) for folder in blob_folders(tree))


def folder_bytes(folder: Path, suffix: str = "") -> int:
    """Return the size of the files of one agent whose names end so; 0 if it has no folder."""
    total = 0
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            with suppress(FileNotFoundError):  # removed in between
                total += path.stat().st_size if path.name.endswith(suffix) else 0
    return total


class BlobFolder:
    """The larger files of one agent. `is_synced`: what is added survives a loss of power."""

    def __init__(self, path: Path, files: Files, *, is_synced: bool) -> None:
        self.path = path
        self._files = files
        self._is_synced = is_synced

    @property
    def exists(self) -> bool:
        return self.path.is_dir()

    def of(self, name: str) -> Path:
        return self.path / name

    def size_of(self, name: str) -> int | None:
        """Return how long a file is, or `None` if it does not exist."""
        try:
            return self.of(name).stat().st_size
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """Return the names of all files in the folder, complete or not."""
        try:
            return sorted(entry.name for entry in self.path.iterdir())
        except FileNotFoundError:
            return []

    def new_part(self, name: str | None = None) -> str:
        """Create an empty file that is not complete, and return its name."""
        with refusals():
            if not self.exists:
                self._files.make_folder(self.path)
            part = f"{name}{PART}" if name else self._files.unused_path(self.of("put"), PART).name
            self._files.close(self._files.create(self.of(part), b""))
        return part

    def append(self, part: str, place: int, content: bytes) -> None:
        """Write to an incomplete file. May run in a thread."""
        with refusals():
            self._files.write_at(self.of(part), place, content)

    def read(self, name: str, place: int, size: int) -> bytes:
        """Return bytes of a file. May run in a thread."""
        with self.of(name).open("rb") as file:
            file.seek(place)
            return file.read(size)

    def sync(self, part: str) -> None:
        """Return when an incomplete file is on the disk. May run in a thread."""
        if self._is_synced:
            self._files.sync_file(self.of(part))

    def complete(self, part: str, digest: str) -> None:
        """Give a complete file its name."""
        with refusals():
            self._files.rename(self.of(part), self.of(digest))

    def sync_names(self) -> None:
        """Return when the names in the folder, and its own, are on the disk. May run in a thread."""
        if self._is_synced:
            self._files.sync_folder(self.path)
            self._files.sync_folder(self.path.parent)

    def remove(self, name: str) -> None:
        self._files.remove(self.of(name))


def remove_blobs(folder: Path, files: Files) -> Iterator[None]:
    """Remove a folder and the files in it; yields after each file. Done again, it removes what is left."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        files.remove(path)
        yield
    files.remove_folder(folder)
