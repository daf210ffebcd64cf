"""A gate over another one, which decides everything. A subclass takes note of what passes."""

from __future__ import annotations

from asyncio import Future
from pathlib import Path

from sapwood.address import Address
from sapwood.kernel.ports.durability import Commit, Gate
from sapwood.storage.database import Database


class GateLayer:
    """Passes everything on to the gate below it."""

    def __init__(self, below: Gate) -> None:
        self._below = below

    @property
    def synced(self) -> bool:
        return self._below.synced

    @property
    def waiting(self) -> int:
        return self._below.waiting

    def opened(self, database: Database) -> None:
        self._below.opened(database)

    def committed(self, commit: Commit) -> None:
        self._below.committed(commit)

    def wait(self, database: Database) -> Future[None] | None:
        return self._below.wait(database)

    def let_go(self, database: Database, leaving: list[Future[None]]) -> None:
        self._below.let_go(database, leaving)

    def follows(self, database: Database, other: Database) -> None:
        self._below.follows(database, other)

    def is_quiet(self, database: Database) -> bool:
        return self._below.is_quiet(database)

    async def sync_folder(self, path: Path) -> None:
        await self._below.sync_folder(path)

    def alarmed(self, root: Address, due: float | None, dead: int) -> None:
        self._below.alarmed(root, due, dead)

    async def bury(self, root: Address, folder: Path | None, objects: str = "") -> None:
        await self._below.bury(root, folder, objects)

    async def flushed(self, root: Address) -> None:
        await self._below.flushed(root)

    def drop(self, root: Address) -> None:
        self._below.drop(root)

    def forget(self, database: Database) -> None:
        self._below.forget(database)

    def moved(self, folder: Path) -> None:
        self._below.moved(folder)

    def close(self) -> None:
        self._below.close()
