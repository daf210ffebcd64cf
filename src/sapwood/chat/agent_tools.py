"""Agents that a model may use, as tools or as children it keeps: what it is told of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from sapwood.address import kebab
from sapwood.errors import UsageError
from sapwood.kernel.classes import AgentClass, known
from sapwood.remote import RemoteSubAgent, RunTransport, remote_class
from sapwood.runs.question import Approvers
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
    client_tools: bool = False

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


@dataclass(frozen=True, slots=True)
class PersistentAgent:
    """A kind of agent of which a model may keep some, by names of its own."""

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
    """Let a model keep agents of this class, with tools to spawn, tell, list and terminate them: put it into `tools`.

    Each keeps its name and its conversation from task to task. The model waits for one that is
    `blocking`. One that is `non-blocking` works beside it: when it is done `on_child_finish` is
    called, and with `notify` the conversation goes on with what came of it.
    """
    kind, told = _usable(cls, description, "persistent_agent()")
    if _is_remote(cls):
        raise UsageError(f"{cls.__name__} is on another server, and begins anew with every run: use agent_tool().")
    if mode not in ("blocking", "non-blocking"):
        raise UsageError(f"persistent_agent({cls.__name__}, mode={mode!r}): it is 'blocking' or 'non-blocking'.")
    if notify and mode == "blocking":
        raise UsageError(f"The model waits for {cls.__name__}: notify is for those that are non-blocking.")
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
    """Let a model use an agent: put it into `tools`. Every call is a run of a sub-agent of its own.

    `input` says what the model has to give, as a type that Pydantic knows; without it, one text.
    `output` is checked before the model sees it. What it does is said by `description`, or
    else by the docstring of the class. With `client_tools` it may use the tools of the client
    that asked, as this agent may.
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
    """Let a model use an agent of another server: put it into `tools`. Every call is a run there.

    `url` is that of the agent's class, `https://host/agents/researcher`. `token` is what that
    server knows this program by: a text, or what returns it, plain or async, called with `deps`. For agents that no
    sapwood server has, `transport` is called with `deps` and returns a `RunTransport`; `url` is then any text that
    names the agent. `approvers` says who may answer the questions of its runs here, as in `RemoteSubAgent`. The rest
    is as for `agent_tool`. The same as a class, for code that gives runs, is `RemoteSubAgent`.
    """
    chosen = name or unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2]).replace("-", "_")
    words = "".join(word.capitalize() for word in re.findall(r"[A-Za-z0-9]+", chosen))
    cls = remote_class(url, f"Remote{words}", token, transport, approvers)
    return AgentTool(cls, chosen, description, input, output, timeout, display)


def _usable(cls: type, description: str | None, what: str) -> tuple[AgentClass, str]:
    """Return what is known of an agent that a model is to use, and what the model is told of it."""
    kind = known(cls)
    if not (kind.overrides("on_run") or getattr(cls, "_has_conversation", False) or _is_remote(cls)):
        raise UsageError(
            f"{cls.__name__} cannot be run: write `async def on_run(self, input)`, or make it a ChatAgent."
        )
    told = description or (inspect.getdoc(cls) if cls.__doc__ else None)
    if not told:
        raise UsageError(f"A model has to know what {cls.__name__} does: give {what} a description.")
    return kind, told


def _is_remote(cls: type) -> bool:
    return issubclass(cls, RemoteSubAgent)


def _adapter(type_: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(type_)
