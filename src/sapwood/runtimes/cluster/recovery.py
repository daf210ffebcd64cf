"""Back from the archive alone: one tree as it was at a time, or everything after the log was lost.

What the second copy did not have yet is lost: what was stored in the last seconds before. The result says up to when
each stream came back.
"""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from sapwood.address import Address
from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.chain import Base, ChainBroken, tree_id, unseal
from sapwood.kernel.kept import (
    MARKS,
    PARKED,
    SNAPSHOTS,
    Mark,
    is_parked,
    last_mark,
    name_of,
    pack_mark,
)
from sapwood.kernel.ports import Archive, Record
from sapwood.kernel.restoring import State, get_snapshot, heal, put_together
from sapwood.kernel.shards import shard_of
from sapwood.runtimes.cluster.cells import Names
from sapwood.runtimes.cluster.segments import Line, get_segment, lines_of, segments, tree_from_segments
from sapwood.runtimes.cluster.shipping import INDEX, ask_leader, position

log = logging.getLogger(__name__)

AT_ONCE = 32
TRIES = 20


class Recovered(msgspec.Struct):
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
    """Trees that did not come back as they were last, and why."""


async def tree_at(archive: Archive, names: Names, root: Address, until: float) -> State | None:
    """Return a tree as it was at a time; None: there was none, or nothing so old is kept."""
    tree = tree_id(root)
    stream = names.layout.stream_of(shard_of(root))
    records = await tree_from_segments(archive, stream, tree, until)
    best: Base | None = None
    async for key in archive.keys(f"{SNAPSHOTS}/{tree}/"):
        name = name_of(key)
        if name.at <= until:
            best = Base(key, b"", name.sequence, name.chain)
    state: State | None = None
    if records:

        async def read() -> list[Record]:
            return records

        healed = await heal([read], archive, tree)
        state = None if healed is None else healed.state
    if best is not None:
        place = name_of(best.key)[:2]
        if state is None or (state.tail.epoch, state.tail.sequence) < place:
            snapshot, below = await get_snapshot(archive, best)
            state = await asyncio.to_thread(put_together, snapshot, below, [], best)
    return None if state is None or state.tail.is_end or state.tail.moved_to else state


async def restore_everything(connection: Any, names: Names, archive: Archive) -> Recovered:
    """Write all that the archive has back to the streams of a cluster, which are empty, so that nodes can open it.

    No node may run meanwhile. `UsageError` if the streams are not empty.
    """
    streams = names.layout.streams * names.layout.cells
    for stream in range(streams):
        there = await position(connection, names.stream(stream))
        if there.last >= there.first > 0:
            raise UsageError(
                f"The stream {names.stream(stream)!r} is not empty. Restoring is for a cluster that has lost its log: "
                "make its streams anew first."
            )
    marks = await _marks(archive)
    result = Recovered()
    for stream in range(streams):
        await _restore_stream(connection, names, archive, stream, marks, result)
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


async def _restore_mark(archive: Archive, tree: str, key: str, result: Recovered) -> None:
    if is_parked(key):
        result.parked += 1
        return
    marked = await last_mark(archive, tree)
    assert marked is not None
    mark = marked[1]
    if mark.parked is None:
        result.lost[tree] = f"{mark.root} began in the last seconds before the log was lost, and is lost."
        await archive.remove([key])
        return
    result.lost[tree] = f"{mark.root} is as it was parked: it was written to in the last seconds before."
    await archive.put(
        key.rsplit("-", 1)[0] + f"-{PARKED}", pack_mark(Mark(root=mark.root, at=mark.at, parked=mark.parked))
    )
    result.parked += 1


async def _restore_stream(
    connection: Any, names: Names, archive: Archive, stream: int, marks: dict[str, str], result: Recovered
) -> None:
    trees: dict[str, list[Line]] = {}
    others: dict[str, Line] = {}
    last = 0
    for line in await _index(archive, stream):
        others[line.subject] = line
    async for _, segment in segments(archive, stream):
        last = max(last, segment.last)
        result.newest[stream] = max(result.newest.get(stream, 0.0), segment.ended)
        for line in await asyncio.to_thread(lines_of, segment):
            if line.kind != "tree":
                known = others.get(line.subject)
                if known is None or known.sequence < line.sequence:
                    others[line.subject] = line
                continue
            some = trees.setdefault(line.tree, [])
            if _counts_alone(line):
                some.clear()
            some.append(line)
    if last:
        await _begin_at(connection, names.stream(stream), last + 1)
    for some in _batches(list(trees.items())):
        await asyncio.gather(
            *(_restore_tree(connection, archive, tree, lines, marks.pop(tree, ""), result) for tree, lines in some)
        )
    for some in _batches([line for line in others.values() if line.data]):
        await asyncio.gather(*(_publish(connection, line) for line in some))
        result.alarms += sum(line.kind == "alarm" for line in some)


def _counts_alone(line: Line) -> bool:
    """Return whether nothing of its tree counts that came before this message."""
    try:
        message = unseal(Record(line.tree, line.sequence, line.data)).message
    except ChainBroken:
        return False
    return (message.base is not None and message.part == 0) or message.is_end or bool(message.moved_to)


async def _restore_tree(
    connection: Any, archive: Archive, tree: str, lines: Sequence[Line], mark: str, result: Recovered
) -> None:
    if mark and is_parked(mark):
        place = int(mark.rsplit("/", 1)[1].split("-")[1])
        lines = [line for line in lines if line.sequence > place]
        if not lines:
            result.parked += 1
            return
    records = [Record(tree, line.sequence, line.data) for line in lines]

    async def read() -> list[Record]:
        return records

    try:
        healed = await heal([read], archive, tree)
    except (ChainBroken, Unavailable) as error:
        result.lost[tree] = str(error)
        return
    assert healed is not None
    whole = {record.sequence for record in healed.records}
    if healed.records[-1].sequence < lines[-1].sequence:
        result.lost[tree] = f"Its messages after {healed.records[-1].sequence} follow none that was copied."
    for line in lines:
        if line.sequence in whole:
            await _publish(connection, line)
            result.messages += 1
    result.trees += 1


async def _publish(connection: Any, line: Line) -> None:
    """Store a message again, where it was; once, however often that is tried."""
    import nats.errors

    headers = {"Nats-Msg-Id": f"restored-{line.sequence}"}
    why: object = ""
    for _ in range(TRIES):
        try:
            answer = msgspec.json.decode((await connection.request(line.subject, line.data, 5, headers=headers)).data)
            if "error" not in answer:
                return
            why = answer["error"].get("description")
        except (nats.errors.Error, TimeoutError, OSError) as error:
            why = error
        await asyncio.sleep(0.5)
    raise Unavailable(f"The log does not take what is restored: {why}")


async def _begin_at(connection: Any, stream: str, sequence: int) -> None:
    """Have an empty stream count on from here: keys in the archive sort by it."""
    await ask_leader(connection, "STREAM.PURGE", stream, {"seq": sequence})
    there = await position(connection, stream)
    if there.last + 1 < sequence:
        raise Unavailable(f"The stream {stream!r} counts on from {there.last + 1}, and not from {sequence}.")


async def _index(archive: Archive, stream: int) -> list[Line]:
    last = ""
    async for key in archive.keys(f"{INDEX}/{stream:04}/"):
        last = max(last, key)
    segment = await get_segment(archive, last) if last else None
    return [] if segment is None else await asyncio.to_thread(lines_of, segment)


def _batches(of: Sequence[Any]) -> list[Sequence[Any]]:
    return [of[at : at + AT_ONCE] for at in range(0, len(of), AT_ONCE)]
