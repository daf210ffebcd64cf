"""Runs: what giving one costs beside calling its agent, what a chunk costs that many watch, how soon all is replayed.

    python benchmarks/runs.py [--small] [metric …]

What costs are compared is the processor time of the process, so what else the machine does
is not in it.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from typing import Any

import served
import uvloop
from frame import Result, alternately, at_most, below, emit, say, scratch, works
from pydantic_ai.models.function import FunctionModel
from sockets import Client, connect

from sapwood import Agent, App, ChatAgent, Limits, Settings, Turn, expose

SMALL = "--small" in sys.argv
WATCHERS = 10
CHUNKS = 200
RUNS = 100
MANY = 1000


async def one_word(messages: Any, info: Any) -> AsyncIterator[str]:
    yield "done"


class Worker(ChatAgent):
    """Asks its model once."""

    model = FunctionModel(stream_function=one_word)


class Teller(ChatAgent):
    """Says as many things as it is asked to."""

    async def respond(self, turn: Turn) -> AsyncGenerator[Any, None]:
        for number in range(int(turn.body["input"])):
            yield {"type": "data-step", "data": {"number": number, "text": "It grows from the root, a ring a year."}}


class Level(Agent):
    """Gives its run to one below it."""

    async def on_run(self, input: Any) -> Any:
        levels, chunks = input
        if levels:
            return (await self.run_agent(Level, [levels - 1, chunks])).status
        return (await self.run_agent(Teller, chunks)).status


class Boss(Agent):
    limits = Limits(children=1_000_000, descendants=1_000_000)

    async def give(self, n: int) -> float:
        """Return the processor time of a run, each of a new sub-agent."""
        start = time.process_time()
        for _ in range(n):
            run = await self.run_agent(Worker, "go")
            if not run.ok:
                raise RuntimeError(run)
        return (time.process_time() - start) / n * 1e6

    async def call(self, n: int) -> float:
        """Return the processor time of asking a new sub-agent directly."""
        start = time.process_time()
        for _ in range(n):
            self._called = vars(self).get("_called", 0) + 1
            child = await self.sub_agent(Worker, f"called-{self._called}")
            turn = await child.send("go")
            if turn.status != "completed":
                raise RuntimeError(turn)
        return (time.process_time() - start) / n * 1e6

    async def dig(self, chunks: int) -> None:
        """Have a sub-agent three levels down say so much."""
        run = await self.run_agent(Level, [1, chunks])
        if not run.ok:
            raise RuntimeError(run)

    async def many(self, n: int) -> float:
        """Return how long so many runs at once take, in seconds."""
        start = time.perf_counter()
        runs = await asyncio.gather(*(self.run_agent(Worker, "go") for _ in range(n)))
        if not all(run.ok for run in runs):
            raise RuntimeError([run for run in runs if not run.ok][:3])
        return time.perf_counter() - start

    @expose
    async def fill(self, runs: int, chunks: int) -> int:
        for _ in range(runs):
            await self.run_agent(Teller, chunks)
        return runs


@contextmanager
def app(name: str) -> Generator[App, None, None]:
    yield App(agents=[Boss], settings=Settings(data=scratch(name), slow_after=60))


async def dispatch() -> None:
    """Give runs to new sub-agents whose model says one word, and ask as many directly."""
    n = 10 if SMALL else 40
    with app("dispatch") as one:
        async with one:
            boss = await one.get_agent(Boss, "b")
            mine, reference = await alternately(lambda: boss.give(n), lambda: boss.call(n), repeats=3 if SMALL else 9)
            name = "CPU of a run of a new sub-agent with one model step, beside calling its turn directly"
            at_most(name, mine, reference, times=1.5, unit="µs", n=n)


async def chunk() -> None:
    """Have a sub-agent three levels down say much, heard by ten watchers of the tree, and by nobody."""
    n, names = 500 if SMALL else 2000, iter(range(1000))
    with app("chunk") as one:
        async with one:

            async def said(watchers: int) -> float:
                boss = await one.get_agent(Boss, f"w-{next(names)}")
                listening = [asyncio.ensure_future(heard(boss, n)) for _ in range(watchers)]
                await asyncio.sleep(0.1)
                start = time.process_time()
                await boss.dig(n)
                await asyncio.gather(*listening)
                return (time.process_time() - start) / n * 1e6

            mine, reference = await alternately(lambda: said(WATCHERS), lambda: said(0), repeats=5)
            name = f"CPU of a chunk of a run three levels below, heard by {WATCHERS} watchers of the tree, beside none"
            emit(Result(name, mine, reference, mine / reference, "µs", n, "recorded", True))


async def heard(boss: Boss, n: int) -> None:
    """Watch a tree until so many chunks were told."""
    async with aclosing(boss.subscribe("tree")) as events:
        async for event in events:
            n -= event.kind == "chunk"
            if n <= 0:
                return


async def crowd() -> None:
    """Have a thousand runs under one root at once."""
    n = 100 if SMALL else MANY
    with app("crowd") as one:
        async with one:
            boss = await one.get_agent(Boss, "b")
            taken = await boss.many(n)
            works(f"{n:,} runs at once under one root, each a new sub-agent with one model step", taken, unit="s", n=n)


def serve(folder: str, port: int) -> None:
    from sapwood.web.server import WebSockets

    served.serve(App(agents=[Boss], settings=Settings(data=folder, slow_after=60)), port, ws=WebSockets)


class Watcher(Client):
    """A client that counts the chunks of runs."""

    chunks = 0
    bytes = 0

    def heard(self, payload: bytes) -> None:
        super().heard(payload)
        self.bytes += len(payload)
        if b'"kind":"chunk"' in payload:
            self.chunks += 1


async def replay() -> None:
    """Connect to an agent that has given a hundred runs."""
    runs, repeats = (10 if SMALL else RUNS), 3 if SMALL else 15
    with served.process(__file__, "--serve", str(scratch("replay")), served.PORT) as port:
        filler = await connect(port, "/agents/boss/r", 2)
        filler.send(json.dumps({"type": "rpc", "id": "1", "method": "fill", "args": [runs, CHUNKS]}).encode())
        while b'"rpc"' not in filler.last:  # noqa: ASYNC110 - it is no matter when
            await asyncio.sleep(0.01)
        frames = await until_quiet(port)
        taken: list[float] = []
        for _ in range(repeats):
            start = time.perf_counter()
            watcher = await connect(port, "/agents/boss/r", frames, Watcher)
            taken.append((time.perf_counter() - start) * 1e3)
            if watcher.chunks < runs * CHUNKS:
                raise RuntimeError(watcher.chunks)
            size = watcher.bytes
            watcher.transport.abort()
        text = f"{frames:,} frames, {size / 1e6:.1f} MB; best {min(taken):.0f} ms"
        name = f"replay of {runs} runs of {CHUNKS} chunks to a new connection, to the last frame"
        below(name, statistics.median(taken), 300, unit="ms", n=repeats, note=text)


async def until_quiet(port: int) -> int:
    """Return how many frames a new client is sent in all."""
    watcher = await connect(port, "/agents/boss/r", 1, Watcher)
    before = -1
    while watcher.frames != before:
        before = watcher.frames
        await asyncio.sleep(1)
    watcher.transport.abort()
    return before


METRICS: dict[str, Callable[[], Awaitable[None]]] = {
    metric.__name__: metric for metric in (dispatch, chunk, crowd, replay)
}


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
        return
    for name in [name for name in sys.argv[1:] if name != "--small"] or METRICS:
        say(f"-- {name}")
        uvloop.run(METRICS[name]())  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
