"""An A2A agent of another maker, made with the official SDK: it is never killed, and counts what it is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, Task, TaskState, TaskStatus
from starlette.applications import Starlette
from tests.e2e.kills import effects
from tests.e2e.serving import serving


class Courier(AgentExecutor):
    """Asks to whom it is to deliver, and delivers."""

    def __init__(self, folder: Path, heard: Callable[[], None]) -> None:
        self._folder, self._heard = folder, heard

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.context_id is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        known = context.current_task
        if known is None:
            assert context.message is not None
            begun = Task(id=context.task_id, context_id=context.context_id, history=[context.message])
            begun.status.CopyFrom(TaskStatus(state=TaskState.TASK_STATE_SUBMITTED))
            await event_queue.enqueue_event(begun)
            self._note(context.get_user_input(), "collect", context.task_id)
            await updater.requires_input(updater.new_agent_message([Part(text="To whom?")]))
            return
        self._note(known.history[0].parts[0].text, "deliver", context.task_id)
        await updater.add_artifact([Part(text=f"delivered to {context.get_user_input()}")])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError

    def _note(self, operation: str, tool: str, task: str) -> None:
        effects.note(self._folder, operation, tool, task)
        self._heard()


@asynccontextmanager
async def open_courier(folder: Path, port: int, heard: Callable[[], None]) -> AsyncGenerator[None, None]:
    """Serve the courier on this port."""
    interface = AgentInterface(url=f"http://127.0.0.1:{port}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")
    card = AgentCard(
        name="Courier",
        description="Delivers.",
        version="1",
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        capabilities=AgentCapabilities(streaming=True),
        supported_interfaces=[interface],
        skills=[AgentSkill(id="deliver", name="deliver", description="Delivers.", tags=["deliver"])],
    )
    handler = DefaultRequestHandler(Courier(folder, heard), InMemoryTaskStore(), card)
    app = Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")])
    async with serving(app, port):
        yield
