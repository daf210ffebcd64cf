"""What a workflow is told while it waits for something else is not forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from tests.machine import patience
from tests.temporal.cluster import Temporal

from sapwood.drivers.temporal.messages import INTERRUPT, NAME, OVER, STEP, STOP, Driven, StepAnswer, StepRequest
from sapwood.drivers.temporal.workflow import WorkWorkflow


class Agent:
    """Does what it is asked when the test says so."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.answers: dict[str, asyncio.Future[StepAnswer]] = {
            what: asyncio.get_running_loop().create_future() for what in (STEP, STOP)
        }

    @activity.defn(name=STEP)
    async def step(self, asked: StepRequest) -> StepAnswer:
        self.asked.put_nowait(STEP)
        return await asyncio.shield(self.answers[STEP])

    @activity.defn(name=STOP)
    async def stop(self, asked: StepRequest) -> StepAnswer:
        self.asked.put_nowait(STOP)
        return await asyncio.shield(self.answers[STOP])


@asynccontextmanager
async def driving(temporal: Temporal, *, most_steps: int = 500) -> AsyncGenerator[tuple[Agent, WorkflowHandle], None]:
    """Have a workflow ask an agent for its first step."""
    agent, queue, client = Agent(), uuid4().hex, await temporal.client()
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[WorkWorkflow],
        activities=[agent.step, agent.stop],
        workflow_runner=UnsandboxedWorkflowRunner(),
        build_id="test",
    )
    async with asyncio.timeout(patience()), worker:
        driven = Driven(queue, "Boss:b", "t1", patience=60.0, most_steps=most_steps, searchable=False)
        handle = await client.start_workflow(NAME, driven, id=queue, task_queue=queue)
        assert await agent.asked.get() == STEP
        yield agent, handle
        await _ended(client, queue)


async def _ended(client: Client, id: str) -> None:
    if (await client.get_workflow_handle(id).describe()).status == WorkflowExecutionStatus.RUNNING:
        await client.get_workflow_handle(id).terminate()


async def knows(handle: WorkflowHandle, event: EventType.ValueType) -> None:
    """Return when the workflow has taken in what it was told."""
    while True:
        kinds = [one.event_type async for one in handle.fetch_history_events()]
        if event in kinds and EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED in kinds[kinds.index(event) :]:
            return
        await asyncio.sleep(0.02)


async def test_one_that_is_interrupted_and_cancelled_waits_until_the_agent_has_stopped(temporal: Temporal) -> None:
    async with driving(temporal) as (agent, handle):
        await handle.signal(INTERRUPT, "enough")
        assert await agent.asked.get() == STOP
        await handle.cancel()
        await knows(handle, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED)
        for answer in agent.answers.values():
            answer.set_result(StepAnswer("cancelled"))

        with pytest.raises(WorkflowFailureError) as raised:
            await handle.result()
        kinds = [one.event_type async for one in handle.fetch_history_events()]

    assert isinstance(raised.value.cause, CancelledError)
    assert kinds.count(EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED) == 2


async def test_one_that_is_told_that_it_is_over_does_not_go_on_in_another_history(temporal: Temporal) -> None:
    async with driving(temporal, most_steps=1) as (agent, handle):
        await handle.signal(OVER, "cancelled")
        await knows(handle, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
        agent.answers[STEP].set_result(StepAnswer("running", waits=True))

        async with asyncio.timeout(patience()):
            assert await handle.result(follow_runs=True) == "cancelled"


async def test_one_that_failed_unasked_fails_with_the_code_of_its_error(temporal: Temporal) -> None:
    async with driving(temporal) as (agent, handle):
        agent.answers[STEP].set_result(StepAnswer("running", waits=True))
        await handle.signal(OVER, args=["failed", "over_limit"])

        async with asyncio.timeout(patience()):
            with pytest.raises(WorkflowFailureError) as failed:
                await handle.result()

    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "over_limit"
