"""What a model may do: methods of the agent, plain functions, toolsets, and tools that the client runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from sapwood.agent import Agent
from sapwood.agent_checks import MAY_BE_PLAIN, warn_at_class
from sapwood.chat.tools.agent_tools import AgentTool, PersistentAgent
from sapwood.chat.tools.persistent_children import DEFERRED, Companions
from sapwood.chat.tools.server_tools import ServerTools
from sapwood.errors import InvalidArguments, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import attributes
from sapwood.runs.tables.question import Approvers

if TYPE_CHECKING:
    from pydantic_ai.toolsets import AbstractToolset

F = TypeVar("F", bound=Callable[..., Any])

MARK = "_sapwood_tool"


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The options of a tool."""

    name: str | None = None
    requires_approval: bool = False
    approvers: Approvers | None = None
    """Who may approve a call; `None` means that it does not say."""
    idempotent: bool = False
    """Whether a call may be repeated if the process crashed during it."""
    timeout: float | None = None


@overload
def tool(method: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    requires_approval: bool = False,
    approvers: Approvers | None = None,
    idempotent: bool = False,
    timeout: float | None = None,
) -> Callable[[F], F]: ...
def tool(
    method: Any = None,
    /,
    *,
    name: str | None = None,
    requires_approval: bool = False,
    approvers: Approvers | None = None,
    idempotent: bool = False,
    timeout: float | None = None,
) -> Any:
    """Let the model call this method, or this function if it is in `tools`. Its docstring is the description.

    With `requires_approval`, a person must approve each call. `approvers` says who may answer: one or several of the
    roles in `User.claims["roles"]`, a function of user and question that returns a bool or a reason to refuse, or
    `ANY_CLIENT`. It is required in an app with `authenticate`. With `idempotent`, the call is repeated if the process
    crashes during it; otherwise the model receives the error that the call was interrupted. `timeout` is in seconds:
    after it, the call is cancelled and the model receives an error.
    """
    if approvers is not None and not requires_approval:
        raise UsageError("approvers=… requires requires_approval=True. Add it.")
    options = ToolOptions(name, requires_approval, approvers, idempotent, timeout)

    def mark(function: Any) -> Any:
        setattr(function, MARK, options)
        setattr(function, MAY_BE_PLAIN, True)  # its caller is a model
        return function

    return mark if method is None else mark(method)


def options_of(function: Any) -> ToolOptions | None:
    """Return how a function was marked."""
    return getattr(function, MARK, None)


