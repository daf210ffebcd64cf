"""The tree beside the bare parts it is made of: what a call, a commit, a live agent and a large tree cost.

python benchmarks/tree.py [metric …]
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import uvloop
from frame import alternately, at_most, below, say, scratch, works

from sapwood import Agent, App, Limits, Settings

INCREMENT = "INSERT INTO counters VALUES ('k', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1"
READ = "SELECT value FROM counters WHERE key = 'k'"
BIG = Limits(children=2_000_000, descendants=2_000_000, depth=128)


class Child(Agent):
    async def echo(self, value: dict[str, object]) -> dict[str, object]:
        return value

    async def ping(self) -> int:
        return 1

    async def increment(self) -> int:
        return self._increment()

    def _increment(self) -> int:
        if "_made" not in vars(self):
            self.sql("CREATE TABLE IF NOT EXISTS counters (key TEXT PRIMARY KEY, value INTEGER DEFAULT 0)")
            self._made = True
        self.sql(INCREMENT)
        return self.sql(READ).scalar(int)


class Nested(Agent):
    async def deep(self, depth: int) -> int:
        if depth <= 1:
            return 1
        below = vars(self).get("_below")
        if below is None:
            below = self._below = await self.sub_agent(Nested, "n")
        return 1 + await below.deep(depth - 1)


class Root(Agent):
    async def echo(self, n: int) -> float:
        child = await self.sub_agent(Child, "echo")
        value: dict[str, object] = {"a": 1, "b": "two"}
        start = time.perf_counter()
        for _ in range(n):
            await child.echo(value)
        return (time.perf_counter() - start) / n * 1e6

    async def increment(self, n: int, in_flight: int) -> float:
        child = await self.sub_agent(Child, "count")
        await child.increment()

        async def work() -> None:
            for _ in range(n // in_flight):
                await child.increment()

        start = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(in_flight)))
        return (time.perf_counter() - start) / n * 1e6

    async def spawn(self, first: int, n: int, write: bool) -> float:
        start = time.perf_counter()
        for number in range(first, first + n):
            child = await self.sub_agent(Child, f"c{number}")
            if write:
                await child.increment()
        return (time.perf_counter() - start) / n * 1e6

    async def first(self, name: str) -> int:
        child = await self.sub_agent(Child, name)
        return await child.increment()

    async def touch(self, first: int, n: int) -> int:
        total = 0
        for number in range(first, first + n):
            child = await self.sub_agent(Child, f"c{number}")
            total += await child.ping()
        return total

    async def look(self, n: int, names: list[str]) -> tuple[float, float, float]:
        clock = time.perf_counter
        start = clock()
        for number in range(n):
            assert self.children.has(Child, names[number % len(names)])
        has = (clock() - start) / n * 1e6
        start = clock()
        for number in range(n):
            await self.sub_agent(Child, names[number % len(names)])
        get = (clock() - start) / n * 1e6
        start = clock()
        for _ in range(max(n // 20, 1)):
            assert len(self.children.list(limit=100)) == 100
        return has, get, (clock() - start) / max(n // 20, 1) * 1e6

    async def deep(self, depth: int, n: int) -> float:
        child = await self.sub_agent(Nested, "n")
        await child.deep(depth)
        start = time.perf_counter()
        for _ in range(n):
            assert await child.deep(depth) == depth
        return (time.perf_counter() - start) / n * 1e6


def rss() -> int:
    """Return the memory this process holds, in bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def echo() -> None:
    pack = msgspec.msgpack.Encoder().encode
    unpack = msgspec.msgpack.Decoder(dict[str, Any]).decode  # faster than `object`

    async def bare_echo(value: dict[str, object]) -> dict[str, object]:
        return value

    async def one(value: dict[str, object]) -> dict[str, object]:
        return unpack(pack(await bare_echo(unpack(pack(value)))))

    async def bare() -> float:
        loop = asyncio.get_running_loop()
        value: dict[str, object] = {"a": 1, "b": "two"}
        start = time.perf_counter()
        for _ in range(5000):
            await loop.create_task(one(value))
        return (time.perf_counter() - start) / 5000 * 1e6

    async with Running() as root:
        ours, reference = await alternately(lambda: root.echo(5000), bare)
    at_most("in-tree call, echo of a small dict, beside a bare task", ours, reference, times=2, unit="µs", n=5000)


async def increment() -> None:
    connection = apsw.Connection(str(scratch("bare") / "bare.db"))
    connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 1000").fetchall()
    connection.execute("CREATE TABLE counters (key TEXT PRIMARY KEY, value INTEGER DEFAULT 0)")

    async def bare() -> float:
        start = time.perf_counter()
        for _ in range(1000):
            connection.execute("BEGIN")
            connection.execute(INCREMENT)
            connection.execute(READ).fetchall()
            connection.execute("COMMIT")
        return (time.perf_counter() - start) / 1000 * 1e6

    async with Running(durability="disk") as root:
        ours, reference = await alternately(lambda: root.increment(1000, 1), bare)
        name = "durable increment on disk, sequential, beside bare apsw"
        at_most(name, ours, reference, times=2, unit="µs", n=1000)
        parallel, reference = await alternately(lambda: root.increment(6400, 64), bare)
        name = "durable increment on disk, 64 in flight, beside bare apsw"
        at_most(name, parallel, reference, times=2, unit="µs", n=6400)
    connection.close()


