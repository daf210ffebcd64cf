"""An agent for tests of durable work: what it does is written in the test, and done inside the agent."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw
from tests.conformance.worlds import Probe

from sapwood import Agent
from sapwood.storage.engine import CHECKED
from sapwood.testing import World
from sapwood.types import Fiber

Act = Callable[["Worker"], Any]
"""Something done inside an agent; what it returns may be awaitable."""


@dataclass(frozen=True)
class Reading:
    """A result with a type of its own."""

    at: datetime
    values: tuple[int, ...]


@dataclass
class Bench(Probe):
    """What the agents of a test do, and what became of it. It outlives every crash."""

    works: dict[str, Act] = field(default_factory=dict[str, Act])
    """What `Worker.work` does, by name."""
    starts: dict[str, Act] = field(default_factory=dict[str, Act])
    """What `on_start` does, by the name of the agent."""
    hook: Callable[[Worker, Fiber], Awaitable[object]] | None = None
    """What `on_fiber_recovered` does."""
    recovered: list[tuple[str, Fiber]] = field(default_factory=list[tuple[str, Fiber]])
    """What `on_fiber_recovered` was told: the address, and the fiber."""
    acts: dict[str, Act] = field(default_factory=dict[str, Act])

    async def within(self, agent: Worker, act: Act) -> Any:
        """Do something inside an agent, and return what it returned, as it is."""
        results: list[Any] = []
        name = f"act {len(self.acts)}"

        async def do(me: Worker) -> None:
            results.append(await done(act(me)))

        self.acts[name] = do
        await agent.act(name)
        return results[0]


class Worker(Agent):
    """An agent that can be the child of one like itself."""

    deps: Bench
    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)

    async def on_start(self) -> None:
        if self.name in self.deps.starts:
            await done(self.deps.starts[self.name](self))

    async def on_fiber_recovered(self, fiber: Fiber) -> None:
        self.deps.recovered.append((str(self.address), fiber))
        if self.deps.hook is not None:
            await self.deps.hook(self, fiber)

    async def act(self, name: str) -> None:
        await done(self.deps.acts[name](self))

    async def work(self, what: str) -> Any:
        """Do what the test says; started as a fiber, scheduled or queued."""
        self.deps.log.append(f"{what} begins")
        value = await done(self.deps.works[what](self))
        self.deps.log.append(f"{what} ends")
        return value

    async def read(self) -> Reading:
        return await self.step("read", taken, self.deps)

    async def note(self, text: str) -> int:
        self.sql("INSERT INTO notes VALUES (?)", text)
        return self.sql("SELECT count(*) FROM notes").scalar(int)

    async def notes(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM notes")]

    async def hang(self) -> None:
        await asyncio.get_running_loop().create_future()


async def taken(bench: Bench) -> Reading:
    bench.log.append("reading")
    return Reading(datetime.fromisoformat("2026-03-29T02:30:00+01:00"), (1, 2))


def stored(data: Path, table: str) -> list[Any]:
    """Return the rows of a table of the framework's, of all agents, in a data folder that nobody uses."""
    found: list[Any] = []
    for file in sorted((data / "trees").glob("*/*.db")):
        with closing(apsw.Connection(str(file), vfs=CHECKED)) as database:
            if database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchone():
                found += database.execute(f"SELECT * FROM {table}").fetchall()
    return found


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def worker(world: World, depth: int = 0) -> Worker:
    """Return the worker at the end of a line of them, made if there is none."""
    bench = world.app.deps
    assert isinstance(bench, Bench)
    agent = await world.get_agent(Worker, "root")
    for level in range(1, depth + 1):
        await bench.within(agent, lambda me, level=level: me.sub_agent(Worker, f"level {level}"))
        agent = await world.get_agent(Worker, "root", sub=[(Worker, f"level {n + 1}") for n in range(level)])
    return agent
