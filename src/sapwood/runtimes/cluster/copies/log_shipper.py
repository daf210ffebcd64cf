"""Has the archive take a second copy of what a stream got, within seconds.

Read from whichever replica answers, in order. Where it has a gap, because the stream forgot something or because the
replica lost it, others are asked: what one of them has is in the copy.
"""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from sapwood.clock import Clock, SystemClock
from sapwood.errors import Unavailable
from sapwood.kernel.log.records import ChainBroken
from sapwood.kernel.log.tree_cache import Lag
from sapwood.kernel.ports.log import Archive
from sapwood.runtimes.cluster.base.layout import Names
from sapwood.runtimes.cluster.base.segments import (
    SEGMENTS,
    SegmentLine,
    get_segment,
    last_copied,
    pack_segment,
    segment_key,
)
from sapwood.runtimes.cluster.nats.nats_connection import all_answers

log = logging.getLogger(__name__)

EVERY = 10.0
"""Seconds that a message is in no segment at most."""
LARGEST = 16 * 1024 * 1024
LOOK_EVERY = 1.0
BATCH, BATCH_BYTES = 512, 4 * 1024 * 1024
ATTEMPT = 5.0
AGAIN_AFTER = 2.0
COMPLAIN_EVERY = 60.0
LOOKS = 4
"""How many replicas are asked where one has a gap."""
ONE_BY_ONE = 256
"""How many messages are asked of the leader one by one before the replica is asked again."""
SWEEP_EVERY = 3600.0
INDEX = "index"
"""Where the lines of a stream stand that are older than its oldest segment."""


class StreamBounds(NamedTuple):
    """Where a stream begins and ends."""

    first: int
    last: int


async def read_batch(
    connection: Any, stream: str, question: Mapping[str, object], timeout: float = ATTEMPT
) -> tuple[list[SegmentLine], int]:
    """Return messages of a stream as a replica near the connection has them, and how many more there are."""
    import nats.errors

    subject = f"$JS.API.DIRECT.GET.{stream}"
    try:
        *messages, end = await all_answers(connection, subject, msgspec.json.encode(question), timeout)
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise Unavailable(f"No replica of {stream} answers: {error or type(error).__name__}") from None
    lines: list[SegmentLine] = []
    for message in messages:
        headers: dict[str, str] = message.headers
        lines.append(
            SegmentLine(
                int(headers["Nats-Sequence"]),
                _seconds(headers["Nats-Time-Stamp"]),
                headers["Nats-Subject"],
                message.data,
            )
        )
    match end.headers["Status"]:
        case "204":
            return lines, int(end.headers.get("Nats-Num-Pending", "0"))
        case "404":
            return lines, 0
        case status:
            raise Unavailable(f"A replica of {stream} answered {status} {end.headers.get('Description', '')}.")


async def ask_leader(connection: Any, what: str, stream: str, question: Mapping[str, object]) -> dict[str, Any] | None:
    """Return what the leader of a stream says, or `None` if it has nothing there."""
    import nats.errors

    try:
        reply = await connection.request(f"$JS.API.{what}.{stream}", msgspec.json.encode(question), timeout=ATTEMPT)
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise Unavailable(f"The stream {stream} has no leader now: {error or type(error).__name__}") from None
    answer: dict[str, Any] = msgspec.json.decode(reply.data)
    error = answer.get("error")
    if error is not None:
        if error.get("code") == 404:
            return None
        raise Unavailable(f"The leader of {stream} answered: {error.get('description')}")
    return answer


async def next_of_leader(connection: Any, stream: str, begin: int, subject: str = ">") -> SegmentLine | None:
    """Return the first message at or after a place, as the leader of the stream has it."""
    answer = await ask_leader(connection, "STREAM.MSG.GET", stream, {"seq": begin, "next_by_subj": subject})
    if answer is None:
        return None
    message = answer["message"]
    data = base64.b64decode(message.get("data", ""))
    return SegmentLine(message["seq"], _seconds(message["time"]), message["subject"], data)


async def position(connection: Any, stream: str) -> StreamBounds:
    """Return where a stream begins and ends, as its leader knows it."""
    answer = await ask_leader(connection, "STREAM.INFO", stream, {})
    if answer is None:
        raise Unavailable(f"The stream {stream} does not exist.")
    return StreamBounds(answer["state"]["first_seq"], answer["state"]["last_seq"])


def _seconds(text: str) -> float:
    """Return a time as the server writes it, with nine digits or fewer."""
    whole, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + (float(f"0.{rest}") if rest else 0.0)


