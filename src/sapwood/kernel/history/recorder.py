"""Records the past of the trees of a node: gathers what each commit changed, and writes it at moments.

It lags behind the commits, and nothing waits for it. What is not written when the process is killed is missing in the
past, never in the present. If the past of a tree cannot be written, it stops, and continues later with a new base.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from asyncio import Future, TimerHandle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.errors import Unavailable
from sapwood.kernel.history.chain import LABEL, Chain, Retention
from sapwood.kernel.history.deltas import PageImages
from sapwood.kernel.history.images import TreeImages
from sapwood.kernel.history.jobs import FAILURES, Done, JobThread
from sapwood.kernel.history.record import OpenFile, RecordedTree, RecordState, TreeRecord
from sapwood.kernel.history.removed_files import keep_removed
from sapwood.kernel.history.segments import (
    HISTORY,
    MomentName,
    closed_state,
    history_folder,
    segments_in,
)
from sapwood.kernel.history.sweep import ExpiredPast, sweep
from sapwood.kernel.history.unrecorded import UnrecordedHistory, fingerprint
from sapwood.kernel.log.writer import Batch
from sapwood.kernel.ports.durability import Commit
from sapwood.kernel.ports.history import MomentKind
from sapwood.settings import Limits
from sapwood.storage.database import Database
from sapwood.storage.files import Files
from sapwood.storage.image import PAGE_SIZE, empty_image
from sapwood.storage.wal_frames import WalFrames
from sapwood.timings import Timings

log = logging.getLogger(__name__)

TREES = "trees"
ROOT_STEM = "root"
MOST_WAITING = 32768
"""Pages that may wait to be written: 64 MB. With more, the history of the tree that writes stops."""


class HistoryRecorder:
    """Records the past of the trees of one node."""

    def __init__(
        self,
        data: Path,
        seconds: float,
        *,
        clock: Clock,
        files: Files,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        timings: Timings,
    ) -> None:
        self.seconds = seconds
        """How far back the past is kept."""
        self._tree: Callable[[Address], RecordedTree | None] = lambda root: None
        self._owns: Callable[[Address], bool] = lambda root: True
        self._crashed_before: Callable[[Address], float | None] = lambda root: None
        self._data = data
        self._clock = clock
        self._files = files
        self._loop = loop
        self._limits = limits
        self._timings = timings
        self._batch_pages = timings.history_batch_bytes // PAGE_SIZE
        self._images = PageImages()
        self._unrecorded = UnrecordedHistory(data, files)
        self._records: dict[str, TreeRecord] = {}
        """By the name of the folder of the tree."""
        self._open: dict[Database, OpenFile] = {}
        self._early: dict[str, list[MomentName]] = {}
        """Moments before the first commit of a tree."""
        self._relocated: dict[str, list[Chain]] = {}
        """Chains whose trees have another address now, and which may still write, by the name of their folder."""
        self._waiting_pages = 0
        """How many pages are in the queue."""
        self._sweep_timer: TimerHandle | None = loop.call_later(0.0, self._sweep)
        self._thread = JobThread(loop)

    def attach(
        self,
        tree: Callable[[Address], RecordedTree | None],
        owns: Callable[[Address], bool],
        crashed_before: Callable[[Address], float | None],
    ) -> None:
        """Record the trees of this node. `tree` finds one in memory."""
        self._tree, self._owns, self._crashed_before = tree, owns, crashed_before

    # What the gate tells.

    def opened(self, database: Database) -> None:
        """A database was opened, and not written to yet."""
        folder = database.path.parent
        if folder.parent.name != TREES:
            return
        record = self._records.get(folder.name)
        try:
            if record is None or (not record.open and record.state is RecordState.ENDED):
                record = self._begin(folder, database)
            elif not record.open:
                record.chain.reopened()
        except FAILURES as error:
            if record is None:
                log.warning("history not recorded folder=%s error=%s", folder.name, error)
                return
            self._stop(record, error)
        record.open.add(database)
        stem = database.path.stem
        self._open[database] = OpenFile(record, stem)
        if record.images is not None:
            record.images.opened(stem, database.frames)
        if database.is_new and record.state is RecordState.RECORDED:
            record.batch.begin(stem, empty_image())
            record.at = record.at or self._clock.now()
        if (early := self._early.pop(folder.name, None)) is not None:
            self._cut(record, early)

    def committed(self, commit: Commit) -> None:
        """Gather what a commit changed."""
        file = self._open.get(commit.database)
        if file is None:
            return
        record = file.record
        is_marked = bool(record.after_commit) and commit.database is record.marked
        if record.state is not RecordState.RECORDED:
            if file.frames is not None:  # the log may be a new one, whose first frame is not read
                file.frames.close()
                file.frames = None
            self._continue(record)
            if is_marked:
                self._cut_named(record)
            return
        try:
            if commit.last_frame >= commit.first_frame:  # a slice may write nothing
                frames = file.frames
                if frames is None:
                    frames = file.frames = WalFrames(commit.database.wal)
                record.batch.take(file.stem, frames.read(commit.first_frame, commit.last_frame))
        except FAILURES as error:
            self._stop(record, error)
            return
        record.at = self._clock.now()
        if is_marked:
            self._cut_named(record)
        elif record.batch.pages >= self._batch_pages:
            self._cut(record)
        elif record.timer is None:
            record.timer = self._loop.call_later(self._timings.history_delay, self._cut, record)

    def closed(self, database: Database) -> None:
        """A database was closed."""
        file = self._open.pop(database, None)
        if file is None:
            return
        if file.frames is not None:
            file.frames.close()
        record = file.record
        record.open.discard(database)
        if database.removed and record.state is RecordState.RECORDED:
            record.batch.remove(file.stem)
            record.at = self._clock.now()
        if not record.open:
            self._close(record)

    def replaced(self, root: Address) -> None:
        """Other files are in the place of a tree now: its past continues with a new base."""
        past = history_folder(self._data, root)
        record = self._records.get(past.name)
        if record is not None and record.state is not RecordState.ENDED:
            record.state = RecordState.STALE
            try:
                record.chain.reopened()
            except OSError as error:
                self._stop(record, error)  # the tree is replaced all the same
        else:
            self._unrecorded.replaced(root)

    def keep_file(self, root: Address, path: Path) -> None:
        """A larger file of an agent is about to be deleted: keep it for the past."""
        try:
            keep_removed(history_folder(self._data, root), path, self._clock.now())
        except OSError as error:
            log.warning("deleted file not kept for the history root=%s error=%s", root, error)

    def renamed(self, old: Address, new: Address) -> None:
        """A tree has another address, as its class has another type id. Its past goes with it."""
        record = self._records.get(history_folder(self._data, old).name)
        target = history_folder(self._data, new)
        chains = [] if record is None else [record.chain]
        chains += self._relocated.pop(history_folder(self._data, old).name, [])
        rename = partial(self._unrecorded.renamed, old, new)
        if not chains:
            rename()
        for chain in chains:
            chain.relocate(target, str(new), rename)
            self._relocated.setdefault(target.name, []).append(chain)

    def forget(self, root: Address, *, is_destroyed: bool = False) -> None:
        """Remove the past of a tree. It begins again with a new base, unless the tree is destroyed."""
        folder = history_folder(self._data, root)
        record = self._records.get(folder.name)
        self._early.pop(folder.name, None)
        for chain in self._relocated.pop(folder.name, []):
            chain.end()
        if record is not None:
            self._drop_batch(record)
            record.after_commit.clear()
            record.chain.end()
            record.chain = Chain(folder, str(root), self._files, self._images)
            record.state = RecordState.ENDED if is_destroyed else RecordState.STALE
        self._remove_later(self._unrecorded.move_away(root))

    # What agents and operators ask.

    def mark(self, agent: Address, kind: MomentKind, label: str) -> None:
        """Record a moment. Unless its kind is one before something, it contains what the open slice has written."""
        root, name = agent.root, MomentName(kind, str(agent), label)
        tree = self._tree(root)
        if tree is None:
            return
        record = self._found(root, tree)
        if record is None:
            if kind.is_before:
                self._early.setdefault(tree.folder.name, []).append(name)
            return
        if kind.is_before or tree.slices.open is None:
            self._cut(record, [name])
            return
        record.after_commit.append(name)
        record.marked = tree.slices.open
        self._loop.call_soon(self._cut_named, record)

    async def settle(self, root: Address) -> None:
        """Return when everything that was committed in a tree in memory is recorded, if it can be."""
        tree = self._tree(root)
        record = None if tree is None else self._found(root, tree)
        if record is None:
            record = self._records.get(history_folder(self._data, root).name)
        else:
            self._cut(record)
        while record is not None and record.pending:
            done: Future[None] = self._loop.create_future()
            self._put(record, lambda: None, partial(_set, done))
            await done

    def close(self) -> None:
        """Write what is in the queue, and stop. What was not put into it is lost, as in a crash."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for record in self._records.values():
            self._drop_batch(record)
        self._thread.close()
        for file in self._open.values():
            if file.frames is not None:
                file.frames.close()
        self._open.clear()
        self._records.clear()

    # The inside.

    def _found(self, root: Address, tree: RecordedTree) -> TreeRecord | None:
        """Return the record of a tree in memory, or `None` if nothing was ever written in it."""
        record = self._records.get(tree.folder.name)
        if record is None or not record.open:
            database = tree.databases.get(ROOT_STEM)
            if database is None or not database.exists:
                return None
            with contextlib.suppress(*FAILURES):
                database.execute("SELECT 1")  # it is opened, which is told to the gate
            record = self._records.get(tree.folder.name)
        return record if record is not None and record.open else None

    def _begin(self, folder: Path, database: Database) -> TreeRecord:
        """Begin or continue the past of a tree whose first file was opened."""
        root = Address.parse((folder / LABEL).read_text())
        past = history_folder(self._data, root)
        record = self._records[folder.name] = TreeRecord(
            root, folder, Chain(past, str(root), self._files, self._images)
        )
        try:
            segments = segments_in(past)
            last = closed_state(segments[-1]) if segments else None
            crashed = self._crashed_before(root)
            if last is not None and last.files == fingerprint(folder) and (crashed is None or last.at >= crashed):
                record.chain.continue_from(segments[-1], last)
            elif segments or not self._is_first(folder, database):
                record.state = RecordState.STALE
        except OSError as error:
            self._stop(record, error)
        return record

    def _is_first(self, folder: Path, database: Database) -> bool:
        """Return whether this is the first file that the tree ever had."""
        names = [name for name in os.listdir(folder) if name.endswith(".db")]  # noqa: PTH208 - names are enough
        return database.is_new and names == [database.path.name]

    def _continue(self, record: TreeRecord) -> None:
        """Begin a new base, if it is time."""
        if record.state is RecordState.ENDED or (
            record.state is RecordState.STOPPED and self._loop.time() < record.retry_at
        ):
            record.after_commit.clear()
            return
        tree = self._tree(record.root)
        if tree is None:
            return
        if not record.chain.has_failed:
            self._cut_only(record)
        self._drop_batch(record)
        try:
            names = os.listdir(record.folder)  # noqa: PTH208 - names are enough
        except OSError as error:
            self._stop(record, error)
            return
        frames: dict[str, int | None] = {}
        for name in names:
            if name.endswith(".db"):
                database = tree.databases.get(name.removesuffix(".db"))
                frames[name.removesuffix(".db")] = (
                    database.frames if database is not None and database.is_open else None
                )
        record.state = RecordState.RECORDED
        images = record.images = TreeImages(record.folder, frames)
        still = tree.kept_still()
        still.__enter__()

        def done(error: Exception | None, _: object) -> None:
            still.__exit__(None, None, None)
            if record.images is images:
                record.images = None

        job = partial(record.chain.begin_base, images.read(), self._clock.now(), self._retention(tree))
        self._put(record, job, done)

    def _cut_named(self, record: TreeRecord) -> None:
        names, record.after_commit, record.marked = record.after_commit, [], None
        if names:
            self._cut(record, names)

    def _cut(self, record: TreeRecord, names: list[MomentName] | None = None) -> None:
        """Have what was gathered written, and the moment after it named."""
        if record.state is not RecordState.RECORDED and (names or record.state is RecordState.STALE):
            self._continue(record)
        if record.state is RecordState.RECORDED:
            self._cut_only(record, names or [])

    def _cut_only(self, record: TreeRecord, names: list[MomentName] | None = None) -> None:
        batch, at = record.batch, record.at
        self._drop_batch(record)
        if not (names or batch.files or batch.removed):
            return
        if self._waiting_pages > MOST_WAITING:
            self._stop(record, Unavailable("the disk is slower than the writes"))
            return
        self._waiting_pages += batch.pages
        now = self._clock.now()
        tree = self._tree(record.root)
        retention = self._retention(tree)
        self._put(
            record,
            partial(record.chain.add, batch, at or now, names or [], now, retention),
            partial(self._added, record, batch.pages),
        )

    def _drop_batch(self, record: TreeRecord) -> None:
        record.batch = Batch()
        if record.timer is not None:
            record.timer.cancel()
            record.timer = None

    def _added(self, record: TreeRecord, pages: int, error: Exception | None, needs_base: object) -> None:
        self._waiting_pages -= pages
        if needs_base and error is None and record.state is RecordState.RECORDED and record.images is None:
            record.state = RecordState.STALE

    def _retention(self, tree: RecordedTree | None) -> Retention:
        limits = self._limits if tree is None else tree.limits
        return Retention(self.seconds, limits.history_bytes, self._timings.history_base_interval)

    def _close(self, record: TreeRecord) -> None:
        """No file of a tree is open: write what was gathered, and that this is all."""
        if record.state is RecordState.RECORDED:
            self._cut_only(record, record.after_commit)
            record.after_commit = []
            record.chain.allow_close()
            close = partial(record.chain.close, fingerprint(record.folder), self._clock.now())
            self._put(record, close, partial(self._closed, record))
        elif not record.pending:
            self._closed(record, None, None)
        else:
            self._put(record, lambda: None, partial(self._closed, record))

    def _closed(self, record: TreeRecord, error: Exception | None, _: object) -> None:
        if not record.open and record.pending <= 0 and self._records.get(record.folder.name) is record:
            self._drop_batch(record)
            del self._records[record.folder.name]
            if chains := self._relocated.get(record.chain.folder.name):
                kept = [chain for chain in chains if chain is not record.chain]
                self._relocated[record.chain.folder.name] = kept
                if not kept:
                    del self._relocated[record.chain.folder.name]

    def _stop(self, record: TreeRecord, error: Exception) -> None:
        if record.state is RecordState.ENDED:
            return
        if record.state is not RecordState.STOPPED:
            log.warning(
                "history not recorded, continues later root=%s error=%s", record.root, error,
                extra={"root": str(record.root)},
            )  # fmt: skip
        record.chain.fail()
        self._drop_batch(record)
        record.after_commit.clear()
        record.state = RecordState.STOPPED
        record.retry_at = self._loop.time() + self._timings.history_retry_delay

    def _put(self, record: TreeRecord | None, job: Callable[[], object], done: Done | None = None) -> None:
        """Run a job on the thread, and then `done` on the loop."""
        if record is None:
            self._thread.put(job, done or _nothing)
            return
        record.pending += 1
        chain = record.chain

        def run() -> object:
            try:
                return job()
            except Exception:
                chain.fail()  # the jobs behind it must not write
                raise

        def ended(error: Exception | None, result: object) -> None:
            record.pending -= 1
            if error is not None and record.chain is chain:
                self._stop(record, error)
            if done is not None:
                done(error, result)

        self._thread.put(run, ended)

    def _sweep(self) -> None:
        """Look for what is older than the past that is kept, of trees that are not written to."""
        interval = max(min(self._timings.history_sweep_interval, self.seconds), 1.0)
        self._sweep_timer = self._loop.call_later(interval, self._sweep)
        retention = Retention(self.seconds, self._limits.history_bytes, 0.0)
        self._put(
            None,
            partial(sweep, self._data / HISTORY, self._records.__contains__, self._owns, self._clock.now(), retention),
            self._swept,
        )

    def _swept(self, error: Exception | None, found: object) -> None:
        """Remove the pasts that a sweep found too old, except those of trees that woke since."""
        _nothing(error, None)
        for expired in cast("list[ExpiredPast]", found or []):
            if expired.folder.name not in self._records and expired.is_unchanged():
                self._remove_later(self._unrecorded.move_folder_away(expired.folder))

    def _remove_later(self, away: Path | None) -> None:
        if away is not None:
            self._put(None, partial(shutil.rmtree, away, ignore_errors=True))


def _set(done: Future[None], error: Exception | None, _: object) -> None:
    if not done.done():
        done.set_result(None)


def _nothing(error: Exception | None, _: object) -> None:
    if error is not None:
        log.warning("history not changed error=%s", error)
