"""When what was written is durable, on many machines: once a majority of the log's servers has it on their disks.

Everything committed in a tree, in whatever file, has one order, and becomes durable in
it. There is one append under way per stream of the log; what is committed during it, in
all trees of the stream, goes with the next one.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import count
from pathlib import Path

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.errors import StoredDataError, Unavailable
from sapwood.kernel.log.alarm_entry import AlarmLine
from sapwood.kernel.log.append import append
from sapwood.kernel.log.full_streams import FullStreams
from sapwood.kernel.log.records import Base, tree_id
from sapwood.kernel.log.writer import InFlight, LogPosition, SnapshotPoint, TreeLog
from sapwood.kernel.ports.durability import Commit, settle
from sapwood.kernel.ports.log import Epoch, Fenced, FencedLog, Full, OutOfTouch
from sapwood.kernel.ports.shards import shard_of
from sapwood.randomness import SYSTEM, Random, new_id
from sapwood.storage.database import Database
from sapwood.storage.image import empty_image
from sapwood.storage.wal_frames import WalFrames, whole_image
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger(__name__)

TOGETHER = 4096
"""Pages that are sent at once, unless a single tree has more."""
TURNS = 3
"""How often the loop may go round before an append leaves, as long as that brings more to send."""


class _Stream:
    """What goes to one stream of the log."""

    __slots__ = ("pump", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[TreeLog, None] = {}
        """Trees that have something to send, in the order in which they got it."""
        self.pump: asyncio.Task[None] | None = None


_Stored = tuple[TreeLog, list[int]]


class _File:
    """One file of a tree, as long as it is open."""

    __slots__ = ("frames", "stem", "tree")

    def __init__(self, tree: TreeLog, stem: str) -> None:
        self.tree = tree
        self.stem = stem
        self.frames: WalFrames | None = None


class ReplicatedGate:
    """Kept once the replicated log has it."""

    synced = False

    def __init__(
        self,
        log: FencedLog,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        epoch_of: Callable[[int], Epoch | None],
        holds_lease: Callable[[], bool],
        fenced: Callable[[Collection[int]], None],
        version: str,
        refused: Callable[[Collection[Address], Unavailable], None] = lambda roots, error: None,
        timings: Timings = DEFAULTS,
        random: Random = SYSTEM,
    ) -> None:
        """`epoch_of`: by which ownership a shard is ours, None: by none. `holds_lease`: whether our lease is valid.

        `fenced` is called with the shards that another node took, and with those for which it is unknown whether the
        last commits were stored. The gate has released all waiters. The trees have to be dropped; the node that runs
        them next has to acquire their shard again: what is still on its way may arrive at any time, and is then
        refused.

        `refused` is called with the trees whose last commits were not stored, as the log is full. They have to be
        dropped, and may be read again at once: their shards stay ours, and nothing is on its way.
        """
        self._log = log
        self._loop = loop
        self._clock = clock
        self._epoch_of = epoch_of
        self._holds_lease = holds_lease
        self._fenced = fenced
        self._refused = refused
        self._version = version
        self._timings = timings
        self._batch = timings.log_batch
        self._trees: dict[str, TreeLog] = {}
        self._files: dict[Database, _File] = {}
        self._streams: dict[int, _Stream] = {}
        self._pumping = 0
        """How many streams are being written to."""
        self._turn = asyncio.Lock()
        """Held while trees of one stream continue, until what they commit is on its way."""
        self._full = FullStreams(log, loop, timings.full_log_interval)
        self._ids = (f"{me}-{number}" for me in (new_id(random),) for number in count())

    @property
    def waiting(self) -> int:
        return sum(len(waiting) for tree in self._trees.values() for _, waiting in tree.waiters)

    @property
    def full(self) -> str | None:
        """Why nothing can be written to some of the trees now. `None` means all can be written to."""
        return self._full.reason

    def opened(self, database: Database) -> None:
        tree = self._trees.get(database.path.parent.name)
        if tree is None:
            return  # the node's own
        stem = database.path.stem
        self._files[database] = _File(tree, stem)
        if stem in tree.files or tree.ended:
            return
        image = empty_image()
        if database.frames or database.path.stat().st_size != len(image):
            raise StoredDataError(
                f"The file {database.path.name} of {tree.root} does not come from the log of its tree."
            )
        tree.files.add(stem)
        tree.gathering().begin(stem, image)

    def committed(self, commit: Commit) -> None:
        if commit.root is None:
            return
        database = commit.database
        file = self._files.get(database) or self._found(database)
        tree = file.tree
        if tree.error is not None:
            raise Unavailable(str(tree.error))
        if tree.ended or commit.last_frame < commit.first_frame:
            return
        try:
            frames = file.frames
            if frames is None:
                frames = file.frames = WalFrames(database.wal)
            read = frames.read(commit.first_frame, commit.last_frame)
        except Exception as error:
            # It is in the file and will never be in the log: nothing that comes after it may be either.
            self._doubt([tree], error)
            raise Unavailable(f"The write cannot be stored: {error}") from error
        tree.commit(file.stem, read)
        self._send(tree)

    def wait(self, database: Database) -> Future[None] | None:
        if not self._holds_lease():
            raise OutOfTouch
        tree = (self._files.get(database) or self._found(database)).tree
        if tree.error is not None:
            raise Unavailable(str(tree.error))
        if tree.stored >= tree.committed:
            return None
        waiter: Future[None] = self._loop.create_future()
        tree.waiters.append((tree.committed, [waiter]))
        return waiter

    def let_go(self, database: Database, leaving: list[Future[None]]) -> None:
        tree = (self._files.get(database) or self._found(database)).tree
        if tree.error is not None:
            settle(leaving, tree.error)
        elif tree.stored < tree.committed:
            tree.waiters.append((tree.committed, leaving))
        elif self._holds_lease():
            settle(leaving, None)
        else:
            settle(leaving, OutOfTouch())

    def follows(self, database: Database, other: Database) -> None:
        pass  # a tree has one order anyway, and its line in the index of alarms goes before what it is about

    def is_quiet(self, database: Database) -> bool:
        file = self._files.get(database)
        return file is None or file.tree.error is not None or file.tree.is_stored

    async def sync_folder(self, path: Path) -> None:
        pass

    async def bury(self, root: Address, folder: Path | None, objects: str = "") -> None:
        tree = self._tree(root)
        if tree is None:
            return
        tree.ended = True
        tree.objects = objects
        tree.files.clear()
        if tree.error is not None:
            raise Unavailable(str(tree.error))
        if not tree.tail.digest and tree.sending is None:
            tree.forget_all()  # no other node knows of it
            return
        ending = tree.ending = tree.ending or self._loop.create_future()
        self._send(tree)
        await asyncio.shield(ending)

    def forget(self, database: Database) -> None:
        file = self._files.pop(database, None)
        if file is not None and file.frames is not None:
            file.frames.close()
        tree = self._trees.get(database.path.parent.name) if file is None else file.tree
        stem = database.path.stem
        if database.removed and tree is not None and tree.error is None and stem in tree.files:
            tree.files.discard(stem)
            tree.gathering().remove(stem)

    def moved(self, folder: Path) -> None:
        tree = self._trees.get(folder.name)
        if tree is None:
            return
        for stem in tree.files:
            tree.gathering().remove(stem)
        tree.files.clear()
        tree.ended = False
        if not folder.exists():
            return
        for path in sorted(folder.glob("*.db")):
            tree.files.add(path.stem)
            tree.gathering().begin(path.stem, whole_image(path))
        if tree.files:
            tree.committed += 1
            tree.gathering().up_to = tree.committed
            self._send(tree)

    def close(self) -> None:
        for stream in self._streams.values():
            if stream.pump is not None:
                stream.pump.cancel()
        self._full.close()
        for root in [tree.root for tree in self._trees.values()]:
            self.drop(root)
        for file in self._files.values():
            if file.frames is not None:
                file.frames.close()
        self._files.clear()

    def adopt(self, root: Address, tail: LogPosition) -> None:
        """A tree was restored, or is new; what is committed in it follows this."""
        self.drop(root)
        shard = shard_of(root)
        tree = TreeLog(root, tail, self._log.stream_of(shard), self._epoch_of(shard), self._timings)
        self._trees[tree.id] = tree

    def tail(self, root: Address) -> LogPosition | None:
        """Return the end of what is stored of a tree, or `None` if it is not open here."""
        tree = self._tree(root)
        return None if tree is None else tree.tail._replace(files=frozenset(tree.files))

    def log_size(self, root: Address) -> tuple[int, int]:
        """Return in how many messages a tree lies in the log since its last base, and in how many bytes."""
        tree = self._tree(root)
        return (0, 0) if tree is None else (tree.tail.messages, tree.tail.stored_bytes)

    def drop(self, root: Address) -> None:
        """A tree is not written to here any more; calls that still wait for it fail."""
        tree = self._tree(root)
        if tree is not None:
            del self._trees[tree.id]
            self._stream(tree).waiting.pop(tree, None)
            if tree.error is None:
                tree.fail(Unavailable(f"{root} no longer runs on this node."))

    def alarmed(self, root: Address, due: float | None, dead: int) -> None:
        """Set the line of a tree in the index of alarms; stored with its next commit, or alone."""
        tree = self._tree(root)
        if tree is not None and tree.error is None:
            tree.alarm = AlarmLine(tree.text, due, dead)
            self._send(tree)

    async def flushed(self, root: Address) -> None:
        """Return when nothing of a tree is left to store."""
        tree = self._tree(root)
        if tree is not None:
            await self._flushed(tree)

    async def _flushed(self, tree: TreeLog) -> None:
        if tree.error is not None:
            raise Unavailable(str(tree.error))
        if tree.is_idle:
            return
        done: Future[None] = self._loop.create_future()
        tree.flushing.append(done)
        self._send(tree)
        await done

    def cut(self, root: Address) -> SnapshotPoint:
        """Begin a snapshot: what is in the files right now is before the cut. Only the last cut of a tree counts."""
        cut = self._own(root).cut(self._loop)
        self._send(self._own(root))
        return cut

    def uncut(self, root: Address, cut: SnapshotPoint) -> None:
        """No snapshot will be made at this cut: nothing has to be kept for it."""
        tree = self._tree(root)
        if tree is not None and tree.last_cut is cut and tree.rebasing is None:
            tree.since = tree.last_cut = None

    async def rebase(self, root: Address, base: Base, cut: SnapshotPoint) -> None:
        """Have the tree's log begin with this base, which was made at the cut, and all that was committed since.

        Returns when it is stored. `Unavailable` if another snapshot was begun since, or so much was written that it
        was not kept: then everything stays as it is.
        """
        tree = self._own(root)
        if tree.since is None or cut is not tree.last_cut or not cut.known.done():
            raise Unavailable(
                f"This snapshot of {root} cannot be used: too much was written since, or there is another."
            )
        done: Future[LogPosition] = self._loop.create_future()
        tree.rebasing = (base, done)
        self._send(tree)
        await done

    def _tree(self, root: Address) -> TreeLog | None:
        return self._trees.get(tree_id(root))

    def _own(self, root: Address) -> TreeLog:
        tree = self._tree(root)
        if tree is None or tree.error is not None:
            raise Unavailable(f"{root} no longer runs on this node.")
        return tree

    def _found(self, database: Database) -> _File:
        tree = self._trees.get(database.path.parent.name)
        if tree is None or database.let_go:  # the tree may be open here again, with other databases
            raise Unavailable("This tree no longer runs on this node.")
        file = self._files[database] = _File(tree, database.path.stem)
        return file

    def _stream(self, tree: TreeLog) -> _Stream:
        stream = self._streams.get(tree.stream)
        if stream is None:
            stream = self._streams[tree.stream] = _Stream()
        return stream

    def _send(self, tree: TreeLog) -> None:
        """Have what a tree has to send sent with the next append."""
        stream = self._stream(tree)
        stream.waiting[tree] = None
        if stream.pump is None:
            stream.pump = self._loop.create_task(self._pump(stream))

    async def _pump(self, stream: _Stream) -> None:
        self._pumping += 1
        try:
            sending: Awaitable[list[_Stored]] = self._append(self._take(stream))
            while True:
                stored = await sending
                async with self._turn:
                    for tree, sequences in stored:
                        self._stored(tree, sequences)
                    await self._gather(stream, len(stored))
                    if not stream.waiting:
                        return
                    sending = self._append(self._take(stream))
                    if self._pumping > 1:
                        # On its way before those of other streams continue: the log works while they do.
                        sending = self._loop.create_task(sending)
                        await asyncio.sleep(0)
                        await asyncio.sleep(0)
        finally:
            self._pumping -= 1
            stream.pump = None

    async def _gather(self, stream: _Stream, expected: int) -> None:
        """Let those commit who were just let go, so that they go together."""
        for _ in range(TURNS):
            before = len(stream.waiting)
            await asyncio.sleep(0)
            if len(stream.waiting) >= expected or 0 < before == len(stream.waiting):
                return

    def _take(self, stream: _Stream) -> dict[TreeLog, InFlight]:
        """Return what is to be stored next, as much as may go together."""
        taken: dict[TreeLog, InFlight] = {}
        entries = pages = 0
        now = self._clock.now()
        for tree in list(stream.waiting):
            pages += tree.pages
            if taken and pages > TOGETHER:
                break
            del stream.waiting[tree]
            epoch = self._epoch_of(tree.shard)
            if epoch is None or epoch != tree.owned:
                tree.fail(Fenced([tree.shard]))
                continue
            try:
                sending = tree.send(epoch, now, self._version, next(self._ids))
            except Exception as error:  # noqa: BLE001 - the others continue, whatever it was
                self._doubt([tree], error)
                continue
            if sending is not None:
                taken[tree] = sending
                entries += len(sending.entries)
                if entries > self._batch // 2:
                    break
        return taken

    async def _append(self, taken: dict[TreeLog, InFlight]) -> list[_Stored]:
        """Store these, and return where; if some are not ours any more, store the others."""
        # Dropped trees are not sent: we may own the shard again, and the tree may have been read since.
        while taken := {tree: sending for tree, sending in taken.items() if tree.error is None}:
            try:
                sequences = await append(self._log, taken.values(), self._batch)
            except Fenced as error:
                rest = {tree: sending for tree, sending in taken.items() if tree.shard not in error.shards}
                self._lose(error.shards, error)
                if len(rest) == len(taken):
                    self._doubt(taken, error)
                    break
                taken = rest
            except Full as error:
                self._refuse(taken, error)
                break
            except Exception as error:  # noqa: BLE001 - whatever it was: what was stored is unknown
                self._doubt(taken, error)
                break
            else:
                stored: list[_Stored] = []
                at = 0
                for tree, sending in taken.items():
                    stored.append((tree, sequences[at : at + len(sending.entries)]))
                    at += len(sending.entries)
                return stored
        return []

    def _stored(self, tree: TreeLog, sequences: Sequence[int]) -> None:
        if tree.error is not None:
            return  # dropped since
        tree.done(sequences, None if self._holds_lease() else OutOfTouch())
        if tree.has_more:
            self._stream(tree).waiting.setdefault(tree)
        tree.settle_if_idle()

    def _refuse(self, taken: dict[TreeLog, InFlight], error: Full) -> None:
        """The log is full, and has nothing of these: what was committed in them last is undone."""
        stream = next(iter(taken)).stream
        size = sum(len(entry.data) for sending in taken.values() for entry in sending.entries)
        self._full.add(stream, size, error)
        roots: list[Address] = []
        for tree in taken:
            if tree.error is not None:
                continue
            if tree.take_back():
                tree.settle_if_idle()
                continue
            tree.fail(error)
            self._stream(tree).waiting.pop(tree, None)
            roots.append(tree.root)
        try:
            self._refused(roots, error)
        except Exception:
            log.exception("dropping partly stored trees failed: %s", roots)

    def _lose(self, shards: Collection[int], error: Unavailable) -> None:
        for tree in list(self._trees.values()):
            if tree.shard in shards and tree.error is None:
                tree.fail(error)
                self._stream(tree).waiting.pop(tree, None)
        try:
            self._fenced(shards)
        except Exception:
            log.exception("dropping trees of other nodes failed: %s", shards)

    def doubt(self, shard: int, error: Exception) -> None:
        """It is unknown whether a write of another task for a shard was stored."""
        self._lose({shard}, Unavailable(f"The outcome of the last write is unknown: {error}"))

    def _doubt(self, taken: Collection[TreeLog], error: Exception) -> None:
        trees = [tree for tree in taken if tree.error is None]
        if not trees:
            return
        log.error("outcome of the last commits unknown trees=%d", len(trees), exc_info=error)
        unknown = Unavailable(f"The outcome of the last write is unknown: {error}")
        self._lose({tree.shard for tree in trees}, unknown)
