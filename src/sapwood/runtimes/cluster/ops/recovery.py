"""Back from the archive alone: one tree as it was at a time, or everything after the log was lost.

What the second copy did not have yet is lost: what was stored in the last seconds before. The result says up to when
each stream came back.
"""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sapwood.address import Address
from sapwood.clock import Clock, SystemClock
from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.log.archive_files import check_later_removals, note_check
from sapwood.kernel.log.archive_objects import (
    ENDED,
    MARKS,
    PARKED,
    SNAPSHOTS,
    TreeEnd,
    ended_key,
    ends,
    is_parked,
    last_mark,
    name_of,
    pack_mark,
    place_of,
)
from sapwood.kernel.log.records import Base, ChainBroken, Message, program, seal, tree_id, unseal
from sapwood.kernel.log.repair import heal
from sapwood.kernel.log.restore import TreeContent, get_snapshot, put_together
from sapwood.kernel.log.snapshots import archive_state
from sapwood.kernel.ports.log import Archive, Record
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.layout import Names
from sapwood.runtimes.cluster.base.placement import ShardOwner, decode, encode
from sapwood.runtimes.cluster.base.segments import SegmentLine, get_segment, lines_of, segments, tree_from_segments
from sapwood.runtimes.cluster.copies.archive_identity import SETUP, Setup, claim_archive
from sapwood.runtimes.cluster.copies.log_shipper import INDEX, ask_leader, position

log = logging.getLogger(__name__)

AT_ONCE = 32
TRIES = 20
ROLL_CALL = 1.5
"""Seconds that nodes have to say that they are there."""


LATE = 86400.0
"""Seconds by which the log may have stored later what a note says: after an outage, or with clocks that differ."""


