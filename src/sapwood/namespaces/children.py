"""`self.children`: the sub-agents of an agent."""

from __future__ import annotations

from sapwood.capabilities.children import Children, SubAgentStatus, Subtree
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.children_table import SubAgent
from sapwood.kernel.marshal.agent_base import AgentBase
from sapwood.runs.dispatch.lifecycle import Runs


class AgentChildren:
    """The sub-agents of this agent. `self.sub_agent(…)` creates one."""

    def __init__(self, actor: Actor) -> None:
        self._children = actor.of(Children)
        self._runs = actor.of(Runs)

    def has(self, cls: type[AgentBase] | str, name: str) -> bool:
        """Return whether this sub-agent exists. `cls` is its class or its type id."""
        return self._children.has(cls, name)

    def status(self, cls: type[AgentBase], name: str) -> SubAgentStatus:
        """Return the status of a sub-agent, without waking it."""
        return self._children.status(cls, name)

    async def subtree(self) -> Subtree:
        """Return totals of this agent and everything below it."""
        return await self._children.subtree()

    def abort(self, cls: type[AgentBase], name: str, reason: object = None) -> None:
        """Stop a sub-agent and everything below it, at once. Its data stays; `sub_agent` starts it again.

        Until then, calls to it raise `Aborted(reason)`, running calls too.
        """
        self._runs.abort_child(cls, name, reason)

    async def delete(self, cls: type[AgentBase], name: str) -> None:
        """Delete a sub-agent, everything below it and all their data. Does nothing if it does not exist."""
        await self._runs.delete_child(cls, name)

    def list(self, cls: type[AgentBase] | str | None = None, *, after: int = 0, limit: int = 1000) -> list[SubAgent]:
        """Return the sub-agents in the order of their creation.

        For the next page, pass the `generation` of the last one as `after`.
        """
        return self._children.list(cls, after=after, limit=limit)
