"""What backups and restores of a cluster need of files that lie in the archive, and not in the databases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from sapwood.address import Address
from sapwood.kernel.ports.file_archive import FileArchive
from sapwood.kernel.ports.log import Archive

OfFolder = Callable[[Path], Awaitable[list[str]]]
"""Does something with the files of the tree whose databases are in a folder; returns what is wrong, in sentences."""


async def without_files(folder: Path) -> list[str]:
    """Do nothing: there is no archive."""
    return []


class FileCopies(Protocol):
    """Copies the files of a tree whose databases are in a folder, and that no process has open."""

    async def fetch(self, folder: Path, archive: Archive) -> list[str]:
        """Put the files of a tree into its folder; return what is missing or damaged, in sentences."""
        ...

    async def verify(self, folder: Path, archive: Archive) -> list[str]:
        """Read the files of a tree in the archive; return what is missing or damaged, in sentences."""
        ...

    async def store(self, folder: Path, root: Address, archive: FileArchive) -> None:
        """Store the files in a folder in the archive as new objects, and have the databases name these."""
        ...
