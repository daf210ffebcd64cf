"""Fairness: what a user who asks now and then waits for while another floods the same provider.

    python benchmarks/fairness.py [--small]

The loop has virtual time: a request to the model takes as long as it says, and the processor nothing. So the
figures are the waits for the provider alone, whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import sys
from collections.abc import AsyncIterator
from typing import Any

from frame import at_most, say, scratch
from pydantic_ai.models.function import FunctionModel

from sapwood import Agent, App, ChatAgent, Settings
from sapwood.testing.loop import VirtualLoop

SMALL = "--small" in sys.argv
REQUESTS = 20 if SMALL else 100
"""Requests of the quiet user, one after the other."""
FLOOD = 200
"""Requests that the other user always has."""
AT_ONCE = 4
SHORTEST, LONGEST = 0.5, 1.5
"""Seconds that a request takes."""
durations = random.Random(1)


async def answer(messages: Any, info: Any) -> AsyncIterator[str]:
    await asyncio.sleep(durations.uniform(SHORTEST, LONGEST))
    yield "done"


class Quiet(ChatAgent):
    model = FunctionModel(stream_function=answer)
    max_messages = 2


class Flooder(Agent):
    async def flood(self) -> None:
        async with asyncio.TaskGroup() as group:
            for at in range(FLOOD):
                group.create_task(self._ask(at))

    async def _ask(self, at: int) -> None:
        child = await self.sub_agent(Quiet, str(at))
        while True:
            await child.send("go")


async def waits(name: str, *, is_flooded: bool) -> float:
    """Return the 99th percentile of the seconds from a question to its answer."""
    settings = Settings(data=scratch(name), model_requests_at_once=AT_ONCE, slow_after=10.0)
    loop, taken = asyncio.get_running_loop(), list[float]()
    async with App(agents=[Quiet, Flooder], settings=settings) as app:
        quiet = await app.get_agent(Quiet, "quiet")
        flooding = None
        if is_flooded:
            flooding = asyncio.create_task((await app.get_agent(Flooder, "flooder")).flood())
            await asyncio.sleep(2 * LONGEST)
        for _ in range(REQUESTS):
            start = loop.time()
            turn = await quiet.send("hello")
            if turn.status != "completed":
                raise RuntimeError(turn)
            taken.append(loop.time() - start)
        if flooding is not None:
            flooding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await flooding
    return statistics.quantiles(taken, n=100)[-1]


async def main() -> None:
    say(f"{REQUESTS} requests beside {FLOOD} of another user, {AT_ONCE} at once")
    alone = await waits("alone", is_flooded=False)
    flooded = await waits("flooded", is_flooded=True)
    name = f"p99 of a question of a quiet user, beside {FLOOD} requests of another, beside alone"
    at_most(name, flooded, alone, times=2, unit="s", n=REQUESTS)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
