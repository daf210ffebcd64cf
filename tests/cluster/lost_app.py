"""What the nodes of test_lost_nodes.py serve: agents with something to do that ends when a file is there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from sapwood import Agent, App, ChatAgent, Run, Turn, expose

GATE = Path(os.environ.get("LOST_GATE", "gate"))


async def opened() -> None:
    """Return when the test says so."""
    while not GATE.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.05)


class LostDigger(Agent):
    """Is given runs."""

    async def on_run(self, input: Any) -> Any:
        await opened()
        return {"did": input}


class LostWorker(Agent):
    """Has something to do by the clock, in a fiber, or by another agent; and keeps what came of it."""

    migrations = ("CREATE TABLE lines (text TEXT NOT NULL) STRICT",)

    @expose
    async def write(self, text: str) -> int:
        self.sql("INSERT INTO lines VALUES (?)", text)
        return self.sql("SELECT count(*) FROM lines").scalar(int)

    @expose
    async def lines(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM lines ORDER BY rowid")]

    @expose
    async def later(self, seconds: float) -> None:
        self.schedule(timedelta(seconds=seconds), self.write, "by the clock")

    @expose
    async def begin(self) -> None:
        self.start_fiber("load", self.load)

    async def load(self) -> None:
        await opened()
        await self.write("by the fiber")

    @expose
    async def send_off(self) -> None:
        await self.start_run(LostDigger, "dig", on_finish=self.heard)

    async def heard(self, run: Run) -> None:
        await self.write(f"by the run: {run.status} {run.output}")


class LostTalker(ChatAgent):
    """Answers when it may."""

    async def respond(self, turn: Turn) -> AsyncIterator[str]:
        await opened()
        yield "the answer"

    @expose
    async def lines(self) -> list[str]:
        return [
            part["text"]
            for one in await self.conversation.messages()
            for part in one["parts"]
            if part["type"] == "text"
        ]


app = App(agents=[LostWorker, LostTalker])
