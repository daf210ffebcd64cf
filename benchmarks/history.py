"""History: what it costs a turn in CPU time and bytes, a commit in time on the event loop, and calls.

    python benchmarks/history.py [--small] [NAME …]

Turns of an app that records a history and of one that does not take turns in one process. The figures are medians of
the CPU time of the process, the thread that writes the history included, so the load of the machine counts little.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from frame import at_most, below, say, scratch
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from sapwood import Agent, App, ChatAgent, Settings, tool
from sapwood.kernel.history.recorder import HistoryRecorder

SMALL = "--small" in sys.argv
ONLY = {one for one in sys.argv[1:] if not one.startswith("-")}
ROUNDS = 8 if SMALL else 40
PER_ROUND = 8
PER_AGENT = 4
"""Rounds that one pair of agents takes: its conversation grows in them."""
COMMITS = 500 if SMALL else 5000
CALL_ROUNDS, CALLS = (6, 500) if SMALL else (60, 1000)
CPU_BAR = 1.05
CALL_BAR = 1.05
TURN_BYTES = 10_000
COMMIT_MICROSECONDS = 20.0
DAY = 86400.0
NUMBERS = itertools.count()
WORDS = [f"word{number} " for number in range(120)]


async def answer(messages: Any, info: Any) -> AsyncIterator[Any]:
    if messages[-1].parts[-1].part_kind == "user-prompt":
        yield {0: DeltaToolCall(name="look", json_args='{"about": "rivers"}', tool_call_id=f"c{next(NUMBERS)}")}
    else:
        for word in WORDS:
            yield word


class Talker(ChatAgent):
    model = FunctionModel(stream_function=answer)

    @tool
    async def look(self, about: str) -> str:
        """Look something up."""
        return f"{about}: " + "x" * 400


class Counter(Agent):
    migrations = ("CREATE TABLE item (n INTEGER PRIMARY KEY, value TEXT NOT NULL)",)

    async def add(self, value: str) -> None:
        self.sql("INSERT INTO item (value) VALUES (?)", value)


async def turns(agent: Any, count: int) -> float:
    """Return the seconds of CPU time that one turn took."""
    start = time.process_time()
    for _ in range(count):
        turn = await agent.send(f"Question {next(NUMBERS)}")
        if turn.status != "completed":
            raise RuntimeError(turn)
    return (time.process_time() - start) / count


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def measure_turns() -> None:
    """Measure turns with a history and without in turn."""
    data = scratch("history")
    recorded = App(agents=[Talker], settings=Settings(data=data, slow_after=10.0, history=DAY))
    plain = App(agents=[Talker], settings=Settings(data=scratch("plain"), slow_after=10.0))
    ratios, theirs = list[float](), list[float]()
    done = 0
    async with recorded, plain:
        for number in range(ROUNDS):
            name = f"a{number // PER_AGENT}"
            agents = {app: await app.get_agent(Talker, name) for app in (recorded, plain)}
            if number % PER_AGENT == 0:
                for agent in agents.values():
                    await turns(agent, 3)
                done += 3
            gc.collect()
            took: dict[App, float] = {recorded: 0.0, plain: 0.0}
            for at in range(PER_ROUND):
                for app in (recorded, plain) if at % 2 else (plain, recorded):
                    took[app] += await turns(agents[app], 1) / PER_ROUND
            done += PER_ROUND
            ratios.append(took[recorded] / took[plain])
            theirs.append(took[plain])
    other, ratio = statistics.median(theirs) * 1e3, statistics.median(ratios)
    quarters = statistics.quantiles(ratios, n=4)
    n = ROUNDS * PER_ROUND
    note = f"middle half of the rounds {quarters[0]:.3f} to {quarters[2]:.3f}"
    name = "CPU of a turn with a tool, with a history beside without"
    at_most(name, other * ratio, other, times=CPU_BAR, unit="ms", n=n, note=note)
    below("bytes of history of a turn with a tool", size_of(data / "history") / done, TURN_BYTES, unit="bytes", n=done)


async def measure_commits() -> None:
    """Measure how long the event loop spends on the history of one commit."""
    spent: list[int] = []
    committed = HistoryRecorder.committed

    def timed(self: HistoryRecorder, commit: Any) -> None:
        start = time.perf_counter_ns()
        committed(self, commit)
        spent.append(time.perf_counter_ns() - start)

    HistoryRecorder.committed = timed  # type: ignore[method-assign]
    try:
        data = scratch("inserts")
        async with App(agents=[Counter], settings=Settings(data=data, slow_after=10.0, history=DAY)) as app:
            counter = await app.get_agent(Counter, "x")
            for number in range(COMMITS):
                await counter.add(f"value {number} " + "y" * 40)
    finally:
        HistoryRecorder.committed = committed  # type: ignore[method-assign]
    note = f"p99 {statistics.quantiles(spent, n=100)[98] / 1e3:.1f} µs; {size_of(data / 'history') / COMMITS:.0f} bytes"
    name = "time on the event loop for the history of a commit, p50"
    below(name, statistics.median(spent) / 1e3, COMMIT_MICROSECONDS, unit="µs", n=len(spent), note=note)


async def measure_calls() -> None:
    """Measure the slowest of a hundred calls that write, at both durabilities of one machine."""
    for durability in ("disk", "process"):
        await measure_calls_at(durability)


async def measure_calls_at(durability: str) -> None:
    """Measure calls with a history and without in turn."""
    data, other = (scratch(f"{name}-{durability}") for name in ("called", "plain"))
    recorded = App(agents=[Counter], settings=Settings(data=data, slow_after=10.0, durability=durability, history=DAY))
    plain = App(agents=[Counter], settings=Settings(data=other, slow_after=10.0, durability=durability))
    slowest: dict[App, list[float]] = {recorded: [], plain: []}
    async with recorded, plain:
        counters = {app: await app.get_agent(Counter, "x") for app in (recorded, plain)}
        for number in range(CALL_ROUNDS):
            for app in (recorded, plain) if number % 2 else (plain, recorded):
                took = list[float]()
                for _ in range(CALLS):
                    start = time.perf_counter()
                    await counters[app].add("y" * 40)
                    took.append(time.perf_counter() - start)
                    await asyncio.sleep(0)
                slowest[app].append(statistics.quantiles(took, n=100)[98])
    ours, theirs = (statistics.median(slowest[app]) * 1e6 for app in (recorded, plain))
    name = f"p99 of calls that write at durability {durability}, with a history beside without"
    at_most(name, ours, theirs, times=CALL_BAR, unit="µs", n=CALL_ROUNDS * CALLS)


METRICS = {"turns": measure_turns, "commits": measure_commits, "calls": measure_calls}


async def main() -> None:
    for name, metric in METRICS.items():
        if not ONLY or name in ONLY:
            say(f"-- {name}")
            await metric()


if __name__ == "__main__":
    asyncio.run(main())
