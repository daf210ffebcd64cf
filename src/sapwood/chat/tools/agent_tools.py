"""Agents that a model may use, as tools or as children it keeps, and how they are described to it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from sapwood.address import kebab
from sapwood.errors import UsageError
from sapwood.kernel.marshal.agent_class import AgentClass, known
from sapwood.remote import RemoteSubAgent, RunTransport, remote_class
from sapwood.runs.tables.question import Approvers
from sapwood.runs.tables.runs_table import Run

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
    client_tools: bool = False

    def schema(self) -> dict[str, Any]:
        """Return what arguments the model may give."""
        return ONE_TEXT if self.input is None else _adapter(self.input).json_schema()

    def given(self, arguments: dict[str, Any]) -> Any:
        """Return what the agent is given for these arguments; `ValueError` if they do not fit."""
        if self.input is None:
            if not isinstance(arguments.get("message"), str):
                raise ValueError("message: expected a string")
            return arguments["message"]
        adapter = _adapter(self.input)
        return adapter.dump_python(adapter.validate_python(arguments), mode="json")

    def returned(self, run: Run) -> Any:
        """Return the result of a completed run for the model; `ValueError` if it does not have the declared type."""
        if self.output is None:
            return run.output if run.output is not None else run.summary
        adapter = _adapter(self.output)
        return adapter.dump_python(adapter.validate_python(run.output), mode="json")


@dataclass(frozen=True, slots=True)
class PersistentAgent:
    """A kind of agent of which a model may keep some, under names that it chooses."""

    cls: type
    name: str
    """What the model calls this kind."""
    description: str
    mode: Literal["blocking", "non-blocking"]
    notify: bool

    @property
    def blocks(self) -> bool:
        """Whether the model waits for what it does."""
        return self.mode == "blocking"


def persistent_agent(
    cls: type,
    *,
    mode: Literal["blocking", "non-blocking"] = "blocking",
    name: str | None = None,
    description: str | None = None,
    notify: bool = False,
) -> PersistentAgent:
    """Give a model tools to spawn, tell, list and terminate children of this class. Put it into `tools`.

    Each child keeps its name and its conversation from task to task. The model waits for a `blocking` child. A
    `non-blocking` child works in the background: when it has finished, `on_run_finish` is called. With
    `notify`, its result is also posted to the conversation.
    """
    kind, told = _usable(cls, description, "persistent_agent()")
    if _is_remote(cls):
        raise UsageError(f"persistent_agent({cls.__name__}): a remote agent cannot be persistent. Use agent_tool().")
    if mode not in ("blocking", "non-blocking"):
        raise UsageError(f"persistent_agent({cls.__name__}, mode={mode!r}): expected 'blocking' or 'non-blocking'.")
    if notify and mode == "blocking":
        raise UsageError(f"persistent_agent({cls.__name__}): notify=True requires mode='non-blocking'.")
    return PersistentAgent(cls, name or kebab(kind.type).replace("-", "_"), told, mode, notify)


def agent_tool(
    cls: type,
    *,
    name: str | None = None,
    description: str | None = None,
    input: Any = None,
    output: Any = None,
    timeout: float | None = None,
    display: Mapping[str, Any] | None = None,
    client_tools: bool = False,
) -> AgentTool:
    """Let a model use an agent as a tool. Put it into `tools`. Each call is a run in a new sub-agent.

    `input` is the type of the tool's arguments, any type that Pydantic supports; by default, one string. `output` is
    the type that results must match before the model receives them. `description` tells the model what the tool does;
    by default, it is the docstring of the class. With `client_tools`, the agent may use the tools of the client too.
    """
    kind, told = _usable(cls, description, "agent_tool()")
    chosen = name or kebab(kind.type).replace("-", "_")
    return AgentTool(cls, chosen, told, input, output, timeout, display, client_tools)


def remote_agent_tool(
    url: str,
    *,
    description: str,
    token: str | Callable[[Any], str | Awaitable[str | None] | None] | None = None,
    name: str | None = None,
    input: Any = None,
    output: Any = None,
    timeout: float | None = None,
    display: Mapping[str, Any] | None = None,
    transport: Callable[[Any], RunTransport] | None = None,
    approvers: Approvers | None = None,
) -> AgentTool:
    """Let a model use an agent of another server as a tool. Put it into `tools`. Each call is a run there.

    `url` is the URL of the agent's class: `https://host/agents/researcher`. `token` is the bearer token for that
    server: a string, or a function of `deps` that returns it, plain or async. For agents that do not run on a sapwood
    server, `transport` is a function of `deps` that returns a `RunTransport`; `url` is then any string that names the
    agent. `approvers` says who may answer the questions of its runs here, as in `RemoteSubAgent`. The other arguments
    are those of `agent_tool`. To start remote runs from code, use `RemoteSubAgent`.
    """
    chosen = name or unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2]).replace("-", "_")
    words = "".join(word.capitalize() for word in re.findall(r"[A-Za-z0-9]+", chosen))
    cls = remote_class(url, f"Remote{words}", token, transport, approvers)
    return AgentTool(cls, chosen, description, input, output, timeout, display)


def _usable(cls: type, description: str | None, what: str) -> tuple[AgentClass, str]:
    """Return the class of an agent that a model may use, and its description for the model."""
    kind = known(cls)
    if not (kind.overrides("on_run") or getattr(kind.hooks, "has_conversation", False) or _is_remote(cls)):
        raise UsageError(
            f"{cls.__name__} has no on_run(). Write `async def on_run(self, input)`, or make it a ChatAgent."
        )
    told = description or (inspect.getdoc(cls) if cls.__doc__ else None)
    if not told:
        raise UsageError(f"{cls.__name__} has no docstring to describe it to the model. Pass a description to {what}.")
    return kind, told


def _is_remote(cls: type) -> bool:
    return issubclass(cls, RemoteSubAgent)


def _adapter(type_: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(type_)
