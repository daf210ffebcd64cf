"""A node that owns shards and runs nothing: in this process, or as a program that says what it knows when asked.

python -m tests.cluster.owning <servers> <cluster> <node> <lease>; it answers each line on its input with one line.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from sapwood.address import Address
from sapwood.runtimes.cluster.base.layout import Layout
from sapwood.runtimes.cluster.nats.bootstrap import found
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.nats.nats_owners import NatsOwners
from sapwood.runtimes.cluster.ownership.ownership import Ownership
from sapwood.timings import DEFAULTS, Timings


class Notes:
    """A holder that notes when it was told what."""

    def __init__(self) -> None:
        self.gained_at: dict[int, float] = {}
        self.gone_at: dict[int, float] = {}
        self.ended_badly: set[int] = set()
        self.lost_shards: set[int] = set()

    async def gained(self, shards: Mapping[int, bool]) -> None:
        self.gained_at.update(dict.fromkeys(shards, time.monotonic()))
        self.ended_badly.update(shard for shard, well in shards.items() if not well)

    def large_trees(self, shards: Collection[int]) -> list[Address]:
        return []

    async def fetch(self, trees: Iterable[Address]) -> None:
        raise NotImplementedError

    async def let_go(self, shards: Collection[int]) -> None:
        self.gone_at.update(dict.fromkeys(shards, time.monotonic()))

    def lost(self, shards: Collection[int]) -> None:
        self.lost_shards.update(shards)


class Owning:
    """A node with a connection of its own."""

    def __init__(self, node: str, lease: float, moves_per_minute: float = 24000, timings: Timings = DEFAULTS) -> None:
        self._timings = timings
        self.node = node
        self.notes = Notes()
        self._lease = lease
        self._moves = moves_per_minute
        self.ground: NatsOwners
        self.ownership: Ownership
        self._connection: Any = None

    async def join(self, servers: str, cluster: str) -> Owning:
        self._connection = await connect(servers, self.node)
        names = await found(self._connection, cluster, Layout())
        self._names = names
        self.ground = NatsOwners(self._connection, names, self.node, timings=self._timings)
        self.ownership = Ownership(
            self.ground,
            self.node,
            version="1",
            lease=self._lease,
            renewal=min(self._lease / 4, 1.0),
            margin=0.5,
            moves_per_minute=self._moves,
        )
        try:
            await self.ownership.join(self.notes)
        except BaseException:
            await self._connection.close()
            raise
        return self

    async def leader(self) -> str:
        """Return the server that leads the stream of leases."""
        info = await self._connection.jetstream().stream_info(self._names.members)
        return info.cluster.leader

    async def give_room(self, stream: int, room: int) -> None:
        """Let a stream of the log hold so many bytes and no more; -1: any number."""
        streams = self._connection.jetstream(timeout=10)
        info = await streams.stream_info(self._names.stream(stream))
        info.config.max_bytes = room
        await streams.update_stream(info.config)

    @property
    def here(self) -> int:
        return sum(self.ownership.has(shard) for shard in range(4096))

    async def leave(self) -> None:
        await self.ownership.leave()
        await self._connection.close()


class OwningProcess:
    """The same as a process."""

    def __init__(self, servers: str, cluster: str, node: str, lease: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.owning", servers, cluster, node, str(lease)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return msgspec.json.decode(self._process.stdout.readline())

    def ask(self, line: str = "status") -> dict[str, Any]:
        self.say(line)
        return self._read()

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        return self._read()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


async def _main(servers: str, cluster: str, node: str, lease: str) -> None:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line.strip())

    owning = await Owning(node, float(lease)).join(servers, cluster)
    threading.Thread(target=read, daemon=True).start()
    took = 0.0
    while True:
        notes = owning.notes
        status = {
            "mine": len(owning.ownership.shards()),
            "here": owning.here,
            "holds_lease": owning.ownership.holds_lease(),
            "displaced": owning.ownership.displaced(),
            "lost": len(notes.lost_shards),
            "badly": len(notes.ended_badly),
            "took": took,
        }
        print(msgspec.json.encode(status).decode(), flush=True)
        line = await lines.get()
        if line == "leave":
            begun = time.monotonic()
            await owning.leave()
            took = time.monotonic() - begun


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
