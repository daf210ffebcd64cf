"""An MCP server of another maker, made with the official SDK: it is never killed, and counts what it is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult, ToolAnnotations
from tests.e2e.kills import effects
from tests.e2e.serving import serving

FORM = {"type": "object", "properties": {"nights": {"type": "integer"}}, "required": ["nights"]}


def make_bank(folder: Path, heard: Callable[[], None]) -> MCPServer:
    def note(operation: str, tool: str, key: str) -> None:
        effects.note(folder, operation, tool, key)
        heard()

    bank = MCPServer("bank", log_level="CRITICAL")

    @bank.tool(annotations=ToolAnnotations(idempotent_hint=True), structured_output=False)
    def quote(operation: str, key: str) -> str:
        """Quote. May be asked again."""
        note(operation, "quote", key)
        return "4 euros"

    @bank.tool(structured_output=False)
    def stamp(operation: str, key: str) -> str:
        """Stamp. Must not be asked again."""
        note(operation, "bank_stamp", key)
        return "stamped"

    @bank.tool(annotations=ToolAnnotations(idempotent_hint=True), structured_output=False)
    def book(operation: str, key: str, context: Context[Any]) -> str | InputRequiredResult:
        """Book, once a person has said for how many nights."""
        responses: Any = context.input_responses
        if not responses:
            asked = ElicitRequestFormParams(message=f"How many nights for {operation}?", requested_schema=FORM)
            return InputRequiredResult(input_requests={"nights": ElicitRequest(params=asked)}, request_state=operation)
        note(operation, "book", key)
        return f"{responses['nights'].content['nights']} nights"

    return bank


@asynccontextmanager
async def open_bank(folder: Path, heard: Callable[[], None]) -> AsyncGenerator[None, None]:
    """Serve the bank, and write its URL where the killed server finds it."""
    async with serving(make_bank(folder, heard).streamable_http_app(stateless_http=True)) as url:
        (folder / "bank").write_text(f"{url}/mcp")
        yield
