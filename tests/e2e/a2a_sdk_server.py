"""A server of another system, made with the official SDK, that `test_a2a_client.py` calls and kills."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, Task, TaskState, TaskStatus
from starlette.applications import Starlette

PORT, LOG = int(sys.argv[1]), Path(os.environ["A2A_LOG"])
WORDS = 6


def note(line: str) -> None:
    """Write what was done where the test counts it."""
    with LOG.open("a") as file:
        file.write(f"{line}\n")


def is_allowed(number: int) -> bool:
    """Return whether the test allows a word."""
    return Path(f"{LOG}.{number}").exists()


class Executor(AgentExecutor):
    """Says some words, each when the test allows it; or asks what to paint with."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        said = context.get_user_input()
        note(f"execute {said}")
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.current_task is None:
            begun = Task(id=context.task_id, context_id=context.context_id)
            begun.status.CopyFrom(TaskStatus(state=TaskState.TASK_STATE_SUBMITTED))
            if context.message is not None:
                begun.history.append(context.message)
            await event_queue.enqueue_event(begun)
        elif said != "dig":
            await updater.add_artifact([Part(text=f"painted {said}")])
            await updater.complete()
            return
        if said == "paint":
            await updater.requires_input(updater.new_agent_message([Part(text="Which colour?")]))
            return
        await updater.start_work()
        for number in range(WORDS):
            while not is_allowed(number):  # noqa: ASYNC110 - a file of the test's
                await asyncio.sleep(0.01)
            note(f"word {number}")
            part = [Part(text=f"word{number} ")]
            await updater.add_artifact(part, artifact_id="words", append=number > 0, last_chunk=number == WORDS - 1)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        note("cancelled")
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


url = f"http://127.0.0.1:{PORT}"
card = AgentCard(
    name="Digger",
    description="Digs.",
    version="1",
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    capabilities=AgentCapabilities(streaming=True),
    supported_interfaces=[AgentInterface(url=f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")],
    skills=[AgentSkill(id="dig", name="dig", description="Digs.", tags=["dig"])],
)
handler = DefaultRequestHandler(Executor(), InMemoryTaskStore(), card)
app = Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")])
uvicorn.run(app, port=PORT, log_level="warning")
