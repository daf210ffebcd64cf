"""The files of one tree: its folder, its databases, and what they may take."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from sapwood.address import Address
from sapwood.errors import OverLimit, SapwoodError, StoredDataError, Unavailable
from sapwood.kernel.actors.actor import Host
from sapwood.kernel.actors.objects_table import ObjectsTable, folder_of, store_folder
from sapwood.kernel.durability.slices import Slices
from sapwood.kernel.ports.file_archive import FileArchive
from sapwood.kernel.trees.quota import Ledger
from sapwood.settings import Limits
from sapwood.storage.availability import StorageUnavailable
from sapwood.storage.blobs import blob_bytes, part_bytes
from sapwood.storage.database import Database
from sapwood.storage.files import Files
from sapwood.storage.image import PAGE_SIZE
from sapwood.storage.marks import Marks

log = logging.getLogger(__name__)

ROOT_STEM = "root"
LABEL = "address"
"""The file in a tree's folder that says, for people and for backups, whose it is."""
MEASURE_EVERY = 16
"""How many pages a database may write before it is measured again."""
NEW_DATABASE = 8 * PAGE_SIZE


class TreeFiles(ABC):
    """The databases of one tree, and who may write to them."""

    def __init__(
        self,
        host: Host,
        files: Files,
        folder: Path,
        address: Address,
        opened: Callable[[Self, Database], None],
        closed: Callable[[Database], None],
        *,
        has_marks: bool,
    ) -> None:
        """`has_marks`: the files are the truth about the tree, and not copies of what a log has."""
        self.host = host
        self.files = files
        self.folder = folder
        self.address = address
        self.slices = Slices(address, host.gate, host.loop, host.failures)
        self.databases: dict[str, Database] = {}
        self.limits = host.settings.limits
        self._copies = 0
        self._moving = asyncio.Event()
        self._moving.set()
        self._opened = opened
        self._closed = closed
        self._exists = folder.exists()
        self.marks = Marks(folder, files) if has_marks else None
        self._labelled = False
        self._measured: dict[Database, tuple[int, int]] = {}
        self._reserved = 0
        """Bytes of files that are being stored."""
        self._written: Database | None = None
        """The database that was written last."""
        self.root = self.database(ROOT_STEM, host.settings.limits)
        self.ledger = Ledger(self.root, self._estimate, self._measure_all, host.loop.time)

    def database(self, stem: str, limits: Limits, *, new: bool = False) -> Database:
        """Return the database of the agent with this file stem; one object each, whichever agent is alive."""
        database = self.databases.get(stem)
        if database is None:
            path = self.folder / f"{stem}.db"
            database = self.databases[stem] = Database(
                path,
                self.files,
                self,
                exists=not new and (path.exists() or self._had(stem)),
                synced=self.host.gate.synced,
                sql_timeout=self.host.settings.sql_timeout,
                max_bytes=limits.database_bytes,
                marks=self.marks,
                checkpoint_frames=self.host.timings.checkpoint_frames,
                reader_frames=self.host.timings.reader_frames,
                now=self.host.loop.time,
            )
            database.damage = self.host.damage.get(path)
            if stem == ROOT_STEM:
                database.beside = self.folder / LABEL
        return database

    def _had(self, stem: str) -> bool:
        """Return whether a file that is missing was there, and can have been lost only by damage."""
        if not self._exists or self.marks is None or not self.folder.is_dir():
            return False
        mark = self.marks.find(stem)
        if mark is not None and mark.counts(self.files.boot):
            return True
        if mark is not None:
            log.warning("agent lost in a restart of the machine root=%s file=%s.db", self.address, stem)
        # The file of a child is made after the root's, and only if the root's names it.
        return stem == ROOT_STEM and any(entry.suffix == ".db" for entry in self.folder.iterdir())

    def before_create(self, database: Database) -> None:
        if not self._exists:
            self.files.make_folder(self.folder)
            self._exists = True
        elif not self._labelled and not self.folder.is_dir():
            raise StoredDataError(
                f"{self.folder.name} in the folder 'trees' must be a folder: the one of {self.address}. Move it "
                "elsewhere, or restore a backup of this tree."
            )
        if not self._labelled:
            self._label()
        self._account(NEW_DATABASE, "")
        self._measured[database] = (0, NEW_DATABASE)

    def before_write(self, database: Database, sql: str) -> None:
        last, self._written = self._written, database
        if last is not None and last is not database:
            # What it wrote may be all it ever writes, and counts before anybody else may write.
            self.slices.commit()
            if last.is_open and last.damage is None:
                self._measure(last, sql)
        size = self._measure(database, sql)
        if self.ledger.is_full(self.limits):
            self._account(0, sql)
        if size > database.max_bytes - MEASURE_EVERY * PAGE_SIZE and not _frees_space(sql):
            size = database.used_bytes()
            self._measured[database] = (database.frames, size)
            if size >= database.max_bytes - PAGE_SIZE:
                raise OverLimit(
                    f"The database has {size} bytes; the limit is {database.max_bytes}. Delete rows, or raise "
                    "Limits(database_bytes=…).",
                    limit="database_bytes",
                )
        self.slices.begin(database)

    def _measure(self, database: Database, sql: str) -> int:
        """Return how large a database was when last looked at; look again once it has written enough."""
        frames, size = self._measured.get(database, (-1, 0))
        if frames >= 0 and 0 <= database.frames - frames < MEASURE_EVERY:
            return size
        used = database.used_bytes()
        self._measured[database] = (database.frames, used)
        if frames >= 0 and used != size:  # what it held when it was opened is accounted for already
            self._account(used - size, sql)
        return used

    def _account(self, by: int, sql: str) -> None:
        try:
            if self.ledger.grow(by, self.limits, self.address.segments):
                self.slices.before_commit("grant", self.ledger.grant)
        except OverLimit:
            if not _frees_space(sql):
                raise
            self.ledger.freed()

    def reserve(self, size: int) -> None:
        """Account for a file before its bytes are stored; `OverLimit` if the tree has no room for it."""
        self._reserved += size
        try:
            self._account(size, "")
        except OverLimit:
            self._reserved -= size
            self.ledger.shrink(size)
            raise

    def stored(self, size: int) -> None:
        """The bytes that were reserved for a file are stored: they are measured from now on."""
        self._reserved -= size

    def forget_file(self, size: int) -> None:
        """A file was removed, or was not stored after all."""
        self.ledger.shrink(size)

    def _estimate(self) -> int:
        """Return what the files take on the disk: never less than they hold."""
        if not self._exists:
            return self._reserved
        return sum(entry.stat().st_size for entry in self.folder.iterdir()) + blob_bytes(self.folder) + self._reserved

    def _measure_all(self) -> int:
        """Return what all files of the tree hold. Opens each of its databases, so only before a refusal."""
        names = sorted(entry.stem for entry in self.folder.iterdir() if entry.suffix == ".db")
        databases = [self.database(name, self.limits) for name in names]
        return sum(database.used_bytes() for database in databases) + self._file_bytes(databases) + self._reserved

    def _file_bytes(self, databases: Iterable[Database]) -> int:
        """Return the size of all larger files. In a cluster, those in the folder are only copies."""
        if self.host.file_archive is None:
            return blob_bytes(self.folder)
        return sum(ObjectsTable(database).total() for database in databases) + part_bytes(self.folder)

    def stored_object_folder(self) -> str | None:
        """Return the folder of the tree's files in the archive, or `None` if it has none yet."""
        try:
            return folder_of(self.root)
        except StoredDataError as error:
            log.warning("files of a damaged tree stay in the archive root=%s error=%s", self.address, error)
            return None

    def object_folder(self, archive: FileArchive) -> str:
        """Return the folder of the tree's files in the archive; the first call stores it."""
        name = folder_of(self.root)
        if name is None:
            store_folder(self.root, name := archive.new_folder(self.address))
            self.ledger.grant()  # from now on, the folder on the disk does not tell the size of the tree
        return name

    def whose_slice(self) -> object:
        try:
            return asyncio.current_task()
        except RuntimeError:
            return None

    def _label(self) -> None:
        """Have the folder say whose it is; a crash or a new type id may have left it wrong."""
        label, text = self.folder / LABEL, str(self.address).encode()
        if label.is_dir():
            self.files.rename(label, aside := label.with_suffix(".odd"))
            log.warning("label of a tree is a folder; moved to %s", aside.name, extra={"root": str(self.address)})
        if not label.exists() or label.read_bytes() != text:
            self.files.remove(label)
            self.files.close(self.files.create(label, text))
        self._labelled = True

    def opened(self, database: Database) -> None:
        if not self._labelled:
            self._label()
        self.host.gate.opened(database)
        self._opened(self, database)

    def damaged(self, database: Database, how: str) -> SapwoodError:
        return self.host.damaged(self.address, database.path.name, how)

    def refused(self, error: StorageUnavailable) -> None:
        self.host.storage.refused(error)

    def close_database(self, database: Database) -> bool:
        """Close a database if nothing of it is under way; return whether it is closed now."""
        if database.in_use or not self.host.gate.is_quiet(database):
            return False
        measured = self._measured.pop(database, None)
        is_changed = measured is not None and measured[0] != database.frames
        if measured is not None and is_changed and database.is_open and database.damage is None:
            # It is written already: too late to refuse.
            self._account(database.used_bytes() - measured[1], "DELETE")
        self.mark(database)
        self.release(database)
        return True

    def release(self, database: Database) -> None:
        """Close a database, and forget it wherever open ones are listed: an entry would keep the tree in memory."""
        database.close()
        self._measured.pop(database, None)
        self._closed(database)
        self.host.gate.forget(database)

    def mark(self, database: Database) -> None:
        """Store how far a database is written, if that is durable."""
        if database.is_marked or database.in_use or not self.host.gate.is_quiet(database):
            return
        with suppress(Unavailable):  # the disk failed to store it
            self.host.gate.wait(database)
            database.mark()

    def empty_logs(self) -> None:
        """Copy what the logs of open databases have into their files."""
        if self.slices.may_checkpoint:
            self.slices.commit()
            for database in self.databases.values():
                if self.host.gate.is_quiet(database):
                    database.empty_log()

    def close(self) -> bool:
        """Close every database that can be; return whether all are, and for good."""
        self.slices.commit()
        # The root last: it keeps the account that closing the others adds to.
        root, *others = self.databases.values()
        closed = [self.close_database(database) for database in others]
        if root.damage is None:
            self.ledger.settle()
        self.slices.commit()
        is_closed = self.close_database(root) and all(closed)
        if is_closed:
            for database in self.databases.values():
                database.let_go = True
        return is_closed

    @contextmanager
    def kept_still(self) -> Generator[None, None, None]:
        """Let no file of the tree change but by growing, and none vanish; agents work on."""
        self._copies += 1
        self.slices.may_checkpoint = False
        self._moving.clear()
        try:
            yield
        finally:
            self._copies -= 1
            if not self._copies:
                self.slices.may_checkpoint = True
                self._moving.set()

    async def may_remove(self) -> None:
        """Return when files may be removed."""
        await self._moving.wait()

    @abstractmethod
    def lost(self, database: Database, error: BaseException) -> None:
        """Called when a transaction was undone: by SQLite, by a refused write, or because the file is damaged."""


def _frees_space(sql: str) -> bool:
    return sql.lstrip()[:6].upper() in ("DELETE", "DROP T")
