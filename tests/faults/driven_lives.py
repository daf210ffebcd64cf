"""Kills Temporal, the worker and the server while turns are driven, and checks that nothing is lost or done twice.

    python -m tests.faults.driven_lives --lives 30 --seed 7

All three run from the first life to the last. In each life two conversations take place; one or more of the
three are killed meanwhile, and started again. When everything runs again, all has to come to rest, and what is stored
has to be what is stored if nothing is killed.

`--first 12 --lives 1` with the same seed repeats a life that failed, as far as chance allows.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx2
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowHistory
from temporalio.service import RPCError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from tests.faults import driven_checker as checker
from tests.faults.driven_mutants import MUTANTS
from tests.faults.driven_parts import Place, Process, Server, Temporal, Worker, fork_silent, until_listening
from tests.faults.driven_workload import DEEP, ROOTS, TURN, WORLD, DrivenPlanner, DrivenWanderer
from tests.faults.journal import read
from tests.faults.lives import wait
from tests.faults.run_checker import Left

from sapwood import App, Settings
from sapwood.drivers.temporal.workflow import WorkWorkflow
from sapwood.storage import database

LONGEST = 60.0
"""Seconds after which what did not come to rest never will."""
SETTLING = 15.0
"""Seconds in which Temporal has to know that everything is over."""
KINDS = ("temporal", "worker", "server")
SUBSETS = [one for size in (1, 2, 3) for one in itertools.combinations(KINDS, size)]
TWICE = 0.25
"""How often one that is killed is killed a second time."""
OVERTAKEN = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
"""A workflow wanted to end when it was told something more: it is asked again, as it should be."""
CALM = ("top", DEEP)
MOST_LINES = 5
"""How much happens in the second conversation before it is cancelled, at most."""
UNSURE = 2
"""How many lines of a tool may be missing if the server is killed just before it is called."""
OPEN = ("queued", "running", "waiting")


@dataclass
class Kill:
    """One death."""

    part: str
    lines: int
    """After how many lines of what is done for the planner."""
    after: float
    """Seconds after that."""
    down: float
    """Seconds until it is started again."""
    at: float | None = None


@dataclass
class Life:
    """What is to happen in one life."""

    name: str
    says: str
    cancel: str = "client"
    """Who cancels the second conversation: a `client`, or an operator by a `signal`, a `cancel`, or `both`."""
    cancel_lines: int = MOST_LINES
    cancel_after: float = 0.0
    approve_after: float = 0.0
    kills: list[Kill] = field(default_factory=list[Kill])

    @property
    def killed(self) -> set[str]:
        return {kill.part for kill in self.kills}


def planned(seed: str, number: int, lines: int) -> Life:
    """Return what is to happen in a life in which the planner leaves so many lines in the journal, or more."""
    random = Random(f"{seed} {number}")
    life = Life(
        f"life-{number}",
        random.choice(("top", DEEP)),
        cancel=random.choice(("client", "client", "client", "signal", "cancel", "both")),
        cancel_lines=random.randint(0, MOST_LINES),
        cancel_after=random.random() * 0.2,
        approve_after=random.choice((0.0, random.random() * 0.5)),
    )
    together = random.random() < 0.2
    first = random.randrange(lines), random.random() * 0.1
    for part in SUBSETS[number % len(SUBSETS)]:
        for _ in range(1 + (random.random() < TWICE)):
            at, after = first if together else (random.randrange(lines), random.random() * 0.1)
            life.kills.append(Kill(part, at, after, random.choice((0.0, random.random() * 0.4))))
    return life


class Person:
    """Talks to the agents of one life, until all is over; then looks at what Temporal knows."""

    def __init__(self, place: Place, life: Life) -> None:
        self._place = place
        self._life = life
        self._http = httpx2.AsyncClient(base_url=place.url, timeout=10.0)

    async def live(self) -> dict[str, Any]:
        """Return how it went."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(LONGEST):
                ends = await asyncio.gather(self._plan(), self._wander())
        except TimeoutError:
            return {"problems": ["it does not come to an end"]}
        rested = time.monotonic()
        return {
            "ends": ends,
            "seconds": rested - began,
            **await self._driven(),
            "checking": time.monotonic() - rested,
        }

    async def _plan(self) -> str:
        path = f"/agents/driven-planner/{self._life.name}"
        said = await self._do(path, "begin", say=self._life.says)
        while said["status"] in OPEN:
            await asyncio.sleep(0.02)
            said = await self._do(path, "look")
            if said["waits"]:
                await asyncio.sleep(self._life.approve_after)
                said = await self._do(path, "approve")
        return said["status"]

    async def _wander(self) -> str:
        path = f"/agents/driven-wanderer/{self._life.name}"
        await self._do(path, "begin", say="go")
        await until(lambda: len(lines_of(self._place, self._life.name, DrivenWanderer)) >= self._life.cancel_lines)
        await asyncio.sleep(self._life.cancel_after)
        if self._life.cancel == "client":
            said = await self._do(path, "cancel")
        else:
            await self._cancel_in_temporal()
            said = await self._do(path, "look")
        while said["status"] in OPEN:
            await asyncio.sleep(0.02)
            said = await self._do(path, "look")
        return said["status"]

    async def _do(self, path: str, what: str, **more: Any) -> dict[str, Any]:
        """Ask an agent for something, until it has answered."""
        while True:
            try:
                answer = await self._http.post(path, json={"what": what, **more})
                if answer.is_success:
                    return answer.json()
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.05)

    async def _cancel_in_temporal(self) -> None:
        id = checker.workflow_id(checker.wanderer(self._life.name), TURN)
        while True:
            try:
                handle = (await self._client()).get_workflow_handle(id)
                if self._life.cancel != "cancel":
                    await handle.signal("interrupt", "enough")
                if self._life.cancel != "signal":
                    await handle.cancel()
            except (RPCError, RuntimeError):  # it is not there, or not yet
                await asyncio.sleep(0.05)
            else:
                return

    async def _client(self) -> Client:
        return await self._place.driver().connect(lazy=True)

    async def _driven(self) -> dict[str, Any]:
        """Return the workflows of this life, and what is wrong with them, when Temporal knows that all are over."""
        client, end = await self._client(), time.monotonic() + SETTLING
        name, problems, found = self._life.name, list[str](), list[WorkflowExecution]()
        while time.monotonic() < end:
            try:
                still = [one async for one in client.list_workflows('ExecutionStatus="Running"')]
                roots = (checker.planner(name), checker.wanderer(name))
                found = [one for root in roots async for one in client.list_workflows(f'SapwoodRoot="{root}"')]
                if not still and not any(one.close_time is None for one in found):
                    break
            except (RPCError, RuntimeError):
                still = []
            await asyncio.sleep(0.05)
        else:
            problems += [f"the workflow {one.id} is still open" for one in still]
        settled = time.monotonic()
        histories: list[WorkflowHistory] = []
        for one in found:
            history = await client.get_workflow_handle(one.id, run_id=one.run_id).fetch_history()
            histories.append(history)
            for event in history.events:
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                    failed = event.workflow_task_failed_event_attributes
                    if failed.cause != OVERTAKEN:
                        problems.append(f"a task of the workflow {one.id} failed: {failed.failure.message}")
        fetched = time.monotonic()
        replayer = Replayer(workflows=[WorkWorkflow], workflow_runner=UnsandboxedWorkflowRunner(), build_id="lives")
        async with replayer.workflow_replay_iterator(_each(histories)) as results:
            async for result in results:
                if result.replay_failure is not None:
                    problems.append(f"replayed, {result.history.workflow_id} is another: {result.replay_failure}")
        last = [one for one in found if one.status not in (None, WorkflowExecutionStatus.CONTINUED_AS_NEW)]
        return {
            "workflows": {one.id: one.status.name for one in last if one.status is not None},
            "settling": settled - end + SETTLING,
            "fetching": fetched - settled,
            "replaying": time.monotonic() - fetched,
            "runs": len(found),
            "again": len(last) - len({one.id for one in last}),
            "events": sum(len(one.events) for one in histories),
            "problems": problems,
        }


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - it is seen in files
        await asyncio.sleep(0.02)


