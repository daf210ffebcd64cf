"""Kills one worker after the other while clients of all of them go on, and checks what each left.

    python -m tests.faults.worker_lives --lives 200 --seed 7

A life is that of a worker which ends by SIGKILL: alone or with others, at work or while it starts, because it
is silent, or with its supervisor. In between some are only stopped for a while, the server stops in good
order, and it starts with another number of workers. A folder lives through several of all that.

Prints one line of JSON. What went wrong is told sentence by sentence on standard error,
with the seed, and the folder is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.faults import worker_mutants
from tests.faults.checker import look_at_files
from tests.faults.worker_clients import ROOTS, TALKS, Record, ask, at, clients, transcript
from tests.faults.worker_model import (
    Blow,
    is_quiet,
    list_is_right,
    noticed,
    runs_are_right,
    shoots_are_right,
    talk_is_right,
)
from tests.faults.worker_server import EXPECTED, PATIENCE, SILENCE, Server, Stem
from tests.ports import free_port

from sapwood.address import Address
from sapwood.kernel.node.data_folder import tree_folder

LIVES_PER_FOLDER = 25
PAUSES = (0.1, 0.8, 2.0)
"""Seconds between two blows, at most: some fall while others are not over, some find everybody at work."""
LATE = 2.0
"""Seconds that an alarm may be late on a machine that is busy."""
MOST_SLEEPERS = 30
LOOKED_AT = 6
"""How many of the roots that were destroyed are looked at."""


class Folder:
    """One data folder, its servers, its clients, and what is done to them."""

    def __init__(self, home: Path, seed: str, stem: Stem) -> None:
        self.random = Random(seed)
        self.record = Record()
        self.server = Server(home, free_port(), self.random.choice(("process", "process", "disk")), stem)
        self.blows: list[Blow] = []
        self.what: Counter[str] = Counter()
        self.killed = 0
        self.numbers: dict[int, int] = {}
        """Which worker each process was."""
        self.problems: list[str] = []
        """All items that were found at the end."""
        self.longest = 0.0
        """The longest that anybody waited who needed nobody that was hurt."""

    async def live(self, lives: int) -> None:
        acts: dict[Callable[[], Awaitable[None]], float] = {
            self.kill_one: 12,
            self.kill_two: 2,
            self.kill_the_next_too: 2,
            self.stop_a_while: 1.5,
            self.stop_for_ever: 0.5,
            self.kill_the_keeper: 0.7,
            self.kill_the_supervisor: 0.8,
            self.end_in_good_order: 1.5,
        }
        await self.server.start(self._count())
        tasks = [asyncio.create_task(one.run()) for one in clients(self.server, self.record, self.random)]
        noting = asyncio.create_task(self._note_numbers())
        try:
            await asyncio.sleep(0.3)
            while self.killed < lives:
                (act,) = self.random.choices([*acts], [*acts.values()])
                self.what[act.__name__] += 1
                await act()
                await asyncio.sleep(self.random.choice(PAUSES) * self.random.random())
                for task in tasks:
                    if task.done():
                        task.result()
            self.record.done = True
            await asyncio.wait_for(asyncio.gather(*tasks), 2 * PATIENCE)
            end = time.monotonic()
            self._correct_numbers()
            await self._look()
            found, self.longest = noticed(self.record, self.blows, self.numbers, end)
            self.problems += found
        finally:
            noting.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self.server.kill_all()

    async def _note_numbers(self) -> None:
        while True:
            for number, process in self.server.workers().items():
                self.numbers[process] = number
            await asyncio.sleep(0.01)

    def _correct_numbers(self) -> None:
        """Some were killed before they had their share: the supervisor knows which they were."""
        for number, process in re.findall(r"worker (\d+) \(process (\d+)\)", self.server.log):
            self.numbers[int(process)] = int(number)
        for blow in self.blows:
            if blow.process is not None:
                blow.worker = self.numbers.get(blow.process, blow.worker)

    def _count(self) -> int:
        return self.random.choice([count for count in (2, 3, 4) if count != self.server.count])

    def _blow(self, what: str, worker: int | None = None, process: int | None = None) -> Blow:
        self.blows.append(Blow(what, worker, process, time.monotonic()))
        return self.blows[-1]

    def _kill(self, what: str, worker: int, process: int) -> None:
        self.numbers[process] = worker
        self._blow(what, worker, process)
        try:
            os.kill(process, signal.SIGKILL)
            self.killed += 1
        except ProcessLookupError:
            pass  # it was killed a moment ago, and nobody has come after it yet

    def _some(self, count: int) -> list[tuple[int, int]]:
        workers = [*self.server.workers().items()]
        return self.random.sample(workers, min(count, len(workers)))

    async def kill_one(self) -> None:
        for worker, process in self._some(1):
            self._kill("killed", worker, process)

    async def kill_two(self) -> None:
        for worker, process in self._some(2):
            self._kill("killed with another", worker, process)

    async def kill_the_next_too(self) -> None:
        """Kill a worker, and its successor while it starts."""
        for worker, process in self._some(1):
            self._kill("killed", worker, process)
            await asyncio.sleep(self.random.random() * 0.3)
            newest = self.server.newest()
            if newest is not None and newest != process:
                self._kill("killed at its start", self.numbers.get(newest, worker), newest)

    async def stop_a_while(self) -> None:
        for worker, process in self._some(1):
            blow = self._blow("stopped", worker, process)
            try:
                os.kill(process, signal.SIGSTOP)
                await asyncio.sleep(0.2 + self.random.random() * 1.2)
                os.kill(process, signal.SIGCONT)
            except ProcessLookupError:
                pass
            blow.end = time.monotonic()

    async def stop_for_ever(self) -> None:
        """Have a worker fall silent; it is killed for it."""
        for worker, process in self._some(1):
            try:
                os.kill(process, signal.SIGSTOP)
            except ProcessLookupError:
                continue
            self._blow("silent", worker, process)
            until = time.monotonic() + SILENCE + PATIENCE
            while self.server.workers().get(worker) == process:
                if time.monotonic() > until:
                    self.problems.append(f"worker {worker} was silent, and nobody killed it")
                    os.kill(process, signal.SIGKILL)
                    break
                await asyncio.sleep(0.02)
            self.killed += 1

    async def kill_the_keeper(self) -> None:
        """Kill the process that workers are forked from: nobody notices."""
        keeper = self.server.keeper()
        if keeper is not None:
            os.kill(keeper, signal.SIGKILL)

    async def kill_the_supervisor(self) -> None:
        processes = self.server.workers()
        self._blow("without a supervisor")
        self.server.signal(signal.SIGKILL)
        await self.server.ended()
        if self.random.random() < 0.5:  # or they end by themselves
            for process in processes.values():
                try:
                    os.kill(process, signal.SIGKILL)
                    self.killed += 1
                except ProcessLookupError:
                    pass
        await self._start_anew()

    async def end_in_good_order(self) -> None:
        self._blow("ended")
        self.server.signal(signal.SIGTERM)
        code = await self.server.ended()
        if code != 0:
            self.problems.append(f"the server was told to end, and ended with {code}")
        await self._start_anew()

    async def _start_anew(self) -> None:
        """Start the server with another number of workers: what was done to those before is over."""
        await self.server.start(self._count())
        for blow in self.blows:
            blow.end = min(blow.end, time.monotonic())

    async def _look(self) -> None:
        """Wait until all is over, and look at everything."""
        server, record = self.server, self.record
        if self.random.random() < 0.5:
            server.signal(signal.SIGTERM)
            await server.ended()
            await server.start(self.random.choice((0, 1, 5)))
        paths = [at(root, depth) for depth in (0, 1, 2) for root in (ROOTS if depth == 0 else ROOTS[:3])]
        for path in paths:
            kept = await self._when_quiet(path)
            self.problems += list_is_right(record, path, kept)
            self.problems += self._answered(path, [item for item, _ in kept["items"]])
            self.problems += shoots_are_right(record, path, kept["below"])
            for name in [name for name in record.planted[path] if name in kept["below"]][:LOOKED_AT]:
                items = [item for item, _ in (await ask(server, f"{path}/sub/shoot/{name}", "kept"))["items"]]
                lost = {*record.planted[path][name]} - {*items}
                self.problems += [f"{item} was acknowledged, and is gone" for item in lost]
        await self._look_at_sleepers()
        for name, told in [*record.felled.items()][-LOOKED_AT:]:
            kept = await ask(server, at(name), "kept")
            if told and kept["items"]:
                self.problems.append(f"{name} was destroyed, and has {kept['items']}")
            elif kept["items"]:
                self.problems += list_is_right(record, at(name), await self._when_quiet(at(name)))
        self.problems += runs_are_right(record)
        for talk in TALKS:
            self.problems += talk_is_right(record, talk, await self._when_all_is_said(talk))
        self.problems += record.problems
        await self._look_at_the_end()

    async def _look_at_sleepers(self) -> None:
        """Nobody has asked them for anything since: whatever rang there was not rung by us."""
        if self.record.asleep:
            await asyncio.sleep(max(self.record.asleep.values()) + LATE - time.time())
        for name in [*self.record.asleep][-MOST_SLEEPERS:]:
            now = time.time()
            kept = await ask(self.server, at(name), "kept")
            self.problems += list_is_right(self.record, at(name), kept)
            self.problems += [
                f"the alarm of {item} rang when somebody came" for item, _, when in kept["rung"] if when > now
            ]

    async def _when_quiet(self, path: str) -> Any:
        until = time.monotonic() + PATIENCE
        while True:
            kept = await ask(self.server, path, "kept")
            if is_quiet(self.record, path, kept) or time.monotonic() > until:
                return kept
            await asyncio.sleep(0.1)

    async def _when_all_is_said(self, talk: str) -> list[tuple[str, str]]:
        until = time.monotonic() + PATIENCE
        while True:
            said = await transcript(self.server, talk)
            if not talk_is_right(self.record, talk, said) or time.monotonic() > until:
                return said
            await asyncio.sleep(0.1)

    def _answered(self, path: str, items: list[str]) -> list[str]:
        """Requests that had begun were answered if nothing worse happened than that the server ended in good order."""
        there = {*items}
        return [
            f"{act.item} had begun when the server was told to end, and was not answered: {act.problem}"
            for act in self.record.acts
            if act.what == "post" and act.problem is not None and act.item in there
            if {blow.what for blow in self.blows if blow.begin <= act.end and self._over(blow) >= act.begin}
            == {"ended"}
        ]

    def _over(self, blow: Blow) -> float:
        return blow.over(self.record.first_seen, self.numbers)

    async def _look_at_the_end(self) -> None:
        self.server.signal(signal.SIGTERM)
        code = await self.server.ended()
        if code not in (0, -signal.SIGTERM):
            self.problems.append(f"the server ended with {code}")
        for kind, names in (("Depot", ROOTS), ("Rumour", TALKS)):
            for name in names:
                address = Address.root_of(kind, name)
                look_at_files(address, tree_folder(self.server.data, address), self.problems)
        for line in self.server.log.splitlines():
            if (" ERROR " in line and not EXPECTED.search(line)) or "Traceback" in line or "never retrieved" in line:
                self.problems.append(f"the log says: {line}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="", help="not used here: some folders are of one, some of another")
    parser.add_argument("--lives", type=int, default=200)
    parser.add_argument("--seed", default=str(time.time_ns()))
    parser.add_argument("--mutant", choices=sorted(worker_mutants.MUTANTS), help="break sapwood in this way")
    parser.add_argument("--until", default="", help="stop when something with this in it was found")
    parser.add_argument("--forget", action="store_true", help="keep no folder, whatever was found")
    options = parser.parse_args()
    memory = Path("/dev/shm")
    where = Path(tempfile.mkdtemp(prefix="sapwood-workers-", dir=memory if memory.is_dir() else None))
    began = time.monotonic()
    stem = Stem(options.mutant)
    violations: list[str] = []
    kept: list[str] = []
    lives = replies = 0
    what: Counter[str] = Counter()
    longest = 0.0
    while lives < options.lives and not any(options.until in one for one in violations):
        home = Path(tempfile.mkdtemp(dir=where))
        folder = Folder(home, f"{options.seed} {lives}", stem)
        try:
            asyncio.run(folder.live(min(LIVES_PER_FOLDER, options.lives - lives)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is to be reported
            folder.problems += [*folder.record.problems, "".join(traceback.format_exception(error))]
        lives += folder.killed
        replies += sum(act.problem is None for act in folder.record.acts)
        what += folder.what
        longest = max(longest, folder.longest)
        if folder.problems:
            violations += folder.problems
            kept.append(str(home))
            for problem in folder.problems:
                print(f"seed {options.seed} after {lives} lives: {problem}", file=sys.stderr)
            print(f"  the folder is kept: {home}", file=sys.stderr, flush=True)
        else:
            shutil.rmtree(home)
        if violations and not options.until:
            break
    stem.end()
    if options.forget or not kept:
        shutil.rmtree(where)
    result = {
        "seed": options.seed,
        "mutant": options.mutant,
        "lives": lives,
        "replies": replies,
        "seconds": round(time.monotonic() - began, 1),
        "points": dict(sorted(what.items())),
        "longest": round(longest, 3),
        "violations": violations,
        "kept": [] if options.forget else kept,
    }
    print(json.dumps(result), flush=True)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
