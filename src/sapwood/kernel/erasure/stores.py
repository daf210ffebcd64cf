"""Where erasures keep what must outlive a process: the data folder, or in a cluster the archive."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sapwood.kernel.ports.log import Archive
from sapwood.storage.availability import refusals
from sapwood.storage.files import Files, make_private_folder

FOLDER = "erasures"
NEW = ".new"


class RecordStore(Protocol):
    """A few small objects by name."""

    async def names(self) -> list[str]: ...

    async def get(self, name: str) -> bytes | None: ...

    async def put(self, name: str, content: bytes) -> None:
        """Store an object durably, in place of the one before."""
        ...

    async def remove(self, name: str) -> None: ...


class FolderStore:
    """Files in a data folder."""

    def __init__(self, data: Path, files: Files) -> None:
        self._data = data
        self._folder = data / FOLDER
        self._files = files

    async def names(self) -> list[str]:
        return [path.name for path in sorted(self._folder.glob("*"))]

    async def get(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    async def put(self, name: str, content: bytes) -> None:
        with refusals():
            make_private_folder(self._folder)
            new = self._folder / f"{name}{NEW}"
            self._files.remove(new)
            self._files.close(self._files.create(new, content))
            self._files.sync_file(new)
            self._files.rename(new, self._folder / name)
            self._files.sync_folder(self._folder)
            self._files.sync_folder(self._data)

    async def remove(self, name: str) -> None:
        with refusals():
            self._files.remove(self._folder / f"{name}{NEW}")
            self._files.remove(self._folder / name)
            if self._folder.is_dir():
                self._files.sync_folder(self._folder)


class ArchiveStore:
    """Objects in the archive of a cluster."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def names(self) -> list[str]:
        return [key.removeprefix(f"{FOLDER}/") async for key in self._archive.keys(f"{FOLDER}/")]

    async def get(self, name: str) -> bytes | None:
        return await self._archive.get(f"{FOLDER}/{name}")

    async def put(self, name: str, content: bytes) -> None:
        await self._archive.put(f"{FOLDER}/{name}", content)

    async def remove(self, name: str) -> None:
        await self._archive.remove([f"{FOLDER}/{name}"])
