"""Trees of real databases whose commits go through the gate of the replicated log, without agents."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from pathlib import Path

from tests.unit.helpers import without_checksums

from sapwood.address import Address
from sapwood.clock import SystemClock
from sapwood.errors import StoredDataError
from sapwood.kernel.durability.slices import Slices
from sapwood.kernel.log.records import tree_id
from sapwood.kernel.log.replicated_gate import ReplicatedGate
from sapwood.kernel.log.restore import LABEL
from sapwood.kernel.log.tree_cache import Keeper, Replicas
from sapwood.kernel.ports.log import Archive, Epoch, FencedLog
from sapwood.kernel.ports.shards import shard_of
from sapwood.storage.availability import StorageUnavailable
from sapwood.storage.database import Database
from sapwood.storage.files import Files
from sapwood.storage.wal_frames import whole_image
from sapwood.timings import DEFAULTS, Timings


class LoggedTree:
    """One open tree."""

    def __init__(self, root: Address, folder: Path, gate: ReplicatedGate) -> None:
        self.address = root
        self.folder = folder
        self._gate = gate
        self._slices = Slices(root, gate, asyncio.get_running_loop())
        self.databases: dict[str, Database] = {}

    def before_create(self, database: Database) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / LABEL).write_text(str(self.address))

    def before_write(self, database: Database, sql: str) -> None:
        self._slices.begin(database)

    def whose_slice(self) -> object:
        return asyncio.current_task()

    def opened(self, database: Database) -> None:
        self._gate.opened(database)

    def lost(self, database: Database, error: BaseException) -> None:
        raise error

    def refused(self, error: StorageUnavailable) -> None:
        raise error

    def damaged(self, database: Database, how: str) -> StoredDataError:
        return StoredDataError(how)

    def database(self, stem: str = "root") -> Database:
        if stem not in self.databases:
            path = self.folder / f"{stem}.db"
            self.databases[stem] = Database(
                path, Files(), self, exists=path.exists(), synced=False, sql_timeout=10.0, max_bytes=1 << 30
            )
        return self.databases[stem]

    def write(self, stem: str, size: int, randomly: random.Random) -> None:
        """Commit some rows of this many bytes, sometimes instead of others."""
        database = self.database(stem)
        database.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, content BLOB)")
        if randomly.random() < 0.3:
            database.execute("DELETE FROM rows WHERE id % 3 = ?", randomly.randrange(3))
        for at in range(0, size, 1500):
            database.execute("INSERT INTO rows (content) VALUES (?)", randomly.randbytes(min(1500, size - at)))
        self._slices.commit()

    def rows(self, stem: str = "root") -> list[tuple[object, ...]]:
        return self.database(stem).execute("SELECT id, content FROM rows ORDER BY id")

    def remove(self, stem: str) -> None:
        database = self.databases.pop(stem)
        database.removed = True
        database.close()
        self._gate.forget(database)
        database.path.unlink()
        database.wal.unlink(missing_ok=True)

    async def flush(self) -> None:
        for database in self.databases.values():
            if (waiting := self._gate.wait(database)) is not None:
                await waiting

    def close(self) -> None:
        for database in self.databases.values():
            database.close()
            self._gate.forget(database)
        self.databases.clear()


class Place:
    """A node's part in keeping trees: a data folder, a gate and a keeper, over a log that others may share."""

    def __init__(
        self,
        folder: Path,
        stored: FencedLog,
        archive: Archive,
        owned: dict[int, Epoch],
        *,
        replicas: Replicas | None = None,
        park_after: float = 0.0,
        timings: Timings = DEFAULTS,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.owned = owned
        self.fenced: list[int] = []
        self.gate = ReplicatedGate(
            stored,
            asyncio.get_running_loop(),
            SystemClock(),
            epoch_of=self.owned.get,
            holds_lease=lambda: True,
            fenced=self.fenced.extend,
            version="test",
            timings=timings,
        )
        self.keeper = Keeper(
            stored,
            archive,
            self.gate,
            Files(),
            SystemClock(),
            epoch_of=self.owned.get,
            park_after=park_after,
            replicas=replicas,
            timings=timings,
        )

    def folder_of(self, root: Address) -> Path:
        return self.folder / tree_id(root)

    async def open(self, root: Address, aliases: Collection[Address] = ()) -> LoggedTree:
        await self.keeper.bring(root, self.folder_of(root), list(aliases))
        return LoggedTree(root, self.folder_of(root), self.gate)

    async def close(self, tree: LoggedTree) -> None:
        await self.gate.flushed(tree.address)
        tree.close()
        await self.keeper.put_away(tree.address, tree.folder)


def contents(folder: Path) -> dict[str, bytes]:
    """Return what each database of a folder holds; nobody has them open."""
    return {path.stem: without_checksums(whole_image(path)) for path in sorted(folder.glob("*.db"))}


def a_root(name: str, type_id: str = "Kept") -> Address:
    return Address.root_of(type_id, name)


def shard(root: Address) -> int:
    return shard_of(root)