class Toolbox:
    """The tools of one chat agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        check_tools(actor.kind.cls, actor.agent.tools)  # those of a property are known only now
        functions: Sequence[Any] = tuple(actor.agent.tools)
        self._toolsets: list[Any] = []
        self._options: dict[str, ToolOptions] = {}
        self.agents = {one.name: one for one in functions if isinstance(one, AgentTool)}
        """The tools whose calls are runs."""
        functions = [one for one in functions if not isinstance(one, AgentTool | PersistentAgent)]
        companions = actor.of(Companions).tools()
        self.companions = frozenset(one.name for one in companions)
        """The tools with which the model keeps persistent children."""
        own = [self._of_method(name) for name in _marked(actor.kind.cls)]
        given = [self._of_function(function) for function in functions if not _is_toolset(function)]
        self._own: dict[str, Any] = {getattr(one, "name", ""): one for one in (*own, *given)}
        if own or given or companions:
            from pydantic_ai.toolsets import FunctionToolset

            self._toolsets.append(FunctionToolset([*own, *given, *companions]))
        self._toolsets += [one for one in functions if _is_toolset(one)]
        self.servers = actor.of(ServerTools)
        """The tools of the agent's MCP servers."""
        self._reserved = frozenset({*self.agents, *self.companions, *self._own}.union(*map(_names_in, self._toolsets)))
        self.servers.reserved = self._reserved
        if actor.host.authentication is not None:
            check_approvers(actor.kind.cls)

    def toolsets(self, client_tools: Sequence[Mapping[str, Any]]) -> list[AbstractToolset[Any]]:
        """Return all tools, those of the client included."""
        self.servers.reserved = self._reserved.union(one["name"] for one in client_tools)
        remote = self.servers.toolset()
        toolsets = [*self._toolsets, remote] if remote is not None else self._toolsets
        if not client_tools and not self.agents:
            return toolsets
        from pydantic_ai.tools import ToolDefinition
        from pydantic_ai.toolsets import ExternalToolset

        theirs = [
            ToolDefinition(
                name=one["name"],
                description=one.get("description"),
                parameters_json_schema=dict(one.get("parameters") or {"type": "object", "properties": {}}),
                strict=one.get("strict"),
            )
            for one in client_tools
            if one["name"] not in self.agents and one["name"] not in self.companions
        ]
        agents = [
            ToolDefinition(name=one.name, description=one.description, parameters_json_schema=one.schema())
            for one in self.agents.values()
        ]
        return [*toolsets, ExternalToolset([*agents, *theirs])]

    async def run(self, id: str, function: Callable[[], Awaitable[Any]]) -> Any:
        """Run the tool of a call and return its result."""
        return await function()

    async def run_output(self, id: str, function: Callable[[], Awaitable[Any]]) -> Any:
        """Run the output function of a call and return the output."""
        return await function()

    def is_run(self, name: str) -> bool:
        """Return whether a call of this tool that has no answer here waits for a run."""
        return name in self.agents or (name in self.companions and name in DEFERRED)

    def check(self, name: str, arguments: dict[str, Any]) -> None:
        """Refuse arguments that do not fit a tool; those of a toolset are checked when they are used."""
        from pydantic import ValidationError

        schema = getattr(self._own.get(name), "function_schema", None)
        if schema is None:
            return
        try:
            schema.validator.validate_python(arguments)
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
            raise InvalidArguments(f"The arguments do not match the tool {name}: {'; '.join(wrong)}.") from None

    def approvers(self, name: str) -> Approvers | None:
        """Return who may approve calls of a tool. `None` means that it does not say."""
        options = self._options.get(name)
        if options is not None:
            return options.approvers
        found = self.servers.found(name)
        return None if found is None else self.servers.approvers(found[0])

    def roles_of_server(self, name: str) -> tuple[str, ...] | None:
        """Return who may approve calls of a tool if it is of an MCP server that says so."""
        found = None if name in self._options else self.servers.found(name)
        return None if found is None else found[0].roles()

    def is_idempotent(self, name: str) -> bool:
        """Return whether a call of a tool may be repeated if the process crashed during it."""
        options = self._options.get(name)
        if name in self.companions or (options is not None and options.idempotent):
            return True
        # A call to a server knows by itself how far it got, and whether it may be repeated.
        return options is None and self.servers.found(name) is not None

    def resumes(self, name: str) -> bool:
        """Return whether a call that a crash interrupted continues where it was, and says itself if it begins again."""
        return name in self.companions or (name not in self._options and self.servers.found(name) is not None)

    def _of_method(self, name: str) -> Any:
        method = getattr(self._actor.agent, name)
        function = method.__func__
        if not inspect.iscoroutinefunction(function):
            # On the loop, as a slice of the agent's: Pydantic AI would run it in a thread, into an open transaction.
            method = _awaited(method)
        return self._tool(name, method, options_of(function))

    def _of_function(self, function: Any) -> Any:
        options = options_of(function)
        name = getattr(function, "__name__", None)
        if name is None:
            return function  # a Tool of Pydantic AI's
        if not inspect.iscoroutinefunction(function):
            function = self._in_thread(function)
        return self._tool(name, function, options)

    def _in_thread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        actor = self._actor

        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            return await actor.host.offload.in_thread(actor, function, args, kwargs)

        return run

    def _tool(self, name: str, function: Any, options: ToolOptions | None) -> Any:
        from pydantic_ai import Tool

        options = options or ToolOptions()
        self._options[options.name or name] = options
        return Tool(
            function, name=options.name or name, requires_approval=options.requires_approval, timeout=options.timeout
        )


def toolbox(actor: Actor) -> Toolbox:
    """Return the tools of a chat agent, as its class has them."""
    return actor.agent._toolbox(actor)


