"""`self.history`: the past of an agent, and of its tree."""

from __future__ import annotations

from sapwood.errors import UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.fork_origin import ForkOrigin, origin_of
from sapwood.kernel.ports.history import MomentKind

LONGEST_NAME = 200


class AgentHistory:
    """The past of this agent, and of its tree."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def mark(self, name: str) -> None:
        """Name this moment, so that the tree can be forked, exported or rewound as it is after this slice.

        If the same name is used again, it means the last moment. Without `Settings(history=…)`, nothing is recorded.
        """
        self._actor.check_use()
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:  # pyright: ignore[reportUnnecessaryIsInstance] - unchecked programs exist
            raise UsageError(f"The name of a moment must be a string of 1 to {LONGEST_NAME} characters, got {name!r}.")
        self._actor.host.history.mark(self._actor.address, MomentKind.MARK, name)

    @property
    def forked_from(self) -> ForkOrigin | None:
        """The agent that this one is a copy of. `None` if it was not forked."""
        self._actor.check_use()
        return origin_of(self._actor.database)
