"""Small stand-ins for the neighbours of one class: whoever owns a database, or holds what wants to leave."""

from __future__ import annotations

import asyncio
from asyncio import Future
from pathlib import Path

from sapwood.address import Address
from sapwood.errors import StoredDataError
from sapwood.kernel.ports.durability import Commit, settle
from sapwood.storage.availability import StorageUnavailable
from sapwood.storage.database import Database
from sapwood.storage.engine import CHECKSUM
from sapwood.storage.files import Files
from sapwood.storage.image import PAGE_SIZE


class Owner:
    """Owns databases: writes down what it is told, and refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.created: list[Database] = []
        self.written: list[str] = []
        self.opened_: list[Database] = []
        self.lost_: list[BaseException] = []
        self.refuse: Exception | None = None
        self.slice: object = None
        """Whose slice it is; None: that of the running task."""

    def before_create(self, database: Database) -> None:
        self.created.append(database)

    def before_write(self, database: Database, sql: str) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.written.append(sql)

    def whose_slice(self) -> object:
        if self.slice is not None:
            return self.slice
        try:
            return asyncio.current_task()
        except RuntimeError:
            return self

    def opened(self, database: Database) -> None:
        self.opened_.append(database)

    def lost(self, database: Database, error: BaseException) -> None:
        self.lost_.append(error)

    def refused(self, error: StorageUnavailable) -> None:
        pass

    def damaged(self, database: Database, how: str) -> StoredDataError:
        return StoredDataError(f"{database.path.name}: {how}")


def a_database(
    path: Path,
    owner: Owner | None = None,
    *,
    files: Files | None = None,
    synced: bool = False,
    sql_timeout: float = 1.0,
    max_bytes: int = 1 << 30,
) -> Database:
    return Database(
        path,
        files or Files(),
        owner or Owner(),
        exists=path.exists(),
        synced=synced,
        sql_timeout=sql_timeout,
        max_bytes=max_bytes,
    )


def without_checksums(image: bytes | bytearray) -> bytes:
    """Return a database without the checksums of its pages: they are computed when a page is written to the file."""
    pages = [image[at : at + PAGE_SIZE - CHECKSUM] for at in range(0, len(image), PAGE_SIZE)]
    return bytes(CHECKSUM).join(pages) + bytes(CHECKSUM)


class RecordingGate:
    """Writes down every commit with the bytes of its frames, and holds nothing."""

    synced = False
    waiting = 0

    def __init__(self) -> None:
        self.commits: list[Commit] = []

    def opened(self, database: Database) -> None:
        pass

    def committed(self, commit: Commit) -> None:
        self.commits.append(commit)

    def wait(self, database: Database) -> Future[None] | None:
        return None

    def let_go(self, database: Database, leaving: list[Future[None]]) -> None:
        settle(leaving, None)

    def follows(self, database: Database, other: Database) -> None:
        pass

    def is_quiet(self, database: Database) -> bool:
        return True

    async def sync_folder(self, path: Path) -> None:
        pass

    def alarmed(self, root: Address, due: float | None, dead: int) -> None:
        pass

    async def flushed(self, root: Address) -> None:
        pass

    def drop(self, root: Address) -> None:
        pass

    async def bury(self, root: Address, folder: Path | None, objects: str = "") -> None:
        pass

    def forget(self, database: Database) -> None:
        pass

    def moved(self, folder: Path) -> None:
        pass

    def close(self) -> None:
        pass
