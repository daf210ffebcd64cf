"""A fare that an agent finds and code pays: in Pydantic AI with Temporal.

It needs a Temporal server: `temporal server start-dev`.
The same program in sapwood is `examples/booking.py`.
"""

import asyncio
import sys
from datetime import timedelta
from itertools import count

from pydantic_ai import Agent
from pydantic_ai.durable_exec.temporal import (
    PydanticAIPlugin,
    PydanticAIWorkflow,
    TemporalDurability,
)
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy
from temporalio.worker import Worker


def find(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stand in for a model: look up a fare, and return it."""
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("look_up", {"city": "Oslo"})])
    return ModelResponse(parts=[ToolCallPart("final_result", {"response": 90})])


MODEL = FunctionModel(find)
REQUESTS = count(1)


async def pay_by_card(euros: int, *, idempotency_key: str) -> str:
    """Stand in for a bank that does not respond to the first request."""
    print(f"pay {euros}")
    if next(REQUESTS) == 1:
        raise ConnectionError("The bank does not respond.")
    return f"{euros} euros are paid."


# --8<-- [start:workflow]
finder = Agent(
    MODEL, name="finder", output_type=int, capabilities=[TemporalDurability()]
)


@finder.tool_plain
async def look_up(city: str) -> int:
    """Return the fare to a city."""
    print(f"look up {city}")
    return 90


@activity.defn
async def pay(euros: int) -> str:
    here = activity.info()
    key = f"{here.workflow_run_id}-{here.activity_id}"
    return await pay_by_card(euros, idempotency_key=key)


@workflow.defn
class Booking(PydanticAIWorkflow):
    __pydantic_ai_agents__ = (finder,)
    _stage = "finding"

    @workflow.run
    async def run(self, wish: str) -> str:
        fare = await finder.run(wish)
        self._stage = "paying"
        timeout, retry = timedelta(seconds=10), RetryPolicy(maximum_attempts=3)
        return await workflow.execute_activity(
            pay, fare.output, start_to_close_timeout=timeout, retry_policy=retry
        )

    @workflow.query
    def stage(self) -> str:
        return self._stage


# --8<-- [end:workflow]
# --8<-- [start:use]
async def main(server: str) -> None:
    client = await Client.connect(server, plugins=[PydanticAIPlugin()])
    async with Worker(client, task_queue="q", workflows=[Booking], activities=[pay]):
        booking = await client.start_workflow(
            Booking.run,
            "To the north.",
            id="ann",
            task_queue="q",
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        print(await booking.result())
        print("last stage:", await booking.query(Booking.stage))


# --8<-- [end:use]
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7233"))
