"""Is everything that a cluster stores whole? All chains are walked, and all copies compared with each other.

Copies are the servers of NATS and the second copy of the log in the archive. No server can be asked by name, only
the leader and any replica that answers, so each tree is asked for several times: all answers have to be the same.
A tree whose log is damaged is mended by the node that opens it, from what all copies have together; here it is tried
whether they have enough. Nothing is changed unless it is to be repaired.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from sapwood.address import Address
from sapwood.errors import SapwoodError, Unavailable
from sapwood.kernel.log.archive_objects import MARKS, SNAPSHOTS, is_parked, last_mark, place_of, unpack_snapshot
from sapwood.kernel.log.records import ChainBroken, unseal
from sapwood.kernel.log.repair import heal
from sapwood.kernel.log.restore import TreeContent, read_tree
from sapwood.kernel.ports.log import Archive, Record
from sapwood.kernel.ports.shards import SHARDS, shard_of
from sapwood.runtimes.cluster.base.cluster_status import offline
from sapwood.runtimes.cluster.base.layout import Names
from sapwood.runtimes.cluster.base.segments import Segment, SegmentLine, lines_of, segments, tree_from_segments
from sapwood.runtimes.cluster.copies.log_shipper import read_batch
from sapwood.runtimes.cluster.copies.replicas import NatsReplicas
from sapwood.runtimes.cluster.nats.nats_log import NatsLog
from sapwood.runtimes.cluster.ops.repair import ask_to_mend, give_copies, lacks_copies, refill
from sapwood.timings import DEFAULTS, Timings

AT_ONCE = 8
LOOKS = 3
"""How often a tree is looked at whose copies differ: while a node writes to it, they may."""
PAUSE = 0.3
READS = 12
"""How often a tree is asked for: that one of three servers is never the one that answers happens once in 130 times."""
ROUNDS = 3
"""How often it is repaired and looked at again."""
LEADERS = 6
"""How often another server is asked to lead, until one does that lacks nothing."""
ELECTING = 30.0
"""Seconds that servers have to elect who leads."""
BATCH, BATCH_BYTES = 256, 16 * 1024 * 1024
ARCHIVE = "the archive"
LEADER = "the server that leads"
SERVER = "a server"


CheckFiles = Callable[[TreeContent], Awaitable[list[str]]]


class TreeDamage(msgspec.Struct, frozen=True):
    """A tree that is not whole in one of the places that should have it."""

    tree: str
    root: str
    """Its address; empty if unknown."""
    what: str
    can_be_mended: bool
    """Whether all copies together have what is missing."""


class VerificationReport(msgspec.Struct):
    """What was found."""

    trees: int = 0
    """Those with messages in the log."""
    parked: int = 0
    """Those that only the archive has."""
    messages: int = 0
    damaged: list[TreeDamage] = msgspec.field(default_factory=list[TreeDamage])
    lacking: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """By copy, how many trees it does not have as the others do."""
    mistrusted: list[int] = msgspec.field(default_factory=list[int])
    """Streams whose leader was asked to lead no more."""
    refilled: list[int] = msgspec.field(default_factory=list[int])
    """Streams whose replicas were copied again."""
    mended: list[str] = msgspec.field(default_factory=list[str])
    """Trees that their owners stored again."""
    unrepaired: list[str] = msgspec.field(default_factory=list[str])
    """Why something was not repaired."""
    offline: list[str] = msgspec.field(default_factory=list[str])
    """Servers that were not there: what they hold was not looked at."""

    @property
    def is_whole(self) -> bool:
        return not self.damaged and not self.lacking


async def verify(
    connection: Any,
    names: Names,
    archive: Archive,
    *,
    repair: bool = False,
    progress: Callable[[VerificationReport], object] = lambda so_far: None,
    timings: Timings = DEFAULTS,
    check_files: CheckFiles | None = None,
) -> VerificationReport:
    """Check everything; with `repair`, make whole what is not, and return what is left.

    `check_files` returns what is wrong with the files of a tree that lie in the archive.
    """
    did = VerificationReport()
    for stream in range(names.layout.streams * names.layout.cells if repair else 0):
        if await lacks_copies(connection, names, stream):  # a repair was interrupted
            await give_copies(connection, names, stream)
            did.refilled.append(stream)
    verifying = _Verification(connection, names, archive, progress, timings, check_files)
    found = await verifying.run()
    for _ in range(ROUNDS if repair else 0):
        if found.is_whole or not await verifying.repair(did):
            break
        verifying = _Verification(connection, names, archive, progress, timings, check_files)
        found = await verifying.run()
    return msgspec.structs.replace(
        found,
        mistrusted=did.mistrusted,
        refilled=did.refilled,
        mended=did.mended,
        unrepaired=did.unrepaired if not found.is_whole else [],
        offline=await offline(connection, names),
    )


class _Bad(NamedTuple):
    """A tree that is not whole everywhere."""

    shard: int
    tree: str
    root: str
    can_be_mended: bool
    lacking: frozenset[str]


class _End(NamedTuple):
    """The last message of a tree in the archive."""

    sequence: int
    root: str
    is_over: bool
    """Whether the tree ended with it, or got another address."""


def _end_of(record: Record) -> _End | None:
    try:
        message = unseal(record).message
    except ChainBroken:
        return None
    return _End(record.sequence, message.root, message.is_end or bool(message.moved_to))


def _read_segment(segment: Segment) -> list[tuple[SegmentLine, _End | None]]:
    """Return the lines of a segment, and what those of trees say. Takes a while."""
    return [
        (line, _end_of(Record(line.tree, line.sequence, line.data)) if line.kind == "tree" else None)
        for line in lines_of(segment)
    ]


class _Verification:
    def __init__(
        self,
        connection: Any,
        names: Names,
        archive: Archive,
        progress: Callable[[VerificationReport], object],
        timings: Timings,
        check_files: CheckFiles | None,
    ) -> None:
        self._check_files = check_files
        self._timings = timings
        self._connection = connection
        self._names = names
        self._archive = archive
        self._progress = progress
        self._log = NatsLog(connection, names, timings=timings)
        self._replicas = NatsReplicas(connection, names, archive)
        self._found = VerificationReport()
        self._lacking: Counter[str] = Counter()
        self._seen: set[str] = set()
        self._newest: dict[str, int] = {}
        """The place of the last message of each tree in the log."""
        self._lost: set[str] = set()
        """Trees of which only the archive has everything."""
        self._bad: dict[int, list[_Bad]] = {}
        """By stream."""

    async def run(self) -> VerificationReport:
        layout = self._names.layout
        try:
            for stream in range(layout.streams * layout.cells):
                await self._stream(stream)
            await self._parked()
        finally:
            self._log.close()
        self._found.lacking = dict(self._lacking)
        return self._found

    async def _stream(self, stream: int) -> None:
        shards = [shard for shard in range(SHARDS) if self._names.layout.stream_of(shard) == stream]
        second, up_to, ends = await self._second_copy(stream)
        trees = [(shard, tree) for shard, some in (await self._log.trees(shards)).items() for tree in some]
        for at in range(0, len(trees), AT_ONCE):
            await asyncio.gather(*(self._tree(shard, tree, second, up_to) for shard, tree in trees[at : at + AT_ONCE]))
            self._progress(self._found)
        for tree, end in ends.items():
            if end.sequence > self._newest.get(tree, 0) and not end.is_over:
                await self._missing_end(stream, tree, end)

    async def repair(self, did: VerificationReport) -> bool:
        """Have what was found be made whole; return whether anything was done. `did` gets what."""
        anything = False
        for stream in range(self._names.layout.streams * self._names.layout.cells):
            bad = self._bad.get(stream, [])
            try:
                if not bad:
                    continue
                if await self._is_led_well(stream, bad, did):
                    await self._refill(stream, bad, did)
                    anything = True
                else:
                    anything = await self._mend(bad, did) or anything
            except Unavailable as error:
                did.unrepaired.append(str(error))
        return anything

    async def _is_led_well(self, stream: int, bad: Sequence[_Bad], did: VerificationReport) -> bool:
        """Have a server lead a stream that lacks nothing; return whether there is one."""
        do_servers_differ = any(SERVER in one.lacking for one in bad)
        for _ in range(LEADERS):
            if await self._is_whole_when_led(bad):
                return True
            if not do_servers_differ:
                return False
            await self._replicas.distrust(bad[0].shard)
            if stream not in did.mistrusted:
                did.mistrusted.append(stream)
            await asyncio.sleep(self._timings.election_delay)  # the old leader may still answer
        return False

    async def _is_whole_when_led(self, bad: Sequence[_Bad]) -> bool:
        end = asyncio.get_running_loop().time() + ELECTING
        while True:
            try:
                return await self._is_whole_at_leader(bad)
            except Unavailable:
                if asyncio.get_running_loop().time() > end:
                    raise
            await asyncio.sleep(PAUSE)

    async def _is_whole_at_leader(self, bad: Sequence[_Bad]) -> bool:
        for one in bad:
            try:
                records = await self._replicas.read_leader(one.shard, one.tree)
                await read_tree(records, self._archive, one.tree)
            except ChainBroken:
                return False
            if LEADER in await self._compare(one.shard, one.tree, records, {}, 0):
                return False
        return True

    async def _refill(self, stream: int, bad: Sequence[_Bad], did: VerificationReport) -> None:
        if not any(SERVER in one.lacking for one in bad):
            raise Unavailable(
                f"The messages of {self._names.stream(stream)} that the archive lacks cannot be repaired."
            )
        if any(ARCHIVE in one.lacking for one in bad):
            raise Unavailable(
                f"The replicas of {self._names.stream(stream)} are not copied again: for seconds only one would "
                "exist, and the archive lacks messages of the stream."
            )
        await refill(self._connection, self._names, self._archive, stream)
        did.refilled.append(stream)

    async def _mend(self, bad: Sequence[_Bad], did: VerificationReport) -> bool:
        """Ask the owners of trees that no server has whole to store them again."""
        anything = False
        for one in bad:
            who = one.root or one.tree
            if not one.can_be_mended or not one.root:
                did.unrepaired.append(f"{who}: no replica has the missing data.")
            elif await ask_to_mend(self._connection, self._names, one.shard, one.root):
                did.mended.append(one.root)
                anything = True
            else:
                did.unrepaired.append(f"{who}: no running node could repair it.")
        return anything

    async def _second_copy(self, stream: int) -> tuple[dict[int, bytes], int, dict[str, _End]]:
        """Return what the archive has of a stream: the digests by place, up to where it goes, and where trees end."""
        digests: dict[int, bytes] = {}
        ends: dict[str, _End] = {}
        up_to = 0
        lacking: dict[str, str] = {}
        async for segment in segments(self._archive, stream, lacking):
            for line, end in await asyncio.to_thread(_read_segment, segment):
                digests[line.sequence] = _digest(line.data)
                if end is not None:
                    ends[line.tree] = end
            up_to = max(up_to, segment.last)
        self._found.damaged += [TreeDamage("", "", problem, can_be_mended=False) for problem in lacking.values()]
        return digests, up_to, ends

    async def _missing_end(self, stream: int, tree: str, end: _End) -> None:
        """Check a tree whose last message in the archive is not in the log: it was parked or destroyed, or is lost."""
        try:
            marked = await last_mark(self._archive, tree)
        except ChainBroken:
            return  # found with the parked trees
        if marked is not None and is_parked(marked[0]) and place_of(marked[0])[1] >= end.sequence:
            return
        shard = shard_of(Address.parse(end.root))
        now = await self._log.read(shard, tree)
        if now and now[-1].sequence >= end.sequence:
            return
        known = await tree_from_segments(self._archive, stream, tree, {})
        if known and (last := _end_of(known[-1])) is not None and last.is_over:
            return  # destroyed since
        what = f"The archive has its messages up to {end.sequence}, but the log lacks the last ones."
        self._only_archived(tree, end.root, what)

    async def _tree(self, shard: int, tree: str, second: dict[int, bytes], up_to: int) -> None:
        self._seen.add(tree)
        lacking: set[str] = set()
        trouble: SapwoodError | None = None
        records: Sequence[Record] = ()
        state: TreeContent | None = None
        for look in range(LOOKS):
            await asyncio.sleep(look * PAUSE)
            trouble, lacking = None, set()
            try:
                records = await self._log.read(shard, tree)
                state = await read_tree(records, self._archive, tree)
            except (ChainBroken, Unavailable) as error:
                trouble, state = error, None
            lacking = await self._compare(shard, tree, records, second, up_to)
            if trouble is None and not lacking:
                break
        if state is not None:
            await self._files(tree, state)
        self._newest[tree] = records[-1].sequence if records else 0
        self._found.trees += 1
        self._found.messages += len(records)
        self._lacking.update(lacking)
        if trouble is None and not lacking:
            return
        what = str(trouble) if trouble is not None else f"Data is missing at: {', '.join(sorted(lacking))}."
        mended = trouble is None or await self._can_be_mended(shard, tree)
        root = _root(records)
        self._found.damaged.append(TreeDamage(tree, root, what, mended))
        self._bad.setdefault(self._names.layout.stream_of(shard), []).append(
            _Bad(shard, tree, root, mended, frozenset(lacking))
        )

    async def _compare(
        self, shard: int, tree: str, records: Sequence[Record], second: dict[int, bytes], up_to: int
    ) -> set[str]:
        """Return which copies do not have what all of them together have."""
        answers = [_digests(records)]
        for answer in await asyncio.gather(*(self._answer(shard, tree) for _ in range(READS)), return_exceptions=True):
            if isinstance(answer, Unavailable):
                continue  # while servers elect; others answer
            if isinstance(answer, BaseException):
                raise answer
            answers.append(_digests(answer))
        every: dict[int, Counter[bytes]] = {}
        for digests in answers:
            for place, digest in digests.items():
                every.setdefault(place, Counter())[digest] += 1
        right = {place: counted.most_common(1)[0][0] for place, counted in every.items()}
        lacking: set[str] = set()
        if any(digests != right for digests in answers):
            lacking.add(SERVER)
            if _digests(await self._replicas.read_leader(shard, tree)) != right:
                lacking.add(LEADER)
        # What the stream forgot since is none of its business.
        if any(place <= up_to and second.get(place) != digest for place, digest in right.items()):
            lacking.add(ARCHIVE)
        return lacking

    async def _answer(self, shard: int, tree: str) -> list[Record]:
        """Return what some server has of a tree."""
        stream = self._names.stream(self._names.layout.stream_of(shard))
        question = {"next_by_subj": self._names.tree(shard, tree), "batch": BATCH, "max_bytes": BATCH_BYTES}
        lines, _ = await read_batch(self._connection, stream, {**question, "seq": 1})
        records = [Record(tree, line.sequence, line.data) for line in lines]
        # The rest comes from another server, perhaps: it is compared by its own turn.
        while lines:
            lines, _ = await read_batch(self._connection, stream, {**question, "seq": lines[-1].sequence + 1})
            records += [Record(tree, line.sequence, line.data) for line in lines]
        return records

    async def _can_be_mended(self, shard: int, tree: str) -> bool:
        try:
            return await heal(self._replicas.reads(shard, tree), self._archive, tree) is not None
        except (ChainBroken, Unavailable):
            return False

    async def _parked(self) -> None:
        """Check the trees that only the archive has."""
        marks: dict[str, str] = {}
        async for key in self._archive.keys(f"{MARKS}/"):
            tree = key.split("/")[-2]
            marks[tree] = max(marks.get(tree, ""), key)
        resting = [tree for tree, key in marks.items() if tree not in self._seen and is_parked(key)]
        for at in range(0, len(resting), AT_ONCE):
            await asyncio.gather(*(self._resting(tree) for tree in resting[at : at + AT_ONCE]))
            self._progress(self._found)
        newest: dict[str, str] = {}
        async for key in self._archive.keys(f"{SNAPSHOTS}/"):
            tree = key.split("/")[-2]
            if tree not in self._seen and tree not in marks and tree not in self._lost:
                newest[tree] = key
        for tree, key in newest.items():
            await self._unmarked(tree, key)

    async def _resting(self, tree: str) -> None:
        self._found.parked += 1
        try:
            state = await read_tree([], self._archive, tree)
        except ChainBroken as error:
            self._found.damaged.append(TreeDamage(tree, "", str(error), can_be_mended=False))
            return
        if state is not None:
            await self._files(tree, state)

    async def _files(self, tree: str, state: TreeContent) -> None:
        """Check the files of a tree that lie in the archive."""
        problems = [] if self._check_files is None or not state.files else await self._check_files(state)
        self._found.damaged += [TreeDamage(tree, state.tail.root, text, can_be_mended=False) for text in problems]

    async def _unmarked(self, tree: str, key: str) -> None:
        """Check a tree that has a snapshot, but neither messages nor a mark: a node would take it for a new one."""
        try:
            if (data := await self._archive.get(key)) is None or await last_mark(self._archive, tree) is not None:
                return
            root = (await asyncio.to_thread(unpack_snapshot, data, key, None)).root
        except ChainBroken as error:
            self._found.damaged.append(TreeDamage(tree, "", str(error), can_be_mended=False))
            return
        if not await self._log.read(shard_of(Address.parse(root)), tree):
            self._only_archived(tree, root, f"The archive has the snapshot {key!r} of it, but its mark is missing.")

    def _only_archived(self, tree: str, root: str, what: str) -> None:
        """Name a tree that a node would open as it was earlier, or as a new one."""
        self._lost.add(tree)
        remedy = f"Copy it with `sapwood cluster backup FOLDER {root} --at TIME`, and restore the copy."
        self._found.damaged.append(TreeDamage(tree, root, f"{what} {remedy}", can_be_mended=False))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _digests(records: Iterable[Record]) -> dict[int, bytes]:
    return {record.sequence: _digest(record.data) for record in records}


def _root(records: Collection[Record]) -> str:
    for record in records:
        try:
            return unseal(record).message.root
        except ChainBroken:
            continue
    return ""
