"""A run that gets further between crashes is followed to its end, over any number of them and at every level."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from tests.cases import slow
from tests.conformance.worlds import Run as RunWorld
from tests.machine import patience

from sapwood import Agent, Branch, ChatAgent, agent_tool
from sapwood.testing import ScriptedModel, World, call, text

CRASHES = 8
"""More than the process may end during one fiber that gets no further."""


class RowWorker(Agent):
    """Takes a step after each crash."""

    steps: ClassVar[list[int]] = []

    async def on_run(self, input: str) -> str:
        for number in range(CRASHES):
            before = len(self.steps)
            await self.step(f"step {number}", self.steps.append, number)
            if len(self.steps) > before:
                await asyncio.Event().wait()  # the process ends here
        return f"{input} is done"


class RowMiddle(Agent):
    """Waits for the worker."""

    async def on_run(self, input: str) -> str:
        run = await self.run_agent(RowWorker, input)
        return str(run.output or f"{run.status} {run.reason} {run.error}")


class RowTwin(Agent):
    """Waits for two workers."""

    async def on_run(self, input: str) -> str:
        runs = await self.runs.gather(Branch(RowWorker, input), Branch(RowIdle, input))
        return str(runs[0].output)


class RowIdle(Agent):
    """Has nothing to do."""

    async def on_run(self, input: str) -> None:
        pass


class RowTalker(ChatAgent):
    """Has the worker as a tool."""

    tools = (agent_tool(RowWorker, name="work"),)


class RowBoss(Agent):
    """Waits for those below."""

    async def begin(self, below: str) -> str:
        """Start a run, and return its id."""
        cls = CLASSES[below]
        return (await self.start_run(cls, "it", max_duration=None, idle_timeout=None)).id

    async def status(self, id: str) -> str:
        """Return how a run stands."""
        run = self.runs.get(id)
        assert run is not None
        return f"{run.status} {run.error or run.output or ''}".strip()


CLASSES: dict[str, type[Agent]] = {"worker": RowWorker, "waits": RowMiddle, "gathers": RowTwin, "tool": RowTalker}


async def steps(world: World, number: int) -> None:
    """Return when the worker has taken a step; the clock runs until then, because a recovery may be due later."""
    async with asyncio.timeout(patience()):
        while len(RowWorker.steps) < number:
            await world.clock.advance(5)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("below", ["worker", "tool", *slow(["waits", "gathers"])])
async def test_a_run_that_gets_further_is_followed_over_any_number_of_crashes(run: RunWorld, below: str) -> None:
    RowWorker.steps.clear()
    RowTalker.model = ScriptedModel(call("work", message="it"), text("it is done"), each=True)
    async with run(RowBoss) as world:
        id = await (await world.get_agent(RowBoss, "a")).begin(below)
        for number in range(1, CRASHES + 1):
            await steps(world, number)
            await world.crash()
        boss = await world.get_agent(RowBoss, "a")
        async with asyncio.timeout(patience()):
            while (status := await boss.status(id)) == "running":
                await world.clock.advance(5)
                await asyncio.sleep(0.01)
        assert status == "completed it is done"
        assert RowWorker.steps == list(range(CRASHES))
