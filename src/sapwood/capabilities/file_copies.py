"""The files of a whole tree in copies: fetched from the archive for a backup, and stored there for a restore.

No process may have the databases open.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sapwood.address import Address
from sapwood.capabilities.file_rows import FILES
from sapwood.errors import StoredDataError
from sapwood.kernel.actors.objects_table import OBJECTS
from sapwood.kernel.ports.file_archive import FileArchive
from sapwood.kernel.ports.log import Archive
from sapwood.storage.blobs import blob_folder
from sapwood.storage.file_reader import reading
from sapwood.storage.files import Files
from sapwood.storage.offline_edit import editing

PIECE = 4 * 1024 * 1024
ROOT = "root"


class CopiedFile(NamedTuple):
    """A larger file that a row of a copy names."""

    database: Path
    digest: str
    size: int
    key: str | None

    @property
    def path(self) -> Path:
        """Where it is in the copy."""
        return blob_folder(self.database) / self.digest

    @property
    def text(self) -> str:
        return f"The file {self.digest} in {blob_folder(self.database).name}"


class TreeFileCopies:
    """Copies the files of trees."""

    async def fetch(self, folder: Path, archive: Archive) -> list[str]:
        """Put the files of a tree into its folder; return what is missing or damaged, in sentences."""
        files, problems = Files(), list[str]()
        for file in await asyncio.to_thread(_named, folder):

            def begin(file: CopiedFile = file) -> None:
                files.make_folder(file.path.parent)
                files.close(files.create(file.path, b""))

            def write(place: int, piece: bytes, file: CopiedFile = file) -> None:
                files.write_at(file.path, place, piece)

            await asyncio.to_thread(begin)
            if (problem := await _read(archive, file, write)) is not None:
                problems.append(problem)
            await asyncio.to_thread(files.sync_file, file.path)
        return problems

    async def verify(self, folder: Path, archive: Archive) -> list[str]:
        """Read the files of a tree in the archive; return what is missing or damaged, in sentences."""
        found = [
            await _read(archive, file, lambda place, piece: None) for file in await asyncio.to_thread(_named, folder)
        ]
        return [problem for problem in found if problem is not None]

    async def store(self, folder: Path, root: Address, archive: FileArchive) -> None:
        """Store the files in a folder in the archive as new objects, and have the databases name these."""
        named = await asyncio.to_thread(_named, folder)
        name = archive.new_folder()
        if named:
            await archive.note_check(root, name)  # first: if this fails on the way, they are removed
        keys: dict[Path, dict[str, str]] = {path: {} for path in await asyncio.to_thread(_databases, folder)}
        for file in named:
            key = keys[file.database][file.digest] = archive.new_key(name, file.database.stem, file.digest)
            try:
                await archive.put_file(key, file.path)
            except FileNotFoundError:
                raise StoredDataError(f"{file.text} is missing in the backup. Use another backup.") from None
        for path, stored in keys.items():
            await asyncio.to_thread(_rename, path, stored, name if named and path.stem == ROOT else None)


def _databases(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.db"))


def _named(folder: Path) -> list[CopiedFile]:
    found: list[CopiedFile] = []
    for path in _databases(folder):
        try:
            with reading(path) as file:
                if file.has(FILES):
                    rows = file.rows(
                        "SELECT digest, size, object FROM sapwood_files WHERE body IS NULL ORDER BY number"
                    )
                    found += [CopiedFile(path, *row) for row in rows]
        except StoredDataError:
            continue  # it is damaged: what checks the databases says so
    return found


async def _read(archive: Archive, file: CopiedFile, write: Callable[[int, bytes], None]) -> str | None:
    """Read a file from the archive; return what is wrong with it, in a sentence."""
    size = None if file.key is None else await archive.size(file.key)
    if file.key is None or size is None:
        return f"{file.text} is missing in the archive."
    if size != file.size:
        return f"{file.text} is damaged: it has {size} bytes in the archive instead of {file.size}."
    digest, place = hashlib.sha256(), 0
    while place < file.size:
        piece = await archive.get_range(file.key, place, min(place + PIECE, file.size))
        if not piece:
            return f"{file.text} is missing in the archive."
        await asyncio.to_thread(write, place, piece)
        await asyncio.to_thread(digest.update, piece)
        place += len(piece)
    if digest.hexdigest() != file.digest:
        return f"{file.text} is damaged: its content in the archive does not have its digest."
    return None


def _rename(path: Path, keys: dict[str, str], folder: str | None) -> None:
    """Have a database name these objects, and no others. `folder`: that of the tree, for its root."""
    with editing(path) as edit:
        if not keys and folder is None and not edit.has(OBJECTS):
            return
        edit.ensure(OBJECTS)
        edit.execute("DELETE FROM sapwood_objects")
        edit.execute("DELETE FROM sapwood_object_folder")
        if folder is not None:
            edit.execute("INSERT INTO sapwood_object_folder VALUES (1, ?)", folder)
        for digest, key in keys.items():
            edit.execute("UPDATE sapwood_files SET object = ? WHERE digest = ?", key, digest)
            edit.execute(
                "INSERT INTO sapwood_objects SELECT object, size, 'named', created_at FROM sapwood_files"
                " WHERE digest = ?",
                digest,
            )
