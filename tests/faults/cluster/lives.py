"""Breaks a whole cluster, several parts at once, while clients of all nodes go on; heals it, and checks what is left.

    python -m tests.faults.cluster.lives --faults 40 --seed 7

A round has lists of its own. At the end of each round everything is healed, and its clients' history is checked; at
the end of all, the lists of all rounds are looked at once more.

Prints one line of JSON. What went wrong is told sentence by sentence on standard error, with the seed, and the
folder with the logs of all processes is kept. It needs root, for networks and disks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.cluster import mutants, network
from tests.faults.cluster.aimed import BLOWS, strike
from tests.faults.cluster.cell import SERVERS, Cell
from tests.faults.cluster.chains import CLUSTER, look_at_chains
from tests.faults.cluster.checker import check
from tests.faults.cluster.clients import Round, availability, counted
from tests.faults.cluster.faults import PAUSES, Blow, Faults
from tests.faults.cluster.said import unexpected
from tests.faults.cluster.stem import Stem

from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.copies.s3_archive import ObjectArchive
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.ops.verification import verify

SETTLE = 3.0
"""Seconds that clients go on after everything was healed."""
MOST = 200
"""Sentences that are kept of a run that went wrong."""


@dataclass
class Run:
    """One cluster, and all that is done to it."""

    options: argparse.Namespace
    cell: Cell
    random: Random
    rounds: list[Round] = field(default_factory=list[Round])
    violations: list[str] = field(default_factory=list[str])
    faults: Faults = field(init=False)
    chains: list[int] = field(default_factory=list[int])
    verified: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        only = [one for one in self.options.only.split(",") if one]
        pauses = [self.options.pause] if self.options.pause else PAUSES
        self.faults = Faults(self.cell, self.random, only, pauses, least=min(2, self.options.nodes - 1))

    async def live(self) -> None:
        keeping = asyncio.create_task(self.cell.keep_up())
        until = time.monotonic() + self.options.minutes * 60
        try:
            await self.cell.start(self.options.nodes)
            for how in filter(None, self.options.aimed.split(",")):
                await self._aimed(how)
            while not self.options.aimed:
                left = self.options.faults - len(self.faults.blows)
                await self._round(max(min(left, self.options.per_round), 1))
                if self.violations and not self.options.until:
                    break
                if self.options.until and re.search(self.options.until, "\n".join(self.violations)):
                    break
                if len(self.faults.blows) >= self.options.faults and time.monotonic() >= until:
                    break
            if len(self.rounds) > 1:
                for one in self.rounds:
                    await one.look()
                    self._found(check(one.history))
            if self.options.level == "replicated":
                self.verified = await self._verify()
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping

    def _begin(self) -> Round:
        def urls() -> dict[str, str]:
            return {name: node.url for name, node in self.cell.nodes.items() if node.is_wanted}

        self.rounds.append(Round(f"r{len(self.rounds)}", urls, self.random, hung=self.cell.hung))
        return self.rounds[-1]

    async def _aimed(self, how: str) -> None:
        one = self._begin()
        told = await strike(self.cell, one, how)
        self.faults.blows.append(Blow(how, 0.0, told=told))
        await self._look(one)

    async def _round(self, count: int) -> None:
        one = self._begin()
        clients = [asyncio.create_task(one.client()) for _ in range(self.options.clients)]
        try:
            await asyncio.sleep(1.0)
            await self.faults.go_on(count)
            self.cell.network.heal_all()
            await asyncio.gather(*(self.cell.is_well(server) for server in SERVERS))
            await asyncio.sleep(SETTLE)
        finally:
            one.is_over = True
            _, pending = await asyncio.wait(clients, timeout=60)
            for task in pending:
                self.violations.append("a client did not end")
                task.cancel()
        for task in clients:
            if task.done() and not task.cancelled():
                task.result()
        await self._look(one)

    async def _look(self, one: Round) -> None:
        """Check all that is left of a round, now that all is well."""
        await one.look()
        if len(one.history.kept) < len(one.places):
            self.cell.tell_tasks()
            await asyncio.sleep(2.0)
        self._found(check(one.history))
        if self.options.level == "replicated":
            problems, *self.chains = await look_at_chains(self.cell.urls("node"))
            self._found(problems)
        self._found(self.faults.problems)
        self.faults.problems.clear()
        self._found([problem for node in self.cell.nodes.values() for problem in unexpected(node)])
        self._found(self.cell.ended)
        self.cell.ended.clear()
        print(f"{one.mark}: {len(self.faults.blows)} faults, {counted(one.history.acts)}", file=sys.stderr, flush=True)

    async def _verify(self) -> dict[str, int]:
        """Check the log at all servers, and the second copy in the archive, as `sapwood cluster verify` does."""
        os.environ.update(self.cell.store_environ)
        connection = await connect(self.cell.urls("node"), "verify")
        try:
            archive = ObjectArchive(self.cell.archive)
            found = await verify(connection, Names(CLUSTER, Layout()), archive)
        finally:
            await connection.close()
        self._found([f"{one.root or one.tree} is not whole: {one.what}" for one in found.damaged])
        return {"trees": found.trees, "messages": found.messages, "parked": found.parked}

    def _found(self, problems: list[str]) -> None:
        for problem in problems:
            print(f"seed {self.options.seed}: {problem}", file=sys.stderr, flush=True)
        self.violations += problems[: max(MOST - len(self.violations), 0)]

    def result(self, seconds: float) -> dict[str, Any]:
        acts = [act for one in self.rounds for act in one.history.acts]
        said = "".join(path.read_text(errors="replace") for path in self.cell.home.glob("n[0-9]*.log"))
        return {
            "seed": self.options.seed,
            "mutant": self.options.mutant,
            "faults": len(self.faults.blows),
            "kinds": dict(sorted(self.faults.count.items())),
            "at once": dict(sorted(Counter(blow.beside for blow in self.faults.blows).items())),
            "seconds": round(seconds, 1),
            "rounds": len(self.rounds),
            "by kind": dict(sorted(Counter(act.kind for act in acts if act.is_answered).items())),
            **counted(acts),
            **availability(self.rounds),
            "problems of clients": dict(Counter(_kind(act.problem) for act in acts if act.problem).most_common(12)),
            "trees and messages in the log": self.chains,
            "verified with the archive": self.verified,
            "notes": self.cell.notes[:MOST],
            "tracebacks": len(re.findall(r"^Traceback", said, re.MULTILINE)),
            "violations": self.violations,
        }


def _kind(problem: str) -> str:
    """Return a problem without what is different each time."""
    return re.sub(r"r\d+-\w+|\d+(\.\d+)?|n\d\b", "…", problem)[:120]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=0.0, help="go on for so long at least")
    parser.add_argument("--per-round", type=int, default=50)
    parser.add_argument("--seed", default=str(time.time_ns()))
    parser.add_argument("--nodes", type=int, default=4, help="how many there are at first; one more can join")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--level", default="replicated")
    parser.add_argument("--pause", type=float, help="seconds that anything stands still or is cut off, always")
    parser.add_argument("--only", default="", help="faults to do, by name, with commas")
    parser.add_argument("--aimed", default="", help=f"strike one node where it shows instead: {', '.join(BLOWS)}")
    parser.add_argument("--mutant", choices=sorted(mutants.MUTANTS), help="break sapwood in this way")
    parser.add_argument("--until", default="", help="go on until something like this was found")
    parser.add_argument("--keep", action="store_true", help="keep the logs, whatever was found")
    parser.add_argument("--forget", action="store_true", help="keep no folder, whatever was found")
    options = parser.parse_args()
    if missing := network.missing():
        print(missing, file=sys.stderr)
        return 2
    began = time.monotonic()
    stem = Stem(options.mutant)
    home = Path(tempfile.mkdtemp(prefix="sapwood-cluster-"))
    cell = Cell(home, stem, options.level, options.nodes + 1)
    run = Run(options, cell, Random(options.seed))
    try:
        asyncio.run(run.live())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is to be reported
        run.violations.append("".join(traceback.format_exception(error)))
        print(run.violations[-1], file=sys.stderr)
    finally:
        cell.remove()
        stem.end()
    result = run.result(time.monotonic() - began)
    (home / "faults").write_text("".join(f"{blow}\n" for blow in run.faults.blows))
    (home / "acts").write_text("".join(f"{act}\n" for one in run.rounds for act in one.history.acts))
    if options.keep or (run.violations and not options.forget):
        result["kept"] = str(home)
        print(f"  the logs are kept: {home}", file=sys.stderr)
    else:
        shutil.rmtree(home)
    print(json.dumps(result), flush=True)
    return 1 if run.violations else 0


if __name__ == "__main__":
    sys.exit(main())