def lines_of(place: Place, life: str, kind: type) -> list[list[Any]]:
    """Return what was done in one of the conversations of a life."""
    return [line for line in read(place.journals / f"{life}.jsonl") if line[2].startswith(f"{kind.__name__}:")]


def trees_of(place: Place, data: Path, life: str) -> list[dict[str, Left]]:
    """Return what is stored of the conversations of a life."""
    copy = place.home / "copy"
    return [checker.read(data, root, copy) for root in (checker.planner(life), checker.wanderer(life))]


async def calm(place: Place) -> None:
    """Have all of it happen without a driver, and without a kill: this is what every life has to come to."""
    WORLD.journals = place.journals
    settings = Settings(data=place.calm, slow_after=10.0)
    async with asyncio.timeout(LONGEST), App(agents=ROOTS, settings=settings) as app:
        for says in CALM:
            planner, wanderer = await app.get_agent(DrivenPlanner, says), await app.get_agent(DrivenWanderer, says)
            await planner.do("begin", says)
            await wanderer.do("begin", says)
            while (await planner.do("approve"))["status"] in OPEN:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await until(lambda says=says: len(lines_of(place, says, DrivenWanderer)) >= MOST_LINES)
            await wanderer.do("cancel")
            await until(lambda says=says: not any(map(checker.at_rest, trees_of(place, place.calm, says))))