class Shipper:
    """Ships one stream. Two at once do no harm: a segment is written once, and the second one looks again."""

    def __init__(
        self,
        connection: Any,
        names: Names,
        stream: int,
        archive: Archive,
        *,
        every: float = EVERY,
        largest: int = LARGEST,
        history: float = 7 * 86400.0,
        clock: Clock | None = None,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._name = names.stream(stream)
        self._archive = archive
        self._every = every
        self._largest = largest
        self._history = history
        self._clock = clock or SystemClock()
        self._now = asyncio.get_running_loop().time
        self._next: int | None = None
        """The first place that is in no segment."""
        self._end = 0
        self._since: float | None = None
        """Since when there is something that is in no segment."""
        self._swept = self._now()
        self._complained = -COMPLAIN_EVERY

    def lag(self) -> Lag:
        """Return how many messages the archive does not have, and for how long it has been behind."""
        behind = max(self._end - (self._next or 1) + 1, 0)
        return Lag(behind, 0.0 if self._since is None or not behind else self._now() - self._since)

    async def run(self) -> None:
        """Ship for as long as this runs."""
        while True:
            try:
                await self.look()
                if self._now() - self._swept > SWEEP_EVERY:
                    self._swept = self._now()
                    await self.sweep()
                await asyncio.sleep(min(LOOK_EVERY, self._every / 4))
            except Unavailable as error:
                self._complain(error)
                await asyncio.sleep(AGAIN_AFTER)
            except Exception:
                log.exception("archiving paused stream=%d", self._stream)
                await asyncio.sleep(AGAIN_AFTER)

    def _complain(self, error: Unavailable) -> None:
        if self._now() - self._complained > COMPLAIN_EVERY:
            self._complained = self._now()
            log.warning("archiving paused stream=%d: %s", self._stream, error)

    async def look(self) -> None:
        """Ship if it is time to."""
        there = await position(self._connection, self._name)
        self._end = there.last
        if self._next is None:
            copied = await last_copied(self._archive, self._stream)
            self._next = 1 if copied is None else copied.last + 1
        if self._next > there.last + 1:
            self._since = self._since or self._now()
            raise Unavailable(
                f"The stream ends at {there.last}, but the archive has its messages up to {self._next - 1}. If "
                "the stream was created again, restore it from the archive first."
            )
        if self._next > there.last:
            self._since = None
            return
        if self._since is None:
            self._since = self._now()
        if self._now() - self._since >= self._every * 0.8 or there.last - self._next > 4 * BATCH:
            await self.ship(there)

    async def ship(self, there: StreamBounds | None = None) -> int:
        """Write segments until the archive has what the stream had when this began; return how many messages."""
        there = there or await position(self._connection, self._name)
        if self._next is None:
            copied = await last_copied(self._archive, self._stream)
            self._next = 1 if copied is None else copied.last + 1
        total = 0
        while self._next <= there.last:
            lines, last = await self._read(self._next, there.last)
            data = await asyncio.to_thread(pack_segment, self._stream, self._next, last, lines)
            key = segment_key(self._stream, self._next)
            if not await self._archive.put(key, data, only_new=True):
                # Another node's, or our own whose answer was lost.
                try:
                    segment = await get_segment(self._archive, key)
                except ChainBroken:
                    await self._archive.put(key, data)  # damaged: the stream still has what counts
                else:
                    if segment is None:
                        raise Unavailable(f"The object {key!r} disappeared from the archive.")
                    last = segment.last
            self._next = last + 1
            total += len(lines)
        self._since = None if self._next > there.last else self._now()
        return total

    async def _read(self, begin: int, end: int) -> tuple[list[SegmentLine], int]:
        """Return what there is between these places, as much as fits into one segment, and up to where that is."""
        lines: list[SegmentLine] = []
        size = 0
        while begin <= end and size < self._largest:
            some = await self._some(begin, end)
            if not some:  # nothing, or the replica is behind
                some = await self._of_leader(begin, end)
            lines += some
            size += sum(len(line.data) + 64 for line in some)
            begin = some[-1].sequence + 1 if some else end + 1
        return lines, begin - 1

    async def _some(self, begin: int, end: int) -> list[SegmentLine]:
        """Return what comes next, as one replica has it, or several where it has gaps."""
        question = {"seq": begin, "batch": BATCH, "max_bytes": BATCH_BYTES}
        found: dict[int, SegmentLine] = {}
        last = end
        for _ in range(LOOKS):
            some, _ = await read_batch(self._connection, self._name, question)
            if not some:
                continue
            last = min(last, some[-1].sequence)
            found.update((line.sequence, line) for line in some)
            if all(place in found for place in range(begin, last + 1)):
                break
        # One that has more than another comes less far in a batch.
        return [found[place] for place in sorted(found) if place <= last]

    async def _of_leader(self, begin: int, end: int) -> list[SegmentLine]:
        """Return what the leader has between these places."""
        found: list[SegmentLine] = []
        while begin <= end and len(found) < ONE_BY_ONE:
            line = await next_of_leader(self._connection, self._name, begin)
            if line is None or line.sequence > end:
                break
            found.append(line)
            begin = line.sequence + 1
        return found

    async def sweep(self) -> int:
        """Remove segments that are older than the history; return how many.

        What of them still counts goes into an index first: alarms and owners may stand for years.
        """
        horizon = self._clock.now() - self._history
        keys = [key async for key in self._archive.keys(f"{SEGMENTS}/{self._stream:04}/")]
        old = 0
        for number, key in enumerate(keys[:-1], 1):  # the last one stays: it says where to continue
            # Those that are damaged or have no message any more do not say how old they are: a later one does.
            try:
                segment = await get_segment(self._archive, key)
            except ChainBroken:
                segment = None
            if segment is not None and segment.count:
                if segment.ended >= horizon:
                    break
                old = number
        if not old:
            return 0
        await self.index()
        await self._archive.remove(keys[:old])
        return old

    async def index(self) -> None:
        """Have the archive know all alarms and owners of the stream as they are now."""
        there = await position(self._connection, self._name)
        lines: list[SegmentLine] = []
        prefix = self._name.rsplit("-log-", 1)[0]
        for subject in (f"{prefix}.log.{self._stream}.*.alarm.*", f"{prefix}.log.{self._stream}.*.owner"):
            begin = 1
            while begin <= there.last:
                question = {"seq": begin, "next_by_subj": subject, "batch": BATCH, "max_bytes": BATCH_BYTES}
                some, pending = await read_batch(self._connection, self._name, question)
                lines += some
                if not some or not pending:
                    break
                begin = some[-1].sequence + 1
        data = await asyncio.to_thread(pack_segment, self._stream, 1, there.last, lines)
        key = f"{INDEX}/{self._stream:04}/{there.last:020}"
        await self._archive.put(key, data)
        old = [one async for one in self._archive.keys(f"{INDEX}/{self._stream:04}/") if one < key]
        if old:
            await self._archive.remove(old)
