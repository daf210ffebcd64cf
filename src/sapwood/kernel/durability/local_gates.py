"""When what was written is durable, on one machine: `process` and `disk`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from asyncio import Future
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from sapwood.address import Address
from sapwood.clock import report_work
from sapwood.errors import Unavailable
from sapwood.kernel.ports.durability import Commit, settle
from sapwood.storage.availability import StorageUnavailable, refused_by
from sapwood.storage.database import Database
from sapwood.storage.files import Files

FLUSHERS = 4
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
REMEMBERED = 50_000
"""How many closed files to remember; forgetting one costs a needless sync."""


class ProcessGate:
    """Kept once committed: the operating system has it, and survives the process. Nothing ever waits."""

    synced = False
    waiting = 0

    def opened(self, database: Database) -> None:
        pass

    def committed(self, commit: Commit) -> None:
        pass

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

    async def bury(self, root: Address, folder: Path | None, objects: str = "") -> None:
        pass

    async def flushed(self, root: Address) -> None:
        pass

    def drop(self, root: Address) -> None:
        pass

    def forget(self, database: Database) -> None:
        pass

    def moved(self, folder: Path) -> None:
        pass

    def close(self) -> None:
        pass


class _File:
    """How far one database is on its way to the disk."""

    __slots__ = ("committed", "descriptor", "durable", "flushing", "follows", "waiters", "wal")

    def __init__(self, wal: Path) -> None:
        self.wal = wal
        self.descriptor: int | None = None
        """Of the write-ahead log, which SQLite holds no lock on: ours to close."""
        self.committed = 0
        self.durable = 0
        self.flushing = False
        self.follows: list[Future[None]] = []
        """What has to be durable before this is flushed again."""
        self.waiters: list[tuple[int, list[Future[None]]]] = []


class DiskGate:
    """Kept once the disk has it.

    Every commit starts a flush of its file, unless one is under way: then the next flush
    takes all commits that gathered until then. Files are flushed in parallel, by threads
    that do nothing else.
    """

    synced = True

    def __init__(self, files: Files, loop: asyncio.AbstractEventLoop) -> None:
        self._files = files
        self._loop = loop
        self._end_work_report = report_work(loop, self._is_busy)
        self._folders = 0
        """How many folders are being synced."""
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._known: dict[Database, _File] = {}
        self._broken: dict[Path, str] = {}
        """Files that could not be synced. By path: they are not mended by being closed and opened again."""
        self._placed: set[Path] = set()
        """The folders of trees whose own names are on the disk."""
        self._settled: set[Path] = set()
        """Files that were closed with everything on the disk, name and all; opened again they need no sync."""
        self._threads = [
            threading.Thread(target=self._work, name=f"sapwood-flush-{n}", daemon=True) for n in range(FLUSHERS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        return sum(len(waiting) for file in self._known.values() for _, waiting in file.waiters)

    def opened(self, database: Database) -> None:
        if database.path in self._settled:
            self._settled.discard(database.path)
            database.settled = True
        # The process that wrote it may have died before the disk had it; no client may see it before the disk has it.
        if database.frames and not database.settled:
            self._written(database)

    def committed(self, commit: Commit) -> None:
        self._written(commit.database)

    def _written(self, database: Database) -> None:
        file = self._file(database)
        file.committed += 1
        if not file.flushing:
            self._flush(database, file)

    def _file(self, database: Database) -> _File:
        file = self._known.get(database)
        if file is None:
            file = self._known[database] = _File(database.wal)
        return file

    def wait(self, database: Database) -> Future[None] | None:
        if self._broken and database.path in self._broken:
            raise Unavailable(self._broken[database.path])
        file = self._known.get(database)
        if file is None:
            return None
        if file.durable >= file.committed:
            return None
        waiter: Future[None] = self._loop.create_future()
        file.waiters.append((file.committed, [waiter]))
        self._flush_again(database, file)
        return waiter

    def let_go(self, database: Database, leaving: list[Future[None]]) -> None:
        file = self._known.get(database)
        if database.path in self._broken:
            settle(leaving, Unavailable(self._broken[database.path]))
        elif file is None or file.durable >= file.committed:
            settle(leaving, None)
        else:
            file.waiters.append((file.committed, leaving))
            self._flush_again(database, file)

    def _flush_again(self, database: Database, file: _File) -> None:
        """Flush a file whose last flush had no descriptor."""
        if not file.flushing:
            self._flush(database, file)

    def follows(self, database: Database, other: Database) -> None:
        if (first := self.wait(other)) is not None:
            # If it fails and nothing is flushed any more, nothing else retrieves its exception.
            first.add_done_callback(lambda first: first.cancelled() or first.exception())
            self._file(database).follows.append(first)

    def _flush(self, database: Database, file: _File) -> None:
        file.flushing = True
        while file.follows:
            first = file.follows[-1]
            if not first.done():
                first.add_done_callback(lambda _: self._flush(database, file))
                return
            if (error := first.exception()) is not None:
                file.follows.clear()
                again = isinstance(error, StorageUnavailable)
                failed = OSError(errno.EMFILE, str(error)) if again else OSError(str(error))
                self._flushed(database, file, file.committed, failed)
                return
            file.follows.pop()
        self._jobs.put(partial(self._sync, database, file, file.committed))

    def _sync(self, database: Database, file: _File, target: int) -> None:
        error: OSError | None = None
        try:
            if file.descriptor is None:
                file.descriptor = self._files.open(file.wal)
            self._files.sync_descriptor(file.wal, file.descriptor)
            if not database.settled:
                self._settle(database)
        except OSError as raised:
            error = raised
        self._tell(self._flushed, database, file, target, error)

    def _settle(self, database: Database) -> None:
        """The first time, the process that created the file may have died before its name was on the disk."""
        path = database.path
        if (descriptor := database.descriptor) is None:
            raise OSError(errno.EBADF, "it was closed")  # the process ends
        self._files.sync_descriptor(path, descriptor)
        if database.beside is not None:
            self._files.sync_file(database.beside)
        self._files.sync_folder(path.parent)
        if path.parent not in self._placed:
            self._files.sync_folder(path.parent.parent)
            self._placed.add(path.parent)

    def _flushed(self, database: Database, file: _File, target: int, error: OSError | None) -> None:
        file.flushing = False
        if error is not None and error.errno in NO_DESCRIPTOR:
            # Nothing of it was synced, so the next flush may try again.
            for _, waiting in file.waiters:
                settle(waiting, refused_by(error))
            file.waiters.clear()
            return
        if error is not None:
            # What a failed sync leaves on the disk is unknown, and a second one may lie.
            text = f"The disk failed to store {database.path.name}: {error}. Restart the process."
            self._broken[database.path] = text
            for _, waiting in file.waiters:
                settle(waiting, Unavailable(text))
            file.waiters.clear()
            return
        file.durable = target
        database.settled = True
        left: list[tuple[int, list[Future[None]]]] = []
        for wanted, waiting in file.waiters:
            if wanted > target:
                left.append((wanted, waiting))
            else:
                settle(waiting, None)
        file.waiters = left
        if file.committed > target:
            self._flush(database, file)

    def is_quiet(self, database: Database) -> bool:
        file = self._known.get(database)
        if file is None or database.path in self._broken or file.durable >= file.committed:
            return True
        self._flush_again(database, file)
        return False

    async def sync_folder(self, path: Path) -> None:
        done: Future[OSError | None] = self._loop.create_future()

        def sync() -> None:
            error: OSError | None = None
            try:
                self._files.sync_folder(path)
            except OSError as raised:
                error = raised
            self._tell(finish, error)

        def finish(error: OSError | None) -> None:
            self._folders -= 1
            if not done.cancelled():
                done.set_result(error)

        self._folders += 1
        self._jobs.put(sync)
        if (error := await done) is not None:
            raise Unavailable(f"The disk failed to store the names in {path.name}: {error}.")

    def alarmed(self, root: Address, due: float | None, dead: int) -> None:
        pass

    async def bury(self, root: Address, folder: Path | None, objects: str = "") -> None:
        if folder is not None:
            await self.sync_folder(folder)

    async def flushed(self, root: Address) -> None:
        pass

    def drop(self, root: Address) -> None:
        pass

    def _tell(self, news: Callable[..., object], *what: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it everything that waited
            self._loop.call_soon_threadsafe(news, *what)

    def forget(self, database: Database) -> None:
        file = self._known.pop(database, None)
        if file is not None and file.descriptor is not None:
            self._files.close(file.descriptor)
        if database.settled and database.path not in self._broken:
            if len(self._settled) >= REMEMBERED:
                self._settled.clear()
            self._settled.add(database.path)

    def moved(self, folder: Path) -> None:
        self._placed.discard(folder)
        self._settled = {path for path in self._settled if path.parent != folder}

    def _is_busy(self) -> bool:
        return self._folders > 0 or any(file.flushing for file in self._known.values())

    def close(self) -> None:
        self._end_work_report()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        for file in self._known.values():
            if file.descriptor is not None:
                self._files.close(file.descriptor)
        self._known.clear()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
