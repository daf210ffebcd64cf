"""Tool calls of MCP: started as runs, held until their result, or handed to the client as tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
from mcp.shared.exceptions import MCPError

from sapwood.errors import InvalidArguments, OverLimit, Refused
from sapwood.protocols.mcp_http import Unfinished
from sapwood.protocols.mcp_tools import RunTool
from sapwood.protocols.mcp_work import DeskWork, failed, words_of
from sapwood.runs.execution.contract import CANCELLED
from sapwood.runs.tables.question import Question

INVALID = -32602
TASKS = "io.modelcontextprotocol/tasks"
MISSING_CAPABILITY = -32021
HOLD = 10.0
"""Seconds for which the first request of a tool call is held before the client is told how to join it again. Each
further request is held for twice as long: clients come back ten times at most."""
MOST_ROUNDS = 20


@dataclass
class Caller:
    """Who calls a tool: what it can do, and how it hears of progress while its call is held."""

    work: DeskWork
    is_stateless: bool
    """Whether it speaks a revision without sessions, where a result may ask for input."""
    takes_forms: bool
    takes_tasks: bool
    progress: Callable[[float, float | None, str | None], Awaitable[None]]
    ask: Callable[[str, Question], Awaitable[None]] | None = None
    """Sends a question while the call is held; `None` if results ask."""
    run: str | None = None
    """The run of its request, if the protocol gives the request an id of its own."""
    begins: Callable[[RunTool], Awaitable[None]] | None = None
    """Called before a held call begins a run: a client that loses the connection after that can join it again."""
    held: list[str] = field(default_factory=list[str])
    """The runs whose calls are held now."""

    def told(self, error: Exception, method: str) -> str:
        """Return what the client may be told of an error."""
        return self.work.exchange.told(error, method)

    def cancel(self) -> None:
        """Cancel the runs whose calls are held: to close the stream is to cancel."""
        for id in self.held:
            self.work.cancel(id, CANCELLED)


async def call_run(caller: Caller, tool: RunTool, params: dict[str, Any]) -> dict[str, Any]:
    """Answer a call of a tool that is a run."""
    state, responses = params.get("requestState"), params.get("inputResponses")
    arguments: dict[str, Any] = params.get("arguments") or {}
    about = msgspec.json.encode([tool.name, arguments], order="sorted")
    if state is not None:
        return await _join(caller, tool, about, cast("str", state), responses)
    if responses:
        raise MCPError(INVALID, "inputResponses needs the requestState of the result that asked.")
    support = caller.work.options.task_support.get(tool.name, "optional")
    if support == "required":
        require_tasks(caller)
    is_task = caller.takes_tasks and support != "forbidden"
    id = caller.run or caller.work.new_run(tool)
    try:
        input = tool.input(arguments)
        if caller.is_stateless and not is_task:
            caller.work.held.add(id)
        if caller.begins is not None and not is_task:
            await caller.begins(tool)
        run = await caller.work.start(tool, input, id)
    except (InvalidArguments, OverLimit, Refused) as error:
        caller.work.held.remove(id)
        return failed(str(error))
    if is_task:
        return {"resultType": "task", **await caller.work.task(tool, caller.work.run(id) or run)}
    return await hold(caller, tool, run.id, about, 0)


async def _join(
    caller: Caller, tool: RunTool, about: bytes, state: str, responses: dict[str, Any] | None
) -> dict[str, Any]:
    """Continue a call that the client was told to repeat, with its answers."""
    opened = caller.work.seal.opened(state, about)
    id, _, round = (opened or "").partition(":")
    run = caller.work.run(id) if opened else None
    if run is None:
        raise MCPError(INVALID, "Invalid or expired requestState.")
    try:
        await caller.work.answer(run, responses or {})
    except InvalidArguments:
        pass  # the question is open, and asked again
    except Refused as error:
        raise MCPError(INVALID, str(error)) from None
    return await hold(caller, tool, id, about, min(int(round) + 1, MOST_ROUNDS))


async def hold(caller: Caller, tool: RunTool, id: str, about: bytes, round: int) -> dict[str, Any]:
    """Wait for the end of a run; return its result, or what the client has to do before."""
    caller.held.append(id)
    result = await _held(caller, tool, id, about, round)
    caller.held.remove(id)
    if caller.is_stateless:
        caller.work.held.remove(id)
    return result


async def _held(caller: Caller, tool: RunTool, id: str, about: bytes, round: int) -> dict[str, Any]:
    work, loop = caller.work, asyncio.get_running_loop()
    until = loop.time() + HOLD * 2**round if caller.is_stateless else None
    state = work.seal.sealed(f"{id}:{round}", about) if caller.is_stateless else None
    report, asked = ProgressReport(caller), set[str]()
    with work.bell(id) as bell:
        while True:
            bell.reset()
            run = work.run(id)
            if run is None:
                raise MCPError(INVALID, "The run of this call was deleted.")
            if run.is_over:
                return work.result(tool, run)
            await report.tell(run.progress)
            if caller.takes_forms and (questions := await work.questions(run)):
                if caller.ask is None:
                    requests = await work.requests(run)
                    return {"resultType": "input_required", "inputRequests": requests, "requestState": state}
                for key in questions.keys() - asked:
                    asked.add(key)
                    await caller.ask(id, questions[key])
            rest = None if until is None else until - loop.time()
            if (rest is not None and rest <= 0) or (bell.is_over and state is not None):
                return {"resultType": "input_required", "requestState": state}
            if bell.is_over:
                raise Unfinished
            await bell.news(rest)


class ProgressReport:
    """Tells a client of the progress of a run, in numbers that only rise, as MCP wants it."""

    def __init__(self, caller: Caller) -> None:
        self._tell = caller.progress
        self._told: Any = None
        self._last = 0.0

    async def tell(self, progress: Any) -> None:
        """Tell the progress that a run has reported, unless it was told already."""
        if not isinstance(progress, dict) or progress == self._told:
            return
        self._told = cast("dict[str, Any]", progress)
        fraction = self._told.get("fraction")
        is_more = isinstance(fraction, int | float) and fraction > self._last
        self._last = cast("float", fraction) if is_more else self._last + (1 - self._last) / 1000
        await self._tell(self._last, 1.0, words_of(progress) or None)


def require_tasks(caller: Caller) -> None:
    """Refuse a client that does not declare the extension for tasks."""
    if not caller.takes_tasks:
        needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise MCPError(MISSING_CAPABILITY, f"This needs a client with the extension {TASKS}.", needed)
