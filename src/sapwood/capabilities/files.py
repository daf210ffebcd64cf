"""The files of one agent: the same bytes are stored once, as long as something refers to them.

A small file is a row. A larger one is in a folder beside the database, in a cluster in the archive: it is there before
the commit of the row that names it, and is removed after the commit that deletes the row is durable. So no crash loses
a file that a row names. What a crash leaves behind is removed when the agent starts again.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import shutil
import zlib
from asyncio import Future
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import contextmanager
from typing import Any

from sapwood.capabilities.archived_files import RESERVE, ArchivedFiles, LocalReader, Reader
from sapwood.capabilities.file_rows import UPLOAD, File, FileRow, FilesTable, file_of
from sapwood.capabilities.file_writer import FileWriter
from sapwood.capabilities.media_types import MediaTypeCheck
from sapwood.errors import NotFound, OverLimit, SapwoodError, StoredDataError, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.aio import to_the_end
from sapwood.kernel.trees.tree import tree_of
from sapwood.storage.availability import StorageUnavailable, refused_by
from sapwood.storage.blobs import DIGEST, PART, BlobFolder, blob_folder

log = logging.getLogger(__name__)

CHUNK = 256 * 1024
"""Bytes that are read at once."""


class FileStore:
    """The files of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._host = actor.host
        self._tree = tree_of(actor)
        self.table = FilesTable(actor.database)
        archive = self._host.file_archive
        # Copies of what is in an archive, too: after a loss of power, it would be unknown which ones are damaged.
        is_synced = self._host.gate.synced or archive is not None
        self.folder = BlobFolder(blob_folder(actor.database.path), self._tree.files, is_synced=is_synced)
        self.archived = (
            None if archive is None else ArchivedFiles(actor, archive, self.folder, self.table.names, self._damaged)
        )
        """The larger files in the archive, or `None` if they are in the folder."""
        self.writing: Counter[str] = Counter()
        """The names in the folder that are being written: they are not swept."""
        self._reserved = 0
        """Bytes of files that are being written."""
        self.progress: dict[str, tuple[int, Any, MediaTypeCheck]] = {}
        """How far the uploads are that can be resumed, so that what was received is not read again."""
        self._turns: dict[str, asyncio.Lock] = {}
        """Held while a file is uploaded to the archive, by its digest."""
        self._removable: dict[str, int] = {}
        """Digests and sizes of files whose row was deleted."""
        self._is_removing = False
        self._swept_at = 0.0

    def now(self) -> float:
        return self._host.clock.now()

    @property
    def boot(self) -> int:
        """Tells the boots of the machine apart: a loss of power may have damaged what was received before it.

        In a cluster, also the nodes: none has what another one received.
        """
        boot, archive = self._tree.files.boot, self._host.file_archive
        return boot if archive is None else zlib.crc32(f"{boot} {archive.node}".encode())

    def check_live(self) -> None:
        self._actor.check_live()

    # What there is

    def file(self, row: FileRow) -> File:
        """Return a row as users see it."""
        return file_of(row, self._actor.address, self._host.settings.prefix)

    def row(self, digest: str) -> FileRow:
        """Return the row of a file; `NotFound` if it does not exist."""
        if (row := self.table.get(digest)) is None:
            where = self._actor.address
            raise NotFound(f"{where} has no file with the digest {digest!r}.", path=where.segments)
        return row

    # What is stored

    def writer(self, claimed: str | None = None, *, size: int | None = None, part: str | None = None) -> FileWriter:
        """Begin to store a file. Close the writer whatever happens."""
        return FileWriter(self, claimed, size=size, part=part)

    def check_room(self, size: int) -> None:
        """Raise `OverLimit` if the agent may not have so many bytes more."""
        limit = self._actor.limits.file_bytes
        if (total := self.table.total() + self._reserved + size) > limit:
            raise OverLimit(
                f"The files of {self._actor.address} would have {total} bytes; the limit is {limit}. Delete files, or "
                "raise Limits(file_bytes=…).",
                path=self._actor.address.segments,
                limit="file_bytes",
            )

    def reserve(self, size: int, *, is_counted: bool = False) -> None:
        """Account for bytes of a larger file before they are taken; raise if there is no room for them.

        `is_counted`: a row counts them for the agent already.
        """
        if not is_counted:
            self.check_room(size)
        self.table.make()  # the tree has its folder then
        if shutil.disk_usage(self._tree.folder).free < size + RESERVE:
            refused = refused_by(OSError(errno.ENOSPC, ""))
            assert refused is not None
            raise refused
        self._tree.reserve(size)
        if not is_counted:
            self._reserved += size

    def write_reserved(self, size: int) -> None:
        """Bytes that were reserved go to the folder, and are measured there from now on."""
        self._tree.stored(size)

    def end_reservation(self, reserved: int, written: int, *, is_counted: bool) -> None:
        """A file is complete, or given up: what was reserved for it and not written no longer counts."""
        if not is_counted:
            self._reserved -= reserved
        if reserved > written:
            self._tree.stored(reserved - written)
            self._tree.forget_file(reserved - written)

    def new_part(self) -> str:
        """Create an incomplete file."""
        self._actor.check_live()
        with self.refusals():
            part = self.folder.new_part()
        self.writing[part] += 1
        return part

    @contextmanager
    def refusals(self) -> Generator[None, None, None]:
        """Let the node know if the operating system refuses to write in the block."""
        try:
            yield
        except StorageUnavailable as error:
            self._tree.refused(error)
            raise

    def make_part(self, name: str) -> None:
        """Create the incomplete file of an upload that can be resumed."""
        self._actor.check_live()
        with self.refusals():
            self.folder.new_part(name.removesuffix(PART))

    def drop_part(self, name: str) -> None:
        """Remove what was received of an upload."""
        self.progress.pop(name, None)
        if (size := self.folder.size_of(name)) is not None:
            self.folder.remove(name)
            self._tree.forget_file(size)

    def end_part(self, part: str, *, keep: bool) -> None:
        """An incomplete file is not written any more: remove it if it still exists and is not to be kept."""
        if not keep:
            self.drop_part(part)
        self._forget_writing(part)

    def _forget_writing(self, name: str) -> None:
        self.writing[name] -= 1
        if self.writing[name] <= 0:
            del self.writing[name]

    def add(self, row: FileRow, body: bytes | None, holder: str) -> FileRow:
        """Store the row of a file, unless it exists, and let the holder refer to it, in this slice."""
        self.table.make()
        with self._actor.database.block():
            if self.table.get(row.digest) is None:
                self.table.add(row, body)
            self.table.hold(row.digest, holder, self.now())
        return self.row(row.digest)

    async def add_part(self, row: FileRow, part: str, holder: str) -> FileRow:
        """Give a complete file its name, and store its row, in the slice in which this returns."""
        self.writing[row.digest] += 1
        try:
            self._actor.check_live()
            if self.archived is not None:
                return await self._add_archived(self.archived, row, part, holder)
            if self.table.get(row.digest) is None or self.folder.size_of(row.digest) != row.size:
                with self.refusals():
                    self.folder.complete(part, row.digest)
                await to_the_end(self.folder.sync_names)
                self._actor.check_live()
            return self.add(row, None, holder)
        finally:
            self._forget_writing(row.digest)
            self._drop_unnamed(row)

    async def _add_archived(self, archived: ArchivedFiles, row: FileRow, part: str, holder: str) -> FileRow:
        """Store a complete file in the archive, unless it is there, and its row, in the slice in which this returns."""
        turn = self._turns.setdefault(row.digest, asyncio.Lock())
        async with turn:
            self._actor.check_live()
            known = self.table.get(row.digest)
            if known is not None:
                is_there = await archived.has(known)
                self._actor.check_live()
                if is_there and self.table.get(row.digest) == known:
                    return self.add(row, None, holder)
            key = await archived.upload(row, part)
            try:
                with self.refusals():
                    self.folder.complete(part, row.digest)
                with self._actor.database.block():
                    if (known := self.table.get(row.digest)) is not None:
                        archived.remove(known.object)
                        self.table.set_object(row.digest, key)
                    stored = self.add(row._replace(object=key), None, holder)
                    archived.name(key)
                if not archived.has_room(0):
                    self.folder.remove(row.digest)
            finally:
                archived.end_upload(key)
            return stored

    def _drop_unnamed(self, row: FileRow) -> None:
        """Remove a file whose row could not be stored. An agent that has stopped leaves it to the next sweep."""
        if row.digest not in self.writing:
            self._turns.pop(row.digest, None)
        if self._actor.dropped is not None:
            return
        if row.digest not in self.writing and self.table.get(row.digest) is None:
            self._remove_later(row)
        elif self.archived is not None and self.archived.has_removals:
            self._begin_removal()

    # Who needs it

    def hold(self, digest: str, holder: str) -> FileRow:
        """Let something refer to a file, in this slice; `NotFound` if it does not exist."""
        row = self.row(digest)
        self.table.hold(digest, holder, self.now())
        return row

    def release(self, digest: str, *holders: str) -> None:
        """End references to a file, in this slice. Without any, it is deleted."""
        if self.table.exists:
            with self._actor.database.block():
                self.table.drop(digest, *holders)
                row = self.table.delete_unheld(digest)
                if row is not None and self.archived is not None:
                    self.archived.remove(row.object)
            if row is not None:
                self._remove_later(row)

    def release_all(self, holders: Iterable[str]) -> None:
        """End all references of some holders, in this slice."""
        if self.table.exists:
            for holder in holders:
                for digest in self.table.held_by(holder):
                    self.release(digest, holder)

    def _remove_later(self, row: FileRow) -> None:
        """Remove a file once it is durable that no row names it."""
        if row.is_large:
            self._removable[row.digest] = row.size
            self._begin_removal()

    def _begin_removal(self) -> None:
        if not self._is_removing:
            self._is_removing = True
            self._begin("remove files", self._remove)

    async def _remove(self) -> None:
        try:
            is_done = False
            while not is_done:
                await self._remove_from_folder()
                if self.archived is not None:
                    await self.archived.note_removals()
                is_done = not self._removable
        finally:
            self._is_removing = False

    async def _remove_from_folder(self) -> None:
        while self._removable:
            batch = dict(self._removable)
            await self._actor.leave()
            await self._tree.may_remove()
            for digest, size in batch.items():
                self._actor.check_live()
                self._removable.pop(digest, None)
                self._remove_unnamed(digest, size)
                await asyncio.sleep(0)

    def _remove_unnamed(self, name: str, size: int | None) -> None:
        """Remove something from the folder, unless a row names it, or it is being written."""
        if name not in self.writing and not self.table.names(name) and size is not None:
            if self.archived is None and DIGEST.fullmatch(name):
                self._host.history.keep_file(self._actor.address.root, self.folder.of(name))
            self.folder.remove(name)
            if self.archived is None or not DIGEST.fullmatch(name):  # there it is a copy, which does not count
                self._tree.forget_file(size)

    def _begin(self, name: str, work: Any) -> None:
        _, done = self._actor.handle(name, work)
        done.add_done_callback(self._ended)

    def _ended(self, done: Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, Unavailable) and self._actor.dropped is None:
            log.warning("files are removed later agent=%s error=%s", self._actor.address, error)
        elif error is not None and not (isinstance(error, SapwoodError) and self._actor.dropped is not None):
            log.error("files not removed until the next start agent=%s", self._actor.address, exc_info=error)

    # What is left behind

    def sweep_is_due(self, interval: float) -> bool:
        """Return whether the last sweep was so long ago."""
        return self.now() >= self._swept_at + interval

    def sweep_later(self) -> None:
        """Remove what is left behind, in the background."""
        self._swept_at = self.now()
        self._begin("sweep files", self.sweep)

    async def sweep(self) -> None:
        """Remove what no row names, and what clients have uploaded and nothing has used for too long."""
        before = self.now() - self._host.timings.upload_retention
        if self.table.exists:
            self.table.expire_uploads(before)
            for digest in self.table.held_by(UPLOAD, before):
                self.release(digest, UPLOAD)
        names = await to_the_end(self.folder.names)
        await self._tree.may_remove()
        fetching: set[str] = set() if self.archived is None else self.archived.fetching()
        for name in names:
            self._actor.check_live()
            if name in fetching:
                continue
            self._remove_unnamed(name, self.folder.size_of(name))
            await asyncio.sleep(0)
        if self.archived is not None:
            await self.archived.note_removals()

    # What is read

    async def read(self, row: FileRow) -> bytes:
        """Return the content of a file."""
        return b"".join([chunk async for chunk in self.chunks(row)])

    async def chunks(self, row: FileRow, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file from `start` to before `end`; `StoredDataError` if it is damaged.

        If all is read, its digest is compared before the last bytes are yielded.
        """
        end = row.size if end is None else end
        digest = hashlib.sha256() if (start, end) == (0, row.size) else None
        if not row.is_large:
            body = self.table.body(row.digest)
            if body is None:
                raise self._damaged(row, "it was deleted while it was read")
            if digest is not None and hashlib.sha256(body).hexdigest() != row.digest:
                raise self._damaged(row, "its content does not have its digest")
            yield body[start:end]
            return
        reader = await self._reader(row, start, end)
        try:
            held = b""
            while start < end:
                chunk = await reader.read(start, min(CHUNK, end - start))
                if not chunk:
                    raise self._damaged(row, "it is shorter than its row says")
                if digest is not None:
                    digest.update(chunk)
                start += len(chunk)
                if held:
                    yield held
                held = chunk
            if digest is not None and digest.hexdigest() != row.digest:
                again = None if self.archived is None else self.archived.drop_copy(row)
                raise again or self._damaged(row, "its content does not have its digest")
            if held:
                yield held
        finally:
            reader.close()

    async def _reader(self, row: FileRow, start: int, end: int) -> Reader:
        if self.archived is not None:
            return await self.archived.reader(row, start, end)
        return LocalReader(self._open(row))

    def _open(self, row: FileRow) -> int:
        try:
            descriptor = os.open(self.folder.of(row.digest), os.O_RDONLY)
        except FileNotFoundError:
            raise self._damaged(row, "it is missing") from None
        if (size := os.fstat(descriptor).st_size) != row.size:
            os.close(descriptor)
            raise self._damaged(row, f"it has {size} bytes instead of {row.size}")
        return descriptor

    def _damaged(self, row: FileRow, how: str) -> StoredDataError:
        root = self._actor.address.root
        return StoredDataError(
            f"The file {row.digest} of {self._actor.address} is damaged: {how}. Store it again, or restore the tree "
            f"from a backup: `sapwood restore FOLDER {root}`."
        )
