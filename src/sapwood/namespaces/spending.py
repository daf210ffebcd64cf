"""`self.spending`: the model requests, tokens and cost of an agent."""

from __future__ import annotations

from typing import Any

from sapwood.capabilities.model_usage import Accounts
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.trees.usage import Usage


class AgentSpending:
    """The model requests, tokens and cost of this agent and everything below it."""

    def __init__(self, actor: Actor) -> None:
        self._accounts = actor.of(Accounts)

    async def total(self, *, below: bool = True) -> dict[str, Any]:
        """Return requests, tokens and cost by model; with `below=False`, only those of this agent.

        Sub-agents that were deleted are included. A cost of `None` means that the price of the model is not known.
        """
        return await self._accounts.used(below=below)

    async def list(self) -> list[Usage]:
        """Return the usage of this agent and of each existing agent below it, by run and model."""
        return await self._accounts.all()
