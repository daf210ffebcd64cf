"""Status: how a child is doing, and what a branch adds up to, without waking anybody."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.conformance.served import served
from tests.conformance.worlds import Branch, Probe, Run, until

from sapwood import After, Agent, App, NotFound
from sapwood.kernel.trees.tree import Tree
from sapwood.types import SubAgentStatus, Subtree

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
        return self.children.status(Child, name)

    async def stop(self, name: str) -> None:
        self.children.abort(Child, name, "stop")

    async def whole(self) -> Subtree:
        return await self.children.subtree()


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


class Worker(Agent):
    """Can have work of every kind, and sub-agents like itself."""

    deps: Probe

    async def on_start(self) -> None:
        self.deps.log.append(f"start {self.name}")

    async def grow(self, *names: str) -> None:
        first, *below = names
        child = await self.sub_agent(Worker, first)
        if below:
            await child.grow(*below)

    async def wait(self) -> None:
        await self.deps.go.wait()

    async def remind(self, hours: float) -> None:
        self.schedule(After(timedelta(hours=hours)), self.wait)

    async def fill(self) -> None:
        for _ in range(3):
            self.enqueue(self.wait)
        await self.remind(2)
        await self.remind(1)
        self.start_fiber("long", self.wait)
        await self.start_run(Waiter)

    async def compute(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS t (a)")
        self.deps.log.append("computes")
        await self.read_sql(ENDLESS)

    async def stop(self, name: str) -> None:
        self.children.abort(Worker, name)

    async def status(self, name: str) -> SubAgentStatus:
        return self.children.status(Worker, name)

    async def whole(self) -> Subtree:
        return await self.children.subtree()


class Waiter(Agent):
    deps: Probe

    async def on_run(self, _: Any) -> None:
        await self.deps.go.wait()


DEPTHS = pytest.mark.parametrize(
    "above",
    [pytest.param((), id="depth 1", marks=pytest.mark.core()), pytest.param(("a", "b"), id="depth 3")],
)
ENDLESS = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


@DEPTHS
@pytest.mark.promise("A-254", "B-5")
async def test_a_status_counts_queued_calls_runs_fibers_and_the_next_schedule(
    run: Run, probe: Probe, above: tuple[str, ...]
) -> None:
    async with run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "w")
        await root.grow(*above, "c")
        parent = await world.get_agent(Worker, "w", sub=[(Worker, name) for name in above])
        child = await world.get_agent(Worker, "w", sub=[(Worker, name) for name in (*above, "c")])
        empty = await parent.status("c")
        assert (empty.queued_calls, empty.runs, empty.fibers, empty.next_schedule_at) == (0, 0, 0, None)

        begun = world.clock.now()
        await child.fill()

        full = await parent.status("c")
        assert (full.queued_calls, full.runs, full.sockets) == (3, 1, 0)
        assert full.fibers >= 1
        assert full.next_schedule_at == pytest.approx(begun + 3600)
        if above:
            others = await root.status(above[0])
            assert (others.queued_calls, others.runs, others.fibers) == (0, 0, 0), "a status is of one agent"
        probe.go.set()
        await world.settled()
        done = await parent.status("c")
        assert (done.queued_calls, done.runs, done.fibers, done.calls) == (0, 0, 0, 0)


@pytest.mark.promise("B-5")
async def test_a_subtree_adds_up_the_work_below(run: Run, probe: Probe) -> None:
    async with run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "w")
        await root.grow("a", "b", "c")
        deep = await world.get_agent(Worker, "w", sub=[(Worker, name) for name in "abc"])
        middle = await world.get_agent(Worker, "w", sub=[(Worker, "a")])
        begun = world.clock.now()
        await deep.fill()
        one = await root.whole()
        await middle.fill()
        await middle.remind(0.5)

        two = await root.whole()

        assert (one.queued_calls, one.runs, one.sockets) == (3, 1, 0)
        assert one.fibers >= 1
        assert one.next_schedule_at == pytest.approx(begun + 3600)
        assert (two.queued_calls, two.runs, two.fibers) == (6, 2, 2 * one.fibers)
        assert two.calls > one.calls > 1
        assert two.next_schedule_at == pytest.approx(begun + 1800)
        probe.go.set()
        await world.settled()


@DEPTHS
@pytest.mark.promise("A-254", "B-5")
async def test_the_work_of_a_sleeping_child_is_read_without_waking_it_or_reading_others(
    run: Run, probe: Probe, above: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run(Worker, deps=probe) as world:
        root = await world.get_agent(Worker, "w")
        for name in ("c", "d", "e", "f"):
            await root.grow(*above, name)
        child = await world.get_agent(Worker, "w", sub=[(Worker, name) for name in (*above, "c")])
        begun = world.clock.now()
        await child.remind(1)
        await world.restart()
        parent = await world.get_agent(Worker, "w", sub=[(Worker, name) for name in above])
        await parent.whole()  # it is awake
        probe.log.clear()
        read: list[str] = []
        database = Tree.database

        def noted(tree: Tree, stem: str, *more: Any) -> Any:
            read.append(stem)
            return database(tree, stem, *more)

        monkeypatch.setattr(Tree, "database", noted)
        status = await parent.status("c")

        assert (status.state, status.queued_calls, status.runs, status.fibers) == ("sleeping", 0, 0, 0)
        assert status.next_schedule_at == pytest.approx(begun + 3600)
        assert len(set(read)) == 1
        assert probe.log == []


@pytest.mark.core
async def test_stored_work_is_read_during_read_sql_of_a_child(run: Run, probe: Probe) -> None:
    async with run(Worker, deps=probe) as world:
        parent = await world.get_agent(Worker, "w")
        await parent.grow("c")
        child = await world.get_agent(Worker, "w", sub=[(Worker, "c")])
        computing = asyncio.create_task(child.compute())
        await probe.seen("computes")

        status = await parent.status("c")
        await parent.stop("c")
        await asyncio.gather(computing, return_exceptions=True)

        assert (status.state, status.calls, status.sockets) == ("busy", 1, 0)
        assert (status.queued_calls, status.runs, status.fibers, status.next_schedule_at) == (0, 0, 0, None)


@DEPTHS
@pytest.mark.promise("A-254", "B-5")
async def test_a_status_counts_open_sockets(probe: Probe, above: tuple[str, ...]) -> None:
    async with served(App(agents=[Worker], deps=probe)) as one:
        root = await one.world.get_agent(Worker, "w")
        await root.grow(*above, "c")
        parent = await one.world.get_agent(Worker, "w", sub=[(Worker, name) for name in above])
        path = "/agents/worker/w" + "".join(f"/sub/worker/{name}" for name in (*above, "c"))
        clients = [await one.join(path) for _ in range(2)]
        await one.join("/agents/worker/w")

        assert (await parent.status("c")).sockets == 2
        assert (await root.whole()).sockets == 3
        await clients[0].close()
        await until(lambda: one.world.node.sockets.count == 2)
        assert (await parent.status("c")).sockets == 1
