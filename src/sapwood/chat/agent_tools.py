"""Agents as tools: what a model is told of an agent it may use."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sapwood.address import kebab
from sapwood.errors import UsageError
from sapwood.kernel.classes import known
from sapwood.runs.registry import Run

ONE_TEXT = {
    "type": "object",
    "properties": {"message": {"type": "string", "description": "What it is to do."}},
    "required": ["message"],
}


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A tool whose every call is a run of another agent."""

    cls: type
    name: str
    description: str | None
    input: Any
    output: Any
    timeout: float | None
    display: Mapping[str, Any] | None

    def schema(self) -> dict[str, Any]:
        """Return what arguments the model may give."""
        return ONE_TEXT if self.input is None else _adapter(self.input).json_schema()

    def given(self, arguments: dict[str, Any]) -> Any:
        """Return what the agent is given for these arguments; `ValueError` if they do not fit."""
        if self.input is None:
            if not isinstance(arguments.get("message"), str):
                raise ValueError("message: a text is required")
            return arguments["message"]
        adapter = _adapter(self.input)
        return adapter.dump_python(adapter.validate_python(arguments), mode="json")

    def returned(self, run: Run) -> Any:
        """Return what the model is told of a run that was completed; `ValueError` if it is not what was promised."""
        if self.output is None:
            return run.output if run.output is not None else run.summary
        adapter = _adapter(self.output)
        return adapter.dump_python(adapter.validate_python(run.output), mode="json")


def agent_tool(
    cls: type,
    *,
    name: str | None = None,
    description: str | None = None,
    input: Any = None,
    output: Any = None,
    timeout: float | None = None,
    display: Mapping[str, Any] | None = None,
) -> AgentTool:
    """Let a model use an agent: put it into `tools`. Every call is a run of a sub-agent of its own.

    `input` says what the model has to give, as a type that Pydantic knows; without it, one text.
    `output` is checked before the model sees it. What it does is said by `description`, or
    else by the docstring of the class.
    """
    kind = known(cls)
    if not kind.overrides("on_run") and not getattr(cls, "_has_conversation", False):
        raise UsageError(
            f"{cls.__name__} cannot be run: write `async def on_run(self, input)`, or make it a ChatAgent."
        )
    told = description or (inspect.getdoc(cls) if cls.__doc__ else None)
    if not told:
        raise UsageError(f"A model has to know what {cls.__name__} does: give agent_tool() a description.")
    chosen = name or kebab(kind.type).replace("-", "_")
    return AgentTool(cls, chosen, told, input, output, timeout, display)


def _adapter(type_: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(type_)
