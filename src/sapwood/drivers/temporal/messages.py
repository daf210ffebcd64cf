"""What the app, its workflows and its workers tell each other. Needs no Temporal client."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sapwood.errors import Refused

NAME = "SapwoodWork"
STEP, STOP, LOOK = "sapwood.step", "sapwood.stop", "sapwood.look"
READY, GIVE, INTERRUPT, OVER = "ready", "give", "interrupt", "over"
NOT_FOUND = "not_found"
"""The type of the failure if the agent, or its turn, does not exist."""
LATE = timedelta(minutes=1)
"""How long after its deadline Temporal ends a run that has not ended."""
CLOSED = ("FAILED", "CANCELED", "TERMINATED", "TIMED_OUT")
"""The end states of workflows that the agent did not end."""


@dataclass(frozen=True)
class Driven:
    """What one workflow drives."""

    workflow: str
    """The id of the workflow."""
    address: str
    """The agent, as `Type:name/Type:name`."""
    id: str
    """Its turn, or run."""
    patience: float = 10.0
    """Seconds without a heartbeat after which another worker is asked to continue."""
    look: float = 900.0
    """Seconds after which one that waits looks whether what it waits for is still there."""
    most_steps: int = 500
    """How many steps one history holds."""
    steps: int = 0
    """How many steps were asked for so far."""
    seconds: float | None = None
    """How long it may take."""
    searchable: bool = True
    """Whether the namespace knows our search attributes."""
    ready: bool = True
    """Whether the agent waits to be asked."""
    stop: str | None = None
    """Why it is to stop."""

    @property
    def timeout(self) -> timedelta | None:
        """How long all of it may take."""
        return None if self.seconds is None else timedelta(seconds=self.seconds) + LATE


@dataclass(frozen=True)
class StepRequest:
    """What the agent is asked for."""

    address: str
    id: str
    step: int = 0
    reason: str = ""


@dataclass(frozen=True)
class StepAnswer:
    """How a turn or run stands."""

    status: str
    waits: bool = False
    """Whether it is not to be asked for the next step until it says so."""
    reason: str | None = None
    """The code of what went wrong."""

    @property
    def is_over(self) -> bool:
        return self.status not in ("queued", "running", "waiting")


def refuse_closed(state: str | None) -> None:
    """Raise if a workflow was ended from outside before it finished."""
    if state in CLOSED:
        raise Refused(f"The workflow was closed in Temporal: {state.lower().replace('_', ' ')}.")
