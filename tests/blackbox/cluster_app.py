"""What the nodes of the cluster fault test serve: a list, and fibers whose steps act outside of sapwood.

Each act is a line in a file that all nodes share: when it began or ended, on which node, and its token.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time

from sapwood import Agent, App, current_step_key, expose

SIDE = os.environ.get("BLACKBOX_SIDE", "side")
NODE = os.environ.get("SAPWOOD_NODE", "")
STEP_SECONDS = 0.2


def say(*words: object) -> None:
    """Write a line to the file outside: one write, so lines of several processes do not mix."""
    file = os.open(SIDE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, (" ".join(map(str, (*words, NODE, f"{time.time():.3f}"))) + "\n").encode())
    finally:
        os.close(file)


class BlackboxRoot(Agent):
    """Keeps a list, and runs fibers."""

    create_from_url = True
    migrations = ("CREATE TABLE items (id TEXT NOT NULL UNIQUE) STRICT",)

    @expose
    async def append(self, id: str) -> int:
        self.sql("INSERT INTO items VALUES (?)", id)
        return self.sql("SELECT count(*) FROM items").scalar(int)

    @expose
    async def count(self) -> int:
        return self.sql("SELECT count(*) FROM items").scalar(int)

    @expose
    async def items(self) -> list[str]:
        return [str(row["id"]) for row in self.sql("SELECT id FROM items ORDER BY rowid")]

    @expose
    async def begin(self, key: str, steps: int) -> None:
        self.start_fiber(key, self.work, key, steps)

    async def work(self, key: str, steps: int) -> list[str]:
        return [await self.step(f"step {number}", self.act, key, number) for number in range(steps)]

    async def act(self, key: str, number: int) -> str:
        token = secrets.token_hex(6)
        say("begin", key, number, token, current_step_key())
        await asyncio.sleep(STEP_SECONDS)
        say("end", key, number, token, current_step_key())
        return token

    @expose
    async def results(self) -> dict[str, tuple[str, list[str]]]:
        """Return the status and the tokens of each fiber."""
        return {fiber.name: (str(fiber.status), fiber.output or []) for fiber in self.fibers.list(limit=100_000)}


app = App(agents=[BlackboxRoot])
