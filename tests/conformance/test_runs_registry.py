"""The registry of runs: what was given, to whom, what became of it, and how it is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from tests.conformance.errands import (
    BOSS,
    Bench,
    Digger,
    again,
    boss,
    caller,
    frames,
    helper,
    kinds,
    over,
    running,
    told_end,
    told_text,
    working,
)
from tests.conformance.errands import text as text_of

from sapwood import Agent, Limits, Refused, Run
from sapwood import agent as agent_type
from sapwood.errors import UsageError
from sapwood.testing import ScriptedModel, call, text


class TellingDigger(Agent):
    """One that says something and then waits."""

    deps: Bench

    async def on_run(self, input: str) -> AsyncIterator[str]:
        self.deps.log.append("told")
        yield "hello"
        await self.deps.go.wait()


@pytest.mark.promise("A-106")
async def test_a_run_is_stored_before_its_sub_agent_wakes() -> None:
    class EarlyDigger(Digger):
        async def on_start(self) -> None:
            parent: Any = await self.parent_agent(cls)
            self.deps.log.append((await parent.one("r1")).status)

    cls = boss(EarlyDigger)
    async with working(cls) as (_, agent, bench):
        await agent.give("dig", run_id="r1")

        assert bench.log == ["queued", "begun dig"]


@pytest.mark.promise("A-105")
async def test_a_run_goes_from_starting_to_running_to_its_end() -> None:
    async with working(boss()) as (_, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await bench.seen("begun wait")

        run = await running(agent, "r1")
        assert (run.is_over, run.output, run.ended_at) == (False, None, None)
        bench.go.set()
        await giving

        assert await agent.hooks() == [("start", "r1", "queued"), ("finish", "r1", "completed")]


@pytest.mark.promise("A-100", "A-104", "A-205", "A-208", "A-228", "A-259", "B-40", "CF-99")
async def test_a_row_says_all_that_is_to_be_known_of_a_run() -> None:
    model = ScriptedModel(call("helper", id="c1", message="help"), text("thanks"))
    cls = caller(model, helper(ScriptedModel(text("here you are"))))
    async with working(cls) as (_, agent, _):
        await agent.send("go")

        (run,) = await agent.all_runs()
        assert (run.id, run.tool_call, run.order) == ("agent-tool:c1", "c1", 0)
        assert (run.agent.type, run.agent.name) == ("Helper", "agent-tool:c1")
        assert (run.status, run.input, run.output, run.summary) == (
            "completed",
            "help",
            "here you are",
            "here you are",
        )
        assert (run.error, run.reason, run.still_running) == (None, None, False)
        assert [*run.usage] == ["scripted"]
        assert run.started_at <= run.ended_at


@pytest.mark.promise("A-205")
async def test_runs_are_listed_in_the_order_they_were_given_and_by_status() -> None:
    async with working(boss()) as (_, agent, _):
        for at, input in enumerate(["one", "fail", "two"]):
            await agent.give(input, run_id=f"r{at}")

        assert [run.id for run in await agent.all_runs()] == ["r0", "r1", "r2"]
        assert [run.id for run in await agent.all_runs("failed")] == ["r1"]
        assert await agent.one("unknown") is None


@pytest.mark.promise("A-104", "B-30")
async def test_only_a_preview_of_the_input_is_kept_by_the_caller() -> None:
    secret = "s" * 1000
    deep: Any = {"a": {"b": {"c": {"d": {"e": 1}}}}}
    async with working(boss()) as (_, agent, bench):
        run = await agent.give({"text": secret, "list": list(range(100)), "deep": deep}, run_id="r1")

        assert run.input["text"] == "s" * 199 + "…"
        assert run.input["list"] == list(range(20))
        assert run.input["deep"] == {"a": {"b": {"c": "…"}}}
        assert secret in bench.log[0]


async def test_has_run_knows_runs_by_class_and_id() -> None:
    class OtherDigger(Digger): ...

    class Asking(boss()):
        async def known(self, id: str) -> tuple[bool, bool]:
            return self.runs.has(Digger, id), self.runs.has(OtherDigger, id)

    async with working(type("Boss", (Asking,), {})) as (_, agent, _):
        await agent.give("dig", run_id="r1")

        assert await agent.known("r1") == (True, False)
        assert await agent.known("r2") == (False, False)


async def test_a_run_without_an_id_is_given_one_and_a_fiber_gives_the_same_again_after_a_crash(level: str) -> None:
    class Planning(boss()):
        async def plan(self) -> None:
            await self.fibers.run("plan", self.work)

        async def work(self) -> None:
            await self.run_agent(Digger, "first")
            await self.run_agent(Digger, "wait")
            self.deps.log.append("planned")

    cls = type("Boss", (Planning,), {})
    async with working(cls, durability=level) as (one, agent, bench):
        planning = asyncio.create_task(agent.plan())
        await bench.seen("begun wait")
        await one.world.crash()
        await asyncio.gather(planning, return_exceptions=True)
        await one.world.settled()
        bench.go.set()
        await bench.seen("planned")

        assert [run.status for run in await (await again(one, cls)).all_runs()] == ["completed", "completed"]
        assert bench.log.count("begun first") == 1
        assert len({run.id for run in await (await again(one, cls)).all_runs()}) == 2


@pytest.mark.promise("CF-119")
async def test_too_many_runs_are_refused_at_once_and_a_freed_place_can_be_used() -> None:
    async with working(boss(max_concurrent_runs=2)) as (one, agent, bench):
        client = await one.join(BOSS)
        going = [asyncio.create_task(agent.give("wait", run_id=id)) for id in ("r1", "r2")]
        await bench.seen("begun wait", 2)

        refused = await agent.give("dig", run_id="r3")
        bench.go.set()
        await asyncio.gather(*going)
        allowed = await agent.give("dig", run_id="r4")

        assert (refused.status, refused.retryable) == ("failed", False)
        assert "max_concurrent_runs=2" in (refused.error or "")
        assert allowed.ok
        assert await agent.child_names() == ["r1", "r2", "r4"]
        await told_end(client, "r3")
        assert kinds(client, "r3") == ["started", "error"]
        assert [frame["sequence"] for frame in frames(client, "r3")] == [0, 1]


@pytest.mark.promise("CF-119")
async def test_no_runs_allowed_means_none() -> None:
    async with working(boss(max_concurrent_runs=0)) as (_, agent, bench):
        assert (await agent.give("dig")).status == "failed"
        assert bench.log == []


@pytest.mark.promise("B-31")
async def test_a_run_that_would_be_too_deep_is_an_error_before_anything_of_it_exists() -> None:
    class DeepDigger(Agent):
        async def on_run(self, input: int) -> Any:
            run = await self.run_agent(DeepDigger, input + 1)
            return run.output if run.ok else [input, run.status, run.error]

    cls = type("Boss", (boss(DeepDigger),), {"limits": Limits(depth=3)})
    async with working(cls) as (_, agent, _):
        run = await agent.give(1)

        depth, status, error = run.output
        assert (depth, status) == (3, "failed")
        assert "depth=3" in error


async def test_the_limit_of_sub_agents_holds_for_runs() -> None:
    cls = type("Boss", (boss(),), {"limits": Limits(children=1)})
    async with working(cls) as (_, agent, bench):
        first, second = await agent.give("one", run_id="r1"), await agent.give("two", run_id="r2")

        assert first.ok
        assert second.status == "failed"
        assert "children=1" in (second.error or "")
        assert bench.log == ["begun one"]


@pytest.mark.promise("A-100", "A-111", "A-112", "A-208", "A-229")
async def test_clearing_forgets_the_runs_and_deletes_those_who_did_them(level: str) -> None:
    class ThirdDigger(Digger): ...

    class Mixed(boss()):
        async def give_other(self) -> Run:
            return await self.run_agent(ThirdDigger, "other", run_id="other")

    cls = type("Boss", (Mixed,), {})
    async with working(cls, durability=level) as (one, agent, _):
        assert await agent.clear_them() == 0
        await agent.give("dig", run_id="ok")
        await agent.give("fail", run_id="failed")
        await agent.give_other()
        await agent.give("dig", run_id="gone")
        await agent.delete("gone")

        assert await agent.clear_them() == 4

        assert await agent.all_runs() == []
        assert await agent.child_names() == []
        assert await agent.clear_them() == 0
        await one.world.crash()
        assert await (await again(one, cls)).all_runs() == []
        late = await one.join(BOSS)
        assert (await late.call("wake"))["result"] == "awake"
        assert frames(late) == []


@pytest.mark.promise("A-229")
async def test_clearing_by_status_leaves_the_others() -> None:
    async with working(boss()) as (_, agent, _):
        await agent.give("dig", run_id="ok")
        await agent.give("fail", run_id="failed")

        assert await agent.clear_them("failed") == 1

        assert [run.id for run in await agent.all_runs()] == ["ok"]
        assert await agent.child_names() == ["ok"]


@pytest.mark.promise("A-229")
async def test_clearing_by_age_leaves_what_is_younger() -> None:
    class Old(boss()):
        async def clear_old(self, seconds: float) -> int:
            return await self.runs.clear(older_than=timedelta(seconds=seconds))

    async with working(type("Boss", (Old,), {})) as (one, agent, _):
        await agent.give("dig", run_id="old")
        await one.world.clock.advance(100)
        await agent.give("dig", run_id="young")

        assert await agent.clear_old(50) == 1

        assert [run.id for run in await agent.all_runs()] == ["young"]


async def test_clearing_stops_what_goes_on_and_whoever_waits_for_it_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with working(boss()) as (one, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await bench.seen("begun wait")

        assert await agent.clear_them() == 1

        with pytest.raises(Exception, match="was cleared"):
            await giving
        await bench.seen("cut")
        assert await agent.all_runs() == []
        assert await agent.child_names() == []
        await one.world.settled()
        # A machine that is busy otherwise may have the watchdog say so.
        told = [one for one in caplog.records if one.levelname in ("ERROR", "WARNING")]
        assert [one.message for one in told if one.name != "sapwood.kernel.actors.watchdog"] == []


async def test_an_id_that_was_cleared_can_be_used_again() -> None:
    async with working(boss()) as (_, agent, bench):
        await agent.give("dig", run_id="r1")
        await agent.clear_them()

        assert (await agent.give("dig", run_id="r1")).ok
        assert bench.log == ["begun dig", "begun dig"]


async def test_an_id_that_was_cleared_while_it_went_on_can_be_used_again_at_once() -> None:
    class Clearing(boss()):
        async def clear_and_give(self) -> Run:
            clearing = asyncio.create_task(self.runs.clear())
            await asyncio.sleep(0)
            run = await self.run_agent(Digger, "dig", run_id="r1")
            await clearing
            return run

    async with working(type("Boss", (Clearing,), {})) as (_, agent, bench):
        giving = asyncio.create_task(agent.give("wait", run_id="r1"))
        await bench.seen("begun wait")

        run = await agent.clear_and_give()

        assert run.output == {"did": "dig"}
        assert (await asyncio.gather(giving, return_exceptions=True))[0] is not None
        assert [run.status for run in await agent.all_runs()] == ["completed"]


@pytest.mark.promise("A-111")
async def test_clearing_a_conversation_clears_its_runs_with_it() -> None:
    model = ScriptedModel(call("helper", id="c1", message="help"), text("thanks"))
    async with working(caller(model, helper(ScriptedModel(text("here"))))) as (one, agent, _):
        await agent.send("go")
        assert await agent.child_names() == ["agent-tool:c1"]

        await agent.conversation.clear()
        await one.world.settled()

        assert (await agent.all_runs(), await agent.conversation.messages()) == ([], [])
        assert await agent.child_names() == []


@pytest.mark.slow
@pytest.mark.promise("A-111", "B-34")
async def test_a_crash_while_clearing_leaves_no_sub_agent_behind(level: str) -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        async with working(cls := boss(), durability=level) as (one, agent, _):
            await agent.give("dig", run_id="r1")
            await agent.give("dig", run_id="r2")
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            await asyncio.gather(agent.clear_them(), return_exceptions=True)
            passed = one.world.points.passed["committed"] >= before + nth
            await one.world.crash()
            agent = await again(one, cls)
            await agent.clear_them()

            assert (await agent.all_runs(), await agent.child_names()) == ([], [])


@pytest.mark.promise("A-116", "B-25")
async def test_stored_runs_survive_the_renaming_of_their_class(level: str) -> None:
    renamed = agent_type(type="digger-of-old")(type("RenamedDigger", (TellingDigger,), {}))
    async with working(cls := boss(renamed), durability=level) as (one, agent, bench):
        client = await one.join(BOSS)
        bench.go.set()
        await agent.give("wait", run_id="done")
        bench.go.clear()
        giving = asyncio.create_task(agent.give("wait", run_id="open"))
        await told_text(client, "open", "hello")

        agent_type(type="digger-of-today", aliases=("digger-of-old",))(renamed)
        await one.world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        bench.go.set()
        agent = await again(one, cls)

        assert (await over(agent, "open")).output == "hello"
        assert (await agent.give("wait", run_id="done")).output == "hello"
        assert bench.log.count("told") == 3
        late = await one.join(BOSS)
        await told_end(late, "open")
        assert [text_of(late, id) for id in ("done", "open")] == ["hello", "hellohello"]
        assert await agent.clear_them() == 2
        assert await agent.child_names() == []


@pytest.mark.promise("A-112", "A-113", "B-25")
async def test_a_run_of_a_class_that_is_no_more_is_an_error_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    lost = agent_type(type="digger-of-yesterday")(type("LostDigger", (TellingDigger,), {}))
    async with working(cls := boss(lost)) as (one, agent, bench):
        client = await one.join(BOSS)
        bench.go.set()
        await agent.give("wait", run_id="done")
        bench.go.clear()
        giving = asyncio.create_task(agent.give("wait", run_id="open"))
        await told_text(client, "open", "hello")

        agent_type(type="another-digger")(lost)
        await one.world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        agent = await again(one, cls)

        run = await over(agent, "open")
        assert run.status == "failed"
        assert "digger-of-yesterday" in (run.error or "")
        late = await one.join(BOSS)
        await told_end(late, "open")
        assert [text_of(late, id) for id in ("done", "open")] == ["hello", "hello"]
        assert await agent.clear_them() == 2
        assert await agent.all_runs() == []
        caplog.clear()


async def test_the_table_of_runs_is_made_when_the_first_is_given(level: str) -> None:
    async with working(cls := boss(), durability=level) as (one, agent, _):
        await agent.wake()
        before = await agent.tables()
        await agent.give("dig")
        await one.world.crash()

        assert "sapwood_runs" not in before
        assert "sapwood_runs" in await (await again(one, cls)).tables()


LARGE = {"text": "x" * 5000, "items": list(range(50)), "deep": {"2": {"3": {"4": {"5": {"6": "bottom"}}}}}}


async def read_input(self: Any, run: Run) -> Any:
    return await run.full_input()


@pytest.mark.promise("B-30")
async def test_the_whole_input_of_a_run_is_read_on_request_and_after_a_crash() -> None:
    cls = boss(read_input=read_input, max_concurrent_runs=1)
    async with working(cls) as (one, agent, bench):
        run = await agent.give(LARGE, run_id="r1")
        assert run.input != LARGE
        assert await agent.read_input(run) == LARGE
        await one.world.crash()
        agent = await again(one, cls)

        assert await agent.read_input(await agent.one("r1")) == LARGE
        giving = asyncio.create_task(agent.give("wait", run_id="r2"))
        await bench.seen("begun wait")
        refused = await agent.give(LARGE, run_id="r3")
        with pytest.raises(Refused, match="its sub-agent never started"):
            await agent.read_input(refused)
        bench.go.set()
        await giving
        await agent.delete("r1")
        with pytest.raises(Refused, match="or was deleted"):
            await agent.read_input(await agent.one("r1"))


async def test_the_whole_input_of_a_run_that_this_agent_does_not_have_is_refused() -> None:
    cls = boss(read_input=read_input)
    async with working(cls) as (one, agent, _):
        run = await agent.give("dig", run_id="r1")
        await one.world.clock.advance(1)
        other = await one.world.get_agent(cls, "other")
        await other.give("dig", run_id="r1")
        with pytest.raises(Refused, match="it was cleared, or another agent started it"):
            await other.read_input(run)
        await agent.clear_them()
        with pytest.raises(Refused, match="it was cleared"):
            await agent.read_input(run)
        await agent.give("dig", run_id="r1")
        with pytest.raises(Refused, match="it was cleared"):
            await agent.read_input(run)
        with pytest.raises(UsageError, match=r"run\.full_input\(\) must be called in the agent"):
            await run.full_input()
