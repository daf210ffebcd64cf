"""Runs below runs: each level keeps its own, is watched at its own address, and has its own limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.conformance.chats import say
from tests.conformance.errands import (
    CALLER,
    again,
    caller,
    check_sequence,
    frames,
    helper,
    kinds,
    over,
    told,
    told_end,
    told_text,
    working,
)
from tests.conformance.errands import text as told_so_far
from tests.machine import patience

from sapwood import ChatAgent, Run, agent_tool
from sapwood.testing import ScriptedModel, call, calls, text

pytestmark = pytest.mark.core("temporal")

MIDDLE = f"{CALLER}/sub/middle-level/agent-tool%3Am1"
LOWEST = f"{MIDDLE}/sub/lowest-level/agent-tool%3Al1"


class Level(ChatAgent):
    """One in the middle, that shows its runs."""

    async def all_runs(self) -> list[Run]:
        return self.runs.list()


def levels(lowest: Any, **middle: Any) -> tuple[Any, Any, Any]:
    """Return three classes, each of which uses the next."""
    low = helper(lowest, "LowestLevel", base=Level)
    tools = [agent_tool(low)]
    asks = ScriptedModel(call("lowest_level", id="l1", message="down"), text("middle done"), each=True)
    mid = helper(asks, "MiddleLevel", base=Level, tools=tools, **middle)
    top = caller(ScriptedModel(call("middle_level", id="m1", message="go"), text("top done")), mid)
    return top, mid, low


@pytest.mark.slow
@pytest.mark.promise("A-182", "CF-120")
async def test_a_chain_of_three_levels_completes_and_each_level_keeps_its_own_run(level: str) -> None:
    top, mid, low = levels(ScriptedModel(text("lowest done")))
    async with working(top, durability=level) as (one, agent, _):
        turn = await agent.send("go")

        middle = await one.world.get_agent(top, "c", sub=[(mid, "agent-tool:m1")])
        lowest = await one.world.get_agent(top, "c", sub=((mid, "agent-tool:m1"), (low, "agent-tool:l1")))
        assert turn.text == "top done"
        assert [(run.id, run.output) for run in await agent.all_runs()] == [("agent-tool:m1", "middle done")]
        assert [(run.id, run.output) for run in await middle.all_runs()] == [("agent-tool:l1", "lowest done")]
        assert await lowest.all_runs() == []


@pytest.mark.slow
@pytest.mark.promise("A-103", "CF-120")
async def test_clients_of_each_level_see_the_runs_of_that_level_only() -> None:
    gate = asyncio.Event()
    top, _, _ = levels(ScriptedModel(text("lowest done", gate=gate)))
    async with working(top) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told(client, "agent-tool:m1", "started")
        await client.until(lambda frame: "tool-input-available" in str(frame))
        middle = await one.join(MIDDLE)
        await told_text(middle, "agent-tool:l1", "lowest")
        lowest = await one.join(LOWEST)
        gate.set()
        await sending
        await told_end(client, "agent-tool:m1")
        await told_end(middle, "agent-tool:l1")

        assert {frame["event"]["runId"] for frame in frames(client)} == {"agent-tool:m1"}
        assert {frame["event"]["runId"] for frame in frames(middle)} == {"agent-tool:l1"}
        assert frames(lowest) == []
        check_sequence(frames(client))
        check_sequence(frames(middle))
        assert told_so_far(client, "agent-tool:m1") == "middle done"
        assert told_so_far(middle, "agent-tool:l1") == "lowest done"


@pytest.mark.promise("CF-120")
async def test_each_level_has_its_own_cap() -> None:
    top, mid, _ = levels(ScriptedModel(text("lowest done")), max_concurrent_runs=0)
    async with working(top) as (one, agent, _):
        turn = await agent.send("go")

        middle = await one.world.get_agent(top, "c", sub=[(mid, "agent-tool:m1")])
        assert turn.text == "top done"
        assert [run.status for run in await agent.all_runs()] == ["completed"]
        assert [run.status for run in await middle.all_runs()] == ["failed"]


@pytest.mark.slow
@pytest.mark.promise("A-182", "CF-113")
async def test_three_levels_go_on_after_a_crash_and_no_turn_runs_twice(level: str) -> None:
    gate = asyncio.Event()
    top, mid, low = levels(ScriptedModel(text("lowest done", gate=gate)))
    async with working(top, durability=level) as (one, agent, _):
        client = await one.join(CALLER)
        await say(client, "r1", "go")
        async with asyncio.timeout(patience()):
            while not low.model.asked:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)

        await one.world.crash()
        gate.set()
        agent = await again(one, top)
        run = await over(agent, "agent-tool:m1")

        assert run.output == "middle done"
        assert len(mid.model.asked) == 2
        assert len(low.model.asked) <= 2
        late = await one.join(CALLER)
        await told_end(late, "agent-tool:m1")
        check_sequence(frames(late, "agent-tool:m1"))
        assert kinds(late, "agent-tool:m1") == ["started", "chunk", "finished"]


@pytest.mark.slow
@pytest.mark.promise("A-164")
async def test_the_same_helper_may_be_used_at_several_levels_at_once() -> None:
    low = helper(ScriptedModel(text("done"), each=True), "LowestLevel", base=Level)
    asks = ScriptedModel(call("lowest_level", id="l1", message="x"), text("middle done"), each=True)
    mid = helper(asks, "MiddleLevel", base=Level, tools=[agent_tool(low)])
    both = calls(call("middle_level", id="m1", message="x"), call("lowest_level", id="l1", message="x"))
    async with working(caller(ScriptedModel(both, text("top done")), mid, low)) as (_, agent, _):
        turn = await agent.send("go")

        assert turn.text == "top done"
        assert {run.id: run.output for run in await agent.all_runs()} == {
            "agent-tool:m1": "middle done",
            "agent-tool:l1": "done",
        }
