"""Teams: what it costs to have many agents work at once, beside their turns alone.

    python benchmarks/teams.py [--small] [metric …]

What costs are compared is the processor time of the process, so what else the machine does
is not in it.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, ClassVar

import uvloop
from frame import alternately, at_most, say, scratch
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from sapwood import Agent, App, ChatAgent, Limits, Settings, agent_tool, on_child_state, tool
from sapwood.types import PathSegment

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
        runs = await self.runs.map(Worker, ["go"] * n, concurrency=AT_ONCE)
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
    async with App(agents=[Lead], settings=Settings(data=scratch("fan-out"), slow_after=60)) as app:
        lead = await app.get_agent(Lead, "l")
        mine, reference = await alternately(lambda: lead.have_done(MANY), lambda: lead.ask(MANY), repeats=3)
        name = f"CPU of a branch of a map over {MANY:,} new sub-agents, {AT_ONCE} at once, beside its turn alone"
        at_most(name, mine, reference, times=1.5, unit="µs", n=MANY)


def once(tool: str, arguments: str) -> FunctionModel:
    """Return a model that calls this tool, and is done."""

    async def calls(messages: Any, info: Any) -> AsyncIterator[Any]:
        if any(message.kind == "response" for message in messages):
            yield "done"
        else:
            yield {0: DeltaToolCall(tool, arguments, tool_call_id="c")}

    return FunctionModel(stream_function=calls)


class Asking(ChatAgent):
    """Asks before it acts."""

    made: ClassVar[asyncio.Event] = asyncio.Event()
    model = once("act", "{}")

    @tool(requires_approval=True)
    async def act(self) -> None:
        """Act."""
        self.made.set()


def above(cls: type[ChatAgent], name: str) -> type[ChatAgent]:
    """Return a class of agents whose model uses one of that class, once."""
    tools = [agent_tool(cls, name="below", description="Acts.")]
    return type(name, (ChatAgent,), {"model": once("below", '{"message": "go"}'), "tools": tools})


Deep = above(above(above(above(Asking, "Fourth"), "Third"), "Second"), "First")


async def answered(app: App, cls: type[ChatAgent], names: Iterator[str], n: int) -> float:
    """Return how long it takes from the answer, given at the root, until the call is made; of so many that all rest."""
    spent = 0.0
    for _ in range(n):
        agent = await app.get_agent(cls, next(names))
        turn = asyncio.create_task(agent.send("go"))
        while not (asked := await agent.questions.list()):  # noqa: ASYNC110 - nobody else is to be woken
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # those above it come to rest
        Asking.made.clear()
        start = time.perf_counter()
        await agent.questions.approve(asked[0])
        await Asking.made.wait()
        spent += time.perf_counter() - start
        await turn
    return spent / n * 1e6


async def approval() -> None:
    """Answer at the root what is asked four levels below it, and what it asks itself."""
    n, names = (10 if SMALL else 40), (f"t{number}" for number in itertools.count())
    async with App(agents=[Deep, Asking], settings=Settings(data=scratch("approval"), slow_after=60)) as app:
        mine, reference = await alternately(
            lambda: answered(app, Deep, names, n), lambda: answered(app, Asking, names, n), repeats=3
        )
        name = "An answer at the root until the call is made, four levels below, beside one of its own"
        at_most(name, mine, reference, times=6, unit="µs", n=n)


class Told:
    """How far the parent has been told."""

    last = 0
    news = asyncio.Event()


class Bird(Agent[int]):
    initial_state = 0

    async def change(self, n: int) -> float:
        """Change its state so many times, each when the parent has heard of the last; return the cost of each."""
        start = time.process_time()
        for _ in range(n):
            Told.news.clear()
            self.set_state(self.state + 1)
            await Told.news.wait()
        if Told.last != self.state:
            raise RuntimeError((Told.last, self.state))
        return (time.process_time() - start) / n * 1e6

    async def call(self, n: int) -> float:
        """Change its state as often, and call the parent with it each time."""
        flock = await self.parent_agent(Flock)
        start = time.process_time()
        for _ in range(n):
            self.set_state(self.state + 1)
            await flock.told(self.state)
        return (time.process_time() - start) / n * 1e6


class LoneBird(Bird):
    """Nobody follows its state."""


class Flock(Agent):
    migrations = ("CREATE TABLE told (number INTEGER NOT NULL) STRICT", "INSERT INTO told VALUES (0)")

    @on_child_state(Bird)
    async def heard(self, child: PathSegment, state: int) -> None:
        if child.type == "Bird":
            Told.last = state
            Told.news.set()

    async def told(self, state: int) -> None:
        self.sql("UPDATE told SET number = ?", state)

    async def follow(self, n: int) -> float:
        return await (await self.sub_agent(Bird, "b")).change(n)

    async def be_called(self, n: int) -> float:
        return await (await self.sub_agent(LoneBird, "l")).call(n)


async def child_states() -> None:
    """Tell a parent of so many changes of a child's state, each of them, and have the child call it as often."""
    n = 1_000 if SMALL else 10_000
    async with App(agents=[Flock], settings=Settings(data=scratch("states"), slow_after=60)) as app:
        flock = await app.get_agent(Flock, "f")
        mine, reference = await alternately(lambda: flock.follow(n), lambda: flock.be_called(n), repeats=3)
        name = "CPU of a change of a child's state that its parent follows, beside a call that the parent notes"
        note = "delivered at least once, also through a crash; the call is not"
        at_most(name, mine, reference, times=4, unit="µs", n=n, note=note)


METRICS: dict[str, Callable[[], Awaitable[None]]] = {
    metric.__name__: metric for metric in (fan_out, approval, child_states)
}


def main() -> None:
    for name in [name for name in sys.argv[1:] if name != "--small"] or METRICS:
        say(f"-- {name}")
        uvloop.run(METRICS[name]())  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
