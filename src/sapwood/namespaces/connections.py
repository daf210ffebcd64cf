"""`self.connections`: the clients that are connected to an agent."""

from __future__ import annotations

from sapwood.capabilities.connections import Connection, Connections
from sapwood.kernel.actors.actor import Actor


class AgentConnections:
    """The open connections of this agent. `self.broadcast(…)` sends to all of them."""

    def __init__(self, actor: Actor) -> None:
        self._connections = actor.of(Connections)

    def list(self, tag: str | None = None) -> list[Connection]:
        """Return the open connections, oldest first; with `tag`, those that have this tag."""
        return self._connections.all(tag)
