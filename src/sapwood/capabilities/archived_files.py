"""The larger files of one agent of a cluster: objects in the archive, with copies in the folder beside the database.

An object is uploaded before the commit of the row that names it, and a row that says so is durable before the upload
begins. So no crash leaves an object that no row knows of. What no file names any more is noted in the archive, which
keeps it for `Settings.history`.

A file that is not in the folder is fetched once, however many read it. They read what has arrived so far.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from asyncio import Future
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from sapwood.capabilities.file_rows import FileRow
from sapwood.errors import SapwoodError, StoredDataError, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.objects_table import NAMED, REMOVED, UPLOADING, ObjectsTable, UnnamedObject
from sapwood.kernel.aio import to_the_end
from sapwood.kernel.marshal.exceptions import again
from sapwood.kernel.ports.file_archive import FileArchive
from sapwood.kernel.trees.tree import tree_of
from sapwood.storage.availability import StorageUnavailable
from sapwood.storage.blobs import BlobFolder

PIECE = 1024 * 1024
"""Bytes that are read from the archive at once."""
WHOLE = 4 * 1024 * 1024
"""Bytes up to which a file is fetched as a whole, even if only a part of it is to be read."""
RESERVE = 64 * 1024 * 1024
"""Bytes that files leave free on the disk: the databases of all agents need room too."""
COPY_RESERVE = 1024 * 1024 * 1024
"""Bytes that copies leave free, or a tenth of the disk if that is less: databases and uploads come first."""

Damaged = Callable[[FileRow, str], StoredDataError]


class Reader(Protocol):
    """Reads the content of one file."""

    async def read(self, place: int, size: int) -> bytes:
        """Return bytes of it: at least one, unless it ends before."""
        ...

    def close(self) -> None: ...


class LocalReader:
    """Reads a file in the folder."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def read(self, place: int, size: int) -> bytes:
        return await to_the_end(os.pread, self._descriptor, size, place)

    def close(self) -> None:
        os.close(self._descriptor)


class Fetch:
    """A file on its way from the archive to the folder."""

    def __init__(self) -> None:
        self.part = ""
        self.left = 0
        """Bytes that are not in the folder yet."""
        self._received = 0
        self._error: BaseException | None = None
        self._waiting: list[tuple[int, Future[None]]] = []

    def advance(self, received: int) -> None:
        """So many bytes are in the folder."""
        self._received = received
        self._settle()

    def end(self, error: BaseException | None) -> None:
        """It is complete, or failed."""
        self._error = error or Unavailable("The file was not fetched.")
        self._settle()

    def _settle(self) -> None:
        left: list[tuple[int, Future[None]]] = []
        for wanted, waiter in self._waiting:
            if wanted > self._received and self._error is None:
                left.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiting = left

    async def until(self, received: int) -> None:
        """Return when so many bytes are in the folder; raise why they never will be."""
        if self._received < received and self._error is None:
            waiter: Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((received, waiter))
            await waiter
        if self._received < received:
            assert self._error is not None
            raise again(self._error) if isinstance(self._error, SapwoodError) else self._error


class FetchReader(LocalReader):
    """Reads a file while it arrives."""

    def __init__(self, descriptor: int, fetch: Fetch) -> None:
        super().__init__(descriptor)
        self._fetch = fetch

    async def read(self, place: int, size: int) -> bytes:
        await self._fetch.until(place + size)
        return await super().read(place, size)


class ArchiveReader:
    """Reads a part of a file from the archive, and keeps nothing of it."""

    def __init__(self, archive: FileArchive, key: str, end: int) -> None:
        self._archive = archive
        self._key = key
        self._end = end
        self._place = 0
        self._piece = b""

    async def read(self, place: int, size: int) -> bytes:
        if not self._place <= place < self._place + len(self._piece):
            found = await self._archive.get_range(self._key, place, min(place + max(PIECE, size), self._end))
            self._place, self._piece = place, found or b""
        begin = place - self._place
        return self._piece[begin : begin + size]

    def close(self) -> None:
        self._piece = b""


