"""Teams: what it costs to have many agents work at once, beside their turns alone.

    python benchmarks/teams.py [--small] [metric …]

What costs are compared is the processor time of the process, so what else the machine does
is not in it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvloop
from frame import alternately, at_most, say, scratch
from pydantic_ai.models.function import FunctionModel

from sapwood import Agent, App, ChatAgent, Limits, Settings

SMALL = "--small" in sys.argv
MANY = 100 if SMALL else 1000
AT_ONCE = 50


async def one_word(messages: Any, info: Any) -> AsyncIterator[str]:
    yield "done"


class Worker(ChatAgent):
    """Asks its model once."""

    model = FunctionModel(stream_function=one_word)


class Lead(Agent):
    limits = Limits(children=1_000_000, descendants=1_000_000)

    async def have_done(self, n: int) -> float:
        """Return the processor time of each of so many runs, a bounded number of them at once."""
        start = time.process_time()
        runs = await self.map(Worker, ["go"] * n, concurrency=AT_ONCE)
        if not all(run.ok for run in runs):
            raise RuntimeError([run for run in runs if not run.ok][:3])
        return (time.process_time() - start) / n * 1e6

    async def ask(self, n: int) -> float:
        """Return the processor time of each turn of so many new sub-agents, asked one after the other."""
        start = time.process_time()
        for _ in range(n):
            self._asked = vars(self).get("_asked", 0) + 1
            child = await self.sub_agent(Worker, f"asked-{self._asked}")
            turn = await child.send("go")
            if turn.status != "completed":
                raise RuntimeError(turn)
        return (time.process_time() - start) / n * 1e6


async def fan_out() -> None:
    """Map over many inputs, and have as many turns done one after the other."""
    async with App(agents=[Lead], settings=Settings(data=scratch("fan-out"), slow_slice=60)) as app:
        lead = await app.get_agent(Lead, "l")
        mine, reference = await alternately(lambda: lead.have_done(MANY), lambda: lead.ask(MANY), repeats=3)
        name = f"CPU of a branch of a map over {MANY:,} new sub-agents, {AT_ONCE} at once, beside its turn alone"
        at_most(name, mine, reference, times=1.5, unit="µs", n=MANY)


METRICS: dict[str, Callable[[], Awaitable[None]]] = {metric.__name__: metric for metric in (fan_out,)}


def main() -> None:
    for name in [name for name in sys.argv[1:] if name != "--small"] or METRICS:
        say(f"-- {name}")
        uvloop.run(METRICS[name]())  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
