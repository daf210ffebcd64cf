"""A steady load at a fixed rate on a real server, and what its memory, descriptors and threads do over time.

    python -m tests.blackbox.steady --minutes 40 --runs --folder FOLDER

It appends a line of JSON for every sample to FOLDER/samples.jsonl, prints a line per minute, and at the end the slope
after warm-up. It exits with 1 if the server grew by more than `--growth` percent from the first fifth of the samples
after warm-up to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.blackbox.app import Root
from tests.blackbox.server import Server

from sapwood.client import connect
from sapwood.errors import SapwoodError

CLIENTS = 8
ROOTS = 100
CALLS_PER_CONNECTION = 20
INTERVAL = 5.0
"""Seconds between two samples."""
LATEST = 1.0
"""Seconds that a client may be behind its schedule."""
SLEEP_AFTER = 5
"""Seconds until an idle agent sleeps: in a minute of load, agents wake and sleep often."""
RETAINED_RUNS = 5
"""Runs that each root keeps. A client that connects is told of all of them, so more cost more."""
WARM_UP = 0.25
"""The part of the time that is not judged."""
PARTS = 5
"""The samples after warm-up are compared by the medians of their first and their last part."""
KIB = 1024
WITHOUT_RUNS = {"append": 55, "add_member": 20, "ring": 10, "enqueue": 10, "put": 5}
WITH_RUNS = {**WITHOUT_RUNS, "append": 49, "run": 3, "fiber": 3}
"""The share of each operation, in percent."""


@dataclass(frozen=True)
class Sample:
    """What the process of the server holds at one moment."""

    seconds: float
    operations: int
    resident: int
    """KiB of memory, shared pages of files included."""
    anonymous: int
    """KiB of memory of its own: heap and stacks."""
    descriptors: int
    threads: int
    agents: int
    """Agents in memory."""
    databases: int
    """Open databases."""
    processor: float
    """Seconds of CPU time so far."""


@dataclass(frozen=True)
class Trend:
    """How a measure changed after warm-up."""

    first: float
    """The median of the first part of the samples."""
    last: float
    """The median of the last part."""
    per_hour: float
    """The slope of the line that fits all samples best."""

    @property
    def growth(self) -> float:
        """The change from the first part to the last, in percent."""
        return 100 * (self.last - self.first) / self.first if self.first else 0.0


def trend(samples: Sequence[Sample], measure: str) -> Trend:
    """Return how a measure changed, in the samples after warm-up."""
    start = WARM_UP * samples[-1].seconds
    judged = [sample for sample in samples if sample.seconds >= start]
    times = [sample.seconds for sample in judged]
    values = [float(getattr(sample, measure)) for sample in judged]
    part = max(1, len(values) // PARTS)
    slope = statistics.linear_regression(times, values).slope if len(set(times)) > 1 else 0.0
    return Trend(statistics.median(values[:part]), statistics.median(values[-part:]), slope * 3600)


class SteadyLoad:
    """Clients that together make a fixed number of calls per second."""

    def __init__(self, url: str, rate: float, shares: dict[str, int]) -> None:
        self.done = 0
        self.failed = Counter[str]()
        self._url = url
        self._pause = CLIENTS / rate
        self._names, self._weights = list(shares), list(shares.values())
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    async def run(self) -> None:
        async with asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        chance = random.Random(number)
        pace = self._pace(number)
        while not self._stopped:
            root = f"root-{chance.randrange(ROOTS)}"
            try:
                async with connect(self._url, Root, root) as agent:
                    for _ in range(CALLS_PER_CONNECTION):
                        await asyncio.sleep(next(pace))
                        if self._stopped:
                            return
                        await self._call(agent.stub, chance.choices(self._names, self._weights)[0])
                        self.done += 1
            except (SapwoodError, OSError) as error:
                self.failed[f"{type(error).__name__}: {error}"[:120]] += 1
                await asyncio.sleep(1.0)

    def _pace(self, number: int) -> Iterator[float]:
        """Yield how long to wait before each call, so that a slow one does not lower the rate.

        Calls that were missed for longer than `LATEST` are not made up for: a burst would need more memory than the
        steady load, and a process returns little of it.
        """
        due = time.monotonic() + self._pause * number / CLIENTS
        while True:
            now = time.monotonic()
            due = max(due, now - LATEST)
            yield max(0.0, due - now)
            due += self._pause

    async def _call(self, agent: Root, name: str) -> None:
        id = f"{self.done}-{random.getrandbits(32):08x}"
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "append": lambda: agent.append(id),
            "add_member": lambda: agent.add_member(id),
            "ring": lambda: agent.ring_later(id, 1.0, False),
            "enqueue": lambda: agent.enqueue_number("numbers", self.done),
            "put": lambda: agent.put(id),
            "run": lambda: agent.do_run(id),
            "fiber": lambda: agent.begin_fiber(id, 1),
        }
        await calls[name]()


def sample(server: Server, began: float, operations: int) -> Sample:
    """Read what the kernel and the server itself say of its process."""
    process = Path(f"/proc/{server.pid}")
    status = dict(re.findall(r"^(\w+):\s+(\d+)", (process / "status").read_text(), re.MULTILINE))
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    metrics = dict(re.findall(r"^(\w+) ([\d.]+)", server.get("/metrics")[1], re.MULTILINE))
    return Sample(
        seconds=round(time.monotonic() - began, 1),
        operations=operations,
        resident=int(status["VmRSS"]),
        anonymous=int(status["RssAnon"]),
        descriptors=len(list((process / "fd").iterdir())),
        threads=int(status["Threads"]),
        agents=int(float(metrics["sapwood_agents"])),
        databases=int(float(metrics["sapwood_open_databases"])),
        processor=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
    )


async def measure(server: Server, load: SteadyLoad, seconds: float, file: Path) -> list[Sample]:
    """Sample the server under load, and append each sample to a file."""
    samples, began = list[Sample](), time.monotonic()
    running = asyncio.create_task(load.run())
    while (now := time.monotonic() - began) < seconds and not running.done():
        await asyncio.sleep(min(INTERVAL, seconds - now))
        samples.append(await asyncio.to_thread(sample, server, began, load.done))
        with file.open("a") as lines:
            print(json.dumps(asdict(samples[-1])), file=lines)
        if len(samples) % round(60 / INTERVAL) == 0:
            print(json.dumps(asdict(samples[-1])), flush=True)
    load.stop()
    await running
    return samples


def report(samples: Sequence[Sample], failed: Counter[str], growth: float) -> bool:
    """Print the trends; return whether the server stayed as large as it was."""
    trends = {name: trend(samples, name) for name in ("resident", "anonymous", "descriptors", "threads", "agents")}
    for name, found in trends.items():
        print(json.dumps({"of": name, **asdict(found), "growth": round(found.growth, 2)}), flush=True)
    last = samples[-1]
    rate, share = last.operations / last.seconds, last.processor / last.seconds
    print(json.dumps({"operations": last.operations, "rate": rate, "cores": share, "failed": dict(failed)}))
    ok = all(trends[name].growth <= growth for name in ("anonymous", "descriptors", "threads"))
    return ok and not failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--rate", type=float, default=25.0, help="calls per second")
    parser.add_argument("--runs", action="store_true", help="some calls start runs and fibers")
    parser.add_argument("--growth", type=float, default=10.0, help="percent that the server may grow by after warm-up")
    parser.add_argument("--folder", type=Path, help="where to keep the data and the samples")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        variables = {"SAPWOOD_SLEEP_AFTER": str(SLEEP_AFTER), "BLACKBOX_RETAINED_RUNS": str(RETAINED_RUNS)}
        server = Server(folder, variables=variables)
        stack.callback(server.kill)
        server.start()
        load = SteadyLoad(server.url, options.rate, WITH_RUNS if options.runs else WITHOUT_RUNS)
        samples = asyncio.run(measure(server, load, 60 * options.minutes, folder / "samples.jsonl"))
        ok = report(samples, load.failed, options.growth)
        server.stop()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
