"""The studio on large trees: what its requests cost, and what agents and an idle server notice of it.

    python benchmarks/studio.py [--small] [--idle SECONDS] [metric …]

The metric `idle` runs `sapwood serve --studio` as a process of its own, and sends it over HTTP what a page asks that
nobody touches. The others ask the endpoints without HTTP; a slice is the time that the event loop runs one task
without an `await`, as CPU time of the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx2
import served
from frame import at_most, below, say, scratch, works

from sapwood import Agent, App, Limits, Settings
from sapwood.admin.access import FULL
from sapwood.admin.admin import Admin
from sapwood.admin.endpoint import AdminCall
from sapwood.admin.endpoints import ENDPOINTS
from sapwood.admin.event_stream import END, encoded

SMALL = "--small" in sys.argv
SPANS = 2_000 if SMALL else 20_000
CHILDREN = 5_000 if SMALL else 100_000
WATCHED = 300
CHANGES = 2_000
"""Calls a second of the watched agents."""
HELD = 0.05
"""Seconds that a call lasts, so that the comparisons of `watch` find some under way."""
SECONDS = 2 if SMALL else 10
ROUNDS = 2 if SMALL else 5
ALONE = 30.0
"""Seconds for which the idle server is measured without a studio."""
SLICE = 20.0
FIRST = 1000.0
FACTS = {"arguments": json.dumps({"about": "x" * 150}), "result_bytes": 200, "result_digest": "a" * 32}
APP = """
from sapwood import Agent, App

class Leaf(Agent):
    async def put(self, value: int) -> int:
        return value

class Stem(Agent):
    async def grow(self, count: int) -> None:
        for number in range(count):
            await (await self.sub_agent(Leaf, f"leaf-{number:03}")).put(number)

