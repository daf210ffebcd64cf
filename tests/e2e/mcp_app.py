"""The server that `test_mcp.py` kills."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from sapwood import Agent, App, ChatAgent, agent_tool, tool
from sapwood.auth import ANY_CLIENT, User
from sapwood.protocols import Mcp
from sapwood.testing import ScriptedModel, call, text


def note(line: str) -> None:
    """Write what was done where the test counts it."""
    with Path(os.environ["MCP_LOG"]).open("a") as file:
        file.write(f"{line}\n")


def is_allowed(what: str) -> bool:
    """Return whether the test allows a step to end."""
    return Path(f"{os.environ['MCP_LOG']}.{what}").exists()


class McpSurveyor(Agent):
    """Looks at a place from three sides."""

    async def on_run(self, place: str) -> str:
        for side in range(3):
            await self.step(f"look {side}", self._look, place, side)
            self.report_progress((side + 1) / 3, f"side {side}")
        return f"{place} has 3 sides"

    async def _look(self, place: str, side: int) -> None:
        note(f"{place} {side} begun")
        while not is_allowed(f"{place}.{side}"):  # noqa: ASYNC110 - a file of the test's
            await asyncio.sleep(0.02)
        note(f"{place} {side} done")


class McpCashier(ChatAgent):
    """Pays when a person allows it."""

    model = ScriptedModel(call("pay", euros=90, id="p1"), text("it is paid"), each=True)

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        """Pay."""
        note(f"paid {euros}")
        return f"{euros} paid"


class McpPurchaser(ChatAgent):
    """Buys what is cheapest."""

    model = ScriptedModel(call("cashier", message="pay", id="c1"), text("bought"), each=True)
    tools = (agent_tool(McpCashier, name="cashier"),)


class McpBureau(ChatAgent):
    """Gets what is needed."""

    model = ScriptedModel(call("purchaser", message="buy", id="b1"), text("here it is"), each=True)
    tools = (agent_tool(McpPurchaser, name="purchaser"),)


def who(request: Any) -> User | None:
    name = request.headers.get("authorization", "").removeprefix("Bearer ")
    return User(name) if name else None


tools = [agent_tool(McpSurveyor, name="survey"), agent_tool(McpBureau, name="bureau")]
site = App(agents=[], authenticate=who, protocols=[Mcp(tools=tools)])
