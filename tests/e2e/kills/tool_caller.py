"""Users of agents that use an MCP server or an A2A agent of another maker, which are not killed."""

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
    careful = ("bank_stamp",)
    answer = '{"nights": 2}'

    def expected(self, operation: str) -> str:
        return f"{operation}: 4 euros, 2 nights. {WORDS}"


class SenderCaller(OpenAiCaller):
    """Answers what an A2A agent asks. A task whose beginning was cut off may be reported as lost."""

    name = "a2a-client"
    model = "sender"
    functions: tuple[dict[str, Any], ...] = ()
    page_tools = 0
    tools = ()
    careful = ("collect", "deliver")
    may_fail = True
    answer = "ann"

    def expected(self, operation: str) -> str:
        return f"{operation}: done. {WORDS}"
