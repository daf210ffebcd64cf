"""The methods of MCP that sapwood serves, as handlers of the server of the `mcp` package."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from mcp.server.caching import CacheHint
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types.jsonrpc import METHOD_NOT_FOUND

from sapwood.kernel.marshal.agent_class import known
from sapwood.protocols import mcp_resources, mcp_tasks
from sapwood.protocols.mcp_calls import INVALID, TASKS, Caller, call_run
from sapwood.protocols.mcp_methods import MethodCaller
from sapwood.protocols.mcp_tasks import TaskParams, TaskUpdateParams
from sapwood.protocols.mcp_tools import AGENT, MethodTool, RunTool, Tool, output_schema
from sapwood.protocols.mcp_work import failed

if TYPE_CHECKING:
    from sapwood.protocols.mcp_options import McpOptions

CACHED = CacheHint(ttl_ms=60_000, scope="public")
"""How long a client may keep lists, which are the same for all."""
PRIVATE = CacheHint(ttl_ms=0, scope="private")
TASK_METHODS: tuple[tuple[str, type[TaskParams], Callable[[Caller, Any], Awaitable[dict[str, Any]]]], ...] = (
    ("tasks/get", TaskParams, mcp_tasks.get),
    ("tasks/update", TaskUpdateParams, mcp_tasks.update),
    ("tasks/cancel", TaskParams, mcp_tasks.cancel),
)


def server_of(options: McpOptions) -> Any:
    """Return the server of the `mcp` package with these options."""

    async def list_tools(context: Any, params: Any) -> Any:
        _check_cursor(params)
        return {"resultType": "complete", "tools": [shown(tool) for tool in options.catalog.tools.values()]}

    async def call_tool(context: Any, params: Any) -> Any:
        caller: Caller | MethodCaller = context.lifespan_context
        tool = options.catalog.tools.get(params.name)
        if isinstance(caller, MethodCaller) and isinstance(tool, MethodTool):
            result = await caller.call(tool, params.arguments or {})
        elif isinstance(caller, Caller) and isinstance(tool, RunTool):
            result = await call_run(caller, tool, cast("dict[str, Any]", context.params))
        elif isinstance(tool, MethodTool):
            result = failed(f"The argument {AGENT!r} must be the name of a {known(tool.cls).type}.")
        else:
            raise MCPError(INVALID, f"There is no tool {params.name[:80]!r}.")
        return {"resultType": "complete", **result}

    async def list_resources(context: Any, params: Any) -> Any:
        _check_cursor(params)
        return mcp_resources.listed(_at_desk(context))

    async def list_templates(context: Any, params: Any) -> Any:
        _check_cursor(params)
        return mcp_resources.templates()

    async def read_resource(context: Any, params: Any) -> Any:
        return await mcp_resources.read(_at_desk(context), str(params.uri))

    server: Any = Server(
        options.name,
        version=options.version,
        instructions=options.instructions,
        cache_hints={
            "tools/list": CACHED,
            "server/discover": CACHED,
            "resources/templates/list": CACHED,
            "resources/list": PRIVATE,
            "resources/read": PRIVATE,
        },
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )
    server.extensions[TASKS] = {}
    for method, kind, answer in TASK_METHODS:
        server.add_request_handler(method, kind, _for_caller(answer))
    return server


def _for_caller(answer: Callable[[Caller, Any], Awaitable[dict[str, Any]]]) -> Callable[[Any, Any], Any]:
    async def handle(context: Any, params: Any) -> Any:
        return await answer(_at_desk(context), params)

    return handle


def _at_desk(context: Any) -> Caller:
    """Return who makes a request to a desk; at the root of a method, there are only tools."""
    if not isinstance(context.lifespan_context, Caller):
        raise MCPError(METHOD_NOT_FOUND, "Only tools are called here.")
    return context.lifespan_context


def shown(tool: Tool) -> dict[str, Any]:
    """Return a tool as it is listed."""
    told: dict[str, Any] = {"name": tool.name, "inputSchema": tool.input_schema}
    if tool.description:
        told["description"] = tool.description
    if (schema := output_schema(tool)) is not None:
        told["outputSchema"] = schema
    return told


def _check_cursor(params: Any) -> None:
    if params is not None and getattr(params, "cursor", None) is not None:
        raise MCPError(INVALID, "Unknown cursor: all is listed on one page.")