async def _each(histories: list[WorkflowHistory]) -> AsyncIterator[WorkflowHistory]:
    for one in histories:
        yield one


class Runner:
    """Runs lives and counts."""

    def __init__(self, seed: str, home: Path, mutant: str | None) -> None:
        self._seed = seed
        self._place = Place(home)

        def break_it() -> None:
            if mutant is not None:
                MUTANTS[mutant]()

        self._temporal = Temporal(self._place)
        self._worker = Worker(self._place, break_it)
        self._server = Server(self._place, break_it)
        self._parts: dict[str, Process] = {one.name: one for one in (self._temporal, self._worker, self._server)}
        self._calm: dict[str, tuple[dict[str, Any], list[list[Any]]]] = {}
        self.kills: Counter[str] = Counter()
        self.violations: list[str] = []
        self.seconds: list[float] = []
        self.longest: list[tuple[float, str]] = []
        self.workflows = 0

    def run(self, first: int, lives: int, seconds: float, stop_after: int, sentence: str) -> int:
        """Run so many lives; stop early after so many violations with this sentence in them, or when time is up."""
        end = time.monotonic() + seconds
        try:
            self._temporal.start()
            asyncio.run(calm(self._place))
            self._remember()
            if self.violations:
                return 0
            until_listening(self._place.temporal)
            self._server.start()
            self._worker.start()
            done = 0
            while done < lives and time.monotonic() < end:
                if sum(sentence in violation for violation in self.violations) >= stop_after:
                    break
                began = time.monotonic()
                life = planned(self._seed, first + done, len(self._calm[CALM[0]][1]) - UNSURE)
                self._tell(life, self._live(life))
                self.kills[" + ".join(SUBSETS[(first + done) % len(SUBSETS)])] += 1
                self.seconds.append(time.monotonic() - began)
                self.longest.append((round(self.seconds[-1], 1), life.name))
                done += 1
            return done
        finally:
            for part in self._parts.values():
                part.end()

    @property
    def counts(self) -> dict[str, int]:
        """How often each was killed."""
        return {name: part.kills for name, part in self._parts.items()}

    def _journal(self, life: str) -> list[list[Any]]:
        return read(self._place.journals / f"{life}.jsonl")

    def _live(self, life: Life) -> list[str]:
        """Live through one life; return what is wrong with it."""
        answer = self._answer(life)

        def person() -> None:
            answer.write_text(json.dumps(asyncio.run(Person(self._place, life).live())))

        pid = fork_silent(person, self._place.home / f"{life.name}.log")
        self._kill(life)
        status = wait(pid, LONGEST + SETTLING + 30)
        problems = [one for part in self._parts.values() if (one := part.has_ended()) is not None]
        if self._place.complaints.exists():
            problems += [f"sapwood logged an error: {self._place.complaints.read_text()}"]
            self._place.complaints.unlink()
        if status != 0:
            return [*problems, f"the person died: {(self._place.home / f'{life.name}.log').read_text()}"]
        report = json.loads(answer.read_text())
        return [*problems, *report["problems"], *(self._check(life, report) if "ends" in report else [])]

    def _answer(self, life: Life) -> Path:
        return self._place.home / f"{life.name}.json"

    def _kill(self, life: Life) -> None:
        """Kill and start again, as planned."""
        todo, down = list(life.kills), list[tuple[float, Process]]()
        end = time.monotonic() + LONGEST
        while (todo or down) and time.monotonic() < end and not self._answer(life).exists():
            now, lines = time.monotonic(), len(lines_of(self._place, life.name, DrivenPlanner))
            for at, part in list(down):
                if at <= now:
                    down.remove((at, part))
                    part.start()
            for kill in list(todo):
                part = self._parts[kill.part]
                if kill.at is None and lines >= kill.lines and part.is_up:
                    kill.at = now + kill.after
                if kill.at is not None and kill.at <= now and part.is_up:
                    todo.remove(kill)
                    part.kill()
                    down.append((now + kill.down, part))
            time.sleep(0.002)
        for _, part in down:
            part.start()

    def _check(self, life: Life, report: dict[str, Any]) -> list[str]:
        self.workflows += report["runs"]
        found = [] if report["ends"] == ["completed", "cancelled"] else [f"the turns are {report['ends']}"]
        killed, lines = "server" in life.killed, self._journal(life.name)
        end = time.monotonic() + SETTLING
        while True:
            trees = trees_of(self._place, self._place.data, life.name)
            left = [problem for tree in trees for problem in checker.at_rest(tree)]
            if not left or time.monotonic() > end:
                break
            time.sleep(0.05)
        found += left
        found += checker.driven(trees[0] | trees[1], report["workflows"])
        found += checker.done_twice(lines)
        stored, done = self._calm[life.says]
        found += checker.as_in_calm(stored, checker.shown(trees[0], life.name), server_was_killed=killed)
        found += checker.in_order(done, self._planned(life.name), server_was_killed=killed)
        return found

    def _remember(self) -> None:
        """Learn what every life has to come to."""
        for says in CALM:
            planned, _ = trees_of(self._place, self._place.calm, says)
            self._calm[says] = checker.shown(planned, says), self._planned(says)
            self._tell(Life(says, says), checker.done_twice(self._journal(says)))

    def _planned(self, life: str) -> list[list[Any]]:
        """Return what was done for the planner, in a life of whatever name."""
        lines = lines_of(self._place, life, DrivenPlanner)
        return [[kind, who, place.replace(f":{life}", ":LIFE"), *line] for kind, who, place, *line in lines]

    def _tell(self, life: Life, problems: list[str]) -> None:
        for problem in problems:
            self.violations.append(f"{life.name}: {problem}")
            print(f"seed {self._seed} {life}: {problem}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", choices=["process"], default="process")
    parser.add_argument("--lives", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="the number of the first life")
    parser.add_argument("--seed", default=str(time.time_ns()))
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after this long")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="break sapwood in this way")
    parser.add_argument("--stop-after", type=int, default=1, help="stop after this many violations")
    parser.add_argument("--until", default="", help="count only violations with this in them")
    parser.add_argument("--forget", action="store_true", help="keep no folder, whatever was found")
    options = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())  # the processes that are killed have theirs
    database.empty_image()
    began = time.monotonic()
    memory = Path("/dev/shm")
    home = Path(tempfile.mkdtemp(prefix="sapwood-driven-", dir=memory if memory.is_dir() else None))
    runner = Runner(options.seed, home, options.mutant)
    lives = runner.run(options.first, options.lives, options.seconds, options.stop_after, options.until)
    if options.forget or not runner.violations:
        shutil.rmtree(home)
    result = {
        "level": options.level,
        "seed": options.seed,
        "mutant": options.mutant,
        "lives": lives,
        "replies": runner.workflows,
        "seconds": round(time.monotonic() - began, 1),
        "per life": round(sum(runner.seconds) / max(len(runner.seconds), 1), 2),
        "longest": sorted(runner.longest)[-5:],
        "kills": runner.counts,
        "points": dict(sorted(runner.kills.items())),
        "violations": runner.violations,
        "kept": [] if options.forget or not runner.violations else [str(home)],
    }
    print(json.dumps(result), flush=True)
    return 1 if runner.violations else 0


if __name__ == "__main__":
    sys.exit(main())
