"""What the tests of teams share: a leader that does what a test has planned, its diggers, and plans to be killed in."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tests.conformance.errands import Bench, again, boss, over, working
from tests.machine import patience

from sapwood import Agent, Branch, Retry, Run, Unavailable


class Overworked(Unavailable):
    """Not now."""

    code = "overworked"


class TeamDigger(Agent):
    """Does what its input says, in a step, and notes how many work beside it."""

    deps: Site

    async def on_run(self, input: str) -> str:
        bench = self.deps
        bench.log.append(f"begun {input}")
        bench.now += 1
        bench.most = max(bench.most, bench.now)
        try:
            return await self.step("dig", self._dig, input)
        except asyncio.CancelledError:
            bench.log.append(f"cut {input}")
            raise
        finally:
            bench.now -= 1

    async def ends(self) -> list[str]:
        """Return how the runs stand that it does."""
        return [status for (status,) in self._actor.database.execute("SELECT status FROM sapwood_served_runs")]

    async def _dig(self, input: str) -> str:
        kind = input.partition(" ")[0]
        if kind in self.deps.gates:
            await self.deps.gates[kind].wait()
        if "fail" in input:
            raise ValueError("it went wrong")
        if kind == "busy":
            self.deps.busy -= 1
            if self.deps.busy >= 0:
                raise Overworked
        self.deps.log.append(f"dug {input}")
        if kind == "b":
            self.deps.gates["late"].set()
        return f"{input}!"


Plan = Callable[[Any], Awaitable[Any]]


@dataclass
class Site(Bench):
    """What the team does, and what became of it. It outlives every crash."""

    plan: Plan | None = None
    now: int = 0
    most: int = 0
    """How many worked at once."""
    busy: int = 0
    """How often somebody has no time."""

    def __post_init__(self) -> None:
        self.gates = {"wait": self.go, "late": asyncio.Event()}

    def logged(self, start: str) -> list[str]:
        return [entry for entry in self.log if entry.startswith(start)]


class Leading(boss(TeamDigger)):
    """One that does what the test has planned, as a call or as a fiber."""

    deps: Site

    async def do(self) -> list[Run]:
        assert self.deps.plan is not None
        return await self.deps.plan(self)

    async def begin(self) -> None:
        self.start_fiber("work", self.work)

    async def work(self) -> None:
        assert self.deps.plan is not None
        await self.deps.plan(self)
        self.deps.log.append("over")

    async def all_fibers(self) -> list[tuple[str, str]]:
        return [(fiber.key, fiber.status) for fiber in self.fibers.list() if fiber.key is not None]

    async def forget_work(self) -> int:
        return self.fibers.delete("work")

    async def cancel_work(self) -> bool:
        return self.fibers.cancel("work")


def branches(*inputs: str, ids: Any = None, **more: Any) -> list[Branch]:
    named = ids or [None] * len(inputs)
    return [Branch(TeamDigger, one, run_id=id, **more) for one, id in zip(inputs, named, strict=True)]


def team(plan: Plan, **settings: Any) -> Any:
    """Have a team that does this; as `working`."""
    cls = type("Boss", (Leading,), settings.pop("attributes", {}))
    return cls, working(cls, bench=Site(plan=plan), **settings)


def ends(runs: list[Run]) -> list[tuple[str, str | None]]:
    return [(run.status, run.reason) for run in runs]


async def settled(agent: Any) -> None:
    """Gather all, bounded, with one that fails and one that is tried again."""
    now = Retry(max_attempts=3, initial_delay=timedelta(0))
    runs = await agent.runs.gather(*branches("a", "busy", "fail", retry=now), concurrency=2)
    agent.deps.log.append(f"came to {json.dumps([run.output for run in runs])}")


async def raced(agent: Any) -> None:
    winner = await agent.runs.race(*branches("late a", "wait", "b"))  # the first one ends well too, just too late
    agent.deps.log.append(f"came to {winner.id}")


async def reached(agent: Any) -> None:
    runs = await agent.runs.gather(*branches("late a", "b", "wait", "c"), quorum=1, concurrency=3)
    agent.deps.log.append(f"came to {[(run.id, run.status, run.reason) for run in runs]}")


async def failed(agent: Any) -> None:
    runs = await agent.runs.gather(*branches("wait", "fail", "a"), fail_fast=True, concurrency=2)
    agent.deps.log.append(f"came to {[(run.id, run.status) for run in runs if not run.ok]}")


POLICIES = (settled, raced, reached, failed)


async def killed(policy: Plan, level: str, points: Iterable[int]) -> None:
    """Have the process die at one commit after the other, and check that each time it comes to the same."""

    async def plan(agent: Any) -> None:
        await policy(agent)
        await agent.step("told", agent.wake)  # something is kept after it was decided

    for nth in points:
        cls, doing = team(plan, durability=level)
        async with doing as (one, agent, bench):
            bench.busy = 1
            await agent.wake()
            one.world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await agent.begin()
                await _dead_or_over(one, bench)
            was_killed = one.world.points.ended
            done = {entry for entry in bench.log if entry.startswith("dug")}
            await one.world.crash()
            agent = await again(one, cls)
            kept = {run.input for run in await agent.all_runs() if run.status == "completed"}
            if "sapwood_fibers" not in await agent.tables():
                await agent.begin()
            await bench.seen("over")

            assert len(set(bench.logged("came to"))) == 1, (nth, bench.logged("came to"))
            runs = [await over(agent, run.id) for run in await agent.all_runs()]
            assert len({run.id for run in runs}) == len(runs)
            assert all(bench.log.count(entry) <= 2 for entry in bench.logged("dug"))
            assert all(bench.log.count(f"dug {one}") == 1 for one in kept if f"dug {one}" in done)
            assert [run.input for run in runs if run.ok and run.input == "wait"] == []
            assert "caller-cancelled" not in {run.reason for run in runs}, nth
        if not was_killed:
            assert nth > 10
            return
    raise AssertionError("it never got to the end")


async def _dead_or_over(one: Any, bench: Bench) -> None:
    async with asyncio.timeout(patience()):
        while "over" not in bench.log and not one.world.points.ended:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.001)
        for _ in range(50):
            await asyncio.sleep(0)
