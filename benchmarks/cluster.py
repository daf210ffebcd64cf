"""The cluster beside the bare engine: what it costs to have a commit on the disks of a majority.

    python benchmarks/cluster.py [metric …]

Three NATS servers that sync every write share the machine with whoever measures. Rounds of ours and of the bare
engine take turns: what the machine does beside it befalls both.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
from frame import at_most, more, scratch

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.cluster.servers import Nats

from sapwood import Address, Agent, App, Settings
from sapwood.clock import SystemClock
from sapwood.kernel.chain import tree_id
from sapwood.kernel.ports import Epoch, Gate
from sapwood.kernel.replicated import ReplicatedGate
from sapwood.kernel.shards import shard_of
from sapwood.kernel.treelog import Tail
from sapwood.runtimes.cluster.cells import Layout, Names
from sapwood.runtimes.cluster.connecting import connect, found
from sapwood.runtimes.cluster.nats_log import FENCE, FENCE_SUBJECT, NatsLog
from sapwood.runtimes.local import LocalRuntime

ROW = bytes(range(256)) * 16
"""4 KiB."""
COMMITS = 200
ROUNDS = 8
AGENTS = 64
EACH = 25
"""Commits of each of them in a round."""


class Writer(Agent[None]):
    async def make(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, row BLOB)")

    async def write(self, times: int) -> list[float]:
        """Commit a row, and wait until it is kept; return how long each took."""
        took: list[float] = []
        for _ in range(times):
            began = time.perf_counter()
            self.sql("INSERT INTO rows (row) VALUES (?)", ROW)
            await self.durable()
            took.append(time.perf_counter() - began)
        return took


class Cell:
    """The bare engine: its connection, and shards that we own."""

    def __init__(self, connection: Any, names: Names) -> None:
        self.connection = connection
        self.names = names
        self.streams = connection.jetstream(timeout=30)
        self.log = NatsLog(connection, names)
        self.epochs: dict[int, Epoch] = {}

    async def own(self, root: Address) -> None:
        shard = shard_of(root)
        if shard not in self.epochs:
            headers = {FENCE: "0"}
            taken = await self.streams.publish(self.names.owner(shard), b"benchmark", headers=headers)
            self.epochs[shard] = Epoch(1, taken.seq)

    def fence(self, shard: int) -> dict[str, str]:
        return {FENCE: str(self.epochs[shard].sequence), FENCE_SUBJECT: self.names.owner(shard)}

    async def sizes(self, root: Address) -> list[int]:
        """Return how long the messages of a tree are."""
        return [len(record.data) for record in await self.log.read(shard_of(root), tree_id(root))]

    async def publish(self, root: Address, sizes: Sequence[int]) -> list[float]:
        """Publish messages, fenced, one after the other; return how long each took."""
        shard = shard_of(root)
        subject, took = self.names.tree(shard, "bare"), list[float]()
        for size in sizes:
            data = bytes(size)
            began = time.perf_counter()
            await self.streams.publish(subject, data, headers=self.fence(shard) | {"Nats-Msg-Id": uuid.uuid4().hex})
            took.append(time.perf_counter() - began)
        return took

    async def batches(self, roots: Sequence[Address], times: int, size: int) -> None:
        """Store one message of each of these trees as an atomic batch, several times. All lie in one stream."""
        shards = [shard_of(root) for root in roots]
        data = bytes(size)
        for _ in range(times):
            batch, fenced = uuid.uuid4().hex, set[int]()
            for place, shard in enumerate(shards, start=1):
                headers = {"Nats-Msg-Id": f"{batch}-{place}", "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(place)}
                if shard not in fenced:
                    fenced.add(shard)
                    headers |= self.fence(shard)
                subject = self.names.tree(shard, f"bare{place}")
                if place < len(shards):
                    await self.connection.publish(subject, data, headers=headers)
                else:
                    await self.streams.publish(subject, data, headers=headers | {"Nats-Batch-Commit": "1"})


class ClusterRuntime(LocalRuntime):
    """One node that keeps what it writes in the log, and owns all it needs."""

    def __init__(self, settings: Settings, cell: Cell) -> None:
        super().__init__(settings)
        self._cell = cell

    def make_gate(self) -> Gate:
        def troubled(what: object) -> None:
            raise RuntimeError(f"lost {what}")

        self.gate = ReplicatedGate(
            self._cell.log,
            asyncio.get_running_loop(),
            SystemClock(),
            epoch_of=self._cell.epochs.get,
            may_answer=lambda: True,
            fenced=troubled,
            doubtful=troubled,
            version="1",
        )
        return self.gate


@asynccontextmanager
async def cell_with(roots: Sequence[Address]) -> AsyncGenerator[tuple[Cell, list[Writer]], None]:
    """Three servers, and a node with these trees."""
    folder = scratch("cluster")
    servers = Nats(folder / "nats").start().wait()
    try:
        connection = await connect(servers.urls, "benchmark")
        cell = Cell(connection, await found(connection, "bench", Layout()))
        settings = Settings(data=folder / "data", slow_slice=10)
        runtime = ClusterRuntime(settings, cell)
        app = App(agents=[Writer], settings=settings, runtime=runtime)
        async with app:
            for root in roots:
                await cell.own(root)
                runtime.gate.adopt(root, Tail())
            writers = [await app.get_agent(Writer, root.name) for root in roots]
            for writer in writers:
                await writer.make()
            yield cell, writers
        await connection.close()
    finally:
        servers.remove()


async def commit() -> None:
    root = Address.root_of("Writer", "one")
    async with cell_with([root]) as (cell, (writer,)):
        ours, bare = list[float](), list[float]()
        await writer.write(COMMITS)
        await cell.publish(root, [1000] * COMMITS)
        for _ in range(ROUNDS):
            before = len(await cell.sizes(root))
            ours += await writer.write(COMMITS)
            bare += await cell.publish(root, (await cell.sizes(root))[before:])
        size = statistics.median((await cell.sizes(root))[-COMMITS:])
    at_most(
        "a replicated commit of 4 KiB of rows, beside a bare fenced publish of the same bytes",
        statistics.median(ours) * 1e3,
        statistics.median(bare) * 1e3,
        times=1.3,
        unit="ms",
        n=len(ours),
        note=f"p50; {size:.0f} bytes a message; p99 {_p99(ours):.2f} and {_p99(bare):.2f} ms",
    )


def _p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98] * 1e3


async def agents() -> None:
    roots = [Address.root_of("Writer", f"n{number}") for number in range(AGENTS)]
    async with cell_with(roots) as (cell, writers):
        by_stream: dict[int, list[Address]] = {}
        for root in roots:
            by_stream.setdefault(cell.log.stream_of(shard_of(root)), []).append(root)

        async def mine() -> float:
            began = time.perf_counter()
            await asyncio.gather(*(writer.write(EACH) for writer in writers))
            return AGENTS * EACH / (time.perf_counter() - began)

        await mine()
        size = round(statistics.median((await cell.sizes(roots[0]))[-EACH:]))

        async def bare() -> float:
            began = time.perf_counter()
            await asyncio.gather(*(cell.batches(some, EACH, size) for some in by_stream.values()))
            return AGENTS * EACH / (time.perf_counter() - began)

        await bare()
        both = [(await mine(), await bare()) for _ in range(ROUNDS)]
    more(
        f"{AGENTS} agents committing 4 KiB of rows, beside the bare engine with atomic batches",
        statistics.median(ours for ours, _ in both),
        statistics.median(bare for _, bare in both),
        times=0.8,
        unit="/s",
        n=AGENTS * EACH * ROUNDS,
        note=f"{size} bytes a message, {len(by_stream)} streams",
    )


METRICS = {metric.__name__: metric for metric in (commit, agents)}


def main() -> None:
    for name in sys.argv[1:] or METRICS:
        uvloop.run(METRICS[name]())


if __name__ == "__main__":
    main()
