"""The copies of the log, one by one: what each server has by itself, whoever leads.

A server whose disk lost something does not know it, and says what it has as if it were all. So each is asked alone,
by a connection of its own: a question that any replica may answer is answered by the server that it comes in at.
"""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any

from sapwood.errors import Unavailable
from sapwood.kernel.ports import Archive, Record
from sapwood.kernel.restoring import Read
from sapwood.runtimes.cluster.cells import Names
from sapwood.runtimes.cluster.segments import tree_from_segments
from sapwood.runtimes.cluster.shipping import ask_leader, next_of_leader, read_batch

log = logging.getLogger(__name__)

QUICK = 0.3
"""Seconds that a server is waited for that is asked beside the leader."""
SILENT = 10.0
"""Seconds during which a server that did not answer is not asked again."""
BATCH, BATCH_BYTES = 256, 16 * 1024 * 1024


class NatsReplicas:
    """The servers of a cluster, each by itself, and the second copy in the archive."""

    def __init__(self, connection: Any, names: Names, archive: Archive) -> None:
        self._connection = connection
        self._names = names
        self._archive = archive
        self._to: dict[str, Any] = {}
        self._silent: dict[str, float] = {}
        self._opening = asyncio.Lock()

    def servers(self) -> list[str]:
        """Return the addresses of all servers that are known."""
        known = {f"{server.hostname}:{server.port}": server.geturl() for server in self._connection.servers}
        return list(known.values())

    async def newest(self, shard: int, tree: str) -> int:
        """Return the highest place that any copy has a message of the tree at. Whoever leads has to answer."""
        stream = self._names.stream(self._names.layout.stream_of(shard))
        subject = self._names.tree(shard, tree)

        async def of_leader() -> int:
            answer = await ask_leader(self._connection, "STREAM.MSG.GET", stream, {"last_by_subj": subject})
            return 0 if answer is None else int(answer["message"]["seq"])

        places = await asyncio.gather(
            of_leader(), *(self._last_at(server, stream, subject) for server in self.servers())
        )
        return max(places)

    async def _last_at(self, server: str, stream: str, subject: str) -> int:
        import nats.errors

        if self._silent.get(server, 0.0) > time.monotonic():
            return 0
        try:
            async with asyncio.timeout(QUICK):
                connection = await self._connected(server)
                answer = await connection.request(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", timeout=QUICK)
            return int((answer.headers or {}).get("Nats-Sequence", "0"))
        except (nats.errors.Error, TimeoutError, OSError):
            self._silent[server] = time.monotonic() + SILENT
            return 0

    async def _connected(self, server: str) -> Any:
        """Return a connection to this server and no other."""
        import nats

        connection = self._to.get(server)
        if connection is None or not connection.is_connected:
            async with self._opening:
                connection = self._to.get(server)
                if connection is None or not connection.is_connected:
                    connection = self._to[server] = await nats.connect(
                        server, allow_reconnect=False, connect_timeout=2, error_cb=_quietly, name="sapwood-replica"
                    )
        return connection

    def reads(self, shard: int, tree: str) -> Iterable[Read]:
        """Return a way to read a tree from whoever leads, from each server, and from the archive."""

        async def of_leader() -> list[Record]:
            return await self.read_leader(shard, tree)

        async def of_archive() -> list[Record]:
            return await tree_from_segments(self._archive, self._names.layout.stream_of(shard), tree)

        def of_server(server: str) -> Read:
            async def read() -> list[Record]:
                return await self.read_at(server, shard, tree)

            return read

        return [of_leader, *(of_server(server) for server in self.servers()), of_archive]

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

    async def read_at(self, server: str, shard: int, tree: str) -> list[Record]:
        """Return what one server has of a tree."""
        import nats.errors

        stream = self._names.stream(self._names.layout.stream_of(shard))
        try:
            connection = await self._connected(server)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise Unavailable(f"{server} does not answer: {error or type(error).__name__}") from None
        records: list[Record] = []
        question = {"next_by_subj": self._names.tree(shard, tree), "batch": BATCH, "max_bytes": BATCH_BYTES}
        begin = 1
        while True:
            lines, _ = await read_batch(connection, stream, {**question, "seq": begin})
            records += [Record(tree, line.sequence, line.data) for line in lines]
            if not lines:
                return records
            begin = lines[-1].sequence + 1

    async def distrust(self, shard: int) -> None:
        """Have another server lead the stream of a shard."""
        stream = self._names.stream(self._names.layout.stream_of(shard))
        try:
            await ask_leader(self._connection, "STREAM.LEADER.STEPDOWN", stream, {})
            log.warning("the leader of %s was asked to step down: it lacks messages that others have", stream)
        except Unavailable as error:
            log.warning("the leader of %s was not asked to step down: %s", stream, error)

    async def close(self) -> None:
        """Let go of the connections."""
        for connection in self._to.values():
            await connection.close()
        self._to.clear()


async def _quietly(error: Exception) -> None:
    log.debug("NATS: %s", error)
