"""`self.files`: the files of an agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from sapwood.capabilities.file_rows import CODE, UPLOAD, File, check_name
from sapwood.capabilities.file_writer import BATCH
from sapwood.capabilities.files import FileStore
from sapwood.errors import OverLimit, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.aio import to_the_end
from sapwood.when import is_a
from sapwood.wire.files import PATH
from sapwood.wire.routing import path_to


class AgentFiles:
    """The files of this agent: bytes of any size, stored beside its database. A file is identified by its digest."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._store = actor.of(FileStore)

    async def put(
        self, data: bytes | AsyncIterable[bytes] | Path, *, name: str | None = None, media_type: str | None = None
    ) -> File:
        """Store a file, and return it. It is kept until `delete`.

        The same bytes are stored once: the first `name` stays. `media_type` counts only where the bytes do not
        prove another one. A `Path` is copied.
        """
        self._actor.check_use()
        check_name(name)
        size = len(data) if isinstance(data, bytes | bytearray | memoryview) else None
        writer = self._store.writer(media_type, size=size)
        try:
            if isinstance(data, Path):
                await _copy(data, writer)
            elif isinstance(data, bytes | bytearray | memoryview):
                await writer.write(data)
            else:
                async for content in _pieces(data):
                    await writer.write(content)
            return self._store.file(await writer.finish(name, CODE))
        finally:
            writer.close()

    async def get(self, file: File | str) -> bytes:
        """Return the content of a file. A file above `Limits(payload_bytes=…)` must be read with `stream`.

        `file` is a `File` or its digest. `NotFound` if the agent does not have it, `StoredDataError` if it is damaged.
        """
        row = self._row(file)
        if row.size > self._actor.limits.payload_bytes:
            raise OverLimit(
                f"The file has {row.size} bytes; get() returns at most {self._actor.limits.payload_bytes}. Use "
                "self.files.stream(), or raise Limits(payload_bytes=…).",
                path=self._actor.address.segments,
                limit="payload_bytes",
            )
        return await self._store.read(row)

    async def stream(self, file: File | str) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file in pieces, so that a large one needs little memory."""
        async with aclosing(self._store.chunks(self._row(file))) as chunks:
            async for chunk in chunks:
                yield chunk

    def info(self, digest: str) -> File | None:
        """Return what is known of a file, or `None` if the agent does not have it."""
        self._actor.check_use()
        row = self._store.table.get(digest)
        return None if row is None else self._store.file(row)

    def list(self, *, after: File | None = None, limit: int = 1000) -> list[File]:
        """Return the files in the order in which they were stored. For the next page, pass the last one as `after`."""
        self._actor.check_use()
        number = 0 if after is None else self._store.row(after.digest).number
        return [self._store.file(row) for row in self._store.table.page(number, limit)]

    def url(self, file: File | str) -> str:
        """Return the path of the URL of a file. Clients that may watch this agent can download it there."""
        rest = f"{PATH}/{self._row(file).digest}"
        return path_to(self._actor.address, prefix=self._actor.host.settings.prefix, rest=rest)

    def keep(self, file: File | str) -> File:
        """Keep a file that a client has uploaded until `delete`. Otherwise it is deleted after a day."""
        row = self._store.hold(self._row(file).digest, CODE)
        self._store.release(row.digest, UPLOAD)
        return self._store.file(row)

    async def delete(self, file: File | str) -> None:
        """Delete a file. If a message refers to it, it stays until that is deleted. Does nothing if it is gone."""
        self._actor.check_use()
        self._store.release(_digest(file), CODE, UPLOAD)

    def _row(self, file: File | str) -> Any:
        self._actor.check_use()
        return self._store.row(_digest(file))


def _digest(file: File | str) -> str:
    if isinstance(file, File):
        return file.digest
    if not is_a(file, str):
        raise UsageError(f"Expected a File or its digest, got a {type(file).__name__}.")
    return file


async def _pieces(data: Any) -> AsyncGenerator[bytes, None]:
    if not hasattr(data, "__aiter__"):
        raise UsageError(f"put() takes bytes, an async iterable of bytes or a Path, got a {type(data).__name__}.")
    async for content in data:
        if not isinstance(content, bytes | bytearray | memoryview):
            raise UsageError(f"put() takes an async iterable of bytes, and it yielded a {type(content).__name__}.")
        yield bytes(cast(bytes, content))


async def _copy(path: Path, writer: Any) -> None:
    with await to_the_end(path.open, "rb") as file:
        while content := await to_the_end(file.read, BATCH):
            await writer.write(content)