app = App(agents=[Stem])
"""


class Leaf(Agent[dict[str, int]]):
    initial_state: dict[str, int] = {"n": 0}  # noqa: RUF012

    async def put(self, value: int) -> int:
        self.set_state({"n": value})
        await asyncio.sleep(HELD)
        return value


class Stem(Agent):
    limits = Limits(children=1_000_000, descendants=1_000_000)

    async def begin(self) -> None:
        self.start_fiber("one", self.work)

    async def work(self) -> None:
        pass

    async def copy_spans(self, count: int) -> None:
        self._actor.database.execute(
            "WITH RECURSIVE copies (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM copies WHERE n < ?)"
            " INSERT INTO sapwood_spans SELECT n, 1, 'fiber 1', 'tool', 'look', 1, 1, 1, 1e9 + n, NULL, 1e9 + n + 0.5,"
            " 'completed', ? FROM copies",
            count,
            json.dumps(FACTS),
        )

    async def copy_children(self, count: int) -> None:
        """Have so many children: the row of one is copied."""
        await self.sub_agent(Leaf, "seed")
        self._actor.database.execute(
            "WITH RECURSIVE copies (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < ?)"
            " INSERT INTO sapwood_children (type, name, created_at) SELECT 'Leaf', printf('wide-%06d', n), 1e9 + n"
            " FROM copies",
            count,
        )
        self._actor.database.execute("UPDATE sapwood_children_count SET alive = alive + ?", count)

    async def grow(self, count: int) -> None:
        for number in range(count):
            await (await self.sub_agent(Leaf, f"leaf-{number:03}")).put(number)

    async def put(self, number: int, value: int) -> None:
        if "_leaves" not in vars(self):
            self._leaves = [await self.sub_agent(Leaf, f"leaf-{one:03}") for one in range(WATCHED)]
        await self._leaves[number].put(value)


def app(name: str) -> App:
    return App(agents=[Stem], settings=Settings(data=scratch(name), slow_after=60.0))


def call(one: App) -> AdminCall:
    return AdminCall(one.node, Admin(one.node), FULL)


async def ask(one: App, what: str, **params: Any) -> Any:
    endpoint = ENDPOINTS[what]
    assert endpoint.answer is not None
    return await endpoint.answer(call(one), endpoint.read(params, FULL))


def stream(one: App, what: str, **params: Any) -> Any:
    endpoint = ENDPOINTS[what]
    assert endpoint.stream is not None
    return endpoint.stream(call(one), endpoint.read(params, FULL))


async def longest_slice(act: Callable[[], Coroutine[Any, Any, None]]) -> tuple[float, float]:
    """Return the longest slice and the CPU time of something, in milliseconds."""
    longest, took = 0.0, 0.0
    gc.collect()
    gc.disable()  # collections belong to no slice
    task = asyncio.create_task(act())  # it runs whenever this function waits
    while not task.done():
        start = time.thread_time()
        await asyncio.sleep(0)
        longest, took = max(longest, time.thread_time() - start), took + time.thread_time() - start
    gc.enable()
    await task
    return longest * 1e3, took * 1e3


async def spans() -> None:
    """Read the spans of one work by pages, as they are sent."""
    async with app("spans") as one:
        stem = await one.get_agent(Stem, "s")
        await stem.begin()
        await asyncio.sleep(0.2)
        await stem.copy_spans(SPANS)

        async def read() -> None:
            count = 0
            async for name, data in stream(one, "spans", address="Stem:s", work="fiber 1"):
                encoded(name, data)
                count += len(data["spans"]) if name != END else 0
            assert count == SPANS

        found = [await longest_slice(read) for _ in range(3)]
        longest, took = (statistics.median(one) for one in zip(*found, strict=True))
        name = f"the longest slice of reading {SPANS:,} spans of one work"
        below(name, longest, SLICE, unit="ms", n=3, note=f"{took:.0f} ms of CPU in all")


async def wide() -> None:
    """The first pages of an agent with very many children, as a screen asks for them."""
    async with app("wide") as one:
        await (await one.get_agent(Stem, "s")).copy_children(CHILDREN)
        root = "Stem:s"

        async def agents() -> None:
            assert (await ask(one, "agents", address=root, limit=100))["total"] == CHILDREN + 1

        async def tree() -> None:
            assert (await ask(one, "tree", address=root))["roots"][0]["children"] == CHILDREN + 1

        async def watch() -> None:
            rows = (await ask(one, "agents", address=root, limit=100))["rows"]
            events = stream(one, "watch", addresses=[row["address"] for row in rows])
            assert len((await anext(events))[1]["rows"]) == 100
            await events.aclose()

        async def find() -> None:
            found = [data async for name, data in stream(one, "find", text="wide-", address=root) if name == "rows"]
            assert sum(len(data["rows"]) for data in found) == 100

        async def search() -> None:
            text = f"wide-{CHILDREN // 2:06}"
            found = [data async for name, data in stream(one, "find", text=text, address=root) if name == "rows"]
            assert sum(len(data["rows"]) for data in found) == 1

        for act in (agents, tree, watch, find, search):
            both = [await longest_slice(act) for _ in range(3)]
            took, longest = max(took for _, took in both), max(longest for longest, _ in both)
            name = f"`{act.__name__}` of an agent with {CHILDREN:,} children"
            if act is search:
                name = f"a search of all of {CHILDREN:,} children"
                works(name, took, unit="ms", n=3)
            else:
                below(name, took, FIRST, unit="ms", n=3, note="the longest of 3")
            below(f"the longest slice of {name}", longest, SLICE, unit="ms", n=3)


@contextlib.asynccontextmanager
async def watching(one: App) -> AsyncGenerator[list[int], None]:
    """Watch as many agents as a screen has, and ask what it asks; yield the numbers of rows of the events."""
    rows = (await ask(one, "agents", address="Stem:s", limit=WATCHED))["rows"]
    events: list[int] = []

    async def watch() -> None:
        async for _, data in stream(one, "watch", addresses=[row["address"] for row in rows]):
            encoded("rows", data)
            events.append(len(data["rows"]))

    async def refresh() -> None:
        while True:
            await ask(one, "agents", address="Stem:s", limit=100)
            await ask(one, "top", trees=10)
            await asyncio.sleep(2)

    tasks = [asyncio.ensure_future(watch()), asyncio.ensure_future(refresh())]
    try:
        while not events:  # noqa: ASYNC110 - once
            await asyncio.sleep(0.1)
        yield events
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def changed(stem: Stem, seconds: float) -> list[float]:
    """Call the watched agents so many times a second; return how long each call took, in milliseconds."""
    taken: list[float] = []
    tasks: set[asyncio.Task[None]] = set()

    async def put(number: int) -> None:
        start = time.perf_counter()
        await stem.put(number % WATCHED, number)
        taken.append((time.perf_counter() - start) * 1e3)

    start, number = time.perf_counter(), 0
    while (now := time.perf_counter() - start) < seconds:
        while number < now * CHANGES:
            tasks.add(task := asyncio.ensure_future(put(number)))
            task.add_done_callback(tasks.discard)
            number += 1
        await asyncio.sleep(0.001)
    await asyncio.gather(*tasks)
    return taken


async def changes() -> None:
    """Change watched agents very often, with a studio that watches them and without."""
    async with app("changes") as one:
        stem = await one.get_agent(Stem, "s")
        await stem.grow(WATCHED)
        await changed(stem, 1)
        with_studio, without = list[tuple[float, float]](), list[tuple[float, float]]()
        events, memory = 0, list[int]()
        for _ in range(ROUNDS):
            without.append(await costs(stem))
            async with watching(one) as told:
                with_studio.append(await costs(stem))
            events += len(told)
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        seconds = SECONDS * ROUNDS
        what = f"{CHANGES:,} changes a second of {WATCHED} watched agents"
        cpu, calls = (statistics.median(one[at] for one in with_studio) for at in (0, 1))
        cpu_before, calls_before = (statistics.median(one[at] for one in without) for at in (0, 1))
        watching_takes, note = 100 * (cpu - cpu_before) / SECONDS, f"the calls take {100 * cpu_before / SECONDS:.0f} %"
        below(f"CPU of watching {what}, of a core", watching_takes, 10, unit="%", n=ROUNDS, note=note)
        at_most(f"p99 of calls at {what}, beside unwatched", calls, calls_before, times=1.1, unit="ms", n=ROUNDS)
        below(f"events a second of {what}", events / seconds, 2.1, unit="1/s", n=seconds)
        grown = (memory[-1] - memory[0]) / 1024
        below(f"memory that grows with {what}", grown, 20, unit="MB", n=seconds, note="after the first round")


async def costs(stem: Stem) -> tuple[float, float]:
    """Return the CPU seconds of changes, and the p99 of the calls in milliseconds."""
    start = time.process_time()
    taken = await changed(stem, SECONDS)
    return time.process_time() - start, statistics.quantiles(taken, n=100)[98]


async def idle() -> None:
    """Leave a studio open that nobody touches, at a server in which nothing happens."""
    seconds = float(sys.argv[sys.argv.index("--idle") + 1]) if "--idle" in sys.argv else 5.0 if SMALL else 60.0
    folder, port = scratch("idle"), served.free_port()
    (folder / "app.py").write_text(APP)
    data = folder / "data"
    command = [sys.executable, "-m", "sapwood", "serve", str(folder / "app.py"), "--port", str(port)]
    with served.started(*command, "--data", str(data), "--studio", stderr=subprocess.DEVNULL) as server:
        await asyncio.to_thread(served.until_listening, port)
        token = json.loads((data / "operator.json").read_text())["token"]
        base, head = f"http://127.0.0.1:{port}/_sapwood", {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(base_url=base, headers=head, timeout=None) as client:
            await client.post("/call", json={"address": "Stem:s", "method": "grow", "arguments": [100]})
            alone = await used_by(server.pid, min(seconds, ALONE))
            asking = asyncio.ensure_future(page(client))
            await asyncio.sleep(2)
            memory = served.memory_of(server.pid)
            used = await used_by(server.pid, seconds)
            assert not asking.done(), asking.exception()
            grown = served.memory_of(server.pid) - memory
            asking.cancel()
        what = f"an idle studio for {seconds:g} s"
        note = f"the server alone takes {alone:.2f} %"
        below(f"CPU of the server with {what}, of a core", used, 1, unit="%", n=1, note=note)
        below(f"memory that the server of {what} takes", grown / 2**20, 5, unit="MB", n=1)


async def page(client: httpx2.AsyncClient) -> None:
    """Ask what the pages `Now` and `Agents` ask by themselves, for as long as they are open."""

    async def every(seconds: float, what: str, **params: Any) -> None:
        while True:
            response = await client.post(f"/{what}", json=params)
            response.raise_for_status()
            await asyncio.sleep(seconds)

    async def watch() -> None:
        rows = (await client.post("/agents", json={"address": "Stem:s", "limit": 100})).json()["rows"]
        async with client.stream("POST", "/watch", json={"addresses": [row["address"] for row in rows]}) as response:
            async for _ in response.aiter_bytes():
                pass

    await asyncio.gather(
        every(2, "top", trees=10),
        every(5, "questions", limit=100),
        every(10, "dead-letters", below=True),
        every(5, "agents", limit=100),
        watch(),
    )


async def used_by(process: int, seconds: float) -> float:
    """Return how much of a core a process uses in this time, in percent."""
    start, began = cpu_of(process), time.perf_counter()
    await asyncio.sleep(seconds)
    return 100 * (cpu_of(process) - start) / (time.perf_counter() - began)


def cpu_of(process: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


METRICS: dict[str, Callable[[], Awaitable[None]]] = {metric.__name__: metric for metric in (spans, wide, changes, idle)}


async def main() -> None:
    names = [name for name in sys.argv[1:] if name in METRICS]
    for name in names or METRICS:
        say(f"-- {name}")
        await METRICS[name]()


if __name__ == "__main__":
    asyncio.run(main())
