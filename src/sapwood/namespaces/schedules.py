"""`self.schedules`: the schedules of an agent."""

from __future__ import annotations

from sapwood.capabilities.schedules import Schedule, Schedules
from sapwood.kernel.actors.actor import Actor


class AgentSchedules:
    """The schedules of this agent. `self.schedule(…)` creates one."""

    def __init__(self, actor: Actor) -> None:
        self._schedules = actor.of(Schedules)

    def get(self, id: str) -> Schedule | None:
        """Return a schedule by its id or its key."""
        return self._schedules.get(id)

    def cancel(self, id: str) -> bool:
        """Cancel a schedule by its id or its key. Returns `False` if it does not exist."""
        return self._schedules.cancel(id)

    def list(self, *, limit: int = 1000) -> list[Schedule]:
        """Return the schedules in the order in which they are due."""
        return self._schedules.list(limit)
