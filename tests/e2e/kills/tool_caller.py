"""A user of an agent that uses the tools of an MCP server: the agent's process is killed, and not the server."""

from __future__ import annotations

from typing import Any

from tests.e2e.kills.caller import WORDS
from tests.e2e.kills.openai_caller import OpenAiCaller


class ToolCaller(OpenAiCaller):
    """Answers in the form of the OpenAI API what the server asks."""

    name = "mcp-client"
    model = "traveller"
    functions: tuple[dict[str, Any], ...] = ()
    page_tools = 0
    tools = ("quote", "book")
    careful = "bank_stamp"

    def expected(self, operation: str) -> str:
        return f"{operation}: 4 euros, 2 nights. {WORDS}"
