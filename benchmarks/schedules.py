"""Calls to come, beside the original and beside the bare parts: writing them, firing them, a restart, a durable step.

    python benchmarks/schedules.py [--small] [metric …]

`--small` is for a quick look at a large thing: a hundredth of the rows and trees. The
restart is measured in memory (`/dev/shm`): making 300,000 files on a disk, and removing
them, would slow down whatever is measured next.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import served
import uvloop
from frame import Result, alternately, at_least, at_most, below, emit, say, scratch
from sockets import Client, connect

from sapwood import Agent, App, Settings, expose
from sapwood.storage.image import PAGE_SIZE

SMALL = "--small" in sys.argv
YEAR = 365 * 86400
GREETING = 2
"""Frames a client is greeted with."""
IN_MEMORY = Path("/dev/shm")
STEP = "INSERT INTO steps VALUES (?, ?, ?)"
STEPS = "CREATE TABLE steps (work TEXT, name TEXT, result BLOB, PRIMARY KEY (work, name)) STRICT, WITHOUT ROWID"

ticks: list[float] = []
"""When calls came, in this process."""


def size(full: int) -> int:
    return max(full // 100, 1) if SMALL else full


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


class Child(Agent):
    async def tick(self, number: int) -> None:
        ticks.append(time.time())

    async def plan(self, n: int, due: float) -> None:
        when = moment(due)
        for number in range(n):
            self.schedule(when, self.tick, number)


class Planner(Agent):
    async def tick(self, number: int) -> None:
        ticks.append(time.time())

    @expose
    async def echo(self, value: dict[str, object]) -> dict[str, object]:
        return value

    @expose
    async def plan(self, n: int, due: float) -> None:
        when = moment(due)
        for number in range(n):
            self.schedule(when, self.tick, number)

    @expose
    async def plan_elsewhere(self, trees: list[str], n: int, due: float) -> None:
        for name in trees:
            await (await self.get_agent(Planner, name)).plan(n, due)

    async def plan_below(self, n: int, due: float) -> None:
        child = await self.sub_agent(Child, "plan")
        await child.plan(n, due)

    async def plan_anywhere(self, seconds: list[float]) -> None:
        for number, second in enumerate(seconds):
            self.schedule(moment(second), self.tick, number)

    @expose
    async def ticked(self) -> tuple[int, float, float]:
        return (len(ticks), ticks[0], ticks[-1]) if ticks else (0, 0.0, 0.0)

    @expose
    async def forget_ticks(self) -> None:
        ticks.clear()

    async def steps(self, n: int) -> float:
        return await self.fibers.run("steps", self.take_steps, n)

    async def take_steps(self, n: int) -> float:
        start = time.perf_counter()
        for number in range(n):
            await self.step(f"step {number}", one)
        return (time.perf_counter() - start) / n * 1e6


def one() -> int:
    return 1


class Running:
    """An app in a folder of its own."""

    def __init__(self, **settings: object) -> None:
        options: dict[str, Any] = {"data": scratch("ours"), "slow_after": 60, **settings}
        self._app = App(agents=[Planner], settings=Settings(**options))

    async def __aenter__(self) -> App:
        return await self._app.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        await self._app.__aexit__()


def tomorrow() -> float:
    return time.time() + 86400


async def write() -> None:
    """Write many calls to come in one method; each time in an agent that has written one before."""
    from anchor import Original, install  # not above: it brings other agents of the same names

    original, n = Original(install()), 500
    agents = iter(range(1_000_000))

    async def ours(app: App, method: str) -> float:
        agent = await app.get_agent(Planner, f"write-{next(agents)}")
        await getattr(agent, method)(1, tomorrow())
        start = time.perf_counter()
        await getattr(agent, method)(n, tomorrow())
        return (time.perf_counter() - start) / n * 1e6

    async def theirs(method: str) -> float:
        name = f"write-{next(agents)}"
        original.call(name, method, 1, tomorrow() * 1000)
        return original.timed(n, name, method, n, tomorrow() * 1000)

    try:
        async with Running(durability="disk") as app:
            for who, method, other, times in (
                ("a root", "plan", "plan", 3),
                ("a sub-agent", "plan_below", "planBelow", 10),
            ):
                mine, reference = await alternately(
                    lambda method=method: ours(app, method), lambda other=other: theirs(other), repeats=5
                )
                name = f"schedule() in {who}, {n} in one method, on disk"
                at_least(name, mine, reference, times=times, unit="µs", n=n)
    finally:
        original.close()


async def grow() -> None:
    """Write calls to come where a million wait already, due at any time of a year, and where none does."""
    rows, n = size(1_000_000), 500
    agents = iter(range(1_000_000))

    def anywhere() -> list[float]:
        return [tomorrow() + random.random() * YEAR for _ in range(n)]

    def a_day_later() -> list[float]:
        return [tomorrow()] * n

    async def plan(agent: Any, due: Callable[[], list[float]]) -> float:
        seconds = due()
        start = time.perf_counter()
        await agent.plan_anywhere(seconds)
        return (time.perf_counter() - start) / n * 1e6

    async with Running(durability="disk") as app:
        full = await app.get_agent(Planner, "full")
        say(f"writing {rows:,} calls to come")
        for _ in range(0, rows, n):
            await full.plan_anywhere(anywhere())

        async def empty(due: Callable[[], list[float]]) -> float:
            agent = await app.get_agent(Planner, f"empty-{next(agents)}")
            await agent.plan(1, tomorrow())
            return await plan(agent, due)

        for when, due in (("a day later", a_day_later), ("at any time of a year", anywhere)):
            mine, reference = await alternately(lambda due=due: plan(full, due), lambda due=due: empty(due), repeats=15)
            name = f"schedule() with {rows:,} pending beside none, due {when}, on disk"
            at_most(name, mine, reference, times=1.3, unit="µs", n=n)


async def due() -> None:
    """Let a thousand calls be due in the same second, with ours and the original on the disk."""
    from anchor import Original, install

    original, n = Original(install()), 1000

    async def late(plan: Callable[[float], Awaitable[None]], seen: Callable[[], Awaitable[list[float]]]) -> float:
        second = float(int(time.time()) + 3)
        await plan(second)
        if time.time() >= second:
            raise RuntimeError("it was due before it was written")
        while len(found := await seen()) < n:  # noqa: ASYNC110 - the original has to be asked
            await asyncio.sleep(0.2)
        assert min(found) >= second
        return (max(found) - second) * 1e3

    agents = iter(range(1_000_000))

    async def ours(app: App) -> float:
        agent = await app.get_agent(Planner, f"due-{next(agents)}")
        ticks.clear()

        async def plan(second: float) -> None:
            await agent.plan(n, second)

        async def seen() -> list[float]:
            return ticks

        return await late(plan, seen)

    async def theirs() -> float:
        name = f"due-{next(agents)}"

        async def plan(second: float) -> None:
            original.call(name, "plan", n, second * 1000)

        async def seen() -> list[float]:
            return [milliseconds / 1000 for milliseconds in original.call(name, "ticked")]

        return await late(plan, seen)

    try:
        async with Running(durability="disk") as app:
            mine, reference = await alternately(lambda: ours(app), theirs, repeats=5)
    finally:
        original.close()
    name = f"{n:,} calls due in the same second, the last one late, beside workerd"
    at_most(name, mine, reference, times=1, unit="ms", n=n)


def serve(folder: str, port: int) -> None:
    settings = Settings(data=folder, slow_after=60, durability="disk")
    served.serve(App(agents=[Planner], settings=settings), port)


async def call(client: Client, method: str, *args: object) -> Any:
    before = client.frames
    client.send(json.dumps({"type": "rpc", "id": "1", "method": method, "args": args}).encode())
    await client.until(before + 1)
    answer = json.loads(client.last)
    if not answer.get("success"):
        raise RuntimeError(answer)
    return answer.get("result")


async def knock(client: Client, until: Callable[[], bool]) -> list[float]:
    """Call an echo every 5 ms; return how long each took, from when it was due, in milliseconds."""
    taken: list[float] = []
    clock = time.perf_counter
    next_one = clock()
    while not until():
        await asyncio.sleep(max(next_one - clock(), 0))
        began = min(next_one, clock())
        await call(client, "echo", {"a": 1, "b": "two"})
        taken.append((clock() - began) * 1e3)
        next_one = max(next_one + 0.005, clock())
    return taken


def p99(taken: list[float]) -> float:
    return sorted(taken)[len(taken) * 99 // 100]


async def storm() -> None:
    """Let a hundred thousand calls be due at once while somebody is at the door."""
    n = size(100_000)
    for where, trees in ((f"{n // 100:,} trees", n // 100), ("one tree", 1)):
        with served.process(__file__, "--serve", str(scratch("storm")), served.PORT) as port:
            door = await connect(port, "/agents/planner/door", GREETING)
            seer = await connect(port, "/agents/planner/seer", GREETING)
            second = float(int(time.time()) + (4 if SMALL else 20))
            names, each = [f"storm-{number}" for number in range(trees)], n // trees
            if trees == 1:
                only = await connect(port, "/agents/planner/storm", GREETING)
                for first in range(0, n, 2000):
                    await call(only, "plan", min(2000, n - first), second)
            for first in range(0, trees if trees > 1 else 0, 50):
                await call(seer, "plan_elsewhere", names[first : first + 50], each, second)
            if time.time() > second - 1:
                raise RuntimeError("it was due before it was written")
            calm = await knock(door, lambda until=second - 0.5: time.time() > until)
            done = asyncio.Event()
            knocking = asyncio.ensure_future(knock(door, done.is_set))
            fired, last, patience = 0, second, time.time() + 300
            while fired < n and time.time() < patience:
                await asyncio.sleep(0.2)
                fired, first_at, last = await call(seer, "ticked")
                assert fired == 0 or first_at >= second
            done.set()
            waited = p99(await knocking)
        took = last - second
        note = f"{fired:,} fired, {fired / took:,.0f} a second"
        name = f"{n:,} calls due at once, in {where}, on disk, each"
        emit(Result(name, took / n * 1e6, None, None, "µs", n, "all fired", fired == n, note))
        name = f"call over a socket, while {n:,} calls are due at once in {where}, p99"
        emit(Result(name, waited, p99(calm), waited / p99(calm), "ms", n, "recorded", True, "reference: before"))


def in_memory() -> Path:
    folder = IN_MEMORY if IN_MEMORY.is_dir() else scratch("restart")
    return Path(tempfile.mkdtemp(prefix="sapwood-bench-", dir=folder))


def restarted(folder: str, began: float, expected: int) -> None:
    """Start a node on this folder; print when calls came, and what was opened for it."""
    opened: list[Path] = []
    apsw.connection_hooks.append(lambda connection: opened.append(Path(connection.filename)))

    async def run() -> None:
        async with App(agents=[Planner], settings=Settings(data=folder, slow_after=60)):
            patience = time.monotonic() + 120
            while len(ticks) < expected and time.monotonic() < patience:  # noqa: ASYNC110 - nothing is in the way
                await asyncio.sleep(0.05)
        trees = sorted({path.parent.name for path in opened if path.name == "root.db"})
        facts = {"first": min(ticks) - began, "last": max(ticks) - began, "fired": len(ticks), "opened": trees}
        print(json.dumps(facts))

    uvloop.run(run())


async def restart() -> None:
    """Restart a node with many trees, of which one in a hundred is due, in a process of its own."""
    trees, each = size(100_000), 10
    data = in_memory()
    try:
        say(f"making {trees:,} trees with {each} calls to come each")
        is_due = await forest(data, trees, each)
        firsts: list[float] = []
        facts: dict[str, Any] = {}
        for turn in range(3):
            copy = data / f"life-{turn}"
            if turn < 2:
                shutil.copytree(data / "forest", copy, copy_function=shutil.copyfile)
            else:
                (data / "forest").rename(copy)
            began = time.time()
            command = [sys.executable, __file__, "--restarted", str(copy), str(began), str(len(is_due) * each)]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            facts = json.loads((await process.communicate())[0])
            needless = set(facts["opened"]) - is_due
            assert facts["fired"] == len(is_due) * each, facts["fired"]
            firsts.append(facts["first"])
            shutil.rmtree(copy)
    finally:
        shutil.rmtree(data, ignore_errors=True)
    what = f"{trees:,} trees and {trees * each:,} schedules, 1 % due"
    note = f"{facts['fired']:,} calls after {facts['last']:.2f} s; in memory"
    below(f"restart with {what}, first call", statistics.median(firsts), 2, unit="s", n=trees, note=note)
    name = f"restart with {what}, trees opened that are not due"
    note = f"{len(facts['opened']):,} opened"
    emit(Result(name, len(needless), 0, None, "trees", trees, "none", not needless, note))


async def forest(data: Path, trees: int, each: int) -> set[str]:
    """Make a data folder of so many trees, one in a hundred of them due; return the folders of those.

    Two trees are written by sapwood, and the others are copies under a name of the same length.
    """
    from sapwood.address import Address
    from sapwood.kernel.node.data_folder import tree_folder

    folder = data / "forest"
    past, future = time.time() + 1, time.time() + YEAR
    async with App(agents=[Planner], settings=Settings(data=folder, slow_after=60)) as app:
        for name, second in (("tree-0000000", past), ("tree-0000001", future)):
            await (await app.get_agent(Planner, name)).plan(each, second)
    files: list[tuple[bytes, dict[str, bytes]]] = []
    for name in (b"tree-0000000", b"tree-0000001"):
        made = tree_folder(folder, Address.root_of("Planner", name.decode()))
        whole = apsw.Connection(str(made / "root.db"))
        whole.execute("SELECT * FROM sqlite_schema").fetchall()
        whole.close()  # whoever closes a file last copies its log into it
        files.append((name, {one.name: one.read_bytes() for one in made.iterdir() if one.stat().st_size}))
    rows: list[tuple[str, float]] = []
    is_due: set[str] = set()
    for number in range(trees):
        address = Address.root_of("Planner", f"tree-{number:07}")
        made = tree_folder(folder, address)
        late = number % 100 == 0
        if late:
            is_due.add(made.name)
        rows.append((str(address), past if late else future))
        made.mkdir(exist_ok=True)
        name, contents = files[0 if late else 1]
        for file, content in contents.items():
            (made / file).write_bytes(content.replace(name, address.name.encode()))
    index = apsw.Connection(str(folder / "alarms.db"))
    with index:
        index.executemany(
            "INSERT INTO sapwood_node_alarms (root, due_at) VALUES (?, ?)"
            " ON CONFLICT (root) DO UPDATE SET due_at = excluded.due_at",
            rows,
        )
    index.close()
    return is_due


async def step() -> None:
    """Take durable steps one after the other, beside the same commit on bare apsw."""
    n = 1000
    for durability, synchronous in (("process", "OFF"), ("disk", "FULL")):
        connection = apsw.Connection(str(scratch("bare") / "bare.db"))
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}; PRAGMA locking_mode = EXCLUSIVE").fetchall()
        connection.execute(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = {synchronous}").fetchall()
        connection.execute(STEPS)

        async def bare(connection: apsw.Connection = connection) -> float:
            start = time.perf_counter()
            for number in range(n):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(STEP, ("fiber 1", f"step {number}", b"\x01"))
                connection.execute("COMMIT")
            taken = (time.perf_counter() - start) / n * 1e6
            connection.execute("DELETE FROM steps")
            return taken

        async with Running(durability=durability) as app:
            agent = await app.get_agent(Planner, "steps")
            mine, reference = await alternately(lambda agent=agent: agent.steps(n), bare)
        connection.close()
        at_most(f"durable step, {durability}, beside bare apsw", mine, reference, times=2, unit="µs", n=n)


METRICS = {metric.__name__: metric for metric in (write, grow, due, storm, restart, step)}


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
        return
    if sys.argv[1:2] == ["--restarted"]:
        restarted(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
        return
    for name in [name for name in sys.argv[1:] if name != "--small"] or METRICS:
        say(f"-- {name}")
        uvloop.run(METRICS[name]())


if __name__ == "__main__":
    main()
