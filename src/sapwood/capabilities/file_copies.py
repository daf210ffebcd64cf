"""The files of a whole tree in copies: fetched from the archive for a backup, and stored there for a restore.

No process may have the databases open.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
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

log = logging.getLogger(__name__)

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


class NamedFiles(NamedTuple):
    """What the databases of a copy name."""

    files: list[CopiedFile]
    databases: dict[Path, bool]
    """Those that could be read, and whether they have tables of files."""


class TreeFileCopies:
    """Copies the files of trees."""

    async def fetch(self, folder: Path, archive: Archive) -> list[str]:
        """Put the files of a tree into its folder; return what is missing or damaged, in sentences."""
        files, problems = Files(), list[str]()
        for file in (await asyncio.to_thread(_named, folder)).files:

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
        named = await asyncio.to_thread(_named, folder)
        found = [await _read(archive, file, lambda place, piece: None) for file in named.files]
        return [problem for problem in found if problem is not None]

    async def store(self, folder: Path, root: Address, archive: FileArchive) -> None:
        """Store the files in a folder in the archive as new objects, and have the databases name these.

        Files that are missing stay missing, and what a damaged database names stays as it is: who restores these has
        asked for it.
        """
        named, databases = await asyncio.to_thread(_named, folder)
        name = archive.new_folder(root)
        if named:
            await archive.note_check(root)  # first: if this fails on the way, they are removed
        keys: dict[Path, dict[str, str]] = {path: {} for path in databases}
        for file in named:
            if not await asyncio.to_thread(file.path.exists):
                log.warning("file is missing in the backup root=%s file=%s", root, file.path)
                continue
            key = keys[file.database][file.digest] = archive.new_key(name, file.database.stem, file.digest)
            await archive.put_file(key, file.path)
        for path, stored in keys.items():
            new_folder = name if named and path.stem == ROOT else None
            if databases[path] or new_folder is not None:
                await asyncio.to_thread(_rename, path, stored, new_folder)


def _named(folder: Path) -> NamedFiles:
    named = NamedFiles([], {})
    for path in sorted(folder.glob("*.db")):
        try:
            with reading(path) as file:
                has_files, has_objects = file.has(FILES), file.has(OBJECTS)
                if has_files:
                    rows = file.rows(
                        "SELECT digest, size, object FROM sapwood_files WHERE body IS NULL ORDER BY number"
                    )
                    named.files.extend([CopiedFile(path, *row) for row in rows])
                named.databases[path] = has_files or has_objects
        except StoredDataError:
            continue  # it is damaged: what checks the databases says so
    return named


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
        if edit.has(FILES):
            edit.execute("UPDATE sapwood_files SET object = NULL WHERE object IS NOT NULL")
        for digest, key in keys.items():
            edit.execute("UPDATE sapwood_files SET object = ? WHERE digest = ?", key, digest)
            edit.execute(
                "INSERT INTO sapwood_objects SELECT object, size, 'named', created_at FROM sapwood_files"
                " WHERE digest = ?",
                digest,
            )
