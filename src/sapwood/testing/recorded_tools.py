"""Recorded results in the place of the tools of a chat agent: no tool of it runs in the test."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from sapwood.chat.tools.tools import Toolbox
from sapwood.errors import UsageError
from sapwood.testing.script_lines import Arguments, Line, call

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ToolCallPart
    from pydantic_ai.toolsets import AbstractToolset

    from sapwood.kernel.actors.actor import Actor

ERROR_REFERENCE = re.compile(r" \[error reference [0-9a-f]+\]")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """How a recorded tool call ended, if it is not that a tool returned a value."""

    kind: Literal["failed", "retry", "output", "stalled"]
    value: Any = None

    @classmethod
    def failed(cls, error: str) -> ToolResult:
        """The call failed, or was denied: the model receives this text."""
        return cls("failed", error)

    @classmethod
    def retry(cls, error: str) -> ToolResult:
        """The model was asked to correct the call."""
        return cls("retry", error)

    @classmethod
    def output(cls, value: Any) -> ToolResult:
        """The call ended the turn. If the class has an output function, it does not run: this is the output."""
        return cls("output", value)

    @classmethod
    def output_retry(cls, error: str) -> ToolResult:
        """The model was asked to correct a call that would have ended the turn."""
        return cls("output", cls.retry(error))

    @classmethod
    def stalled(cls) -> ToolResult:
        """The call does not end."""
        return cls("stalled")


class RecordedTools:
    """Results for the tool calls of a model, by the ids of the calls.

    ```python
    tools = RecordedTools({"c1": "6650 km", "c2": ToolResult.failed("There is no such river.")})
    async with running(app, models={Desk: model}, tools={Desk: tools}) as world:
    ```

    They replace all tools of the class: its methods, functions, toolsets, agents and the tools of clients. Arguments
    are not checked, approvals are not asked for, and hooks around tool calls are not called. The test fails if the
    model makes a call that has no result here, or does not make one that has.

    The tools named in `run` do run, those that are sub-agents too. The test fails if they return anything else.
    """

    def __init__(self, results: Mapping[str, Any] | None = None, *, run: Collection[str] = ()) -> None:
        self.results = dict(results or {})
        self.run = frozenset(run)
        self.calls: list[Line] = []
        """The calls that the model made, in order: compare them with `[call("look", about="rivers", id="c1")]`."""
        self.is_stalled = False
        """Whether a call was made that does not end."""
        self._made: dict[str, str] = {}
        """The names of the tools that were called, by the ids of the calls."""
        self._compared: set[str] = set()
        self._problems: list[str] = []

    def toolbox(self, actor: Actor) -> Toolbox:
        """Return the tools of one agent, with these results."""
        return _RecordedToolbox(actor, self)

    def toolset(self) -> AbstractToolset[Any]:
        """Return a toolset of whatever tools the model calls."""
        return _toolset_class()(self)

    def names_called(self, parts: Sequence[ToolCallPart]) -> set[str]:
        """Note the calls of a response; return the names of those that are no output."""
        names: set[str] = set()
        for part in parts:
            result = self.results.get(part.tool_call_id)
            if part.tool_call_id not in self._made:
                self._made[part.tool_call_id] = part.tool_name
                self.calls.append(call(part.tool_name, _arguments(part.args), id=part.tool_call_id))
            is_output = isinstance(result, ToolResult) and result.kind == "output"
            if not is_output and part.tool_name not in self.run:
                names.add(part.tool_name)
        return names

    async def result_of(self, id: str, function: Callable[[], Awaitable[Any]] | None = None) -> Any:
        """Return the result of a call, or raise what it failed with."""
        from pydantic_ai import ModelRetry, ToolFailed

        name = self._made[id]
        if name in self.run and function is not None:
            return await function()
        if id not in self.results:
            self._problems.append(f"The model called {name} with the id {id!r}, which has no recorded result.")
            raise ToolFailed(self._problems[-1])
        result = self.results[id]
        if isinstance(result, ToolResult) and result.kind == "output":
            result = result.value
        if not isinstance(result, ToolResult):
            return result
        if result.kind == "retry":
            raise ModelRetry(result.value)
        if result.kind == "stalled":
            self.is_stalled = True
            await asyncio.Event().wait()
        raise ToolFailed(result.value)

    def compare(self, messages: Sequence[ModelMessage]) -> None:
        """Compare what the tools returned that run."""
        parts: Any = [part for message in messages for part in message.parts]
        for part in parts:
            id = str(getattr(part, "tool_call_id", ""))
            if part.part_kind not in ("tool-return", "retry-prompt") or self._made.get(id) not in self.run:
                continue
            if id in self._compared or id not in self.results:
                continue
            self._compared.add(id)
            found = _ending(part)
            if _plain(found) != _plain(self.results[id]):
                made, recorded = self._made[id], self.results[id]
                self._problems.append(f"{made} with the id {id!r} returned {found!r}; recorded is {recorded!r}.")

    def check(self) -> None:
        """Fail if the model made a call without a result here, or did not make one with a result."""
        missing = [id for id in self.results if id not in self._made]
        if missing:
            names = ", ".join(map(repr, missing))
            self._problems.append(f"The model did not make these calls, which have recorded results: {names}.")
        if self._problems:
            raise AssertionError("\n".join(self._problems))


class _RecordedToolbox(Toolbox):
    """The tools of one agent, whose calls have recorded results."""

    def __init__(self, actor: Actor, recorded: RecordedTools) -> None:
        super().__init__(actor)
        self.agents = {name: one for name, one in self.agents.items() if name in recorded.run}
        self.companions = self.companions & recorded.run
        self._recorded = recorded

    def toolsets(self, client_tools: Any) -> list[AbstractToolset[Any]]:
        toolsets = [self._recorded.toolset()]
        if self._recorded.run:
            names = self._recorded.run
            own = super().toolsets(client_tools)
            toolsets += [one.filtered(lambda ctx, definition: definition.name in names) for one in own]
        return toolsets

    async def run(self, id: str, function: Callable[[], Awaitable[Any]]) -> Any:
        return await self._recorded.result_of(id, function)

    async def run_output(self, id: str, function: Callable[[], Awaitable[Any]]) -> Any:
        return await (self._recorded.result_of(id) if id in self._recorded.results else function())


def check_recorded(cls: type[Any], recorded: Any) -> None:
    """Refuse `running(tools=…)` that are not recorded tools of chat agents."""
    if not hasattr(cls, "_toolbox"):
        raise UsageError(f"tools: expected chat agent classes as keys, got {cls!r}. Write tools={{Desk: tools}}.")
    if not isinstance(recorded, RecordedTools):
        raise UsageError(f"tools: expected RecordedTools(…) for {cls.__name__}, got {recorded!r}.")


def _ending(part: Any) -> Any:
    """Return how a tool call ended, as `RecordedTools` has it."""
    import pydantic_core

    value = pydantic_core.to_jsonable_python(part.content, bytes_mode="base64", serialize_unknown=True)
    outcome = "retried" if part.part_kind == "retry-prompt" else getattr(part, "outcome", "success")
    if outcome == "success":
        return value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return ToolResult.retry(text) if outcome == "retried" else ToolResult.failed(text)


def _plain(result: Any) -> Any:
    """Return a result without the reference of an error, which is another one each time."""
    if isinstance(result, ToolResult) and isinstance(result.value, str):
        return ToolResult(result.kind, ERROR_REFERENCE.sub("", result.value))
    return result


def _arguments(args: Any) -> Arguments:
    if not isinstance(args, str):
        return dict(args or {})
    try:
        return msgspec.json.decode(args, type=dict[str, Any])
    except (msgspec.DecodeError, ValueError):
        return args


@functools.cache
def _toolset_class() -> Callable[[RecordedTools], AbstractToolset[Any]]:
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset
    from pydantic_ai.toolsets.abstract import ToolsetTool
    from pydantic_core import SchemaValidator, core_schema

    anything = SchemaValidator(core_schema.any_schema())

    class RecordedToolset(AbstractToolset[Any]):
        """Has whatever tools the last response calls."""

        def __init__(self, recorded: RecordedTools) -> None:
            self._recorded = recorded

        @property
        def id(self) -> str | None:
            return None

        async def get_tools(self, ctx: Any) -> dict[str, ToolsetTool[Any]]:
            self._recorded.compare(ctx.messages)
            last = ctx.messages[-1] if ctx.messages else None
            parts: Any = [part for part in last.parts if part.part_kind == "tool-call"] if last is not None else []
            return {
                name: ToolsetTool(
                    toolset=self, tool_def=ToolDefinition(name=name), max_retries=1_000, args_validator=anything
                )
                for name in self._recorded.names_called(parts)
            }

        async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: ToolsetTool[Any]) -> Any:
            raise AssertionError("The result of this call is known, so it is never made.")

    return RecordedToolset
