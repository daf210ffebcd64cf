"""Agents used one after the other: each gets the output of the one before, and a crash repeats no finished step."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from tests.conformance.errands import again, check_sequence, frames, over, told_end
from tests.conformance.teams import TeamDigger, ends, killed, team

from sapwood import Branch, Retry, Run
from sapwood.errors import PipelineFailed, UsageError


class TeamBreaker(TeamDigger):
    """Fails."""

    async def _dig(self, input: str) -> str:
        raise ValueError("it broke")


async def three(agent: Any) -> list[Run]:
    return [
        await agent.runs.pipeline(
            "a", TeamDigger, Branch(TeamDigger, run_id="second", display={"icon": "2"}), TeamDigger
        )
    ]


@pytest.mark.promise("B-1")
async def test_each_step_gets_the_output_of_the_one_before_and_is_a_run(level: str) -> None:
    _, doing = team(three, durability=level, attributes={"max_concurrent_runs": 1})
    async with doing as (one, agent, bench):
        client = await one.join("/agents/boss/b")

        (last,) = await agent.do()

        runs = await agent.all_runs()
        assert (last.output, last) == ("a!!!", runs[-1])
        assert [(run.input, run.output, run.status) for run in runs] == [
            ("a", "a!", "completed"),
            ("a!", "a!!", "completed"),
            ("a!!", "a!!!", "completed"),
        ]
        assert [run.order for run in runs] == [0, 1, 2]
        assert runs[1].id == "second"
        assert (bench.most, len(await agent.child_names())) == (1, 3)
        for run in runs:
            await told_end(client, run.id)
            check_sequence(frames(client, run.id))


@pytest.mark.promise("B-1")
async def test_a_step_that_fails_ends_the_pipeline_with_an_error_that_names_it(level: str) -> None:
    async def plan(agent: Any) -> Any:
        return await agent.runs.pipeline("a", TeamDigger, Branch(TeamBreaker, run_id="second"), TeamDigger)

    _, doing = team(plan, durability=level)
    async with doing as (_, agent, bench):
        with pytest.raises(PipelineFailed, match=r"^Step 2 of 3 \(TeamBreaker\) did not complete: ") as caught:
            await agent.do()

        assert (caught.value.step, caught.value.run_id) == (2, "second")
        assert [(step.type, step.name) for step in caught.value.path] == [("Boss", "b"), ("TeamBreaker", "second")]
        assert ends(await agent.all_runs()) == [
            ("completed", None),
            ("failed", None),
            ("cancelled", "failed-with second"),
        ]
        assert bench.logged("begun") == ["begun a", "begun a!"]


async def test_a_step_that_is_cancelled_ends_the_pipeline() -> None:
    async def plan(agent: Any) -> Any:
        return await agent.runs.pipeline("wait", Branch(TeamDigger, run_id="first"), TeamDigger)

    _, doing = team(plan)
    async with doing as (_, agent, bench):
        asking = asyncio.create_task(agent.do())
        await bench.seen("begun wait")
        await agent.stop("first", "enough")

        with pytest.raises(PipelineFailed, match=r"Step 1 of 2 .* enough"):
            await asking
        assert ends(await agent.all_runs()) == [("cancelled", "enough"), ("cancelled", "failed-with first")]


@pytest.mark.promise("B-1")
async def test_cancelling_the_caller_stops_the_step_that_runs_and_starts_no_other() -> None:
    async def plan(agent: Any) -> Any:
        return await agent.runs.pipeline("wait", Branch(TeamDigger, run_id="first"), TeamDigger)

    _, doing = team(plan)
    async with doing as (_, agent, bench):
        await agent.begin()
        await bench.seen("begun wait")
        assert await agent.cancel_work()

        assert ends([await over(agent, "first")]) == [("cancelled", "caller-cancelled")]
        assert bench.logged("begun") == ["begun wait"]


async def test_the_next_step_waits_while_the_one_before_waits_to_be_tried_again() -> None:
    soon = Retry(max_attempts=3, initial_delay=timedelta(seconds=10), max_delay=timedelta(seconds=10))

    async def plan(agent: Any) -> list[Run]:
        return [await agent.runs.pipeline("busy", Branch(TeamDigger, run_id="x", retry=soon), TeamDigger)]

    _, doing = team(plan)
    async with doing as (one, agent, bench):
        bench.busy = 1
        asking = asyncio.create_task(agent.do())
        await over(agent, "x")
        await asyncio.sleep(0.02)
        assert bench.logged("begun") == ["begun busy"]
        one.world.clock.settled = None
        await one.world.clock.advance(11)
        (last,) = await asking

        assert last.output == "busy!!"
        assert bench.logged("begun") == ["begun busy", "begun busy", "begun busy!"]


@pytest.mark.promise("B-1")
async def test_a_crash_in_the_middle_repeats_no_finished_step(level: str) -> None:
    async def plan(agent: Any) -> None:
        run = await agent.runs.pipeline("late", TeamDigger, TeamDigger, TeamDigger)
        agent.deps.log.append(f"came to {run.output}")

    cls, doing = team(plan, durability=level)
    async with doing as (one, agent, bench):
        bench.gates["late!"] = asyncio.Event()  # the second step waits there
        bench.gates["late"].set()
        await agent.begin()
        await bench.seen("begun late!")
        await one.world.crash()
        await again(one, cls)
        await bench.seen("begun late!", 2)
        bench.gates["late!"].set()
        await bench.seen("over")

        assert bench.logged("came to") == ["came to late!!!"]
        assert [bench.log.count(f"begun {one}") for one in ("late", "late!", "late!!")] == [1, 2, 1]


async def pipelined(agent: Any) -> None:
    now = Retry(max_attempts=3, initial_delay=timedelta(0))
    try:
        await agent.runs.pipeline("busy", Branch(TeamDigger, retry=now), TeamDigger, TeamBreaker, TeamDigger)
    except PipelineFailed as error:
        agent.deps.log.append(f"came to {json.dumps([error.step, error.run_id])}")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.promise("B-1")
async def test_a_crash_at_any_commit_leaves_a_pipeline_that_comes_to_the_same(level: str) -> None:
    await killed(pipelined, level, range(1, 80))


async def test_what_cannot_be_a_pipeline_is_refused_before_anything_begins() -> None:
    refused: dict[str, tuple[Any, ...]] = {
        "at least one step": (),
        "gets its input from the step before": (TeamDigger, Branch(TeamDigger, "b")),
        "must be a class of agents or a Branch, got 'b'": (TeamDigger, "b"),
        "Two branches have the same run_id": (Branch(TeamDigger, run_id="x"), Branch(TeamDigger, run_id="x")),
    }

    async def plan(agent: Any) -> list[Run]:
        for why, steps in refused.items():
            with pytest.raises(UsageError, match=why):
                await agent.runs.pipeline("a", *steps)
        return agent.runs.list()

    _, doing = team(plan)
    async with doing as (_, agent, _):
        assert await agent.do() == []
