"""Temporal drives on, and stops nothing, whatever happens to workers, servers and the lines between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle
from tests.machine import patience
from tests.temporal.cluster import Driven, Temporal, driven, until_ended

from sapwood import ChatAgent, agent_tool, tool
from sapwood.drivers.temporal.messages import NAME
from sapwood.drivers.temporal.messages import Driven as Work
from sapwood.drivers.temporal.worker import work
from sapwood.testing import ScriptedModel, call, text

NOWHERE = "http://127.0.0.1:1"


class TroubledTalker(ChatAgent):
    """Says one thing, when it may."""


class TroubledAsker(ChatAgent):
    """Asks before it does anything."""

    model = ScriptedModel(call("pay", id="p1"), text("paid"), each=True)

    @tool(requires_approval=True)
    async def pay(self) -> str:
        """Pay."""
        return "paid"


class TroubledHelper(ChatAgent):
    """Says one thing."""

    model = ScriptedModel(text("helped"), each=True)


class TroubledBoss(ChatAgent):
    """Has somebody help."""

    model = ScriptedModel(call("troubled_helper", id="h", message="help"), text("done"), each=True)
    tools = (agent_tool(TroubledHelper),)


class TroubledGiver(ChatAgent):
    """Has somebody speak."""

    model = ScriptedModel(call("troubled_talker", id="h", message="speak"), text("done"), each=True)
    tools = (agent_tool(TroubledTalker),)


@pytest.fixture
def gate() -> asyncio.Event:
    """What says that it may."""
    gate = asyncio.Event()
    TroubledTalker.model = ScriptedModel(text("hello", gate=gate), each=True)
    return gate


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(patience()):
        while not (found := await look()):  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.02)
    return found


@asynccontextmanager
async def working(one: Driven, url: str | None = None) -> AsyncGenerator[None, None]:
    """Work in this process, which takes no time to start."""
    ended = asyncio.Event()
    task = asyncio.create_task(work(one.driver, url or f"http://127.0.0.1:{one.one.site.port}", ended))
    try:
        yield
    finally:
        ended.set()
        await task


async def attempt(one: Driven, workflow: str) -> int:
    """Return which attempt at a step is under way; 0: none."""
    found = (await one.client.get_workflow_handle(workflow).describe()).raw_description.pending_activities
    return max((activity.attempt for activity in found if activity.HasField("last_started_time")), default=0)


async def test_a_turn_is_stopped_whose_workflow_is_terminated(
    temporal: Temporal, tmp_path: Path, gate: asyncio.Event
) -> None:
    async with driven(temporal, tmp_path, TroubledTalker, workers=0) as one, working(one):
        agent = await one.world.get_agent(TroubledTalker, "t")
        answer = asyncio.create_task(agent.send("hi"))
        (id,) = await one.begun()
        await until(lambda: attempt(one, id))

        await one.client.get_workflow_handle(id).terminate("enough")

        assert (await answer).status == "cancelled"


async def test_a_turn_is_stopped_whose_workflow_is_terminated_while_it_waits_for_a_run(
    temporal: Temporal, tmp_path: Path, gate: asyncio.Event
) -> None:
    async with driven(temporal, tmp_path, TroubledGiver, workers=0) as one, working(one):
        agent = await one.world.get_agent(TroubledGiver, "t")
        answer = asyncio.create_task(agent.send("hi"))
        above, below = await one.begun(2)
        await until(lambda: attempt(one, below))

        await one.client.get_workflow_handle(above).terminate("enough")
        gate.set()

        assert (await answer).status == "failed"
        assert await until_ended(one.client.get_workflow_handle(below)) == "COMPLETED"


async def test_whoever_cancels_a_turn_that_waits_while_the_server_is_away_is_heard(
    temporal: Temporal, tmp_path: Path
) -> None:
    async with driven(temporal, tmp_path, TroubledAsker, workers=0, look=0.2) as one:
        agent = await one.world.get_agent(TroubledAsker, "t")
        async with working(one):
            turn = await agent.send("hi")
        handle = one.workflow("TroubledAsker:t", turn.id)
        async with working(one, NOWHERE):
            await until(lambda: attempt(one, handle.id))

            await handle.cancel()
            await until(lambda: _has_event(handle, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED))
        async with working(one):
            assert await until_ended(handle) == "CANCELED"

        assert (await agent.turns.wait(turn.id)).status == "cancelled"


async def test_a_turn_is_stopped_that_is_interrupted_and_then_cancelled_while_the_server_is_away(
    temporal: Temporal, tmp_path: Path, gate: asyncio.Event
) -> None:
    async with driven(temporal, tmp_path, TroubledTalker, workers=0) as one:
        agent = await one.world.get_agent(TroubledTalker, "t")
        answer = asyncio.create_task(agent.send("hi"))
        (id,) = await one.begun()
        handle = one.client.get_workflow_handle(id)
        async with working(one, NOWHERE):
            await until(lambda: attempt(one, id))
            await handle.signal("interrupt")
            await until(lambda: _is(_activities(handle), 2))

            await handle.cancel()
            await until(lambda: _has_event(handle, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED))
        async with working(one):
            assert await until_ended(handle) == "CANCELED"
            assert (await answer).status == "cancelled"


async def test_a_run_goes_on_at_once_with_a_workflow_that_an_earlier_one_of_its_name_has_left(
    temporal: Temporal, tmp_path: Path
) -> None:
    async with driven(temporal, tmp_path, TroubledBoss, workers=0, patience=30.0) as one, working(one):
        address, run = "TroubledBoss:t/TroubledHelper:agent-tool%3Ah", "agent-tool:h"
        left = Work(f"{address} {run}", address, run, ready=False, searchable=False)
        handle = await one.client.start_workflow(NAME, left, id=left.workflow, task_queue=one.driver.queue)
        agent = await one.world.get_agent(TroubledBoss, "t")

        async with asyncio.timeout(patience()):
            assert (await agent.send("hi")).text == "done"

        assert await until_ended(handle) == "COMPLETED"


async def _activities(handle: WorkflowHandle[Any, Any]) -> int:
    return len((await handle.describe()).raw_description.pending_activities)


async def _has_event(handle: WorkflowHandle[Any, Any], kind: EventType.ValueType) -> bool:
    return any(event.event_type == kind for event in (await handle.fetch_history()).events)


async def _is(found: Awaitable[int], wanted: int) -> bool:
    return await found == wanted
