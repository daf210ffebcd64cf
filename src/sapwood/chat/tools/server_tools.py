"""The tools of an agent's MCP servers, for its model: those of the servers that are ready, under names of their own."""

from __future__ import annotations

import functools
from typing import Any

from sapwood.capabilities.mcp_servers import McpServers, ServerRow, StoredTool
from sapwood.capabilities.steps import StoredProgress, Work
from sapwood.errors import Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import current
from sapwood.mcp_client.connections import McpConnections
from sapwood.mcp_client.results import ToolRefused, media_of, text_of, value_of
from sapwood.mcp_client.tool_calls import ToolCalls
from sapwood.roles import ANY_CLIENT
from sapwood.runs.tables.question import Approvers

OUTPUT = "final_result"
"""What the names of the tools begin with that take the output of a turn."""


class ServerTools:
    """What the MCP servers of one chat agent, and those that agents above it share, offer its model."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._servers = actor.of(McpServers)
        self.reserved: frozenset[str] = frozenset()
        """Names of other tools of the agent, which no tool of a server can have."""

    async def refresh(self) -> None:
        """Read the lists of tools that are old. A server that fails is left out: the turn goes on without it."""
        for agent in self._actor.lineage():
            connections = agent.of(McpConnections)
            if not connections.has_due(is_shared=agent is not self._actor):
                continue
            if agent is self._actor:
                await connections.refresh()
            else:
                _, reply = agent.handle("mcp", functools.partial(connections.refresh, is_shared=True))
                await reply
            self._actor.check_live()

    def found(self, shown: str) -> tuple[ServerRow, StoredTool] | None:
        """Return the tool that the model calls so."""
        return self.tools().get(shown)

    def tools(self, *, is_ready: bool = False) -> dict[str, tuple[ServerRow, StoredTool]]:
        """Return all tools by the names that the model sees; if `is_ready`, only those that it is offered."""
        return {
            tool.shown: (row, tool)
            for _, row in self._servers.usable()
            if row.status == "ready" or not is_ready
            for tool in row.stored_tools()
            if tool.shown not in self.reserved and not tool.shown.startswith(OUTPUT)
        }

    def approvers(self, row: ServerRow) -> Approvers | None:
        """Return who may allow calls to a server. `None` means that it does not say."""
        roles = row.roles()
        return None if roles is None else roles or ANY_CLIENT

    async def call(self, row: ServerRow, tool: StoredTool, arguments: dict[str, Any], call: str) -> Any:
        """Call a tool for the model, and return the result as Pydantic AI takes it."""
        from pydantic_ai import BinaryContent, ToolFailed

        running = current.get()
        work = running.work if running is not None and running.actor is self._actor else None
        progress = StoredProgress(self._actor, work, f"mcp {call}") if isinstance(work, Work) else None
        try:
            result = await self._actor.of(ToolCalls).call(row.name, tool.name, arguments, progress)
        except Unavailable as error:
            self._actor.check_live()  # else it is this agent that is not available
            raise ToolFailed(str(error)) from None
        try:
            value = value_of(result)
        except ToolRefused as error:
            raise ToolFailed(str(error)) from None
        media = [BinaryContent(data, media_type=kind) for data, kind in media_of(result)]
        return [one for one in (text_of(result), *media) if one] if media else value

    def toolset(self) -> Any:
        """Return the tools as Pydantic AI takes them; `None` if there is no server."""
        return _toolset_class()(self) if self._servers.usable() else None


@functools.cache
def _toolset_class() -> Any:
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
    from pydantic_core import SchemaValidator, core_schema

    any_object = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))

    class McpToolset(AbstractToolset[Any]):
        """The tools of the servers, as they are stored: what is offered and what is called cannot differ."""

        def __init__(self, tools: ServerTools) -> None:
            self._tools = tools

        @property
        def id(self) -> str | None:
            return None

        async def get_tools(self, ctx: Any) -> dict[str, Any]:
            # Calls of an earlier request are executed also if their server has failed since.
            is_asking = not ctx.messages or ctx.messages[-1].kind == "request"
            found = self._tools.tools(is_ready=is_asking).items()
            return {name: self._tool(row, tool) for name, (row, tool) in found}

        def _tool(self, row: ServerRow, tool: StoredTool) -> Any:
            definition = ToolDefinition(
                name=tool.shown,
                description=tool.description or None,
                parameters_json_schema=tool.schema,
                kind="unapproved" if row.needs_approval(tool) else "function",
            )
            return ToolsetTool(toolset=self, tool_def=definition, max_retries=1, args_validator=any_object)

        async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
            found = self._tools.found(name)
            assert found is not None  # it was listed just now
            # With the step: some models use the same ids in each.
            return await self._tools.call(*found, tool_args, f"{ctx.run_step} {ctx.tool_call_id}")

    return McpToolset
