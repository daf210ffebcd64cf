"""`self.dead_letters`: the calls of an agent that failed and are not retried any more."""

from __future__ import annotations

from sapwood.capabilities.dead_letters import DeadLetter
from sapwood.capabilities.due_work import Agenda
from sapwood.kernel.actors.actor import Actor


class AgentDeadLetters:
    """The scheduled and queued calls of this agent that failed and are not retried any more."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._agenda = actor.of(Agenda)

    def replay(self, id: str) -> bool:
        """Call it once more, now. Returns `False` if there is no such dead letter."""
        return self._agenda.replay(id)

    def delete(self, id: str) -> bool:
        """Delete a dead letter. Returns `False` if there is no such dead letter."""
        return self._agenda.forget_dead_letter(id)

    def list(self) -> list[DeadLetter]:
        """Return the dead letters, oldest first."""
        self._actor.check_use()
        return self._agenda.calls.dead_letters.list()