class RecoveryReport(msgspec.Struct):
    """What came back."""

    trees: int = 0
    """Those that have messages in the log again."""
    parked: int = 0
    """Those that were parked, and still are."""
    messages: int = 0
    alarms: int = 0
    newest: dict[int, float] = msgspec.field(default_factory=dict[int, float])
    """By stream: when the newest message was stored that came back. What was stored later is lost."""
    lost: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Trees that did not come back as they were last, and objects of the archive that are damaged, and why."""


async def nodes_there(connection: Any, names: Names) -> list[str]:
    """Return the nodes that answer now, whatever became of their leases."""
    import nats.errors

    inbox = connection.new_inbox()
    answers = await connection.subscribe(inbox)
    nodes: list[str] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + ROLL_CALL
    try:
        await connection.publish(names.who, b"", reply=inbox)
        while (left := end - loop.time()) > 0:
            message = await answers.next_msg(timeout=left)
            if message.data:
                nodes.append(message.data.decode())
    except (nats.errors.Error, TimeoutError):
        pass
    finally:
        await answers.unsubscribe()
    return sorted(nodes)


async def check_no_nodes(connection: Any, names: Names) -> None:
    """Raise `UsageError` if a node runs."""
    if nodes := await nodes_there(connection, names):
        raise UsageError(f"Nodes are running: {', '.join(nodes)}. Stop them first.")


class Past:
    """An archive as it was at a time, for reading: with the snapshots of trees that were destroyed since."""

    def __init__(self, archive: Archive, until: float, gone: dict[str, list[TreeEnd]]) -> None:
        self._archive = archive
        self._until = until
        self._gone = gone

    async def get(self, key: str) -> bytes | None:
        data = await self._archive.get(key)
        return await self._archive.get(ended_key(key)) if data is None and key.startswith(SNAPSHOTS) else data

    async def keys(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        found = [key async for key in self._archive.keys(prefix, after)]
        if prefix.startswith(SNAPSHOTS):
            moved = [f"{SNAPSHOTS}{key.removeprefix(ENDED)}" async for key in self._archive.keys(ended_key(prefix))]
            found = sorted({*found, *(key for key in moved if key > after and not self._is_gone(key))})
        for key in found:
            yield key

    def _is_gone(self, key: str) -> bool:
        return any(
            end.at <= self._until and place_of(key) <= (end.epoch, end.sequence)
            for end in self._gone.get(key.split("/")[-2], ())
        )

    async def put(self, key: str, data: bytes, *, only_new: bool = False) -> bool:
        raise NotImplementedError

    async def put_file(self, key: str, path: Path) -> None:
        raise NotImplementedError

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return await self._archive.get_range(key, start, end)

    async def size(self, key: str) -> int | None:
        return await self._archive.size(key)

    async def remove(self, keys: Sequence[str]) -> None:
        raise NotImplementedError


async def past(archive: Archive, until: float) -> Past:
    """Return an archive as it was at a time."""
    gone: dict[str, list[TreeEnd]] = {}
    async for end in ends(archive):
        gone.setdefault(end.tree, []).append(end)
    return Past(archive, until, gone)


async def tree_at(
    archive: Archive, names: Names, root: Address, until: float, lost: dict[str, str]
) -> TreeContent | None:
    """Return a tree as it was at a time, or `None` if there was none, or nothing so old is kept.

    `lost` gets the damaged objects of the log's second copy, and why: the tree may be older than it was.
    """
    tree = tree_id(root)
    records = await tree_from_segments(archive, names.layout.stream_of(shard_of(root)), tree, lost, until)
    return await _at(await past(archive, until), tree, records, until)


async def _at(archive: Archive, tree: str, records: Sequence[Record], until: float) -> TreeContent | None:
    """Return a tree as it was at a time, from its messages up to then and its snapshots."""
    best: Base | None = None
    async for key in archive.keys(f"{SNAPSHOTS}/{tree}/"):
        name = name_of(key)
        if name.at <= until:
            best = Base(key, b"", name.sequence, name.chain)
    state: TreeContent | None = None
    if records:

        async def read() -> list[Record]:
            return list(records)

        healed = await heal([read], archive, tree)
        state = None if healed is None else healed.state
    if best is not None:
        place = name_of(best.key)[:2]
        if state is None or (state.tail.epoch, state.tail.sequence) < place:
            snapshot, below = await get_snapshot(archive, best)
            state = await asyncio.to_thread(put_together, snapshot, below, [], best)
    return None if state is None or state.tail.is_end or state.tail.moved_to else state


async def every_tree_at(
    archive: Archive, names: Names, until: float, lost: dict[str, str]
) -> AsyncIterator[TreeContent]:
    """Return all trees as they were at a time.

    `lost` gets those of which that is not whole any more, and the damaged objects of the log's second copy, and why.
    """
    then = await past(archive, until)

    async def at_most(tree: str, lines: Sequence[SegmentLine]) -> TreeContent | None:
        try:
            return await _at(then, tree, _records(tree, lines), until)
        except ChainBroken as error:
            lost[tree] = str(error)
            return None

    seen: set[str] = set()
    for stream in range(names.layout.streams * names.layout.cells):
        trees = (await _read_stream(archive, stream, until, lost)).trees
        for tree, lines in trees.items():
            seen.add(tree)
            if (state := await at_most(tree, lines)) is not None:
                yield state
    last = ""
    async for key in then.keys(f"{SNAPSHOTS}/"):
        if (tree := key.split("/")[-2]) not in seen and tree != last:
            last = tree
            if (state := await at_most(tree, [])) is not None:
                yield state


async def restore_everything(
    connection: Any, names: Names, archive: Archive, until: float | None = None, clock: Clock | None = None
) -> RecoveryReport:
    """Write all that the archive has back to the streams of a cluster, which are empty, so that nodes can open it.

    `until`: as it was at this time. `None` means all of it. No node may be running. `UsageError` if one does, or the
    streams are not empty.
    """
    await check_no_nodes(connection, names)
    streams = names.layout.streams * names.layout.cells
    for stream in range(streams):
        there = await position(connection, names.stream(stream))
        if there.last >= there.first > 0:
            raise UsageError(
                f"The stream {names.stream(stream)!r} is not empty. Restore is for a cluster that has lost its "
                "log: empty the folders of all NATS servers first, or delete its streams."
            )
    await claim_archive(connection, names, archive)
    await archive.put(SETUP, msgspec.json.encode(Setup(names.cluster, names.layout)))
    # Files that were deleted in what is lost or left out are named again.
    await check_later_removals(archive, 0.0 if until is None else until - LATE)
    marks = await _marks(archive)
    result = RecoveryReport()
    for stream in range(streams):
        await _restore_stream(connection, names, archive, stream, marks, until, result, clock or SystemClock())
    for tree, key in marks.items():
        # What is left are trees of which the second copy has nothing.
        await _restore_mark(archive, tree, key, result)
    return result


async def _marks(archive: Archive) -> dict[str, str]:
    """Return the mark of each tree that counts."""
    marks: dict[str, str] = {}
    async for key in archive.keys(f"{MARKS}/"):
        tree = key.split("/")[-2]
        marks[tree] = max(marks.get(tree, ""), key)
    return marks


async def _restore_mark(archive: Archive, tree: str, key: str, result: RecoveryReport) -> None:
    if is_parked(key):
        result.parked += 1
        return
    try:
        marked = await last_mark(archive, tree)
    except ChainBroken as error:
        result.lost[tree] = str(error)
        return
    assert marked is not None
    mark = marked[1]
    if mark.parked is None:
        result.lost[tree] = f"{mark.root} was created in the last seconds before the log was lost, and is lost."
        await archive.remove([key])
        return
    result.lost[tree] = f"{mark.root} is restored as it was parked: its last writes before the loss are missing."
    parked = key.rsplit("-", 1)[0] + f"-{PARKED}"
    await archive.put(parked, pack_mark(parked, mark))
    result.parked += 1


class _Read(NamedTuple):
    """What the second copy has of a stream."""

    trees: dict[str, list[SegmentLine]]
    """The messages of trees that count, up to the time that was asked for."""
    undone: dict[str, SegmentLine]
    """The last message of each tree that was stored later."""
    others: dict[str, SegmentLine]
    """The last alarms and owners, by subject."""
    last: int
    newest: float
    """When the last message was stored."""


async def _read_stream(
    archive: Archive, stream: int, until: float | None, lost: dict[str, str], *, with_owners: bool = False
) -> _Read:
    trees: dict[str, list[SegmentLine]] = {}
    undone: dict[str, SegmentLine] = {}
    others: dict[str, SegmentLine] = {}
    last, newest = 0, 0.0
    for line in await _index(archive, stream, None if with_owners else lost):
        others[line.subject] = line
    async for segment in segments(archive, stream, lost):
        last = max(last, segment.last)
        for line in await asyncio.to_thread(lines_of, segment):
            is_late = until is not None and line.at > until
            if not is_late:
                newest = max(newest, line.at)
            if line.kind == "tree":
                if is_late:
                    undone[line.tree] = line
                    continue
                some = trees.setdefault(line.tree, [])
                if _counts_alone(line):
                    some.clear()
                some.append(line)
            elif not is_late or line.kind == "owner":  # the next owner of a shard comes after all earlier ones
                known = others.get(line.subject)
                if known is None or known.sequence < line.sequence:
                    others[line.subject] = line
    return _Read(trees, undone, others, last, newest)


async def _restore_stream(
    connection: Any,
    names: Names,
    archive: Archive,
    stream: int,
    marks: dict[str, str],
    until: float | None,
    result: RecoveryReport,
    clock: Clock,
) -> None:
    found = await _read_stream(archive, stream, until, result.lost, with_owners=True)
    if not found.last:
        return
    result.newest[stream] = found.newest
    await _begin_at(connection, names.stream(stream), found.last + 1)
    put = _Put(connection, names, archive, result, clock)
    for some in _batches([tree for tree in found.trees if tree not in found.undone]):
        await asyncio.gather(*(put.tree(tree, found.trees[tree], marks.pop(tree, "")) for tree in some))
    for some in _batches(list(found.undone)):
        for tree in some:
            marks.pop(tree, None)
        await asyncio.gather(
            *(put.earlier(tree, found.trees.get(tree, []), found.undone[tree], until or 0.0) for tree in some)
        )
    for some in _batches([line for line in found.others.values() if line.data]):
        await asyncio.gather(*(put.line(_released(line) if line.kind == "owner" else line) for line in some))
        result.alarms += sum(line.kind == "alarm" for line in some)


def _released(line: SegmentLine) -> SegmentLine:
    """Return the message of an owner as released: its node is gone, and others must not wait for it."""
    try:
        owner = decode(line.data)
    except msgspec.DecodeError:
        return line
    free = ShardOwner(owner.epoch + 1, "", ended_well=False)
    return SegmentLine(line.sequence, line.at, line.subject, encode(free))


def _records(tree: str, lines: Sequence[SegmentLine]) -> list[Record]:
    return [Record(tree, line.sequence, line.data) for line in lines]


def _counts_alone(line: SegmentLine) -> bool:
    """Return whether nothing of its tree counts that came before this message."""
    try:
        message = unseal(Record(line.tree, line.sequence, line.data)).message
    except ChainBroken:
        return False
    return (message.base is not None and message.part == 0) or message.is_end or bool(message.moved_to)


class _Put:
    """Writes to the streams of a cluster."""

    def __init__(self, connection: Any, names: Names, archive: Archive, result: RecoveryReport, clock: Clock) -> None:
        self._connection = connection
        self._names = names
        self._archive = archive
        self._past: Past | None = None
        self._result = result
        self._clock = clock

    async def tree(self, tree: str, lines: Sequence[SegmentLine], mark: str) -> None:
        """Store the messages of a tree again, as far as they are whole."""
        result = self._result
        if mark and is_parked(mark):
            place = int(mark.rsplit("/", 1)[1].split("-")[1])
            lines = [line for line in lines if line.sequence > place]
            if not lines:
                result.parked += 1
                return
        records = _records(tree, lines)

        async def read() -> list[Record]:
            return records

        try:
            healed = await heal([read], self._archive, tree)
        except (ChainBroken, Unavailable) as error:
            result.lost[tree] = str(error)
            return
        assert healed is not None
        whole = {record.sequence for record in healed.records}
        if healed.records[-1].sequence < lines[-1].sequence:
            result.lost[tree] = f"Its messages after {healed.records[-1].sequence} do not follow any archived message."
        for line in lines:
            if line.sequence in whole:
                await self.line(line)
                result.messages += 1
        result.trees += 1

    async def earlier(self, tree: str, lines: Sequence[SegmentLine], last: SegmentLine, until: float) -> None:
        """Store a tree as it was at a time, after what became of it later; `last` is the last message of that."""
        state: TreeContent | None = None
        try:
            state = await _at(await self._then(until), tree, _records(tree, lines), until)
        except ChainBroken as error:
            self._result.lost[tree] = str(error)
        undone = unseal(Record(tree, last.sequence, last.data))
        root = Address.parse(undone.message.root)
        await note_check(self._archive, root, self._clock.now(), f"undone{last.sequence}")
        message = Message(
            root=str(root),
            epoch=undone.message.epoch,
            previous=0,
            before=undone.digest,
            at=self._clock.now(),
            version=program(),
            base=None if state is None else await archive_state(self._archive, root, state, self._clock.now()),
            is_end=state is None,
        )
        await self.line(SegmentLine(last.sequence, last.at, last.subject, seal(message)[0]))
        self._result.messages += 1
        self._result.trees += state is not None

    async def _then(self, until: float) -> Past:
        if self._past is None:
            self._past = await past(self._archive, until)
        return self._past

    async def line(self, line: SegmentLine) -> None:
        """Store a message; once, however often that is tried."""
        import nats.errors

        # The cluster may have another name now.
        subject = f"{self._names.cluster}.log.{line.subject.partition('.log.')[2]}"
        headers = {"Nats-Msg-Id": f"restored-{line.sequence}"}
        why: object = ""
        for _ in range(TRIES):
            try:
                reply = await self._connection.request(subject, line.data, 5, headers=headers)
                answer = msgspec.json.decode(reply.data)
                if "error" not in answer:
                    return
                why = answer["error"].get("description")
            except (nats.errors.Error, TimeoutError, OSError) as error:
                why = error
            await asyncio.sleep(0.5)
        raise Unavailable(f"The log refused the restored data: {why}")


async def _begin_at(connection: Any, stream: str, sequence: int) -> None:
    """Have an empty stream count on from here: keys in the archive sort by it."""
    await ask_leader(connection, "STREAM.PURGE", stream, {"seq": sequence})
    there = await position(connection, stream)
    if there.last + 1 < sequence:
        raise Unavailable(f"The stream {stream!r} continues at {there.last + 1}, expected {sequence}.")


async def _index(archive: Archive, stream: int, lost: dict[str, str] | None) -> list[SegmentLine]:
    """Return the alarms and owners that are older than the history; a damaged index ends it, unless `lost` takes that.

    Without the owners of shards, epochs would begin again, and new messages would lose against old ones.
    """
    last = ""
    async for key in archive.keys(f"{INDEX}/{stream:04}/"):
        last = max(last, key)
    try:
        segment = await get_segment(archive, last) if last else None
    except ChainBroken as error:
        if lost is None:
            raise ChainBroken(
                f"{error} It has the owners of shards. Restore this object from a copy, and try again."
            ) from None
        lost[last] = str(error)
        return []
    return [] if segment is None else await asyncio.to_thread(lines_of, segment)


def _batches(of: Sequence[Any]) -> list[Sequence[Any]]:
    return [of[at : at + AT_ONCE] for at in range(0, len(of), AT_ONCE)]
