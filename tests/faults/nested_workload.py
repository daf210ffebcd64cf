"""What two servers do while they are killed: the near one has runs three levels deep, some of which the far one does.

The journal of the far server is a file. Each line is one small write that survives the process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sapwood import Agent, App, RemoteSubAgent, Run

PAUSE = 0.05
"""Seconds between two words."""
SILENCE = float(os.environ.get("NESTED_SILENCE", "3"))
"""Seconds that a run of the root may be silent, with all below it."""
FEW = 3
"""How many words a run says that hangs then."""

Plan = dict[str, Any]
"""The `id` of a run of the root, whether its deepest run is `remote`, and what that does: it speaks until all are told
to finish ("finishes"), speaks for ever ("speaks"), or falls silent ("hangs")."""


def note(*words: object) -> None:
    """Write a line to the journal."""
    if path := os.environ.get("NESTED_JOURNAL"):
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        os.write(file, " ".join(map(str, words)).encode() + b"\n")
        os.close(file)


def is_to_finish() -> bool:
    """Return whether all are told to finish."""
    return Path(os.environ["NESTED_FINISH"]).exists()


class NestedSpeaker(Agent):
    """Says words, and after a crash the rest of them."""

    expose_runs = True
    migrations = ("CREATE TABLE said (n INTEGER PRIMARY KEY) STRICT",)

    async def on_run(self, input: Plan) -> AsyncIterator[dict[str, Any]]:
        note(input["id"], self.name)
        n = self.sql("SELECT count(*) FROM said").scalar(int)
        while input["does"] != "finishes" or not is_to_finish():
            self.sql("INSERT INTO said VALUES (?)", n)
            yield {"type": "data-word", "data": n}
            n += 1
            await asyncio.sleep(PAUSE)
            if input["does"] == "hangs" and n >= FEW:
                await asyncio.get_running_loop().create_future()


class FarSpeaker(RemoteSubAgent):
    """The same, on the other server."""

    url = os.environ.get("NESTED_FAR", "http://127.0.0.1:1/agents/nested-speaker")


def told(run: Run | None) -> dict[str, Any] | None:
    return None if run is None else {"status": run.status, "reason": run.reason, "output": run.output}


class NestedLow(Agent):
    """Waits for the deepest run, and says nothing."""

    async def on_run(self, input: Plan) -> str:
        worker = FarSpeaker if input["remote"] else NestedSpeaker
        run = await self.run_agent(worker, input, run_id="r")
        return run.reason or run.status

    async def levels(self) -> list[Any]:
        return [told(self.runs.get("r"))]


class NestedMiddle(Agent):
    """Waits for the run below, and says nothing."""

    async def on_run(self, input: Plan) -> Any:
        run = await self.run_agent(NestedLow, input, run_id="r")
        return run.output if run.ok else run.reason or run.status

    async def levels(self) -> list[Any]:
        below = [] if not self.children.has(NestedLow, "r") else await (await self.sub_agent(NestedLow, "r")).levels()
        return [told(self.runs.get("r")), *below]

    async def end(self) -> None:
        await self.destroy()


class NestedRoot(Agent):
    """Starts runs, and ends some of them."""

    async def on_request(self, request: Request) -> Response:
        if request.method == "POST":
            wanted = await request.json()
            await self._do(wanted["do"], wanted["plan"]["id"], wanted["plan"], wanted.get("reason"))
        return JSONResponse({run.id: await self._levels(run) for run in self.runs.list()})

    async def _do(self, what: str, id: str, plan: Plan, reason: str | None) -> None:
        if what == "start":
            # How long the far server is away depends on the machine, and nothing here is about that.
            silence = None if plan["remote"] else timedelta(seconds=SILENCE)
            await self.start_run(NestedMiddle, plan, run_id=id, max_duration=None, idle_timeout=silence)
        elif what == "cancel":
            self.runs.cancel(id, reason or "")
        elif what == "delete":
            await self.children.delete(NestedMiddle, id)
        elif self.children.has(NestedMiddle, id):
            await (await self.sub_agent(NestedMiddle, id)).end()

    async def _levels(self, run: Run) -> list[Any]:
        if not self.children.has(NestedMiddle, run.id):
            return [told(run)]
        return [told(run), *await (await self.sub_agent(NestedMiddle, run.id)).levels()]


near = App(agents=[NestedRoot])
far = App(agents=[NestedSpeaker])
