"""Retention: finished runs go by age, number and size; pinned ones, and those that somebody needs, never do."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.conformance.errands import (
    BOSS,
    Bench,
    Digger,
    Giving,
    again,
    boss,
    caller,
    frames,
    helper,
    running,
    told_end,
    working,
)
from tests.machine import patience

from sapwood import Agent, Retention, Run, tool
from sapwood.errors import UsageError
from sapwood.testing import ScriptedModel, call, text
from sapwood.timings import Timings

MINUTE = timedelta(minutes=1)


class HeapDigger(Agent):
    """One whose sub-agent holds as much as it was told to."""

    migrations = ("CREATE TABLE heap (dirt BLOB NOT NULL) STRICT",)

    async def on_run(self, input: int) -> int:
        self.sql("INSERT INTO heap VALUES (zeroblob(?))", input)
        return input

    async def grow(self, size: int) -> None:
        self.sql("INSERT INTO heap VALUES (zeroblob(?))", size)


class OtherDigger(Digger): ...


class _Keeping(Giving, Agent):
    """What a boss has that pins runs and looks at its schedules."""

    async def give_other(self, run_id: str) -> Run:
        return await self.run_agent(OtherDigger, "dig", run_id=run_id)

    async def pin(self, id: str) -> bool:
        return self.runs.pin(id)

    async def unpin(self, id: str) -> bool:
        return self.runs.unpin(id)

    async def sweeps(self) -> int:
        return len(self.schedules.list())

    async def grow(self, id: str, size: int) -> None:
        await (await self.sub_agent(HeapDigger, id)).grow(size)


def keeping(worker: type = Digger, *, base: type = _Keeping, **rules: Any) -> Any:
    """Make a class of agents that keep so much of the runs they give."""
    return boss(worker, base=base, run_retention=rules.pop("keep", None) or Retention(**rules))


async def kept(agent: Any) -> list[str]:
    """Return the runs that are left; each has its sub-agent, and no other has."""
    runs = [run.id for run in await agent.all_runs()]
    assert sorted(await agent.child_names()) == sorted(runs)
    return runs


async def test_without_a_rule_everything_is_kept_and_nobody_is_woken(level: str) -> None:
    async with working(keeping(), durability=level) as (one, agent, _):
        await agent.give("dig", run_id="r1")

        assert await agent.sweeps() == 0
        await one.world.clock.advance(10**7)
        assert await kept(agent) == ["r1"]


@pytest.mark.promise("B-18")
async def test_a_run_goes_when_it_has_been_over_for_its_age_also_if_the_agent_sleeps(level: str) -> None:
    async with working(cls := keeping(age=timedelta(hours=1)), durability=level) as (one, agent, _):
        client = await one.join(BOSS)
        await agent.give("dig", run_id="r1")
        await told_end(client, "r1")
        await one.world.clock.advance(1800)
        await agent.give("dig", run_id="r2")
        one.world.sleep()

        await one.world.clock.advance(1801)
        agent = await again(one, cls)
        assert await kept(agent) == ["r2"]
        await one.world.clock.advance(1900)
        assert await kept(agent) == []
        assert await agent.sweeps() == 0
        late = await one.join(BOSS)
        assert (await late.call("wake"))["result"] == "awake"
        assert frames(late) == []
        assert list(one.world.data.glob("trees/*/*-*.db*")) == []


@pytest.mark.promise("B-18")
async def test_only_so_many_are_kept_and_the_oldest_go_first() -> None:
    async with working(keeping(count=2)) as (one, agent, _):
        for at in range(2):
            await agent.give("dig", run_id=f"r{at}")
        assert await agent.sweeps() == 0  # nothing has to go: nobody is woken
        await agent.give("fail", run_id="r2")
        await agent.give("dig", run_id="r3")

        await one.world.clock.advance(61)

        assert await kept(agent) == ["r2", "r3"]
        assert await agent.sweeps() == 0


@pytest.mark.promise("B-18")
async def test_they_may_hold_so_many_bytes_together_also_what_was_added_later() -> None:
    async with working(keeping(HeapDigger, bytes=1_000_000)) as (one, agent, _):
        for at in range(4):
            await agent.give(200_000, run_id=f"r{at}")
        sizes = [run.bytes for run in await agent.all_runs()]
        assert all(200_000 <= size <= 600_000 for size in sizes)
        before = await kept(agent)
        await agent.grow("r3", 500_000)
        await agent.give(1, run_id="r4")

        await one.world.clock.advance(61)
        await agent.give(1, run_id="r5")
        await one.world.clock.advance(61)

        left = await agent.all_runs()
        assert [run.id for run in left] != before
        assert sum(run.bytes for run in left) <= 1_000_000
        assert [run.id for run in left][-1] == "r5"


async def test_what_runs_below_hold_counts_too() -> None:
    class FloorBoss(Agent):
        async def on_run(self, input: int) -> int:
            await self.run_agent(HeapDigger, input)
            return 1

    async with working(keeping(FloorBoss)) as (_, agent, _):
        small, large = await agent.give(1), await agent.give(300_000)

        assert large.bytes - small.bytes > 250_000


@pytest.mark.promise("B-18")
async def test_the_last_ones_stay_however_old_and_large_they_are() -> None:
    rule = {"age": MINUTE, "bytes": 0, "last": 2}
    async with working(keeping(**rule)) as (one, agent, _):
        for at in range(4):
            await agent.give("dig", run_id=f"r{at}")

        await one.world.clock.advance(10**6)

        assert await kept(agent) == ["r2", "r3"]
        assert await agent.sweeps() == 0


@pytest.mark.promise("B-18")
async def test_each_class_may_have_a_rule_of_its_own_and_what_extends_it_has_the_same() -> None:
    keep = {Agent: Retention(count=0), OtherDigger: Retention(count=1)}
    async with working(keeping(keep=keep)) as (one, agent, _):
        for at in range(2):
            await agent.give("dig", run_id=f"r{at}")
            await agent.give_other(f"o{at}")

        await one.world.clock.advance(61)
        assert await kept(agent) == ["o1"]

    async with working(keeping(keep={OtherDigger: Retention(count=0)})) as (one, agent, _):
        await agent.give("dig", run_id="r1")
        await agent.give_other("o1")

        await one.world.clock.advance(61)
        assert await kept(agent) == ["r1"]


@pytest.mark.promise("B-18")
async def test_a_pinned_run_is_not_swept_counted_or_cleared_until_it_is_unpinned(level: str) -> None:
    async with working(cls := keeping(count=1), durability=level) as (one, agent, _):
        await agent.give("dig", run_id="r0")
        assert await agent.pin("r0")
        assert not await agent.pin("unknown")
        for at in (1, 2):
            await agent.give("dig", run_id=f"r{at}")
        await one.world.clock.advance(61)
        await one.world.crash()
        agent = await again(one, cls)

        assert [(run.id, run.pinned) for run in await agent.all_runs()] == [("r0", True), ("r2", False)]
        assert await agent.clear_them() == 1
        assert await kept(agent) == ["r0"]
        await agent.give("dig", run_id="r3")
        assert await agent.unpin("r0")
        await one.world.clock.advance(61)
        assert await kept(agent) == ["r3"]


async def test_clearing_a_conversation_leaves_what_is_pinned() -> None:
    class Pinning(caller(ScriptedModel(text("hello")))):
        async def dig_twice(self) -> None:
            for id in ("r1", "r2"):
                await self.run_agent(Digger, "dig", run_id=id)
            self.runs.pin("r1")

    async with working(type("Caller", (Pinning,), {})) as (one, agent, _):
        await agent.dig_twice()

        await agent.conversation.clear()
        await one.world.settled()

        assert await kept(agent) == ["r1"]


async def test_a_run_that_goes_on_is_never_swept() -> None:
    async with working(cls := keeping(age=MINUTE, count=0)) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="long"))
        await bench.seen("begun wait")
        await agent.give("dig", run_id="short")
        await one.world.clock.advance(3600)
        assert await kept(agent) == ["long"]
        await running(agent, "long")

        await one.world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        agent = await again(one, cls)
        assert await kept(agent) == ["long"]
        bench.go.set()
        await one.world.clock.advance(100)
        assert await kept(agent) == []


async def test_a_run_that_waits_for_an_approval_is_never_swept() -> None:
    class Locked(helper(ScriptedModel(call("open_it", id="x1"), text("opened")), "LockedHelper")):
        """Opens what is locked."""

        @tool(requires_approval=True)
        async def open_it(self) -> str:
            return "open"

    class Keeper(caller(ScriptedModel(call("locked", id="c1", message="open"), text("done")), Locked)):
        run_retention = Retention(count=0)

        async def dig(self) -> None:
            await self.run_agent(Digger, "dig", run_id="r1")

    async with working(type("Caller", (Keeper,), {})) as (one, agent, _):
        sending = asyncio.create_task(agent.send("go"))
        await running(agent, "agent-tool:c1")
        await agent.dig()
        await one.world.clock.advance(61)

        assert await kept(agent) == ["agent-tool:c1"]
        sending.cancel()


async def test_what_a_fiber_that_goes_on_gave_is_kept_so_that_it_is_not_done_again() -> None:
    class Planning(_Keeping):
        async def plan(self) -> None:
            self.start_fiber("plan", self.work)

        async def work(self) -> None:
            await self.run_agent(Digger, "first")
            await self.run_agent(Digger, "second")
            await self.run_agent(Digger, "wait")
            self.deps.log.append("planned")

    async with working(cls := keeping(base=Planning, count=0)) as (one, agent, bench):
        await agent.plan()
        await bench.seen("begun wait")
        await one.world.clock.advance(61)
        assert len(await kept(agent)) == 3
        await one.world.crash()
        await one.world.settled()
        bench.go.set()
        await bench.seen("planned")
        agent = await again(one, cls)

        await one.world.clock.advance(300)
        assert (bench.log.count("begun first"), bench.log.count("begun second")) == (1, 1)
        assert await kept(agent) == []


async def test_what_a_call_that_goes_on_waits_for_is_kept_until_it_has_seen_it() -> None:
    class Mapping(_Keeping):
        async def map_them(self) -> list[str]:
            return [run.status for run in await self.runs.map(Digger, ["a", "b", "wait"], concurrency=2)]

    async with working(keeping(base=Mapping, count=0)) as (one, agent, bench):
        mapping = asyncio.create_task(agent.map_them())
        await bench.seen("begun wait")
        await agent.give("dig", run_id="beside")
        await one.world.clock.advance(61)
        assert len(await agent.all_runs()) == 3
        bench.go.set()

        assert await mapping == ["completed"] * 3
        await one.world.clock.advance(300)
        assert await kept(agent) == []


async def test_what_a_turn_that_goes_on_gave_is_kept_till_it_is_over() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(call("helper", id="c1", message="help"), text("thanks", gate=gate))

    class Keeper(caller(model, helper(ScriptedModel(text("here"))))):
        run_retention = Retention(count=0)

    async with working(type("Caller", (Keeper,), {})) as (one, agent, _):
        sending = asyncio.create_task(agent.send("go"))
        await told_over(agent, "agent-tool:c1")
        await one.world.clock.advance(61)
        assert await kept(agent) == ["agent-tool:c1"]
        gate.set()
        await sending

        await one.world.clock.advance(300)
        assert await kept(agent) == []
        assert [message["role"] for message in await agent.conversation.messages()] == ["user", "assistant"]


@pytest.mark.slow
async def test_what_a_turn_gave_that_waits_for_an_approval_is_kept_till_it_is_over() -> None:
    model = ScriptedModel(call("helper", id="c1", message="help"), call("sign", id="c2"), text("signed"))

    class Keeper(caller(model, helper(ScriptedModel(text("here"))))):
        run_retention = Retention(count=0)

        @tool(requires_approval=True)
        async def sign(self) -> str:
            """Sign it."""
            return "signed"

    async with working(type("Caller", (Keeper,), {})) as (one, agent, _):
        await agent.send("go")
        await one.world.clock.advance(61)
        assert await kept(agent) == ["agent-tool:c1"]
        (question,) = await agent.questions.list()
        await agent.questions.approve(question.id)

        await one.world.clock.advance(300)
        assert await kept(agent) == []


async def test_a_run_is_not_swept_before_the_hook_was_told_of_its_end_also_after_a_crash() -> None:
    class Telling(_Keeping):
        deps: Bench

        async def on_run_finish(self, run: Run) -> None:
            self.deps.log.append(f"told {run.id}")
            if run.id == "r1":
                await self.deps.go.wait()

    async with working(cls := keeping(base=Telling, count=0)) as (one, agent, bench):
        await agent.give("dig", run_id="r0")
        await one.world.settled()
        await agent.give("dig", run_id="r1")
        await bench.seen("told r1")
        one.world.clock.jump(one.world.clock.now() + 100)
        await one.world.crash()
        bench.go.set()
        agent = await again(one, cls)
        await one.world.clock.advance(300)

        assert bench.log.count("told r1") == 2
        assert await kept(agent) == []


async def test_a_run_is_kept_while_its_sub_agent_is_at_work_on_something_else() -> None:
    class BusyDigger(Digger):
        async def on_run(self, input: Any) -> Any:
            self.start_fiber("more", self.more)
            return "for now"

        async def more(self) -> None:
            self.deps.log.append("more")
            await self.deps.go.wait()

    async with working(keeping(BusyDigger, count=0)) as (one, agent, bench):
        await agent.give("dig", run_id="r1")
        await bench.seen("more")
        await one.world.clock.advance(61)
        assert await kept(agent) == ["r1"]
        bench.go.set()

        await one.world.clock.advance(300)
        assert await kept(agent) == []


@pytest.mark.slow
async def test_many_go_in_one_sweep_and_nobody_goes_in_place_of_one_that_is_needed() -> None:
    class SomeBusyDigger(Digger):
        async def on_run(self, input: Any) -> Any:
            if input == "busy":
                self.start_fiber("more", self.more)

        async def more(self) -> None:
            self.deps.log.append("more")
            await self.deps.go.wait()

    async with working(keeping(SomeBusyDigger, count=3), timings=Timings(run_cleanup_batch=3)) as (one, agent, bench):
        for at in range(12):
            await agent.give("busy" if at in (0, 4, 5, 10) else "dig", run_id=f"r{at}")
        await bench.seen("more", 4)

        await one.world.clock.advance(61)

        assert await kept(agent) == ["r0", "r4", "r5", "r9", "r10", "r11"]


async def test_whoever_talks_to_the_sub_agent_of_a_run_that_goes_is_told_so() -> None:
    async with working(keeping(count=0)) as (one, agent, _):
        await agent.give("dig", run_id="r1")
        inside = await one.join(f"{BOSS}/sub/digger/r1")

        await one.world.clock.advance(61)

        assert await inside.ended() == (1001, "Sub-agent deleted")


async def told_over(agent: Any, id: str) -> None:
    async with asyncio.timeout(patience()):
        while not (run := await agent.one(id)) or not run.is_over:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.002)


async def test_a_detached_run_is_kept_until_its_end_was_told() -> None:
    class Detaching(_Keeping):
        deps: Bench

        async def send_off(self) -> None:
            await self.start_run(Digger, "dig", run_id="far", on_finish=self.heard)

        async def heard(self, run: Run) -> None:
            self.deps.log.append(f"heard {run.id}")
            await self.deps.go.wait()

    async with working(keeping(base=Detaching, count=0)) as (one, agent, bench):
        await agent.send_off()
        await bench.seen("heard far")
        await one.world.clock.advance(61)
        assert await kept(agent) == ["far"]
        bench.go.set()

        await one.world.clock.advance(300)
        assert await kept(agent) == []


async def test_an_id_that_was_swept_can_be_used_again() -> None:
    async with working(keeping(count=0)) as (one, agent, bench):
        await agent.give("dig", run_id="r1")
        await one.world.clock.advance(61)

        assert (await agent.give("dig", run_id="r1")).ok
        assert bench.log == ["begun dig", "begun dig"]


@pytest.mark.promise("B-18")
@pytest.mark.slow
async def test_killed_at_any_commit_of_a_sweep_what_has_to_go_goes_and_nothing_else() -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        async with working(cls := keeping(count=1)) as (one, agent, _):
            await agent.give("dig", run_id="pinned")
            await agent.pin("pinned")
            for at in range(3):
                await agent.give("dig", run_id=f"r{at}")
            await one.world.settled()
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            await one.world.clock.advance(61)
            passed = one.world.points.passed["committed"] >= before + nth
            await one.world.crash()
            await one.world.clock.advance(61)
            agent = await again(one, cls)

            assert await kept(agent) == ["pinned", "r2"]
            await one.world.settled()
            assert len(list(one.world.data.glob("trees/*/*-*.db"))) == 2
    assert nth > 4


@pytest.mark.parametrize(
    "rule",
    [{"age": 60}, {"age": -MINUTE}, {"count": -1}, {"bytes": 1.5}, {"last": None}, {"count": 1, "last": 2}],
)
def test_what_cannot_be_a_rule_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="Retention"):
        Retention(**rule)


def test_a_class_that_keeps_runs_by_anything_else_is_refused() -> None:
    for wrong in (7, {Digger: 7}, {"Digger": Retention()}):
        with pytest.raises(UsageError, match="run_retention"):
            type("WrongBoss", (Agent,), {"run_retention": wrong})
