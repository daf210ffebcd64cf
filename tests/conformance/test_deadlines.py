"""Deadlines: given once, they travel down with every call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.conformance.worlds import Probe, Run
from tests.machine import patience

from sapwood import Agent, ChildFailed, TimedOut, deadline

pytestmark = pytest.mark.core("workers", "cluster")


@pytest.fixture
def level() -> str:
    """Return one level of durability; nothing here depends on it."""
    return "process"


SOON = patience(0.1)
"""Seconds: long enough for this machine to begin the work, short enough to wait for."""


async def ends_late(probe: Probe, entry: str, act: Callable[[], Awaitable[object]]) -> TimedOut:
    """Let a call time out that had begun, and return the error; never before its deadline has passed.

    A machine may be too slow to begin it in time: then it is called again with twice the time.
    """
    loop, seconds = asyncio.get_running_loop(), SOON
    while True:
        began = loop.time()
        with pytest.raises(TimedOut) as late, deadline(seconds):
            await act()
        assert loop.time() - began > 0.9 * seconds
        if entry in probe.log:
            return late.value
        seconds *= 2
        assert seconds < patience()


class Patient(Agent):
    deps: Probe

    async def on_start(self) -> None:
        if self.name == "sleepy":
            self.deps.log.append("start sleepy")
            await self.deps.go.wait()
        if self.name == "broken":
            raise TimeoutError("a timeout of its own")

    async def wait(self) -> None:
        self.deps.log.append(f"{self.name} begins")
        try:
            await self.deps.go.wait()
        except asyncio.CancelledError:
            self.deps.log.append(f"{self.name} cancelled")
            raise

    async def wait_below(self, *names: str) -> None:
        first, *rest = names
        child = await self.sub_agent(Patient, first)
        await (child.wait_below(*rest) if rest else child.wait())

    async def make(self, *names: str) -> None:
        first, *rest = names
        child = await self.sub_agent(Patient, first)
        if rest:
            await child.make(*rest)

    async def has(self, name: str) -> bool:
        return self.children.has(Patient, name)

    async def quick(self) -> str:
        self.deps.log.append("quick")
        return "quick"

    async def hurry_below(self, seconds: float) -> str:
        child = await self.sub_agent(Patient, "child")
        try:
            with deadline(seconds):
                await child.wait()
        except TimedOut as error:
            return f"timed out at {error.path[-1][1]}"
        return "in time"

    async def wake_below(self, name: str) -> None:
        with deadline(SOON):
            await (await self.get_agent(Patient, name)).quick()

    async def long_deadline(self) -> None:
        with deadline(1000):
            await (await self.sub_agent(Patient, "child")).wait()


async def test_a_call_that_takes_too_long_is_cancelled_and_times_out(run: Run, probe: Probe) -> None:
    async with run(Patient, deps=probe) as world:
        root = await world.get_agent(Patient, "r")

        late = await ends_late(probe, "r begins", root.wait)

        assert "Patient:r.wait did not answer before its deadline" in str(late)
        assert late.retryable
        assert late.code == "timed_out"
        assert late.path == (("Patient", "r"),)
        assert isinstance(late, ChildFailed)
        await probe.seen("r cancelled")


async def test_a_deadline_travels_down_to_every_level(run: Run, probe: Probe) -> None:
    async with run(Patient, deps=probe) as world:
        root = await world.get_agent(Patient, "r")
        await root.make("a", "b", "c")

        await ends_late(probe, "c begins", lambda: root.wait_below("a", "b", "c"))

        await probe.seen("c cancelled")


async def test_a_longer_deadline_below_does_not_extend_the_one_above(run: Run, probe: Probe) -> None:
    async with run(Patient, deps=probe) as world:
        root = await world.get_agent(Patient, "r")
        await root.make("child")

        await ends_late(probe, "child begins", root.long_deadline)
        with pytest.raises(TimedOut), deadline(SOON), deadline(1000):
            await root.wait()

        await probe.seen("child cancelled")


async def test_a_tighter_deadline_ends_the_part_below_it_only(run: Run, probe: Probe) -> None:
    async with run(Patient, deps=probe) as world:
        root = await world.get_agent(Patient, "r")

        with deadline(1000):
            assert await root.hurry_below(SOON) == "timed out at child"


async def test_a_deadline_that_has_passed_lets_no_work_begin(run: Run, probe: Probe) -> None:
    async with run(Patient, deps=probe) as world:
        root = await world.get_agent(Patient, "r")

        for seconds in (0, -1):
            with pytest.raises(TimedOut, match="before"), deadline(seconds):
                await root.quick()

        assert probe.log == []


async def test_waking_counts_too(run: Run, probe: Probe) -> None:
    async with run(Patient, deps=probe) as world:
        root = await world.get_agent(Patient, "r")

        with pytest.raises(TimedOut, match="sleepy"):
            await root.wake_below("sleepy")
        with pytest.raises(TimedOut, match="sleepy"), deadline(SOON):
            await world.get_agent(Patient, "sleepy")
        with pytest.raises(TimedOut), deadline(SOON):
            await root.make("sleepy")
        assert await root.has("sleepy")

        probe.go.set()
        assert await (await world.get_agent(Patient, "sleepy")).quick() == "quick"
        assert probe.log.count("start sleepy") == 2


async def test_a_timeout_of_the_agent_s_own_is_not_mistaken_for_a_deadline(run: Run, probe: Probe) -> None:
    async with run(Patient, deps=probe) as world:
        with pytest.raises(TimeoutError, match="a timeout of its own") as own:
            await world.get_agent(Patient, "broken")

        assert not isinstance(own.value, TimedOut)


async def test_a_call_in_time_is_not_touched_by_its_deadline(run: Run, probe: Probe) -> None:
    async with run(Patient, deps=probe) as world:
        root = await world.get_agent(Patient, "r")

        with deadline(SOON):
            assert await root.quick() == "quick"
        call = asyncio.create_task(root.wait())
        await probe.seen("r begins")
        probe.go.set()
        await call


async def test_a_deadline_around_the_app_s_start_is_not_that_of_its_agents(run: Run, probe: Probe) -> None:
    async with run(Patient, deps=probe) as world:
        with deadline(0):
            await world.restart()

        assert await (await world.get_agent(Patient, "r")).quick() == "quick"