def check_tools(cls: type, tools: Any) -> None:
    """Refuse `tools` of a chat agent that are not a sequence of tools. A property is checked when an agent has it."""
    is_tool = callable(tools) or isinstance(tools, AgentTool | PersistentAgent | str | bytes) or _is_toolset(tools)
    if is_tool or not (isinstance(tools, Iterable) or hasattr(tools, "__get__")):
        got, remedy = _written(tools)
        raise UsageError(f"{cls.__name__}.tools must be a tuple of tools, got {got}. Write tools = ({remedy},).")
    if not isinstance(tools, Sequence):
        return
    offered = cast("Sequence[Any]", tools)
    for one in offered:
        if isinstance(one, str):
            raise UsageError(f"{cls.__name__}.tools must not contain a string, got {one!r}. Write the function itself.")
        if isinstance(one, type):
            name = one.__name__
            is_agent = issubclass(one, Agent)
            remedy = f"agent_tool({name}) or persistent_agent({name})" if is_agent else f"{name}(…)"
            raise UsageError(f"{cls.__name__}.tools must not contain a class, got {name}. Write {remedy}.")
    for name, value in vars(cls).items():
        if isinstance(value, AgentTool | PersistentAgent) and all(value is not one for one in offered):
            made, remedy = _written(value)
            why = "but the model is offered only what is in `tools`"
            warn_at_class(f"{cls.__name__}.{name} is {made}, {why}. Write tools = ({remedy},).")


def _written(tool: Any) -> tuple[str, str]:
    """Return how a tool was probably written, and what to write in a tuple."""
    if isinstance(tool, AgentTool | PersistentAgent):
        made = f"{'agent_tool' if isinstance(tool, AgentTool) else 'persistent_agent'}({tool.cls.__name__})"
        return made, made
    if isinstance(tool, type):
        return f"the class {tool.__name__}", f"agent_tool({tool.__name__})" if issubclass(tool, Agent) else "…"
    name = getattr(tool, "__name__", "")
    return (f"the function {name}", name) if callable(tool) and name else (repr(tool), "…")


def approvers_of(cls: type, name: str) -> Approvers | None:
    """Return who may approve calls of a tool of a class. `None` means that it does not say, or only an agent knows."""
    return next((one.approvers for known, one in options_of_class(cls) if known == name), None)


@functools.cache
def check_approvers(cls: type) -> None:
    """Refuse a class of an app with authentication whose tools require approval and do not say who may give it."""
    if getattr(cls, "may_answer", None) is not Agent.may_answer:
        return
    for name, options in options_of_class(cls):
        if options.requires_approval and options.approvers is None:
            raise UsageError(
                f"The tool {name!r} of {cls.__name__} requires approval but has no `approvers`, and the app "
                "authenticates its users. "
                'Write @tool(requires_approval=True, approvers="manager") for users with this role in '
                'claims["roles"], approvers=function for your own rule, or approvers=ANY_CLIENT to let every client '
                f"of the conversation approve. Or write {cls.__name__}.may_answer()."
            )


def options_of_class(cls: type) -> Iterator[tuple[str, ToolOptions]]:
    """Yield the tools of a class and how they are to be used, as far as the class itself knows."""
    for name in _marked(cls):
        options = options_of(inspect.getattr_static(cls, name))
        if options is not None:
            yield options.name or name, options
    given: Any = getattr(cls, "tools", ())  # perhaps a property, which only an agent can answer
    for one in cast("Sequence[Any]", given if isinstance(given, Sequence) else ()):
        options = options_of(one)
        name = getattr(one, "__name__", None) or getattr(one, "name", None)
        if options is not None and name is not None:
            yield options.name or name, options
        elif getattr(one, "requires_approval", False) is True and name is not None:
            yield name, ToolOptions(requires_approval=True)  # a Tool of Pydantic AI's


def _awaited(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return run


def _marked(cls: type) -> list[str]:
    found: list[str] = []
    for name, function in attributes(cls).items():
        if inspect.isfunction(function) and options_of(function) is not None:
            if inspect.isasyncgenfunction(function):
                raise UsageError(f"{cls.__name__}.{name} is a tool and must not be a generator. Return the result.")
            found.append(name)
    return found


def _names_in(toolset: object) -> Iterable[str]:
    """Return the names of the tools in a toolset of Pydantic AI, as far as they are known before a request."""
    tools: Any = getattr(toolset, "tools", None)
    return cast("dict[str, Any]", tools) if isinstance(tools, dict) else ()


def _is_toolset(value: object) -> bool:
    return hasattr(value, "get_tools") and hasattr(value, "call_tool")
