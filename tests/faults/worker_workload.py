"""What agents of several workers do while those are killed, and what they remember of it.

Everything has a name that is used once, and says where it was done: so a thing is there once or
not at all, and two processes that ran one agent at the same time would show.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from random import random
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from tests.faults.worker_server import FATAL

from sapwood import Agent, App, ChatAgent, Settings, Turn, expose

STEPS = 3
WORDS = 12


class Stock(Agent[int]):
    """A list at any depth. Its state is how long it is."""

    create_from_url = True
    initial_state = 0
    migrations = (
        "CREATE TABLE items (number INTEGER PRIMARY KEY, item TEXT NOT NULL, process INTEGER NOT NULL) STRICT",
        "CREATE TABLE rung (item TEXT NOT NULL, due REAL NOT NULL, at REAL NOT NULL) STRICT",
        "CREATE TABLE dug (fiber TEXT NOT NULL, step INTEGER NOT NULL, found TEXT NOT NULL) STRICT",
    )

    @expose
    async def put(self, item: str, delay: float) -> list[int]:
        """Keep it, and have it ring; return which processes had to do with it."""
        self._put(item, delay)
        return [os.getpid()]

    def _put(self, item: str, delay: float) -> None:
        due = time.time() + delay
        self.sql("INSERT INTO items (item, process) VALUES (?, ?)", item, os.getpid())
        self.set_state(self.state + 1)
        self.schedule(datetime.fromtimestamp(due, UTC), self.ring, item, due)

    async def ring(self, item: str, due: float) -> None:
        self.sql("INSERT INTO rung VALUES (?, ?, ?)", item, due, time.time())

    @expose
    async def dig(self, fiber: str) -> list[int]:
        """Begin work of several steps."""
        self.start_fiber(fiber, self.digging, fiber)
        return [os.getpid()]

    async def digging(self, fiber: str) -> None:
        for step in range(STEPS):
            found = await self.step(str(step), self.find)
            self.sql("INSERT INTO dug VALUES (?, ?, ?)", fiber, step, found)
            await asyncio.sleep(random() * 0.03)

    async def find(self) -> str:
        return uuid4().hex

    @expose
    async def kept(self) -> dict[str, Any]:
        """Return all that is remembered here."""
        return {
            "items": [[*row.values()] for row in self.sql("SELECT item, process FROM items ORDER BY number")],
            "rung": [[*row.values()] for row in self.sql("SELECT item, due, at FROM rung")],
            "dug": [[*row.values()] for row in self.sql("SELECT fiber, step, found FROM dug")],
            "fibers": {one.key: one.status for one in self.fibers.list() if one.key is not None},
            "state": self.state,
            "below": [one.name for one in self.children.list()],
            "processes": [os.getpid()],
        }


class Crate(Stock):
    """A list two levels down."""


class Rack(Stock):
    """A list one level down."""


class Shoot(Stock):
    """A list that is deleted soon."""


class Carter(Agent):
    """Does one run."""

    async def on_run(self, input: str) -> str:
        first = await self.step("first", self.token)
        await asyncio.sleep(random() * 0.05)
        return f"{input} {first}"

    async def token(self) -> str:
        return uuid4().hex


class Depot(Stock):
    """A root: it does things by way of others, too."""

    @expose
    async def put_to(self, name: str, item: str, delay: float) -> list[int]:
        return [os.getpid(), *await (await self.get_agent(Depot, name)).take(item, delay)]

    async def take(self, item: str, delay: float) -> list[int]:
        """Keep it, and say so at once; or go on for a while: who dies meanwhile has done it, and has not said so."""
        self._put(item, delay)
        if random() < 0.5:
            await asyncio.sleep(random() * 0.2)
        return [os.getpid()]

    @expose
    async def put_back(self, name: str, item: str, delay: float) -> list[int]:
        """Have another root call back, and keep what it says."""

        async def keep(item: str) -> int:
            self._put(item, delay)
            return os.getpid()

        return [os.getpid(), *await (await self.get_agent(Depot, name)).say(keep, item)]

    async def say(self, keep: Callable[[str], Awaitable[int]], item: str) -> list[int]:
        await keep(item)
        return [os.getpid()]

    @expose
    async def numbers_of(self, name: str, upto: int) -> tuple[list[int], list[int]]:
        """Read what another root says one by one."""
        other = await self.get_agent(Depot, name)
        read = [number async for number in other.numbers(upto)]
        return [os.getpid(), *await other.where()], read

    async def numbers(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    @expose
    async def where(self) -> list[int]:
        return [os.getpid()]

    @expose
    async def pour(self, count: int, size: int) -> AsyncIterator[str]:
        """Say more than fits on the way to whoever listens."""
        for number in range(count):
            yield f"{number}:{'x' * size}"

    @expose
    async def carry(self, run: str) -> tuple[list[int], Any]:
        done = await self.run_agent(Carter, run, run_id=run)
        return [os.getpid()], done.output if done.error is None else str(done.error)

    @expose
    async def plant(self, name: str, item: str) -> list[int]:
        return await (await self.sub_agent(Shoot, name)).put(item, 0.1)

    @expose
    async def cut(self, name: str) -> list[int]:
        await self.children.delete(Shoot, name)
        return [os.getpid()]

    @expose
    async def fell(self, name: str) -> list[int]:
        """Destroy another root."""
        await (await self.get_agent(Depot, name)).end()
        return [os.getpid()]

    async def end(self) -> None:
        await self.destroy()

    async def on_request(self, request: Request) -> Response:
        self._put((await request.body()).decode(), 0.1)
        await asyncio.sleep(float(request.query_params["wait"]))
        return PlainTextResponse(str(os.getpid()))


class Rumour(ChatAgent[str]):
    """A conversation whose answers follow from what was asked."""

    async def respond(self, turn: Turn) -> AsyncIterator[str]:
        for word in answer_to(_asked(await self.conversation.messages())).split(" "):
            yield f"{word} " if word else ""
            await asyncio.sleep(random() * 0.01)


def _asked(transcript: list[Any]) -> str:
    last = [message for message in transcript if message["role"] == "user"][-1]
    return "".join(part["text"] for part in last["parts"])


def answer_to(question: str) -> str:
    return "".join(f"{question}.{number} " for number in range(WORDS))


app = App(agents=[Depot, Rumour], settings=Settings(slow_after=10.0, fatal_after=FATAL))
