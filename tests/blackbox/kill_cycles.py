"""A server that is killed again and again under load, sometimes while it starts: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

from tests.blackbox.checker import Checker
from tests.blackbox.rounds import Outcome, Play, most_frequent
from tests.blackbox.server import Server
from tests.blackbox.workload import Workload

SHORTEST, LONGEST = 0.05, 1.25
"""Seconds of load between two kills."""
KILLED_AT_START = 0.15
"""The share of the cycles in which the next process is killed while it starts."""
LONGEST_START = 1.2


async def play(level: str, folder: Path, seed: int, count: int) -> Outcome:
    """Kill the server this many times, and check after the last one."""
    chance = Random(seed)
    server = Server(folder, variables={"SAPWOOD_DURABILITY": level, "SAPWOOD_SLEEP_AFTER": "1"})
    workload = Workload([server.url], seed)
    faults = Counter[str]()
    try:
        await server.start_beside()
        workload.start()
        for _ in range(count):
            await workload.progress()
            await asyncio.sleep(chance.uniform(SHORTEST, LONGEST))
            server.kill()
            faults["kill"] += 1
            if chance.random() < KILLED_AT_START:
                server.launch()
                await asyncio.sleep(chance.random() * LONGEST_START)
                server.kill()
                faults["kill at start"] += 1
            await server.start_beside()
        await workload.progress()
        await workload.stop()
        violations = await Checker(workload, server.effects).check()
        server.stop()
    finally:
        server.kill()
    history = workload.history
    return Outcome(dict(faults), history.answered.total(), violations, most_frequent(history.errors))


def kill_cycles(level: str) -> Play:
    """Return the program for one level of durability."""
    return partial(play, level)
