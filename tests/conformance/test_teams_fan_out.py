"""Several agents used at once: all, enough of them, or the fastest; so many at a time; found again after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from tests.cases import slow
from tests.conformance.errands import (
    CALLER,
    again,
    caller,
    check_sequence,
    frames,
    helper,
    over,
    told_end,
    working,
)
from tests.conformance.teams import POLICIES, Plan, Site, TeamDigger, branches, ends, killed, team
from tests.machine import patience

from sapwood import Agent, Branch, Refused, Retry, Run, tool
from sapwood.errors import UsageError
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.tables.runs_table import RunsTable
from sapwood.testing import ScriptedModel, call, fails, text

SOON = Retry(max_attempts=3, initial_delay=timedelta(seconds=10), max_delay=timedelta(seconds=10))

TWICE = Retry(max_attempts=2, initial_delay=timedelta(0))
THRICE = Retry(max_attempts=3, initial_delay=timedelta(0))


async def passing_time(one: Any, until: Callable[[], bool]) -> None:
    """Let time pass until this is so. Nobody is waited for: some wait for the test."""
    one.world.clock.settled = None
    async with asyncio.timeout(patience()):
        while not until():
            await one.world.clock.advance(0.5)
            await asyncio.sleep(0.02)
    one.world.clock.settled = one.world.settled


async def given_up(one: Any, agent: Any, run: str) -> None:
    """Let so much time pass that a run is given up of which nothing was heard since a crash."""
    one.world.clock.settled = None
    await one.world.clock.advance(121)
    async with asyncio.timeout(patience()):
        while ("finish", run, "interrupted") not in await agent.hooks():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.001)
    one.world.clock.settled = one.world.settled


@pytest.mark.promise("A-143", "A-147", "A-148", "B-1")
async def test_all_are_waited_for_and_come_back_in_the_order_given_whoever_was_first(level: str) -> None:
    async def plan(agent: Any) -> list[Run]:
        return await agent.runs.gather(*branches("wait", "fail", "quick"))

    _, doing = team(plan, durability=level)
    async with doing as (_, agent, bench):
        asking = asyncio.create_task(agent.do())
        await bench.seen("dug quick")
        bench.go.set()

        runs = await asking

        assert [run.output for run in runs] == ["wait!", None, "quick!"]
        assert [run.status for run in runs] == ["completed", "failed", "completed"]
        assert [run.order for run in runs] == [0, 1, 2]
        assert await agent.all_runs() == runs
        assert await agent.child_names() == [run.id for run in runs]


@pytest.mark.promise("B-17")
async def test_the_first_failure_stops_the_others_if_that_is_wished_and_they_say_whose_it_was(level: str) -> None:
    async def plan(agent: Any) -> list[Run]:
        return await agent.runs.gather(*branches("wait", "late fail", "wait too"), fail_fast=True)

    _, doing = team(plan, durability=level)
    async with doing as (_, agent, bench):
        asking = asyncio.create_task(agent.do())
        for entry in ("begun wait", "begun late fail", "begun wait too"):
            await bench.seen(entry)
        bench.gates["late"].set()

        first, failed, third = await asking

        assert (failed.status, failed.reason) == ("failed", None)
        assert ends([first, third]) == [("cancelled", f"failed-with {failed.id}")] * 2
        assert {"cut wait", "cut wait too"} <= set(bench.log)


@pytest.mark.promise("B-1")
async def test_a_quorum_stops_the_rest_and_what_had_not_begun_never_does(level: str) -> None:
    async def plan(agent: Any) -> list[Run]:
        return await agent.runs.gather(*branches("wait", "a", "fail", "b", "c", "d"), quorum=2, concurrency=2)

    _, doing = team(plan, durability=level)
    async with doing as (one, agent, bench):
        client = await one.join("/agents/boss/b")
        runs = await agent.do()

        why = f"quorum-with {runs[3].id}"
        assert ends(runs) == [
            ("cancelled", why),
            ("completed", None),
            ("failed", None),
            ("completed", None),
            ("cancelled", why),
            ("cancelled", why),
        ]
        assert bench.logged("begun c") == bench.logged("begun d") == []
        assert await agent.all_runs() == runs
        for run in runs:
            await told_end(client, run.id)
            check_sequence(frames(client, run.id))


async def test_a_quorum_that_cannot_be_reached_any_more_is_not_waited_for() -> None:
    async def plan(agent: Any) -> list[Run]:
        return await agent.runs.gather(*branches("wait", "fail", "fail too"), quorum=2)

    _, doing = team(plan)
    async with doing as (_, agent, _):
        stopped, *failed = await agent.do()

        assert [run.status for run in failed] == ["failed", "failed"]
        assert stopped.status == "cancelled"
        assert stopped.reason in [f"no-quorum-after {run.id}" for run in failed]


@pytest.mark.promise("B-1")
async def test_the_first_that_ends_well_wins_and_the_losers_say_to_whom_they_lost(level: str) -> None:
    async def plan(agent: Any) -> list[Run]:
        return [await agent.runs.race(*branches("wait", "fail", "late"))]

    _, doing = team(plan, durability=level)
    async with doing as (_, agent, bench):
        asking = asyncio.create_task(agent.do())
        await bench.seen("begun wait")
        await over(agent, (await agent.all_runs())[1].id)
        bench.gates["late"].set()

        (winner,) = await asking

        assert winner.output == "late!"
        slow, failed, _ = [await over(agent, run.id) for run in await agent.all_runs()]
        assert ends([slow, failed]) == [("cancelled", f"lost-to {winner.id}"), ("failed", None)]
        await bench.seen("cut wait")


async def test_why_a_run_was_stopped_first_is_what_is_kept() -> None:
    async def plan(agent: Any) -> list[Run]:
        winner = await agent.runs.race(*branches("wait", "late", ids=["x", "y"]))
        assert agent.runs.cancel("x", "enough")  # it is to stop already
        agent.deps.log.append(agent._actor.of(Runs).registry.get("x").cancelled)
        return [winner]

    _, doing = team(plan)
    async with doing as (_, agent, bench):
        asking = asyncio.create_task(agent.do())
        await bench.seen("begun wait")
        bench.gates["late"].set()
        await asking

        assert "lost-to y" in bench.log
        assert ends([await over(agent, "x")]) == [("cancelled", "lost-to y")]


async def test_a_race_that_nobody_wins_is_the_failure_of_the_one_given_first() -> None:
    async def plan(agent: Any) -> list[Run]:
        return [await agent.runs.race(*branches("fail first", "fail second"))]

    _, doing = team(plan)
    async with doing as (_, agent, _):
        (run,) = await agent.do()

        assert (run.ok, run.input) == (False, "fail first")


@pytest.mark.promise("A-143", "B-1")
async def test_no_more_go_on_at_once_than_are_allowed_and_none_is_left_out(level: str) -> None:
    inputs = [f"wait {number}" for number in range(12)]

    async def plan(agent: Any) -> list[Run]:
        return await agent.runs.map(TeamDigger, inputs, concurrency=3)

    _, doing = team(plan, durability=level)
    async with doing as (one, agent, bench):
        asking = asyncio.create_task(agent.do())
        for number in range(3):
            await bench.seen(f"begun wait {number}")
        await one.world.settled()
        assert len(bench.logged("begun")) == 3
        bench.go.set()

        runs = await asking

        assert [run.output for run in runs] == [f"{one}!" for one in inputs]
        assert bench.most == 3


async def test_a_class_that_allows_few_runs_has_the_others_wait() -> None:
    async def plan(agent: Any) -> list[Run]:
        return await agent.runs.gather(*branches("a", "b", "c", "d", "e"))

    _, doing = team(plan, attributes={"max_concurrent_runs": 2})
    async with doing as (_, agent, bench):
        assert all(run.ok for run in await agent.do())
        assert bench.most <= 2


@pytest.mark.promise("B-1")
async def test_what_may_pass_is_tried_again_after_a_while_and_every_attempt_is_a_run(level: str) -> None:
    async def plan(agent: Any) -> list[Run]:
        return await agent.runs.gather(*branches("busy", "a", ids=["x", "y"], retry=SOON))

    _, doing = team(plan, durability=level)
    async with doing as (one, agent, bench):
        bench.busy = 2
        asking = asyncio.create_task(agent.do())
        while not asking.done():
            await one.world.clock.advance(1)

        runs = await asking

        assert [(run.id, run.output) for run in runs] == [("x~3", "busy!"), ("y", "a!")]
        assert {run.id: (run.status, run.reason) for run in await agent.all_runs()} == {
            "x": ("failed", "overworked"),
            "x~2": ("failed", "overworked"),
            "x~3": ("completed", None),
            "y": ("completed", None),
        }
        first, second = await agent.one("x"), await agent.one("x~2")
        assert second.started_at > first.ended_at


async def test_it_is_tried_as_often_as_allowed_and_not_at_all_if_it_would_fail_again() -> None:
    async def plan(agent: Any) -> list[Run]:
        return await agent.runs.map(TeamDigger, ["busy", "fail"], retry=TWICE)

    _, doing = team(plan)
    async with doing as (_, agent, bench):
        bench.busy = 100
        busy, failed = await agent.do()

        assert (busy.status, busy.reason) == ("failed", "overworked")
        assert (failed.status, failed.reason) == ("failed", None)
        assert bench.log.count("begun busy") == 2
        assert bench.log.count("begun fail") == 1


async def test_one_that_took_too_long_is_tried_again() -> None:
    async def plan(agent: Any) -> list[Run]:
        retry = TWICE
        return await agent.runs.gather(Branch(TeamDigger, "wait", run_id="x", timeout=5, retry=retry))

    _, doing = team(plan)
    async with doing as (one, agent, bench):
        asking = asyncio.create_task(agent.do())
        await bench.seen("begun wait")
        await one.world.clock.advance(6)
        await bench.seen("begun wait", 2)
        bench.go.set()

        (run,) = await asking

        assert (run.id, run.output) == ("x~2", "wait!")
        assert ends([await agent.one("x")]) == [("failed", "timed-out")]


async def test_a_helper_whose_provider_cannot_answer_is_tried_again() -> None:
    from pydantic_ai.exceptions import ModelConnectionError

    model = ScriptedModel(*(fails(ModelConnectionError("m", "gone")) for _ in range(5)), text("here I am"))
    cls = helper(model, "TeamHelper")

    async def plan(agent: Any) -> list[Run]:
        return await agent.runs.gather(Branch(cls, "hello", run_id="x", retry=TWICE))

    _, doing = team(plan)
    async with doing as (one, agent, _):
        asking = asyncio.create_task(agent.do())
        await passing_time(one, asking.done)

        (run,) = await asking

        assert (run.id, run.output) == ("x~2", "here I am")
        assert ends([await agent.one("x")]) == [("failed", "unavailable")]


async def test_one_that_was_given_up_is_asked_for_again_under_its_own_id() -> None:
    async def plan(agent: Any) -> None:
        agent.deps.log.append("planning")
        (run,) = await agent.runs.gather(*branches("wait", ids=["x"], retry=THRICE))
        agent.deps.log.append(f"came to {run.id} {run.output}")

    cls, doing = team(plan)
    async with doing as (one, agent, bench):
        await agent.begin()
        await bench.seen("begun wait")
        await one.world.crash()
        agent = await again(one, cls)
        await bench.seen("begun wait", 2)
        await bench.seen("planning", 2)
        await given_up(one, agent, "x")
        bench.go.set()
        await bench.seen("over")

        assert bench.logged("came to") == ["came to x wait!"]
        assert [run.id for run in await agent.all_runs()] == ["x"]


@pytest.mark.slow
async def test_a_run_that_had_ended_when_it_was_stopped_ended_as_it_did_also_if_it_was_given_up() -> None:
    async def plan(agent: Any) -> None:
        await agent.run_agent(TeamDigger, "wait", run_id="x")

    async def on_start(self: Any) -> None:
        if (run := self.runs.get("x")) is not None and run.status == "interrupted":
            self.runs.cancel("x", "enough")

    ended: set[str] = set()
    for nth in range(1, 5):
        cls, doing = team(plan, attributes={"on_start": on_start})
        async with doing as (one, agent, bench):
            await agent.begin()
            await bench.seen("begun wait")
            await one.world.crash()
            agent = await again(one, cls)
            await bench.seen("begun wait", 2)
            await given_up(one, agent, "x")
            one.world.crash_at("committed", nth)
            bench.go.set()
            while not one.world.points.ended:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.001)
            await one.world.crash()
            agent = await again(one, cls)

            run = await over(agent, "x")

            child = await one.world.get_agent(cls, "b", sub=[(TeamDigger, "x")])
            assert await child.ends() == [run.status]
            ended.add(run.status)
    assert ended == {"completed", "cancelled"}


async def test_whoever_stops_waiting_stops_all_branches() -> None:
    async def plan(agent: Any) -> list[Run]:
        return await agent.runs.gather(*branches("wait", "wait too", "wait not", ids=["x", "y", "z"]), concurrency=2)

    _, doing = team(plan)
    async with doing as (_, agent, bench):
        asking = asyncio.create_task(agent.do())
        await bench.seen("begun wait too")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

        runs = [await over(agent, id) for id in ("x", "y")]

        assert ends(runs) == [("cancelled", "caller-cancelled")] * 2
        assert await agent.one("z") is None


async def test_a_fiber_that_is_cancelled_takes_its_branches_with_it_also_after_a_crash(level: str) -> None:
    async def plan(agent: Any) -> None:
        agent.deps.log.append("planning")
        await agent.runs.gather(*branches("wait", "wait too", ids=["x", "y"]))

    cls, doing = team(plan, durability=level)
    async with doing as (one, agent, bench):
        await agent.begin()
        await bench.seen("begun wait too")
        await one.world.crash()
        agent = await again(one, cls)
        await bench.seen("begun wait too", 2)
        await bench.seen("planning", 2)
        await agent.cancel_work()

        assert ends([await over(agent, id) for id in ("x", "y")]) == [("cancelled", "caller-cancelled")] * 2


@pytest.mark.parametrize("way", ["gather", "race", *slow(["map", "run_agent"])])
async def test_a_fiber_that_is_over_before_it_began_again_after_a_crash_takes_its_branches_with_it(
    way: str, level: str
) -> None:
    async def plan(agent: Any) -> None:
        if way == "map":
            await agent.runs.map(TeamDigger, ["wait", "wait too"])
        elif way == "run_agent":
            await asyncio.gather(*(agent.run_agent(TeamDigger, one) for one in ("wait", "wait too")))
        else:
            await getattr(agent.runs, way)(*branches("wait", "wait too"))

    async def on_start(self: Any) -> None:
        if self.fibers.get("work") is not None:
            self.fibers.cancel("work")

    cls, doing = team(plan, durability=level, attributes={"on_start": on_start})
    async with doing as (one, agent, bench):
        await agent.begin()
        await bench.seen("begun wait too")
        await one.world.crash()
        agent = await again(one, cls)

        runs = [await over(agent, run.id) for run in await agent.all_runs()]

        assert ends(runs) == [("cancelled", "caller-cancelled")] * 2
        await one.world.settled()
        assert "over" not in bench.log
        assert await agent.all_fibers() == [("work", "cancelled")]


async def test_what_a_failed_fiber_had_begun_goes_on_until_that_is_forgotten() -> None:
    async def plan(agent: Any) -> None:
        giving = asyncio.gather(*(agent.run_agent(TeamDigger, one) for one in ("wait", "late")))
        await agent.deps.seen("begun wait")
        await agent.deps.seen("begun late")
        if "failed" not in agent.deps.log:
            agent.deps.log.append("failed")
            raise ValueError("not this time")
        await giving

    cls, doing = team(plan)
    async with doing as (one, agent, bench):
        await agent.begin()
        await bench.seen("begun late")
        while await agent.all_fibers() != [("work", "failed")]:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.001)
        await one.world.crash()
        agent = await again(one, cls)
        await bench.seen("begun wait", 2)
        first, second = await agent.all_runs()
        bench.go.set()
        assert (await over(agent, first.id)).output == "wait!"

        await agent.forget_work()

        assert ends([await over(agent, second.id)]) == [("cancelled", "caller-cancelled")]


class TeamLead(Agent):
    """Has its run done by several others."""

    deps: Site

    async def on_run(self, input: list[str]) -> list[str | None]:
        return [run.output for run in await self.runs.gather(*branches(*input))]


@pytest.mark.promise("A-144")
async def test_a_run_may_fan_out_itself_and_stopping_it_stops_all_below(level: str) -> None:
    async def plan(agent: Any) -> Run:
        return await agent.run_agent(TeamLead, ["wait", "a", "wait too"], run_id="lead")

    cls, doing = team(plan, durability=level)
    async with doing as (one, agent, bench):
        await agent.begin()
        await bench.seen("begun wait")
        await bench.seen("begun wait too")
        await one.world.crash()
        agent = await again(one, cls)
        await bench.seen("begun wait", 2)
        await bench.seen("begun wait too", 2)
        await agent.stop("lead", "enough")

        run = await over(agent, "lead")

        assert (run.status, run.reason) == ("cancelled", "enough")
        await bench.seen("cut wait")
        await bench.seen("cut wait too")


class Consulting(caller(None)):
    """One whose tool asks several."""

    @tool(idempotent=True)
    async def consult(self, inputs: list[str]) -> list[str]:
        """Consult some."""
        first = await self.run_agent(TeamDigger, "opening")
        runs = await self.runs.gather(*branches(*inputs))
        last = await self.runs.map(TeamDigger, ["x", "y"])
        return [run.summary or run.status for run in (first, *runs, *last)]


@pytest.mark.slow
@pytest.mark.promise("A-146", "A-150", "B-1")
async def test_in_a_tool_branches_belong_to_the_call_and_are_found_again_by_it(level: str) -> None:
    ours = ScriptedModel(call("consult", id="c1", inputs=["wait", "fail", "a"]), text("thanks"))
    cls = caller(ours, base=Consulting)
    async with working(cls, bench=Site(), durability=level) as (one, agent, bench):
        sending = asyncio.create_task(agent.send("go"))
        await bench.seen("begun wait")
        await over(agent, "agent-tool:c1:3")
        await one.world.crash()
        await asyncio.gather(sending, return_exceptions=True)
        agent = await again(one, cls)
        client = await one.join(CALLER)
        await bench.seen("begun wait", 2)
        bench.go.set()
        await bench.seen("dug y")
        await over(agent, "agent-tool:c1:4")
        await over(agent, "agent-tool:c1:5")

        runs = await agent.all_runs()

        assert [(run.id, run.tool_call, run.order) for run in runs] == [
            (f"agent-tool:c1:{number}", "c1", number) for number in range(6)
        ]
        assert [run.output for run in runs] == ["opening!", "wait!", None, "a!", "x!", "y!"]
        assert [bench.log.count(f"dug {one}") for one in ("opening", "a", "x", "y")] == [1, 1, 1, 1]
        for run in runs:
            await told_end(client, run.id)
            check_sequence(frames(client, run.id))


async def test_what_is_awaited_with_asyncio_has_its_place_beside_what_is_gathered() -> None:
    async def plan(agent: Any) -> list[Run]:
        own = asyncio.gather(agent.run_agent(TeamDigger, "a"), agent.run_agent(TeamDigger, "b"))
        return [*await own, *await agent.runs.gather(*branches("c", "d"))]

    _, doing = team(plan)
    async with doing as (_, agent, bench):
        await agent.begin()
        await bench.seen("over")

        assert [run.output for run in await agent.all_runs()] == ["a!", "b!", "c!", "d!"]
        assert len({run.id for run in await agent.all_runs()}) == 4


@pytest.mark.promise("B-1")
@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: one.__name__)
async def test_killed_at_one_commit_or_another_it_goes_on_does_nothing_twice_and_comes_to_the_same(
    policy: Plan, level: str
) -> None:
    apart = 9 if level == "process" else 17  # more of them: tests/faults
    await killed(policy, level, range(1 + POLICIES.index(policy), 500, apart))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["map", "run_agent"])
async def test_as_long_as_branches_end_it_goes_on_however_often_the_process_does(how: str) -> None:
    inputs = [f"g{number} x" for number in range(7)]

    async def plan(agent: Any) -> None:
        if how == "map":
            await agent.runs.map(TeamDigger, inputs, concurrency=1)
        else:
            for one in inputs:
                await agent.run_agent(TeamDigger, one)

    cls, doing = team(plan)
    async with doing as (one, agent, bench):
        bench.gates |= {f"g{number}": asyncio.Event() for number in range(7)}
        await agent.begin()
        for number in range(7):
            await passing_time(one, lambda begun=f"begun {inputs[number]}": begun in bench.log)
            await one.world.crash()
            agent = await again(one, cls)
            await passing_time(one, lambda begun=f"begun {inputs[number]}": bench.log.count(begun) == 2)
            bench.gates[f"g{number}"].set()
        await bench.seen("over")

        assert [run.output for run in await agent.all_runs()] == [f"{one}!" for one in inputs]
        assert [bench.log.count(f"dug {one}") for one in inputs] == [1] * 7


async def test_a_loser_that_had_ended_well_before_it_could_be_stopped_has_still_lost_after_a_crash() -> None:
    """Both end in the same moment: the first one wins, now and in the next life."""

    async def plan(agent: Any) -> None:
        winner = await agent.runs.race(*branches("late a", "wait b", ids=["x", "y"]))
        agent.deps.log.append(f"won {winner.id}")
        if agent.deps.log.count(f"won {winner.id}") == 1:
            await asyncio.get_running_loop().create_future()

    cls, doing = team(plan)
    async with doing as (one, agent, bench):
        await agent.begin()
        await bench.seen("begun late a")
        await bench.seen("begun wait b")
        bench.go.set()
        bench.gates["late"].set()
        while not bench.logged("won"):  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.001)
        for id in ("x", "y"):
            await over(agent, id)
        await one.world.crash()
        await again(one, cls)
        await bench.seen("over")

        assert bench.logged("won") == ["won y", "won y"]


async def test_a_run_that_is_cleared_away_meanwhile_ends_the_waiting_for_all() -> None:
    async def plan(agent: Any) -> list[Run]:
        return await agent.runs.gather(*branches("a", "wait", ids=["x", "y"]))

    _, doing = team(plan)
    async with doing as (_, agent, bench):
        asking = asyncio.create_task(agent.do())
        await bench.seen("begun wait")
        await over(agent, "x")
        await agent.clear_them("running")

        with pytest.raises(Refused, match="was cleared"):
            await asking


async def test_what_cannot_be_given_is_refused_before_anything_is() -> None:
    async def plan(agent: Any) -> list[Run]:
        for wrong, says in (
            (agent.runs.race, "at least one branch"),
            (lambda: agent.runs.gather(*branches("a"), quorum=2), "expected an int from 1 to 1"),
            (lambda: agent.runs.gather(*branches("a"), quorum=1, fail_fast=True), "not both"),
            (lambda: agent.runs.map(TeamDigger, ["a"], concurrency=0), "must be at least 1, got 0"),
            (lambda: agent.runs.gather(*branches("a", "b", ids=["x", "x"])), "the same run_id"),
            (lambda: agent.runs.gather(*branches("a"), "b"), "Expected a Branch"),
            (lambda: agent.runs.gather(*branches("a"), Branch(cast(Any, str))), "agent"),
        ):
            with pytest.raises(UsageError, match=says):
                await wrong()
        with pytest.raises(UsageError, match="expected Retry"):
            Branch(TeamDigger, retry=3)  # pyright: ignore[reportArgumentType]
        with pytest.raises(Refused, match="The input of a run cannot be stored"):
            await agent.runs.gather(*branches("a"), Branch(TeamDigger, cast(Any, object())))
        return await agent.runs.gather()

    _, doing = team(plan)
    async with doing as (_, agent, _):
        assert await agent.do() == []
        assert await agent.all_runs() == []


@pytest.mark.slow
async def test_the_work_for_each_branch_does_not_grow_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 0
    find = RunsTable.find

    def counted(self: RunsTable, where: str, *arguments: Any) -> Any:
        nonlocal rows
        found = find(self, where, *arguments)
        rows += 1 + len(found)
        return found

    async def asked_for(number: int) -> float:
        async def plan(agent: Any) -> list[Run]:
            return await agent.runs.gather(
                *branches(*[f"part {one}" for one in range(number - 1)], "wait"), quorum=number - 1
            )

        _, doing = team(plan)
        async with doing as (_, agent, _):
            monkeypatch.setattr(RunsTable, "find", counted)
            await agent.do()
            monkeypatch.setattr(RunsTable, "find", find)
        return rows / number

    few = await asked_for(10)
    rows = 0
    many = await asked_for(100)

    assert many < few * 1.2
