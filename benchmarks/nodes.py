"""Nodes of a cluster, each in a process of its own, whose shards move by command only.

    python benchmarks/nodes.py <node> <cluster> <folder>

Where the servers are is in the environment. Each line on its input, `<shard> <node>`, has it hand a shard over; it says
so when it has. At the end of its input it leaves.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
from frame import scratch

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.cluster.servers import S3, Nats

from sapwood import Agent, App, Settings
from sapwood.errors import Unavailable
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.ownership.ownership import Ownership
from sapwood.runtimes.cluster.runtime import ClusterRuntime
from sapwood.types import Address

NATS, ARCHIVE = "BENCHMARK_NATS", "BENCHMARK_ARCHIVE"
BARE = "bare"
"""Below this, each node answers bare requests with what they say."""
VALUE = {"a": 1, "b": "two"}
WORDS = [random.Random(number).randbytes(number % 6 + 1).hex() for number in range(2000)]


def text(size: int, seed: int) -> str:
    """Return some text: words that come again, as in what people and models say."""
    words = random.Random(seed)
    return " ".join(words.choices(WORDS, k=size // 5))[:size]


class Holder(Agent[int]):
    """Has so many bytes."""

    initial_state = 0
    migrations = ("CREATE TABLE held (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT",)

    async def fill(self, size: int, seed: int = 0) -> None:
        for at in range(0, size, 4096):
            self.sql("INSERT INTO held (text) VALUES (?)", text(min(4096, size - at), seed + at))

    async def touch(self) -> int:
        """Write a little, and tell how often that was done."""
        self.set_state(self.state + 1)
        return self.state

    async def echo(self, value: dict[str, object]) -> dict[str, object]:
        return value


class ByCommand(Ownership):
    """Asks nobody for shards."""

    def _wanted(self, live: tuple[str, ...]) -> dict[str, list[int]]:
        return {}

    async def give(self, shard: int, node: str) -> None:
        await self.hand_over({shard: node})


class Node:
    """One of them, in this process."""

    def __init__(self, name: str, cluster: str, folder: Path, **settings: Any) -> None:
        told = Settings(
            data=folder / name,
            durability="replicated",
            nats=os.environ[NATS],
            archive=os.environ[ARCHIVE],
            cluster=cluster,
            node=name,
            slow_after=10,
            **settings,
        )
        self.app = App(agents=[Holder], settings=told, runtime=ClusterRuntime(told, make_owners=self._make_owners))
        self.owners: ByCommand

    def _make_owners(self, *arguments: Any, **more: Any) -> Ownership:
        self.owners = ByCommand(*arguments, **more)
        return self.owners


class NodeProcess:
    """One of them, in a process of its own."""

    def __init__(self, name: str, cluster: str, folder: Path) -> None:
        self.name = name
        command = [sys.executable, __file__, name, cluster, str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    async def ready(self) -> None:
        """Return when it has done what it was told, or takes part."""
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        assert line, f"node {self.name} ended"

    async def give(self, root: Address, node: str) -> None:
        """Have it hand over the shard of a tree."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{shard_of(root)} {node}\n")
        self._process.stdin.flush()
        await self.ready()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Group:
    """Servers, nodes in processes of their own, and one in this process that calls them."""

    cluster = "bench"

    def __init__(self, folder: Path, nats: Nats) -> None:
        self.folder = folder
        self.nats = nats
        self.nodes: dict[str, NodeProcess] = {}
        self.client: Node
        self.connection: Any

    async def start(self, name: str) -> None:
        node = self.nodes[name] = NodeProcess(name, self.cluster, self.folder)
        await node.ready()

    def kill(self, name: str) -> None:
        self.nodes.pop(name).kill()


@asynccontextmanager
async def group(names: Sequence[str], *, apart: bool = False, **settings: Any) -> AsyncGenerator[Group, None]:
    """Run nodes of these names; the first has every tree, and the client's own none.

    `apart`: all of them are at one NATS server, and the client and its bare connection at another one: else it is by
    chance whether what is compared goes the same way.
    """
    folder = scratch("nodes")
    nats, s3 = Nats(folder / "nats"), S3(folder)
    made = Group(folder, nats)
    try:
        nats.start().wait()
        s3.start()
        os.environ.update(s3.environment)
        urls = nats.urls.split(",")
        os.environ[NATS], os.environ[ARCHIVE] = urls[0] if apart else nats.urls, s3.url
        for name in names:
            await made.start(name)
        os.environ[NATS] = urls[1] if apart else nats.urls
        made.connection = await connect(os.environ[NATS], "bare")
        made.client = Node("client", made.cluster, folder, **settings)
        async with made.client.app:
            yield made
        await made.connection.close()
    finally:
        for node in made.nodes.values():
            node.kill()
        s3.stop()
        nats.remove()


class Calling:
    """Calls one after the other; knows when each was answered."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self.answered = [time.perf_counter()]
        self.failed = 0
        self._task = asyncio.ensure_future(self._call())

    async def _call(self) -> None:
        while True:
            try:
                await self._agent.touch()
            except Unavailable:  # whoever was asked is dead
                self.failed += 1
                await asyncio.sleep(0.01)
            else:
                self.answered.append(time.perf_counter())

    async def go_on(self, calls: int) -> None:
        """Return when so many more were answered."""
        wanted = len(self.answered) + calls
        while len(self.answered) < wanted:
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.002)

    def pause(self, since: float) -> float:
        """Return the longest time without an answer since a moment."""
        times = [at for at in self.answered if at >= since]
        before = [at for at in self.answered if at < since][-1:]
        times = before + times
        return max(later - sooner for sooner, later in itertools.pairwise(times))

    def gaps(self) -> list[float]:
        """Return the times between two answers."""
        return [later - sooner for sooner, later in itertools.pairwise(self.answered)]

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def serve(name: str, cluster: str, folder: str) -> None:
    """Be a node until nobody needs it."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    node = Node(name, cluster, Path(folder))
    bare = await connect(os.environ[NATS], "bare")

    async def answer(message: Any) -> None:
        await message.respond(message.data)

    async with node.app:
        await bare.subscribe(f"{BARE}.{name}", cb=answer)
        await bare.flush()
        print("ready", flush=True)
        while line := await lines.get():
            shard, to = line.split()
            await node.owners.give(int(shard), to)
            print("given", flush=True)


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
