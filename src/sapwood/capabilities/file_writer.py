"""One file on its way into an agent's files. However large it is, only a batch of it is in memory."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sapwood.capabilities.file_rows import FileRow
from sapwood.capabilities.media_types import HEAD, MediaTypeCheck
from sapwood.errors import Unavailable
from sapwood.kernel.aio import to_the_end
from sapwood.storage.blobs import BlobFolder

INLINE = 64 * 1024
"""Bytes up to which a file is stored in the database of its agent."""
BATCH = 1024 * 1024
"""Bytes that are written at once."""


class WriterHost(Protocol):
    """What a writer needs of the files of its agent."""

    folder: BlobFolder
    writing: Counter[str]
    progress: dict[str, tuple[int, Any, MediaTypeCheck]]

    def now(self) -> float: ...

    def check_live(self) -> None: ...

    def check_room(self, size: int) -> None: ...

    def reserve(self, size: int, *, is_counted: bool = False) -> None: ...

    def refusals(self) -> AbstractContextManager[None]: ...

    def write_reserved(self, size: int) -> None: ...

    def end_reservation(self, reserved: int, written: int, *, is_counted: bool) -> None: ...

    def new_part(self) -> str: ...

    def end_part(self, part: str, *, keep: bool) -> None: ...

    def add(self, row: FileRow, body: bytes | None, holder: str) -> FileRow: ...

    async def add_part(self, row: FileRow, part: str, holder: str) -> FileRow: ...


class FileWriter:
    """Takes the bytes of one file. A file that is not finished leaves nothing behind, unless it is a resumed upload.

    `size`: how many bytes are to come, if that is known: they are accounted for before the first one is taken.
    `part`: the incomplete file of an upload that may be resumed; its row counts for the agent already.
    """

    def __init__(self, store: WriterHost, claimed: str | None, *, size: int | None = None, part: str | None = None):
        self._store = store
        self._claimed = claimed
        self._part = part
        self._is_counted = self.keeps_part = part is not None
        """Whether what was taken stays when this ends before the end of the file."""
        self._hash = hashlib.sha256()
        self._check = MediaTypeCheck()
        self._buffer = bytearray()
        self._body = b""
        self._is_ended = False
        self._taken = 0
        """Bytes that were digested; the others are in the buffer."""
        self._reserved = self._written = 0
        self.size = 0
        """How many bytes the file has so far."""
        if part is not None:
            store.writing[part] += 1
        if size is not None and (size > INLINE or part is not None):
            self._reserve(size)

    @property
    def media_type(self) -> str:
        """The media type, as far as it can be told from what was taken so far."""
        if self._taken or self._is_ended:
            return self._check.found(self._claimed, is_end=self._is_ended)
        check = MediaTypeCheck()
        check.add(bytes(self._buffer[:HEAD]))
        return check.found(self._claimed, is_end=False)

    async def resume(self) -> None:
        """Take what an earlier request has stored of this upload."""
        assert self._part is not None
        folder = self._store.folder
        received = folder.size_of(self._part) or 0
        if (known := self._store.progress.pop(self._part, None)) is not None and known[0] == received:
            self._taken, self._hash, self._check = known
        while self._taken < received:
            content = await to_the_end(folder.read, self._part, self._taken, min(BATCH, received - self._taken))
            await to_the_end(self._digest, content)
            if not content:
                raise Unavailable("The beginning of this upload was removed. Start it again.")
        self.size = self._taken

    async def write(self, content: bytes | bytearray | memoryview) -> None:
        """Take the next bytes."""
        view = memoryview(content)
        while view:
            room = BATCH - len(self._buffer)
            self._buffer += view[:room]
            self.size += len(view[:room])
            view = view[room:]
            if len(self._buffer) >= BATCH:
                await self.flush()

    async def flush(self) -> None:
        """Write what is in memory."""
        content = bytes(self._buffer)
        self._buffer.clear()
        if not content:
            return
        if self._part is None:
            self._reserve(self.size)
            self._part = self._store.new_part()
        elif not self.keeps_part:
            self._reserve(self.size)
        place = self._taken
        self._store.check_live()
        self._written += len(content)
        self._store.write_reserved(len(content))
        with self._store.refusals():
            await to_the_end(self._append, place, content)

    def _append(self, place: int, content: bytes) -> None:
        assert self._part is not None
        self._store.folder.append(self._part, place, content)
        self._digest(content)

    def _digest(self, content: bytes) -> None:
        self._hash.update(content)
        self._check.add(content)
        self._taken += len(content)

    def _reserve(self, size: int) -> None:
        if size > self._reserved:
            self._store.reserve(size - self._reserved, is_counted=self._is_counted)
            self._reserved = size

    async def end(self) -> None:
        """Take what is still in memory: from now on `digest` and `media_type` are those of the whole file."""
        if self._part is None and self.size <= INLINE:
            self._store.check_room(self.size)
            self._body = bytes(self._buffer)
            self._buffer.clear()
            self._digest(self._body)
        else:
            await self.flush()
        self._is_ended = True

    async def finish(self, name: str | None, holder: str) -> FileRow:
        """Store the file, and let the holder refer to it. It is committed with the slice in which this returns."""
        if not self._is_ended:
            await self.end()
        is_large = self.size > INLINE
        row = FileRow(0, self.digest, self.size, self.media_type, name, self._store.now(), None, is_large=is_large)
        if self._part is None:
            return self._store.add(row, self._body, holder)
        if not is_large:
            body = await to_the_end(self._store.folder.read, self._part, 0, self.size)
            return self._store.add(row, body, holder)
        await to_the_end(self._store.folder.sync, self._part)
        return await self._store.add_part(row, self._part, holder)

    @property
    def digest(self) -> str:
        """The digest of what was taken so far, without what is in memory."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """End it: what was not finished is removed, unless it can be resumed."""
        if self.keeps_part and self._part is not None:
            self._store.progress[self._part] = (self._taken, self._hash, self._check)
        self._store.end_reservation(self._reserved, self._written, is_counted=self._is_counted)
        if self._part is not None:
            self._store.end_part(self._part, keep=self.keeps_part)