async def spawn() -> None:
    async with Running() as root:
        works("spawn, nothing written", await root.spawn(0, 1000, False), unit="µs", n=1000)
        works("spawn, one row written", await root.spawn(1000, 1000, True), unit="µs", n=1000)
    async with Running(durability="disk") as root:
        works("spawn on disk, nothing written", await root.spawn(0, 1000, False), unit="µs", n=1000)
        works("spawn on disk, one row written", await root.spawn(1000, 1000, True), unit="µs", n=1000)


async def memory() -> None:
    n = 20_000
    async with Running(limits=BIG) as root:
        await root.spawn(0, 1000, False)
        before = rss()
        await root.spawn(1000, n, False)
        below("memory of a live sub-agent, database closed", (rss() - before) / n / 1024, 20, unit="KiB", n=n)
    n = 4000
    async with Running(limits=BIG) as root:
        await root.spawn(0, 500, True)
        before = rss()
        await root.spawn(500, n, True)
        below("memory of a live sub-agent, database open", (rss() - before) / n / 1024, 110, unit="KiB", n=n)


async def many() -> None:
    n = 100_000
    async with Running(limits=BIG) as root:
        start = time.perf_counter()
        for first in range(0, n, 1000):
            assert await root.touch(first, 1000) == 1000
        seconds = time.perf_counter() - start
        note = f"{rss() / 1024**2:.0f} MiB in all"
        works("100,000 live children, each called once", seconds, unit="s", n=n, note=note)


async def depth() -> None:
    async with Running(limits=BIG) as root:
        one = await root.deep(1, 500)
        eight = await root.deep(8, 200)
        sixty_four = await root.deep(64, 50)
    works("call at depth 1", one, unit="µs", n=500)
    at_most("call at depth 8, per level, beside depth 1", eight / 8, one, times=1.5, unit="µs", n=200)
    at_most("call at depth 64, per level, beside depth 1", sixty_four / 64, one, times=1.5, unit="µs", n=50)


async def million() -> None:
    figures: dict[int, tuple[float, float, float]] = {}
    for n in (1000, 1_000_000):
        # Registered, not alive: they are put to sleep as they come, so that the registry answers, not the memory.
        async with Running(limits=BIG, open_databases=64) as root:
            say(f"registering {n:,} children")
            for first in range(0, n, 1000):
                await root.spawn(first, 1000, False)
                root.world.node.sleep()
            names = [f"c{number * n // 500}" for number in range(500)]
            runs: list[tuple[float, float, float]] = []
            for _ in range(5):
                root.world.node.sleep()
                runs.append(await root.look(500, names))
            figures[n] = tuple(sorted(run[i] for run in runs)[2] for i in range(3))  # type: ignore[assignment]
    for index, name in enumerate(("has_sub_agent", "sub_agent of a sleeping child", "first page of list_sub_agents")):
        large, small = figures[1_000_000][index], figures[1000][index]
        at_most(f"{name} among 1,000,000 beside among 1,000", large, small, times=1.5, unit="µs", n=500)


async def watchdog() -> None:
    async def spin() -> float:
        start = time.perf_counter()
        for _ in range(20_000):
            await asyncio.sleep(0)
        return (time.perf_counter() - start) / 20_000 * 1e6

    async with Running() as root:
        with_it, without = await alternately(spin, _without_watchdog(root.world, spin))
    below("watchdog, per slice", max(with_it - without, 0.0), 0.5, unit="µs", n=20_000)


def _without_watchdog(app: App, spin: Callable[[], Awaitable[float]]) -> Callable[[], Awaitable[float]]:
    async def measured() -> float:
        dog = app.node.watchdog
        dog.stop()
        figure = await spin()
        app.node.watchdog = type(dog)(app.node.loop, app.settings, app.node.folder, dog._running)
        return figure

    return measured


async def imports() -> None:
    def cost(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return (time.perf_counter() - start) * 1e3

    async def ours() -> float:
        return cost("import apsw, msgspec, starlette.applications, starlette.websockets, sapwood")

    async def reference() -> float:
        return cost("import apsw, msgspec, starlette.applications, starlette.websockets")

    mine, theirs = await alternately(ours, reference)
    below("import sapwood, beyond apsw, msgspec and Starlette", mine - theirs, 150, unit="ms", n=7)


class Running:
    """An app in a folder of its own, with one root."""

    def __init__(self, **settings: object) -> None:
        self._folder = scratch("ours")
        self._app = App(agents=[Root], settings=Settings(data=self._folder, slow_after=10, **settings))  # type: ignore[arg-type]

    async def __aenter__(self) -> Any:
        await self._app.__aenter__()
        root = await self._app.get_agent(Root, "r")
        vars(root)["world"] = self._app
        return root

    async def __aexit__(self, *exc: object) -> None:
        await self._app.__aexit__()


METRICS = {name.__name__: name for name in (echo, increment, spawn, memory, many, depth, million, watchdog, imports)}


def main() -> None:
    for name in sys.argv[1:] or METRICS:
        say(f"-- {name}")
        if name == "memory" and not sys.argv[1:]:
            # A fresh process: what others left in this one would spoil it.
            subprocess.run([sys.executable, __file__, "memory"], check=True)
            continue
        uvloop.run(METRICS[name]())


if __name__ == "__main__":
    main()
