"""The extension of MCP for tasks: a task is a run of the desk, so it survives every process that works on it."""

from __future__ import annotations

from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import RequestParams
from pydantic import Field

from sapwood.errors import InvalidArguments, Refused
from sapwood.protocols.mcp_calls import INVALID, Caller, require_tasks
from sapwood.runs.execution.contract import CANCELLED
from sapwood.runs.tables.runs_table import Run

UNKNOWN = "There is no such task."


class TaskParams(RequestParams):
    """Names a task."""

    task_id: str = Field(alias="taskId")


class TaskUpdateParams(TaskParams):
    """Names a task, and has answers to its questions."""

    input_responses: dict[str, Any] = Field(alias="inputResponses")


async def get(caller: Caller, params: TaskParams) -> dict[str, Any]:
    """Return how a task stands, with its result or its questions."""
    run = _run(caller, params)
    return {"resultType": "complete", **await caller.work.task(caller.work.tool_of(run), run)}


async def update(caller: Caller, params: TaskUpdateParams) -> dict[str, Any]:
    """Pass on answers. Those to questions that are not open, or are none of this task, are ignored."""
    run = _run(caller, params)
    try:
        await caller.work.answer(run, params.input_responses)
    except (InvalidArguments, Refused) as error:
        raise MCPError(INVALID, str(error)) from None
    return {"resultType": "complete"}


async def cancel(caller: Caller, params: TaskParams) -> dict[str, Any]:
    """Cancel a task and everything below it, unless it has ended."""
    caller.work.cancel(_run(caller, params).id, CANCELLED)
    return {"resultType": "complete"}


def _run(caller: Caller, params: TaskParams) -> Run:
    require_tasks(caller)
    run = caller.work.run(params.task_id)
    if run is None:
        raise MCPError(INVALID, UNKNOWN)
    return run
