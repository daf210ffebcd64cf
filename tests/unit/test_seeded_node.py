"""A node whose clock and random numbers belong to the test does the same twice."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from random import Random

from sapwood import After, Agent, App, Retry, Settings
from sapwood.kernel.node.data_folder import REMOVED
from sapwood.runtimes.local import LocalRuntime
from sapwood.storage.files import Files
from sapwood.testing import FakeClock
from sapwood.testing.loop import VirtualLoop, until

SLOWLY = Retry(initial_delay=timedelta(hours=1), max_delay=timedelta(hours=1))


class SeededHelper(Agent):
    async def on_run(self, what: str) -> str:
        raise ValueError(what)


class SeededDesk(Agent):
    async def work(self) -> None:
        await self.run_agent(SeededHelper, "an error with a reference")
        self.schedule(After(timedelta(seconds=1), retry=SLOWLY), self.fail)

    async def leave(self) -> None:
        await self.destroy()

    async def fail(self) -> None:
        raise ValueError("retried after a random delay")


class NamedFiles(Files):
    """The file system, and the names that folders of removed trees got."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.removed: list[str] = []

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        if new.suffix == REMOVED:
            self.removed.append(new.name)


async def play(folder: Path, seed: int) -> list[str]:
    """Return all that a node wrote, and how it named what it removed."""
    random, clock, settings = Random(seed), FakeClock(), Settings(data=str(folder))
    files = NamedFiles(random)
    runtime = LocalRuntime(settings, clock=clock, files=files, random=random)
    clock.settled = settled
    async with App(agents=[SeededDesk], settings=settings, runtime=runtime) as app:
        desk = await app.get_agent(SeededDesk, "a")
        await desk.work()
        await clock.advance(1.0)
        gone = await app.get_agent(SeededDesk, "gone")
        await gone.work()
        await gone.leave()
        await until(lambda: bool(files.removed))
    return [*files.removed, *rows_in(folder)]


async def settled() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    await loop.idle()


def rows_in(folder: Path) -> list[str]:
    """Return all rows of all databases in a data folder."""
    rows: list[str] = []
    for path in sorted(folder.rglob("*.db")):
        with closing(sqlite3.connect(path)) as database:
            rows += [line for line in database.iterdump() if line.startswith("INSERT")]
    return rows


async def test_a_seeded_node_writes_the_same_ids_and_times_twice(tmp_path: Path) -> None:
    first, second, other = [await play(tmp_path / str(number), seed) for number, seed in enumerate((1, 1, 2))]

    assert first == second
    assert other != first
