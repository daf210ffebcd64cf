"""The copies of the log that are not its leader's.

A server whose disk lost something does not know it, and says what it has as if it were all, also when it leads.
Replicas cannot be asked by name: a question that any replica may answer goes to one of them at random. So it is asked
several times, and all answers count together.
"""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from sapwood.errors import Unavailable
from sapwood.kernel.log.repair import Read
from sapwood.kernel.ports.log import Archive, Record
from sapwood.runtimes.cluster.base.layout import Names
from sapwood.runtimes.cluster.base.segments import tree_from_segments
from sapwood.runtimes.cluster.copies.log_shipper import ask_leader, next_of_leader, read_batch

log = logging.getLogger(__name__)

QUICK = 0.5
"""Seconds that a replica is waited for which is asked beside the leader."""
LOOKS = 5
"""How often replicas are asked how far they are: that none of three is the right one happens once in 240 times."""
READS = 16
"""How often replicas are read while something is missing."""
BATCH, BATCH_BYTES = 256, 16 * 1024 * 1024


class NatsReplicas:
    """Whatever replicas of the streams have, and the second copy in the archive."""

    def __init__(self, connection: Any, names: Names, archive: Archive) -> None:
        self._connection = connection
        self._names = names
        self._archive = archive

    async def newest(self, shard: int, tree: str) -> int:
        """Return the highest place that a copy has a message of the tree at. The leader has to answer."""
        stream = self._names.stream(self._names.layout.stream_of(shard))
        subject = self._names.tree(shard, tree)

        async def of_leader() -> int:
            answer = await ask_leader(self._connection, "STREAM.MSG.GET", stream, {"last_by_subj": subject})
            return 0 if answer is None else int(answer["message"]["seq"])

        places = await asyncio.gather(of_leader(), *(self._last(stream, subject) for _ in range(LOOKS)))
        return max(places)

    async def _last(self, stream: str, subject: str) -> int:
        """Return the place of the last message that some replica has; 0: none, or it does not answer."""
        import nats.errors

        try:
            answer = await self._connection.request(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", timeout=QUICK)
            return int((answer.headers or {}).get("Nats-Sequence", "0"))
        except (nats.errors.Error, TimeoutError, OSError):
            return 0

    def reads(self, shard: int, tree: str) -> Iterable[Read]:
        """Return ways to read a tree: from the leader, from replicas, and from the archive."""

        async def of_leader() -> list[Record]:
            return await self.read_leader(shard, tree)

        async def of_archive() -> list[Record]:
            lacking: dict[str, str] = {}
            stream = self._names.layout.stream_of(shard)
            records = await tree_from_segments(self._archive, stream, tree, lacking)
            for problem in lacking.values():
                log.error("archive is damaged: %s", problem, extra={"stream": stream})
            return records

        async def of_some() -> list[Record]:
            return await self.read_some(shard, tree)

        return [of_leader, *[of_some] * READS, of_archive]

    async def read_leader(self, shard: int, tree: str) -> list[Record]:
        """Return what the leader has of a tree."""
        stream = self._names.stream(self._names.layout.stream_of(shard))
        records: list[Record] = []
        begin = 1
        while (
            line := await next_of_leader(self._connection, stream, begin, self._names.tree(shard, tree))
        ) is not None:
            records.append(Record(tree, line.sequence, line.data))
            begin = line.sequence + 1
        return records

    async def read_some(self, shard: int, tree: str) -> list[Record]:
        """Return what some replica has of a tree."""
        stream = self._names.stream(self._names.layout.stream_of(shard))
        records: list[Record] = []
        question = {"next_by_subj": self._names.tree(shard, tree), "batch": BATCH, "max_bytes": BATCH_BYTES}
        begin = 1
        while True:
            lines, _ = await read_batch(self._connection, stream, {**question, "seq": begin}, 4 * QUICK)
            records += [Record(tree, line.sequence, line.data) for line in lines]
            if not lines:
                return records
            begin = lines[-1].sequence + 1

    async def distrust(self, shard: int) -> None:
        """Have another server lead the stream of a shard."""
        stream = self._names.stream(self._names.layout.stream_of(shard))
        try:
            await ask_leader(self._connection, "STREAM.LEADER.STEPDOWN", stream, {})
            log.warning("leader of %s was asked to step down: it lacks messages that others have", stream)
        except Unavailable as error:
            log.warning("asking the leader of %s to step down failed: %s", stream, error)
