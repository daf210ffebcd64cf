"""The server that `test_a2a.py` kills."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from sapwood import Agent, App, ChatAgent, agent_tool, tool
from sapwood.auth import ANY_CLIENT
from sapwood.protocols import A2a
from sapwood.testing import ScriptedModel, call, text

LOG = Path(os.environ["A2A_LOG"])


def note(line: str) -> None:
    """Write what was done where the test counts it."""
    with LOG.open("a") as file:
        file.write(f"{line}\n")


def is_allowed(look: int) -> bool:
    """Return whether the test allows a look."""
    return Path(f"{LOG}.{look}").exists()


class LookAgent(Agent):
    """Looks ten times, each time once."""

    async def on_run(self, place: str) -> str:
        for number in range(10):
            await self.step(f"look {number}", self._look, number)
            self.report_progress(number / 10, f"look {number}")
        return f"{place} has 10 sides"

    async def _look(self, number: int) -> None:
        while not is_allowed(number):  # noqa: ASYNC110 - a file of the test's
            await asyncio.sleep(0.01)
        note(f"look {number}")


class PayAgent(ChatAgent):
    """Pays when somebody allows it."""

    model = ScriptedModel(call("pay", euros=3, id="p1"), text("it is paid"), each=True)

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        """Pay."""
        note(f"paid {euros}")
        return "paid"


class BuyAgent(ChatAgent):
    """Has it paid."""

    model = ScriptedModel(call("pay", message="pay 3", id="b1"), text("it is bought"), each=True)
    tools = (agent_tool(PayAgent, name="pay"),)


class OrderAgent(ChatAgent):
    """Has it bought."""

    model = ScriptedModel(call("buy", message="buy bread", id="o1"), text("all is bought"), each=True)
    tools = (agent_tool(BuyAgent, name="buy"),)


published: list[type[Agent[Any]]] = [LookAgent, OrderAgent]
app = App(agents=[OrderAgent], protocols=[A2a(published, push_hosts=["127.0.0.1"])])