class ArchivedFiles:
    """The larger files of one agent."""

    def __init__(
        self, actor: Actor, archive: FileArchive, folder: BlobFolder, is_named: Callable[[str], bool], damaged: Damaged
    ) -> None:
        self._actor = actor
        self._archive = archive
        self._folder = folder
        self._is_named = is_named
        self._damaged = damaged
        self._tree = tree_of(actor)
        self._objects = ObjectsTable(actor.database)
        self._uploading: set[str] = set()
        """The keys of uploads that go on."""
        self._fetches: dict[str, Fetch] = {}
        self._wrong: set[str] = set()
        """The keys of objects whose content was found to be another one."""

    # Uploads

    async def has(self, row: FileRow) -> bool:
        """Return whether the archive has what a row names. If that cannot be known now, it has."""
        if row.object is None or row.object in self._wrong:
            return False
        try:
            return await self._archive.size(row.object) == row.size
        except Unavailable:
            return True

    async def upload(self, row: FileRow, part: str) -> str:
        """Store an incomplete file in the archive, and return its key. Call `end_upload`, whatever happens then."""
        key = self._archive.new_key(self._tree.object_folder(self._archive), self._actor.stem, row.digest)
        self._uploading.add(key)
        try:
            self._objects.add(key, row.size, self._now())
            await self._actor.leave()
            await self._archive.put_file(key, self._folder.of(part))
            if (found := await self._archive.size(key)) != row.size:
                raise Unavailable(f"The archive has {found} bytes of an upload of {row.size}. Upload the file again.")
            self._actor.check_live()
        except BaseException:
            self.end_upload(key)
            raise
        return key

    def name(self, key: str) -> None:
        """A row names what was uploaded, from this slice on."""
        self._objects.change(key, NAMED, self._now())

    def end_upload(self, key: str) -> None:
        """An upload is over. If no row names it, it is left to `note_removals`."""
        self._uploading.discard(key)

    # Removals

    def remove(self, key: str | None) -> None:
        """No row names an object any more, from this slice on."""
        if key is not None:
            self._objects.change(key, REMOVED, self._now())

    @property
    def has_removals(self) -> bool:
        """Whether there are objects that the archive has to be told of."""
        return bool(self._objects.unnamed(sorted(self._uploading)))

    async def note_removals(self) -> None:
        """Have the archive remove, after a while, the objects that no file names."""
        while found := self._objects.unnamed(sorted(self._uploading)):
            await self._actor.leave()  # what says so is durable then
            await self._archive.note_removal(self._actor.address.root, [one.key for one in found], self._since(found))
            self._actor.check_live()
            self._tree.forget_file(self._objects.forget([one.key for one in found]))
            await self._actor.leave()

    def _since(self, found: Sequence[UnnamedObject]) -> float:
        """Return since when nothing names these. An upload of a node that lost the tree may still go on for a while."""
        late = self._now() + self._actor.host.timings.upload_grace
        return max(late if one.state == UPLOADING else one.changed_at for one in found)

    # Reads

    async def reader(self, row: FileRow, start: int, end: int) -> Reader:
        """Return what reads a file: from the folder if it is there, else as it arrives, or parts from the archive."""
        if (reader := self._local(row)) is not None:
            return reader
        if row.object is None:
            raise self._damaged(row, "it is not in the archive")
        fetch = self._fetches.get(row.digest)
        is_whole = (start, end) == (0, row.size) or row.size <= WHOLE
        if fetch is None:
            await self._check(row, row.object)
            if (reader := self._local(row)) is not None:
                return reader
            fetch = self._fetches.get(row.digest)
        if not is_whole or (fetch is None and not self.has_room(row.size)):
            return ArchiveReader(self._archive, row.object, end)
        if fetch is None:
            fetch = self._begin_fetch(row, row.object)
        return FetchReader(os.open(self._folder.of(fetch.part), os.O_RDONLY), fetch)

    def _local(self, row: FileRow) -> LocalReader | None:
        try:
            descriptor = os.open(self._folder.of(row.digest), os.O_RDONLY)
        except FileNotFoundError:
            return None
        if os.fstat(descriptor).st_size == row.size:
            return LocalReader(descriptor)
        os.close(descriptor)
        self._folder.remove(row.digest)
        return None

    def drop_copy(self, row: FileRow) -> Unavailable | None:
        """Remove a copy that is damaged, and return the error to raise; `None` if the archive has to be to blame."""
        if self._folder.size_of(row.digest) is None:
            self._wrong.update([] if row.object is None else [row.object])
            return None
        self._folder.remove(row.digest)
        return Unavailable(f"The copy of the file {row.digest} on this node was damaged and is removed. Read it again.")

    async def _check(self, row: FileRow, key: str) -> None:
        size = await self._archive.size(key)
        if size is None:
            raise self._damaged(row, "it is missing in the archive")
        if size != row.size:
            raise self._damaged(row, f"it has {size} bytes in the archive instead of {row.size}")

    def has_room(self, size: int) -> bool:
        """Return whether the disk has room for so many bytes more that are only a copy."""
        disk = shutil.disk_usage(self._tree.folder)
        return disk.free - self._archive.arriving - size >= max(min(COPY_RESERVE, disk.total // 10), RESERVE)

    def _begin_fetch(self, row: FileRow, key: str) -> Fetch:
        self._actor.check_live()
        fetch = self._fetches[row.digest] = Fetch()
        try:
            fetch.part = self._folder.new_part()
        except StorageUnavailable as error:
            del self._fetches[row.digest]
            self._tree.refused(error)
            raise
        _, done = self._actor.handle("fetch file", self._fetch, row, key, fetch)
        fetch.left = row.size
        self._archive.arriving += row.size
        done.add_done_callback(lambda done: self._fetched(row, fetch, done))
        return fetch

    def _fetched(self, row: FileRow, fetch: Fetch, done: Future[None]) -> None:
        self._fetches.pop(row.digest, None)
        self._archive.arriving -= fetch.left
        with suppress(Unavailable, OSError):
            self._folder.remove(fetch.part)
        fetch.end(None if done.cancelled() else done.exception())

    async def _fetch(self, row: FileRow, key: str, fetch: Fetch) -> None:
        digest, place = hashlib.sha256(), 0
        while place < row.size:
            piece = await self._archive.get_range(key, place, min(place + PIECE, row.size))
            if not piece:
                raise self._damaged(row, "it is missing in the archive")
            try:
                await to_the_end(self._folder.append, fetch.part, place, piece)
            except StorageUnavailable as error:
                self._tree.refused(error)
                raise
            await to_the_end(digest.update, piece)
            place += len(piece)
            fetch.left -= len(piece)
            self._archive.arriving -= len(piece)
            fetch.advance(place)
        if digest.hexdigest() != row.digest:
            self._wrong.add(key)
            raise self._damaged(row, "its content in the archive does not have its digest")
        await to_the_end(self._folder.sync, fetch.part)
        if self._is_named(row.digest):
            self._folder.complete(fetch.part, row.digest)

    def fetching(self) -> set[str]:
        """Return the names of what is on its way to the folder."""
        return {fetch.part for fetch in self._fetches.values()}

    def _now(self) -> float:
        return self._actor.host.clock.now()
