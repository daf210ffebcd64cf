"""Somebody far down asks for approval, at depth 4, on behalf of a root that has others ask for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall
from tests.faults.chat_workload import rounds
from tests.faults.run_workload import WORLD, Conversing, takes_time

from sapwood import agent_tool, tool

CAREFUL = ("careful", "careful_again")
"""Tools that are called only if somebody allows it; the second perhaps again."""


class Rung(Conversing):
    """Has the next one below do it, and tells that it has."""

    below: ClassVar[tuple[str, ...]]
    """What the model may call."""

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        number, random = next(WORLD.numbers), WORLD.random
        yield f"w{number} "
        if not rounds(messages):
            for at in range(random.choice((1, 1, 2)) if self.below == CAREFUL else 1):
                id, name = f"c{number}-{at}", random.choice(self.below)
                arguments = json.dumps({"key" if name in CAREFUL else "message": id})
                yield {at: DeltaToolCall(name=name, json_args=arguments, tool_call_id=id)}

    async def stop(self, id: str) -> bool:
        return self.runs.cancel(id, "enough")


class Crier(Rung):
    """Asks, and does it if it may."""

    below = CAREFUL

    @tool(requires_approval=True)
    async def careful(self, key: str) -> str:
        """Do it if somebody allows it."""
        return await self._dare(key, "careful")

    @tool(requires_approval=True, idempotent=True)
    async def careful_again(self, key: str) -> str:
        """Do it if somebody allows it, perhaps again."""
        return await self._dare(key, "careful_again")

    async def _dare(self, key: str, name: str) -> str:
        self._begins(key, name)
        await takes_time()
        return self._ends(key, name)


class Beadle(Rung):
    """Has a crier ask."""

    below = ("crier",)
    tools = (agent_tool(Crier),)


class Bailiff(Rung):
    """Has a beadle do it."""

    below = ("beadle",)
    tools = (agent_tool(Beadle),)


class Reeve(Rung):
    """Has a bailiff do it."""

    below = ("bailiff",)
    tools = (agent_tool(Bailiff),)


LADDER = {one.__name__: one for one in (Reeve, Bailiff, Beadle, Crier)}
