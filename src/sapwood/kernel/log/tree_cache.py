"""What a node does so that its local files are what the log says, and the log stays short.

Local files are copies. A tree is brought before it is opened and put away after it was closed; in between
the archive takes what the log need not hold, and trees that rest leave the log altogether.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.errors import SapwoodError, Unavailable
from sapwood.kernel.aio import cancel_all, to_the_end
from sapwood.kernel.log.archive_files import NodeFileArchive
from sapwood.kernel.log.archive_objects import is_parked, last_mark
from sapwood.kernel.log.copy_sweep import CopySweep
from sapwood.kernel.log.idle_trees import RETRY_AFTER, IdleTrees
from sapwood.kernel.log.local_copy import CLEAN, catch_up, clean_tail, record_clean
from sapwood.kernel.log.log_erasure import LogErasure
from sapwood.kernel.log.reader import ClusterReader, Replicas
from sapwood.kernel.log.records import Base, ChainBroken, Message, program, seal, tree_id, unseal
from sapwood.kernel.log.repair import Read, heal
from sapwood.kernel.log.replicated_gate import ReplicatedGate
from sapwood.kernel.log.restore import RestoredTree, TreeContent, clear, read_tree, state_in, write
from sapwood.kernel.log.snapshots import archive_state, forget_tree, mark_live, snapshot, sweep_tree
from sapwood.kernel.log.writer import LogPosition
from sapwood.kernel.ports.log import Archive, Entry, Epoch, Fenced, FencedLog, Full, Record, SecondCopy
from sapwood.kernel.ports.shards import shard_of
from sapwood.randomness import SYSTEM, Random
from sapwood.storage.files import Files
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger(__name__)

AT_ONCE = 4
"""How many trees are archived at the same time."""
MOST_AHEAD = 256
"""Of how many trees that others run it is known that their files are here."""


class Lag(NamedTuple):
    """How far the second copy is behind."""

    messages: int
    seconds: float


class ShipperPort(Protocol):
    """Has the archive take what one stream got."""

    def lag(self) -> Lag: ...

    async def run(self) -> None: ...


class OpenTree(Protocol):
    """A tree that this node has open."""

    address: Address
    folder: Path


class Keeper:
    """Brings trees to this node, puts them away, and has the archive take what the log need not hold."""

    def __init__(
        self,
        stored: FencedLog,
        archive: Archive,
        gate: ReplicatedGate,
        files: Files,
        clock: Clock,
        *,
        epoch_of: Callable[[int], Epoch | None],
        park_after: float = 600.0,
        history: float = 7 * 86400.0,
        replicas: Replicas | None = None,
        ship: Callable[[int], ShipperPort] | None = None,
        timings: Timings = DEFAULTS,
        random: Random = SYSTEM,
        node: str = "",
    ) -> None:
        """`ship`: makes what ships one stream; the node that owns the shard of the same number as a stream ships it."""
        self._stored = stored
        self.archive = archive
        self._gate = gate
        self._files = files
        self._clock = clock
        self._epoch_of = epoch_of
        self._history = history
        self._replicas = replicas
        self._timings = timings
        self.file_archive = NodeFileArchive(archive, clock, random, node)
        self.trees = ClusterReader(stored, archive, replicas, timings)
        """All trees, also those that other nodes run."""
        self.second_copy: SecondCopy | None = None
        """The second copy of the log, if there is one."""
        self._ship = ship
        self._shipping: dict[int, tuple[ShipperPort, asyncio.Task[None]]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Held while a tree is brought, put away or parked; gone when no task holds it or waits for it."""
        self._live: set[str] = set()
        """Trees of which the archive knows that the log has messages."""
        self.log_erasure = LogErasure(stored, archive, clock, self._lock, self._live.add)
        self._adopted: dict[str, int] = {}
        """The last message that a tree had when it was opened here."""
        self._begun: dict[str, float] = {}
        """When what the log holds of an open tree began."""
        self._moved: dict[str, Address] = {}
        """Trees that have another address now, until the log of the old one says so."""
        self._retry_at: dict[str, float] = {}
        self.idle_trees = IdleTrees(
            stored,
            archive,
            clock,
            epoch_of=epoch_of,
            lock=self._lock,
            retry_at=self._retry_at,
            park_after=park_after,
            history=history,
            named=self.trees.named,
            timings=timings,
        )
        self.copies = CopySweep(self._lock, lambda: self.idle_trees.park_after, timings.upload_retention)
        """The copies of files on the disk of this node."""
        self._ahead: dict[str, LogPosition] = {}
        """Trees of other nodes whose files were fetched here, and which message these are after."""
        self._busy: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def _lock(self, tree: str) -> asyncio.Lock:
        lock = self._locks.get(tree)
        if lock is None:
            lock = self._locks[tree] = asyncio.Lock()
        return lock

    async def bring(self, root: Address, folder: Path, aliases: Sequence[Address] = ()) -> None:
        """Make the folder of a tree what the log and the archive say, and let the gate continue from there.

        To be awaited before anything of a tree that is not open is looked at. `aliases`: addresses the tree may have
        had before its class got another type id; then its files are in the folder of that address. `ChainBroken` if
        what is stored is damaged and there is no intact replica; `Unavailable` if the log or the archive cannot be
        reached.
        """
        tree = tree_id(root)
        async with self._lock(tree):
            self._live.discard(tree)
            self.idle_trees.forget(tree)
            self.copies.opened(folder)
            tail = await self._reuse(root, tree, folder)
            if tail is None:
                tail = await self._restore(root, tree, folder)
            if tail is None:
                for alias in aliases:
                    async with self._lock(tree_id(alias)):  # it may be on its way here by that name
                        old = await self._restore(alias, tree_id(alias), folder.with_name(tree_id(alias)))
                    if old is not None and old.files:
                        self._moved[tree] = alias
                        break
                tail = LogPosition()
            self._adopted[tree] = tail.sequence
            self._gate.adopt(root, tail)

    async def fetch(self, root: Address, folder: Path) -> None:
        """Have the files of a tree here that another node is about to hand over: then little is left to read."""
        tree = tree_id(root)
        async with self._lock(tree):
            if self._epoch_of(shard_of(root)) is not None:
                return
            tail = await self._reuse(root, tree, folder) or await self._restore(root, tree, folder)
            self._begun.pop(tree, None)
            if tail is not None and tail.files:
                self._ahead[tree] = tail
                if len(self._ahead) > MOST_AHEAD:
                    del self._ahead[next(iter(self._ahead))]

    async def _reuse(self, root: Address, tree: str, folder: Path) -> LogPosition | None:
        """Return the position of a tree if its files match the log, or `None` if they have to be restored."""
        tail = self._ahead.get(tree)
        if tail is None:
            tail = await asyncio.to_thread(clean_tail, folder)
        records: list[Record] = []
        if tail is not None:
            try:
                records = await self.trees.records(shard_of(root), tree, max(tail.sequence - 1, 0))
            except ChainBroken:
                tail = None
        # Only now: if the log could not be read, the next attempt finds them unchanged.
        self._ahead.pop(tree, None)
        self._files.remove(folder / CLEAN)
        if tail is None:
            return None
        if records:
            return await to_the_end(catch_up, folder, tail, records, self._files)
        marked = await last_mark(self.archive, tree)
        if marked is None or not is_parked(marked[0]) or marked[1].parked is None:
            return None
        return tail._replace(sequence=0, messages=0, stored_bytes=0) if marked[1].parked.chain == tail.digest else None

    async def _restore(self, root: Address, tree: str, folder: Path) -> LogPosition | None:
        self._ahead.pop(tree, None)
        try:
            state = await self.trees.read(shard_of(root), tree)
        except ChainBroken as error:
            log.error("log of %s is damaged: %s", root, error, extra={"root": str(root)})
            state = await self._heal(root, tree, error)
        if state is None:
            await to_the_end(clear, folder, self._files)
            return None
        tail = await write(state, root, folder, self._files)
        self._begun[tree] = self._clock.now() if tail.begun is None else tail.begun
        if tail.moved_to:
            return None
        place = tail.sequence if tail.in_log else 0
        return LogPosition(place, tail.digest, tail.epoch, tail.messages, tail.log_bytes, tail.stems)

    async def _heal(self, root: Address, tree: str, found: ChainBroken) -> TreeContent | None:
        """Put a tree together from all copies, and begin its log again with the result; `ChainBroken` if that fails."""
        shard = shard_of(root)
        if self._replicas is None or (epoch := self._epoch_of(shard)) is None:
            raise found
        newest = await self._replicas.newest(shard, tree)
        healed = await heal(self._replicas.reads(shard, tree), self.archive, tree, newest)
        if healed is None or healed.seen < newest:
            # Not all that was stored was read: the next try may have more.
            raise found
        await self._replicas.distrust(shard)
        return await self._store_again(root, healed.state, epoch)

    async def replace_damaged(self, root: Address, folder: Path) -> None:
        """Store the files of another folder in place of a tree that is damaged in the log or the archive."""
        shard, tree = shard_of(root), tree_id(root)
        async with self._lock(tree):
            if (epoch := self._epoch_of(shard)) is None:
                raise Unavailable(f"{root} no longer runs on this node.")
            records = await self._stored.read(shard, tree)
            last = max((record.sequence for record in records), default=0)
            state = await asyncio.to_thread(state_in, folder, root, last, epoch.number)
            await self._store_again(root, state, epoch)

    async def _store_again(self, root: Address, state: TreeContent, epoch: Epoch) -> TreeContent:
        """Have the archive take a tree, and its log begin with that."""
        shard, tree = shard_of(root), tree_id(root)
        base = await archive_state(self.archive, root, state, self._clock.now())
        tail = state.tail
        message = Message(
            root=str(root),
            epoch=epoch.number,
            previous=0,
            before=tail.digest,
            at=self._clock.now(),
            version=program(),
            base=base,
            is_end=tail.is_end,
            moved_to=tail.moved_to,
            objects=tail.objects,
        )
        data, digest = seal(message)
        entry = Entry(shard, tree, data, digest.hex(), replaces=True)
        sequence = await self._replace(entry, epoch)
        log.warning("log of %s is repaired", root, extra={"root": str(root)})
        healed_tail = tail._replace(
            sequence=sequence,
            digest=digest,
            epoch=epoch.number,
            base=base,
            log_bytes=len(data),
            messages=1,
            in_log=True,
        )
        return state._replace(tail=healed_tail)

    async def put_away(self, root: Address, folder: Path, kept: Callable[[], object] = lambda: None) -> None:
        """Note what the files of a tree are, all of whose databases were closed: then they need no restoring.

        The gate forgets the tree, and `kept` is called: another node may have it. If not all of it is in the log, its
        files go: they are not what the log says.
        """
        tree = tree_id(root)
        async with self._lock(tree):
            tail = None
            with suppress(Unavailable):
                await self._gate.flushed(root)
                tail = self._gate.tail(root)
            self._gate.drop(root)
            kept()
            self._live.discard(tree)
            for known in (self._retry_at, self._adopted, self._begun):
                known.pop(tree, None)
            if tail is None or not tail.files:
                await to_the_end(clear, folder, self._files)
            else:
                await to_the_end(record_clean, folder, tail, self._files)
                self.copies.closed(folder)

    async def destroyed(self, root: Address) -> None:
        """Have the archive forget a tree whose end is in the log."""
        tree = tree_id(root)
        async with self._lock(tree):
            records = await self._stored.read(shard_of(root), tree)
            if records and (end := unseal(records[-1])).message.is_end:
                await forget_tree(self.archive, tree, end.message, end.sequence)

    def look_after(
        self,
        open_trees: Callable[[], Iterable[OpenTree]],
        owned: Callable[[], Collection[int]],
        streams: int,
        folder: Path | None = None,
    ) -> None:
        """Begin to snapshot, park and ship: the trees that are open here, and those of these shards that are not.

        `folder`: where the folders of trees are; copies of files in it are removed once they are not used.
        """
        self._begin(self._look(open_trees, owned, streams))
        self._begin(self._sweep_copies(open_trees, folder))
        self._begin(self.idle_trees.run(lambda: {tree_id(one.address) for one in open_trees()}, owned))
        self._begin(self.idle_trees.run_leftovers())

    async def close(self) -> None:
        """Stop what `look_after` began."""
        await cancel_all([*self._tasks, *(task for _, task in self._shipping.values())])
        self._shipping.clear()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(
        self, open_trees: Callable[[], Iterable[OpenTree]], owned: Callable[[], Collection[int]], streams: int
    ) -> None:
        while True:
            await asyncio.sleep(self._timings.snapshot_interval)
            try:
                self._look_at_shipping(set(owned()), streams)
                for one in list(open_trees()):
                    self._look_at(one)
            except Exception:
                log.exception("tree maintenance failed")

    async def _sweep_copies(self, open_trees: Callable[[], Iterable[OpenTree]], folder: Path | None) -> None:
        if folder is not None:
            await self.copies.find(folder, lambda: {tree_id(one.address) for one in open_trees()})
        while True:
            await asyncio.sleep(min(max(self.idle_trees.park_after / 4, self._timings.snapshot_interval), 60.0))
            try:
                await self.copies.sweep()
            except Exception:
                log.exception("removing copies of files failed")

    def _look_at_shipping(self, owned: Collection[int], streams: int) -> None:
        if self._ship is None:
            return
        for stream in range(streams):
            running = self._shipping.get(stream)
            if running is not None and running[1].done():
                del self._shipping[stream]
            elif running is not None and stream not in owned:
                running[1].cancel()  # and again at the next look if it got lost
            elif running is None and stream in owned:
                shipping = self._ship(stream)
                self._shipping[stream] = shipping, asyncio.create_task(shipping.run())

    def _look_at(self, one: OpenTree) -> None:
        root = one.address
        tail = self._gate.tail(root)
        if tail is None or not tail.sequence:
            return
        tree = tree_id(root)
        if (
            tree in self._busy
            or len(self._busy) >= AT_ONCE
            or self._retry_at.get(tree, 0.0) > asyncio.get_running_loop().time()
        ):
            return
        if tree not in self._live and tail.sequence != self._adopted.get(tree):
            self._do(tree, self._mark(root, tree, tail))
        elif tail.stored_bytes > self._timings.snapshot_min_bytes:
            if tail.stored_bytes > size_of(one.folder):
                self._do(tree, self.snapshot(root))
        elif (now := self._clock.now()) - self._begun.get(tree, now) > self._history / 2:
            # Or the second copy of the log would be swept before there is a snapshot in its place.
            self._do(tree, self.snapshot(root))

    def _do(self, tree: str, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except SapwoodError as error:
                if tree in self._adopted:  # else it was closed since
                    self._retry_at[tree] = asyncio.get_running_loop().time() + RETRY_AFTER
                    log.warning("archiving tree %s failed: %s", tree, error)
            except Exception:
                self._retry_at[tree] = asyncio.get_running_loop().time() + RETRY_AFTER
                log.exception("archiving tree %s failed", tree)
            finally:
                self._busy.discard(tree)

        self._busy.add(tree)
        self._begin(guarded())

    async def _mark(self, root: Address, tree: str, tail: LogPosition) -> None:
        self._begun.setdefault(tree, self._clock.now())
        await mark_live(self.archive, root, tail.epoch, tail.sequence, clock=self._clock)
        if (old := self._moved.get(tree)) is not None:
            await self._say_moved(old, root)
            del self._moved[tree]
        self._live.add(tree)

    async def _say_moved(self, old: Address, root: Address) -> None:
        """Have the log of a tree's old address say the new one."""
        shard, tree = shard_of(old), tree_id(old)
        state = await read_tree(await self._stored.read(shard, tree), self.archive, tree)
        epoch = self._epoch_of(shard)
        if state is None or state.tail.moved_to or epoch is None:
            return
        message = Message(
            root=str(old),
            epoch=epoch.number,
            previous=state.tail.sequence if state.tail.in_log else 0,
            before=state.tail.digest,
            at=self._clock.now(),
            version=program(),
            moved_to=str(root),
        )
        data, digest = seal(message)
        await self._replace(Entry(shard, tree, data, digest.hex(), replaces=True), epoch)

    async def _replace(self, entry: Entry, epoch: Epoch) -> int:
        """Store what takes the place of a tree's log; return where."""
        try:
            (sequence,) = await self._stored.append([entry], {entry.shard: epoch})
        except (Fenced, Full):
            raise
        except Exception as error:
            # It may arrive at any time, and take away what is stored until then: so only as long as nothing is.
            self._gate.doubt(entry.shard, error)
            raise
        return sequence

    async def snapshot(self, root: Address) -> None:
        """Have the archive take a tree that is open here, and its log begin with that."""
        cut = self._gate.cut(root)
        began = self._clock.now()
        try:
            tail = await cut.known
            if not tail.sequence:
                return
            await self._gate.rebase(root, base := await self._copy(root, tail), cut)
        finally:
            self._gate.uncut(root, cut)  # of one that was used nothing is kept anyway
        self._begun[tree_id(root)] = began
        await sweep_tree(self.archive, tree_id(root), base, before=self._clock.now() - self._history)

    async def _copy(self, root: Address, tail: LogPosition) -> Base:
        try:
            return await snapshot(self._stored, self.archive, root, tail.sequence, tail.digest, clock=self._clock)
        except ChainBroken as error:
            log.error("log of %s is damaged: %s", root, error, extra={"root": str(root)})
            return await self._from_copies(root, tail)

    async def _from_copies(self, root: Address, tail: LogPosition) -> Base:
        """Make a snapshot of a tree whose log is damaged from all copies of it."""
        shard, tree = shard_of(root), tree_id(root)
        if self._replicas is None:
            raise ChainBroken(f"The log of {root} is damaged, and there is no other replica of it.")

        def up_to(read: Read) -> Read:
            async def some() -> list[Record]:
                return [record for record in await read() if record.sequence <= tail.sequence]

            return some

        reads = [up_to(read) for read in self._replicas.reads(shard, tree)]
        healed = await heal(reads, self.archive, tree, tail.sequence)
        if healed is None or healed.state.tail.digest != tail.digest:
            raise ChainBroken(f"No replica of the log of {root} leads to the last stored message.")
        await self._replicas.distrust(shard)
        return await archive_state(self.archive, root, healed.state, self._clock.now())


def size_of(folder: Path) -> int:
    """Return what the databases of a tree take."""
    with suppress(OSError):
        return sum(entry.stat().st_size for entry in folder.iterdir() if entry.suffix == ".db")
    return 0


__all__ = ["Keeper", "Lag", "OpenTree", "Replicas", "RestoredTree", "ShipperPort", "size_of"]
