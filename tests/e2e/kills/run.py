"""Kills a server with `kill -9` while clients of all protocols use it, and checks what they were told.

    python -m tests.e2e.kills.run --kills 200 --workers 2 --seed 7

A kill counts for each client whose operation is under way. The process dies by its own hand after its n-th commit, or
right after a tool has done something in the world, or is killed once its clients have received n events; sometimes
while it starts. Prints a line of JSON for each protocol. With violations, the folder is kept, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.conformance.worlds import happens
from tests.e2e.kills.a2a_caller import A2aCaller
from tests.e2e.kills.ag_ui_caller import AgUiCaller
from tests.e2e.kills.bank import open_bank
from tests.e2e.kills.caller import Caller
from tests.e2e.kills.courier import open_courier
from tests.e2e.kills.effects import Effects
from tests.e2e.kills.kill_order import KillOrders
from tests.e2e.kills.mcp_caller import McpCaller, McpHeldCaller
from tests.e2e.kills.openai_caller import OpenAiCaller
from tests.e2e.kills.server import KilledServer
from tests.e2e.kills.tool_caller import SenderCaller, ToolCaller
from tests.machine import patience

CALLERS: dict[str, type[Caller]] = {
    one.name: one for one in (McpCaller, McpHeldCaller, AgUiCaller, OpenAiCaller, A2aCaller, ToolCaller, SenderCaller)
}
AT_START = 0.15
"""The share of the kills that come while the server starts or recovers."""
POINTS = ("committed", "committed", "effect", "event")
COMMITS, EVENTS = 25, 25
"""At which commit, and after which event, a process dies at most."""


@dataclass
class Outcome:
    """What a run of kills found."""

    kills: Counter[str] = field(default_factory=Counter)
    """Kills by their crash point."""
    callers: dict[str, dict[str, Any]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    repeated: int = 0
    """How often an idempotent tool ran again because its process had died before that was stored."""
    seconds: float = 0.0
    cpu: float = 0.0
    """Seconds of CPU time of the clients, the server and the process that it is forked from."""


class KillRun:
    """One server, its clients, and who kills it."""

    def __init__(self, folder: Path, kills: int, *, workers: int, seed: str, only: list[str] | None) -> None:
        self._folder, self._kills, self._seed = folder, kills, seed
        self._random = Random(f"{seed} kills")
        self._server = KilledServer(folder, workers)
        self._orders = KillOrders(folder)
        self._callers = [CALLERS[name](self._server.url, self._heard, seed) for name in only or CALLERS]
        self._events_left = 0
        self._outcome = Outcome()

    def _heard(self) -> None:
        """Count what a client received, and what the servers of others were asked."""
        self._events_left -= 1

    async def run(self) -> Outcome:
        """Kill the server this often for each client; return what was found."""
        began, used = time.monotonic(), cpu_time()
        port = self._server.courier_port
        async with open_bank(self._folder, self._heard), open_courier(self._folder, port, self._heard):
            try:
                await self._server.ready()
                await self._server.start()
                tasks = [asyncio.create_task(one.run(), name=one.name) for one in self._callers]
                killing = asyncio.create_task(self._kill_all(), name="kills")
                await self._all(killing, tasks)
            finally:
                await self._server.end()
        effects = Effects.read(self._folder)
        for caller in self._callers:
            caller.check(effects)
            self._outcome.callers[caller.name] = caller.report()
            self._outcome.violations += caller.violations
        self._outcome.repeated = effects.attempts.total() - effects.calls.total()
        self._outcome.seconds = time.monotonic() - began
        self._outcome.cpu = cpu_time() - used
        return self._outcome

    async def _all(self, killing: asyncio.Task[None], tasks: list[asyncio.Task[None]]) -> None:
        """Wait for the last kill, and then for the operations under way. If one task fails, end all."""
        everything = [killing, *tasks]
        try:
            await asyncio.wait(everything, return_when=asyncio.FIRST_EXCEPTION)
            for task in everything:
                if task.done():
                    task.result()
        except BaseException as error:
            silent = [one.name for one in self._callers if not one.has_heard]
            error.add_note(f"seed {self._seed!r}, {self._outcome.kills.total()} kills, silent: {silent}")
            error.add_note(self._server.log()[-3000:])
            raise
        finally:
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)

    async def _kill_all(self) -> None:
        while min(one.counts.kills for one in self._callers) < self._kills:
            point = await self._ordered()
            await self._died(point)
            self._outcome.kills[point] += 1
            for caller in self._callers:
                caller.counts.kills += caller.is_working
                caller.has_heard = False
        for caller in self._callers:
            caller.stopping = True

    async def _ordered(self) -> str:
        """Choose the next crash point; return its name."""
        point = self._random.choice(POINTS)
        if point == "effect" and all(isinstance(one, ToolCaller | SenderCaller) for one in self._callers):
            point = "event"  # what it does in the world, the server does that is not killed
        if self._random.random() < AT_START:
            self._orders.give("committed", self._random.randint(1, 6))
            return "start"
        async with asyncio.timeout(patience(60)):
            await happens(lambda: all(one.has_heard for one in self._callers))
        if point == "event":
            self._events_left = self._random.randint(1, EVENTS)
        else:
            self._orders.give(point, self._random.randint(1, COMMITS if point == "committed" else 4))
        return point

    async def _died(self, point: str) -> None:
        """Wait until the process, or one of the workers, has died; have it run again."""
        async with asyncio.timeout(patience(60)):
            if point == "event":
                await happens(lambda: self._events_left <= 0)
                await self._server.kill()
            elif self._server.workers:
                await happens(lambda: not self._orders.is_open)
            else:
                await happens(lambda: not self._server.is_alive)
        if not self._server.is_alive:
            await self._server.start()


async def run_kills(folder: Path, kills: int, *, workers: int = 0, seed: str, only: list[str] | None = None) -> Outcome:
    """Kill a server this often for each protocol, in an empty folder."""
    (folder / "data").mkdir()
    return await KillRun(folder, kills, workers=workers, seed=seed, only=only).run()


def cpu_time() -> float:
    """Return the seconds of CPU time of this process, and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="kills for each protocol")
    parser.add_argument("--workers", type=int, default=0, help="worker processes, of which one dies at a time")
    parser.add_argument("--seed", default=str(time.time_ns()), help="what the crash points are drawn from")
    parser.add_argument("--only", action="append", choices=list(CALLERS), help="this protocol only; repeatable")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sapwood-kills-"))
    print(f"seed {options.seed}", flush=True)
    outcome = asyncio.run(
        run_kills(folder, options.kills, workers=options.workers, seed=options.seed, only=options.only)
    )
    for name, counts in outcome.callers.items():
        print(json.dumps({"protocol": name, **counts}))
    facts = {"kills": dict(outcome.kills), "repeated": outcome.repeated}
    print(json.dumps({**facts, "seconds": round(outcome.seconds, 1), "cpu": round(outcome.cpu, 1)}))
    for violation in outcome.violations:
        print(violation)
    if outcome.violations:
        print(f"the folder is kept: {folder}")
        return 1
    shutil.rmtree(folder)
    print("no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
