"""Status: how a child is doing, and what a branch adds up to, without waking anybody."""

from __future__ import annotations

import asyncio

import pytest
from tests.conformance.worlds import Branch, Probe, Run

from sapwood import Agent, NotFound
from sapwood.agent import SubAgentStatus, Subtree

pytestmark = pytest.mark.core("workers")


class Child(Agent):
    deps: Probe
    migrations = Branch.migrations

    async def on_start(self) -> None:
        self.deps.log.append(f"start {self.name}")
        if self.name == "slow":
            await self.deps.go.wait()

    async def work(self) -> None:
        self.deps.log.append("work")
        await self.deps.go.wait()

    async def note(self) -> None:
        self.sql("INSERT INTO notes VALUES ('x')")

    async def fail(self) -> None:
        raise ValueError("oh dear")

    async def grow(self, name: str) -> None:
        await self.sub_agent(Child, name)


class Watcher(Agent):
    deps: Probe

    async def make(self, name: str) -> None:
        await self.sub_agent(Child, name)

    async def work(self, name: str) -> None:
        await (await self.sub_agent(Child, name)).work()

    async def status(self, name: str) -> SubAgentStatus:
        return self.sub_agent_status(Child, name)

    async def stop(self, name: str) -> None:
        self.abort_sub_agent(Child, name, "stop")

    async def whole(self) -> Subtree:
        return await self.subtree()


@pytest.mark.promise("A-254", "B-5")
async def test_a_child_is_idle_busy_starting_aborted_or_sleeping(run: Run, probe: Probe) -> None:
    async with run(Watcher, deps=probe) as world:
        watcher = await world.get_agent(Watcher, "w")
        await watcher.make("c")

        idle = await watcher.status("c")
        assert (idle.state, idle.calls) == ("idle", 0)
        assert idle.idle_seconds is not None
        assert idle.idle_seconds >= 0

        calls = [asyncio.create_task(watcher.work("c")) for _ in range(2)]
        await probe.seen("work")
        busy = await watcher.status("c")
        assert (busy.state, busy.calls, busy.idle_seconds) == ("busy", 2, None)

        starting = asyncio.create_task(watcher.make("slow"))
        await probe.seen("start slow")
        assert (await watcher.status("slow")).state == "starting"

        await watcher.stop("c")
        await asyncio.gather(*calls, return_exceptions=True)
        assert (await watcher.status("c")).state == "aborted"

        probe.go.set()
        await starting
        await watcher.make("c")
        world.sleep()
        assert (await watcher.status("c")).state == "sleeping"
        assert (await watcher.status("slow")).calls == 0


@pytest.mark.promise("B-5")
async def test_asking_for_a_status_wakes_nobody(run: Run, probe: Probe) -> None:
    async with run(Watcher, deps=probe) as world:
        watcher = await world.get_agent(Watcher, "w")
        await watcher.make("c")
        await world.restart()
        watcher = await world.get_agent(Watcher, "w")
        probe.log.clear()

        status = await watcher.status("c")
        whole = await watcher.whole()

        assert status.state == "sleeping"
        assert (whole.agents, whole.live) == (2, 1)
        assert probe.log == []


@pytest.mark.promise("A-254", "B-5")
async def test_a_status_tells_age_size_children_and_last_error(run: Run, probe: Probe) -> None:
    async with run(Watcher, deps=probe) as world:
        watcher = await world.get_agent(Watcher, "w")
        await watcher.make("c")
        made = world.clock.now()
        await world.clock.advance(100)
        empty = await watcher.status("c")
        assert (empty.created_at, empty.database_bytes, empty.children, empty.last_error) == (made, 0, 0, None)

        child = await world.get_agent(Watcher, "w", sub=[(Child, "c")])
        await child.note()
        await child.grow("grandchild")
        with pytest.raises(ValueError, match="oh dear"):
            await child.fail()

        full = await watcher.status("c")
        assert full.created_at == made
        assert full.database_bytes is not None
        assert full.database_bytes > 0
        assert full.children == 1
        assert "oh dear" in str(full.last_error)
        world.sleep()
        asleep = await watcher.status("c")
        assert (asleep.database_bytes, asleep.children) == (full.database_bytes, 1)


async def test_the_status_of_nobody_is_not_found(run: Run, probe: Probe) -> None:
    async with run(Watcher, deps=probe) as world:
        watcher = await world.get_agent(Watcher, "w")

        with pytest.raises(NotFound, match="has no Child named 'nobody'") as missing:
            await watcher.status("nobody")
        assert missing.value.path == (("Watcher", "w"), ("Child", "nobody"))


@pytest.mark.promise("B-5")
async def test_a_branch_adds_up(run: Run, probe: Probe) -> None:
    async with run(Watcher, deps=probe) as world:
        watcher = await world.get_agent(Watcher, "w")
        alone = await watcher.whole()
        assert (alone.agents, alone.live, alone.deepest, alone.database_bytes) == (1, 1, 0, 0)

        await watcher.make("a")
        await watcher.make("b")
        child = await world.get_agent(Watcher, "w", sub=[(Child, "a")])
        await child.grow("x")
        await child.grow("y")
        call = asyncio.create_task(watcher.work("b"))
        await probe.seen("work")

        whole = await watcher.whole()

        assert (whole.agents, whole.live, whole.deepest) == (5, 5, 2)
        assert whole.busy == 2  # the child that works, and the root that waits for it
        assert whole.database_bytes > alone.database_bytes
        probe.go.set()
        await call
