"""Workers of one server that are killed under load, and now and then their fork server or their supervisor."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from random import Random

from tests.blackbox.checker import Checker
from tests.blackbox.events import wait_until
from tests.blackbox.processes import Family
from tests.blackbox.rounds import Outcome, most_frequent
from tests.blackbox.server import Server
from tests.blackbox.workload import Workload

WORKERS = 2
SHORTEST, LONGEST = 0.3, 3.0
"""Seconds of load between two deaths, with all workers alive."""
DEATHS = {"worker": 80, "all workers": 8, "fork server": 6, "supervisor": 6}
"""What dies, in percent."""


async def play(folder: Path, seed: int, count: int) -> Outcome:
    """Cause this many deaths, and check after the last one."""
    chance = Random(seed)
    server = Server(folder, "--workers", str(WORKERS), variables={"SAPWOOD_SLEEP_AFTER": "1"})
    family = Family(server)
    workload = Workload([server.url], seed, pace=0.15)
    faults = Counter[str]()
    try:
        await server.start_beside()
        workload.start()
        for _ in range(count):
            await wait_until(lambda: len(family.workers()) == WORKERS, "all workers run")
            await workload.progress()
            await asyncio.sleep(chance.uniform(SHORTEST, LONGEST))
            death = chance.choices(list(DEATHS), list(DEATHS.values()))[0]
            await _cause(death, server, family, chance)
            faults[death] += 1
        await wait_until(lambda: len(family.workers()) == WORKERS, "all workers run")
        await workload.progress()
        await workload.stop()
        violations = await Checker(workload, server.effects).check()
        server.stop()
        await wait_until(lambda: not family.members(), "every process of the server has ended")
    finally:
        server.kill()
        family.kill()
    history = workload.history
    return Outcome(dict(faults), history.answered.total(), violations, most_frequent(history.errors))


async def _cause(death: str, server: Server, family: Family, chance: Random) -> None:
    workers = family.workers()
    if death == "worker":
        family.send(chance.choice(workers), signal.SIGKILL)
    elif death == "all workers":
        for worker in workers:
            family.send(worker, signal.SIGKILL)
    elif death == "fork server":
        family.send(family.fork_server(), signal.SIGKILL)
    else:
        server.kill()
        await wait_until(lambda: not family.members(), "the workers have ended after their supervisor")
        await server.start_beside()
