"""What agents of a cluster do while nodes and servers are broken, and what they remember of it.

Everything has a name that is used once, and says who wrote it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from random import random
from typing import Any
from uuid import uuid4

from sapwood import Agent, App, Settings, expose
from sapwood.address import Address
from sapwood.kernel.ports.log import Epoch
from sapwood.kernel.ports.shards import shard_of

STEPS = 3
PAGE = 2000
"""How many items are read at once."""


epochs: list[Callable[[int], Epoch | None]] = []
"""By which ownership this node has a shard; whoever makes it one of a cluster says so here."""


def writer() -> str:
    """Return which process this is."""
    return f"{os.environ.get('SAPWOOD_NODE', 'alone')}/{os.getpid()}"


def epoch_of(root: Address) -> int:
    """Return the number of the ownership by which this node runs a tree; 0: it is not known."""
    epoch = epochs[-1](shard_of(root)) if epochs else None
    return epoch.number if epoch is not None else 0


class Lines(Agent):
    """A list at any depth."""

    create_from_url = True
    migrations = (
        "CREATE TABLE items (number INTEGER PRIMARY KEY, item TEXT NOT NULL, writer TEXT NOT NULL, epoch INT) STRICT",
        "CREATE TABLE due (item TEXT NOT NULL, due REAL NOT NULL) STRICT",
        "CREATE TABLE rung (item TEXT NOT NULL, at REAL NOT NULL, writer TEXT NOT NULL) STRICT",
        "CREATE TABLE dug (fiber TEXT NOT NULL, step INTEGER NOT NULL, found TEXT NOT NULL) STRICT",
    )

    @expose
    async def append(self, item: str) -> int:
        """Write an item at the end; return how long the list is with it."""
        return self._append(item)

    @expose
    async def append_slowly(self, item: str, seconds: float) -> int:
        """Write an item, and say so later: who dies meanwhile has done it, and has not said so."""
        length = self._append(item)
        await asyncio.sleep(seconds)
        return length

    def _append(self, item: str) -> int:
        epoch = epoch_of(Address(self.address.segments[:1]))
        self.sql("INSERT INTO items (item, writer, epoch) VALUES (?, ?, ?)", item, writer(), epoch)
        return self._length()

    def _length(self) -> int:
        return self.sql("SELECT count(*) FROM items").scalar(int)

    @expose
    async def read(self) -> tuple[int, str]:
        """Return how long the list is, and its last item."""
        row = self.sql("SELECT item FROM items ORDER BY number DESC LIMIT 1").first()
        return self._length(), "" if row is None else str(row["item"])

    @expose
    async def plan(self, item: str, delay: float) -> float:
        """Have an item ring later; return when."""
        due = time.time() + delay
        self.sql("INSERT INTO due VALUES (?, ?)", item, due)
        self.schedule(datetime.fromtimestamp(due, UTC), self.ring, item)
        return due

    async def ring(self, item: str) -> None:
        self.sql("INSERT INTO rung VALUES (?, ?, ?)", item, time.time(), writer())

    @expose
    async def dig(self, fiber: str) -> None:
        """Begin work of several steps."""
        self.start_fiber(fiber, self.digging, fiber)

    async def digging(self, fiber: str) -> None:
        for step in range(STEPS):
            found = await self.step(str(step), self.find)
            self.sql("INSERT INTO dug VALUES (?, ?, ?)", fiber, step, found)
            await asyncio.sleep(random() * 0.5)

    async def find(self) -> str:
        return uuid4().hex

    @expose
    async def items(self, after: int) -> list[tuple[str, str, int]]:
        """Return the items from a place on, and who wrote them; no more than a page of them."""
        rows = self.sql("SELECT item, writer, epoch FROM items ORDER BY number LIMIT ? OFFSET ?", PAGE, after)
        return [(str(row["item"]), str(row["writer"]), int(str(row["epoch"]))) for row in rows]

    @expose
    async def rest(self) -> dict[str, Any]:
        """Return what else is remembered here."""
        return {
            "due": [[*row.values()] for row in self.sql("SELECT item, due FROM due")],
            "rung": [[*row.values()] for row in self.sql("SELECT item, at FROM rung")],
            "dug": [[*row.values()] for row in self.sql("SELECT fiber, step, found FROM dug")],
            "fibers": {one.key: str(one.status) for one in self.fibers.list() if one.key is not None},
        }


class Line(Lines):
    """A list two levels down."""


class Page(Lines):
    """A list one level down."""


class Carter(Agent):
    """Does one run, and remembers how often its end was reached."""

    migrations = ("CREATE TABLE done (token TEXT NOT NULL) STRICT",)

    async def on_run(self, input: str) -> str:
        first = await self.step("first", self.token)
        await asyncio.sleep(random() * 0.5)
        times = await self.step("last", self.finish, first)
        return f"{input} {first} {times}"

    async def token(self) -> str:
        return uuid4().hex

    async def finish(self, token: str) -> int:
        self.sql("INSERT INTO done VALUES (?)", token)
        return self.sql("SELECT count(*) FROM done").scalar(int)


class Ledger(Lines):
    """A root."""

    @expose
    async def carry(self, run: str) -> str:
        """Have a sub-agent do a run, or hear how it ended. Who asked may have no patience: it goes on without them."""
        done = await self.run_agent(Carter, run, run_id=run, on_disconnect="continue")
        return str(done.output) if done.ok else f"{done.status}: {done.error or done.reason}"


app = App(agents=[Ledger], settings=Settings(slow_after=30.0))
