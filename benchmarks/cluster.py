"""The cluster beside the bare engine: what it costs to have a commit on the disks of a majority.

    python benchmarks/cluster.py [metric …]

Three NATS servers that sync every write share the machine with whoever measures. Rounds of ours and of the bare
engine take turns: what the machine does beside it befalls both.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import os
import shutil
import signal
import statistics
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from frame import at_most, below, more, none, scratch, works
from nodes import BARE, VALUE, Calling, Group, Holder, group

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.cluster.servers import Nats

from sapwood import Agent, App, Settings
from sapwood.clock import SystemClock
from sapwood.kernel.log.local_copy import CLEAN
from sapwood.kernel.log.records import tree_id
from sapwood.kernel.log.replicated_gate import ReplicatedGate
from sapwood.kernel.log.writer import LogPosition
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.ports.durability import Gate
from sapwood.kernel.ports.log import Epoch
from sapwood.kernel.ports.shards import SHARDS, shard_of
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.nats.bootstrap import found
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.nats.nats_log import FENCE, FENCE_SUBJECT, NatsLog
from sapwood.runtimes.local import LocalRuntime
from sapwood.types import Address

ROW = bytes(range(256)) * 16
"""4 KiB."""
COMMITS = 200
ROUNDS = 8
AGENTS = 64
EACH = 25
"""Commits of each of them in a round."""
CALLS = 200
LARGE = 10_000_000
MOVES = 40
"""How often a tree is handed over."""
KILLS = 3
LEASE = 12
TRIES = 0.02
"""Seconds between two messages by which it is found out how long the bare engine stands still."""
RESTING = 100
WARM, RESTS = 3, 10
SMALL = 4096
WAKES = 60
WAKES_LARGE = 12
SUBJECTS = 50_000
TOGETHER = 1000
PARK_AFTER = 1.0


class Writer(Agent[None]):
    async def make(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, row BLOB)")

    async def write(self, times: int) -> list[float]:
        """Commit a row, and wait until it is kept; return how long each took."""
        took: list[float] = []
        for _ in range(times):
            began = time.perf_counter()
            self.sql("INSERT INTO rows (row) VALUES (?)", ROW)
            await self.flush()
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
            holds_lease=lambda: True,
            fenced=troubled,
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
        settings = Settings(data=folder / "data", slow_after=10)
        runtime = ClusterRuntime(settings, cell)
        app = App(agents=[Writer], settings=settings, runtime=runtime)
        async with app:
            for root in roots:
                await cell.own(root)
                runtime.gate.adopt(root, LogPosition())
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
        size = round(statistics.median((await cell.sizes(root))[-COMMITS:]))
        for _ in range(ROUNDS * COMMITS):  # in turn: what else the machine does is the same for both
            ours += await writer.write(1)
            bare += await cell.publish(root, [size])
        wrote = statistics.mean((await cell.sizes(root))[-len(ours) :])
        assert abs(wrote / size - 1) < 0.05, (wrote, size)  # the bare messages are as long
    at_most(
        "a replicated commit of 4 KiB of rows, beside a bare fenced publish of the same bytes",
        statistics.median(ours) * 1e3,
        statistics.median(bare) * 1e3,
        times=1.3,
        unit="ms",
        n=len(ours),
        note=f"p50; {size} bytes a message; p99 {_p99(ours):.2f} and {_p99(bare):.2f} ms",
    )


def _p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100, method="inclusive")[98] * 1e3


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


async def call() -> None:
    async with group(["a"], apart=True) as nodes:
        app, name = nodes.client.app, "here"
        far = await app.get_agent(Holder, "there")
        await far.touch()
        await nodes.nodes["a"].give(Address.root_of("Holder", name), "client")
        near = await app.get_agent(Holder, name)
        await near.touch()
        subject, data = f"{BARE}.a", msgspec.msgpack.encode(["call", "Holder", "there", "echo", [VALUE]])
        sides: list[Callable[[], Awaitable[Any]]] = [
            lambda: far.echo(VALUE),
            lambda: nodes.connection.request(subject, data, timeout=10),
            lambda: near.echo(VALUE),
        ]
        took: list[list[float]] = [[], [], []]
        for _ in range((1 + 4 * ROUNDS) * CALLS):  # in turn: what else the machine does is the same for all
            for side, times in zip(sides, took, strict=True):
                began = time.perf_counter()
                await side()
                times.append(time.perf_counter() - began)
        ours, bare, local = (statistics.median(times[CALLS:]) * 1e6 for times in took)
    at_most(
        "call to an agent on another node, beside a bare NATS request and a local call",
        ours,
        bare + local,
        times=1.4,
        unit="us",
        n=len(took[0]) - CALLS,
        note=f"p50; the bare request {bare:.0f} us, the local call {local:.0f} us",
    )


async def hand_over() -> None:
    async with group(["a", "b"]) as nodes:
        root = Address.root_of("Holder", "large")
        agent = await nodes.client.app.get_agent(Holder, "large")
        await fill(agent)
        calling = Calling(agent)
        await calling.go_on(20)
        pauses: list[float] = []
        for move in range(MOVES):
            old, new = "ab"[move % 2], "ba"[move % 2]
            await asyncio.to_thread(forget, tree_folder(nodes.folder / new, root))
            began = time.perf_counter()
            await nodes.nodes[old].give(root, new)
            await calling.go_on(5)
            pauses.append(calling.pause(began))
        await calling.end()
        others = [gap for gap in calling.gaps() if gap not in pauses]
    below(
        "hand-over of a tree with a 10 MB database, pause seen by a client, p99",
        _p99(pauses),
        300,
        unit="ms",
        n=MOVES,
        note=f"p50 {statistics.median(pauses) * 1e3:.0f} ms; {calling.failed} of {len(calling.answered)} calls failed; "
        f"otherwise the longest time without an answer was {max(others) * 1e3:.0f} ms",
    )


def forget(folder: Path) -> None:
    """Make a node one that never had a tree, once it has put it away."""
    while folder.exists() and not (folder / CLEAN).exists():
        time.sleep(0.01)
    shutil.rmtree(folder, ignore_errors=True)


async def fill(agent: Any, seed: int = 0) -> None:
    """Have an agent hold 10 MB, in commits of some hundred KB."""
    for at in range(20):
        await agent.fill(LARGE // 20, seed + LARGE * at)


async def kill() -> None:
    async with group([f"n{number}" for number in range(KILLS + 1)]) as nodes:
        took: list[float] = []
        for number in range(KILLS):
            root = Address.root_of("Holder", f"killed{number}")
            agent = await nodes.client.app.get_agent(Holder, root.name)
            await agent.touch()
            await nodes.nodes["n0"].give(root, f"n{number + 1}")
            calling = Calling(agent)
            await calling.go_on(20)
            began = time.perf_counter()
            await asyncio.to_thread(nodes.kill, f"n{number + 1}")
            await calling.go_on(2)
            took.append(calling.pause(began))
            await calling.end()
    below(
        "a node killed: until the first acknowledged write at the new owner",
        max(took),
        LEASE + 2,
        unit="s",
        n=KILLS,
        note=f"the longest; p50 {statistics.median(took):.1f} s; the lease is {LEASE} s",
    )


async def leader() -> None:
    async with group(["a"]) as nodes:
        root = Address.root_of("Holder", "led")
        agent = await nodes.client.app.get_agent(Holder, "led")
        await agent.touch()
        names = Names(nodes.cluster, Layout())
        stream = names.stream(names.layout.stream_of(shard_of(root)))
        streams = nodes.connection.jetstream()
        ours, bare = list[float](), list[float]()
        for _ in range(KILLS):
            calling, probing = Calling(agent), Probing(nodes, names.tree(shard_of(root), "bare"))
            await calling.go_on(20)
            leads = nodes.nats.number_of((await streams.stream_info(stream)).cluster.leader)
            began = time.perf_counter()
            await asyncio.to_thread(nodes.nats.kill, leads)
            await asyncio.gather(calling.go_on(20), probing.go_on(began))
            ours.append(calling.pause(began))
            bare.append(probing.pause(began))
            await calling.end()
            await probing.end()
            nodes.nats.start([leads])
            await asyncio.to_thread(nodes.nats.wait)
    at_most(
        "a leading NATS server killed: pause of writes, beside the bare engine's",
        statistics.median(ours),
        statistics.median(bare),
        times=1.2,
        unit="s",
        n=KILLS,
        note=f"the longest {max(ours):.1f} and {max(bare):.1f} s",
    )


class Probing:
    """Sends the engine a message again and again, whatever became of those before; knows when it stored one."""

    def __init__(self, nodes: Group, subject: str) -> None:
        self._nodes = nodes
        self._subject = subject
        self._stored = [time.perf_counter()]
        self._sent: set[asyncio.Task[None]] = set()
        self._task = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        while True:
            one = asyncio.ensure_future(self._try())
            self._sent.add(one)
            one.add_done_callback(self._sent.discard)
            await asyncio.sleep(TRIES)

    async def _try(self) -> None:
        try:
            answer = await self._nodes.connection.request(self._subject, b"probe", timeout=3)
            if b'"error"' not in answer.data:
                self._stored.append(time.perf_counter())
        except Exception:  # noqa: BLE001 - whatever it was, the next one is on its way
            pass

    async def go_on(self, since: float) -> None:
        """Return when something was stored that was sent after a pause."""
        await asyncio.sleep(1)
        while self._stored[-1] < time.perf_counter() - 0.5 or self._stored[-1] < since:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def pause(self, since: float) -> float:
        """Return the longest time without anything stored since a moment."""
        before = [at for at in self._stored if at < since][-1:]
        times = before + [at for at in self._stored if at >= since]
        return max(later - sooner for sooner, later in itertools.pairwise(times))

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task, *self._sent])


async def idle() -> None:
    async with group([], park_after=PARK_AFTER, sleep_after=PARK_AFTER / 2) as nodes:
        app = nodes.client.app
        names = Names(nodes.cluster, Layout())
        log = NatsLog(nodes.connection, names)

        async def rest(prefix: str) -> None:
            """Make trees, and wait until all of them rest in the archive."""
            for at in range(0, RESTING, 50):
                some = [await app.get_agent(Holder, f"{prefix}{number}") for number in range(at, at + 50)]
                await asyncio.gather(*(one.fill(SMALL, at) for one in some))
            await parked()

        async def parked() -> None:
            while app.node.trees or any((await log.trees(range(SHARDS))).values()):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.2)

        await rest("first")
        for number in range(WARM):
            await rest(f"warm{number}")  # what a node needs for any at all, it has by now
        stored, memory = await stored_bytes(nodes, names), [resident()]
        for number in range(RESTS):
            await rest(f"rest{number}")
            memory.append(resident())
        stored, n = await stored_bytes(nodes, names) - stored, RESTS * RESTING
        none("bytes in JetStream for an idle tree after roll-out", stored / n, unit="B", n=n)
        # What the system's allocator keeps goes up and down by more than a round adds: so the trend counts.
        each = max(0.0, statistics.linear_regression(range(len(memory)), memory).slope / RESTING / 1024)
        below("memory of a node for an idle tree after roll-out", each, 1, unit="KiB", n=n)

        await wake(app, "the first call to a parked tree", [f"first{number}" for number in range(WAKES)])
        large = [f"large{number}" for number in range(WAKES_LARGE)]
        for number, name in enumerate(large):
            await fill(await app.get_agent(Holder, name), number)
        await parked()
        await wake(app, "the first call to a parked tree with a 10 MB database", large)


async def wake(app: App, what: str, names: Sequence[str]) -> None:
    """Call trees of which nothing is left on this node."""
    took: list[float] = []
    for name in names:
        shutil.rmtree(tree_folder(app.node.folder, Address.root_of("Holder", name)), ignore_errors=True)
        began = time.perf_counter()
        await (await app.get_agent(Holder, name)).echo(VALUE)
        took.append(time.perf_counter() - began)
    p99 = _p99(took)
    below(what, statistics.median(took) * 1e3, 150, unit="ms", n=len(took), note=f"from S3, p50; p99 {p99:.0f} ms")


async def server() -> None:
    """Have the log hold many trees, with one small message each."""
    servers = Nats(scratch("cluster") / "nats").start().wait()
    try:
        connection = await connect(servers.urls, "benchmark")
        names = await found(connection, "bench", Layout())
        shards = [shard for shard in range(SHARDS) if names.layout.stream_of(shard) == 0]
        processes = [process.pid for process in servers.processes.values()]
        before = list(map(resident, processes))
        for at in range(0, SUBJECTS, TOGETHER):
            batch = uuid.uuid4().hex
            for place in range(1, TOGETHER + 1):
                headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(place)}
                subject = names.tree(shards[place % len(shards)], f"{at + place:040x}")
                if place < TOGETHER:
                    await connection.publish(subject, bytes(64), headers=headers)
                else:
                    headers["Nats-Batch-Commit"] = "1"
                    await connection.request(subject, bytes(64), headers=headers, timeout=30)
        grown = statistics.median(map(int.__sub__, map(resident, processes), before))
        await connection.close()
    finally:
        servers.remove()
    works("memory of a NATS server for a tree in the log", grown / SUBJECTS / 1024, unit="KiB", n=SUBJECTS)


def resident(process: int | str = "self") -> int:
    """Return how much memory a process has."""
    if process == "self":
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def stored_bytes(nodes: Group, names: Names) -> int:
    """Return what the streams hold."""
    streams = nodes.connection.jetstream()
    infos = [await streams.stream_info(names.stream(number)) for number in range(names.layout.streams)]
    return sum(info.state.bytes for info in infos)


METRICS = {metric.__name__: metric for metric in (commit, agents, call, hand_over, kill, leader, idle, server)}


async def measured(name: str) -> None:
    """Measure one of them; whoever ends the program has its servers end, too."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await METRICS[name]()


def main() -> None:
    for name in sys.argv[1:] or METRICS:
        uvloop.run(measured(name))


if __name__ == "__main__":
    main()
