"""What the capabilities of an agent ask of the packages above them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sapwood.address import Address
from sapwood.kernel.ports.work_id import WorkId
from sapwood.periods import LimitWarning


class AgentHooks(Protocol):
    """The upcalls of one agent. Each is called in the slice of the event that it reports.

    A package above the kernel extends this protocol by what it asks itself: `ClientHooks`, `RunHooks`. The static
    methods are about a class of agents.
    """

    def __init__(self, actor: Any) -> None: ...

    @staticmethod
    def check_approvers(agent_class: type) -> None:
        """Refuse a class, in an app that has users, whose tools require approval and do not say who may give it."""
        ...

    def fiber_ended(self, work: WorkId, *, is_done: bool) -> None:
        """Stop the runs that a fiber has started: it has ended. `is_done` means that it completed."""
        ...

    def fiber_failed(self, method: str, arguments: Mapping[str, Any], error: str) -> None:
        """End what an internal fiber was working on: it failed and is not recovered any more."""
        ...

    def close_questions(self, work: WorkId) -> None:
        """Close the questions that a fiber or stored call has asked: it has ended."""
        ...

    def questions_closed(self, owners: Sequence[Address]) -> None:
        """Tell the clients of the agents above these that they ask nothing any more: they were deleted or aborted."""
        ...

    def limit_near(self, warning: LimitWarning) -> None:
        """Queue the hook of the agent for a limit of its own that comes near, once in each period."""
        ...

    def state_changes(self) -> None:
        """Report to the parent that the state is about to be replaced."""
        ...
