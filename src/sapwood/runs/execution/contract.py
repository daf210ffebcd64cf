"""What an agent has to do to be used by another one: `start`, `inspect`, `tail`, `cancel`, `result`.

`RunExecutor` keeps this contract for every agent. What differs is who does the work: a method
of the agent (`on_run`), or the turn of a conversation.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from sapwood.errors import OverLimit, SapwoodError
from sapwood.kernel.actors.actor import Actor
from sapwood.runs.tables.question import Answer, Approvers, Author, Question

CANCELLED = "cancelled"
"""The reason of a cancellation for which none was given."""
UNWANTED = "parent-interrupted"
"""The reason of a run that ends with something above it that was cancelled without a reason, or is gone."""
MAX_REASON = 500
"""Maximum length of a reason that a client sends, in characters."""


class DrivenPart(NamedTuple):
    """A run or turn, and the agent that executes it."""

    actor: Actor
    id: str
    turn: str | None = None
    """The turn, if it is one."""
    run: str | None = None
    """The run, if it is one."""


doing: ContextVar[DrivenPart | None] = ContextVar("sapwood_doing", default=None)
"""The run, or turn, that the code belongs to that runs now."""


Steered = Literal["joined", "over", "deaf"]
"""The fate of a message sent during a run: it joins the run, it came too late, or the run takes none."""


def reason_below(reason: str) -> str:
    """Return the reason for what is below something that is cancelled for this reason."""
    return UNWANTED if reason == CANCELLED else reason


def bounded_reason(reason: object) -> str:
    """Return the reason that a client gives, cut to its maximum length. Anything but a text counts as none."""
    return reason[:MAX_REASON] if isinstance(reason, str) and reason else CANCELLED


def code_of(error: BaseException) -> str | None:
    """Return the code to report for an error: only if it may pass on a retry, or a limit was reached."""
    if not isinstance(error, SapwoodError):
        return None
    return error.code if error.retryable or isinstance(error, OverLimit) else None


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that a run reports."""

    fraction: float | None = None
    """From 0 to 1."""
    message: str | None = None
    """The current activity, as text for a person."""
    phase: str | None = None
    """The name of the current phase."""
    data: Any = None
    """Anything else that fits into JSON."""

    def told(self) -> dict[str, Any]:
        """Return what there is to tell of it."""
        names = ("fraction", "message", "phase", "data")
        return {name: one for name in names if (one := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class RunState:
    """How a run stands, as the agent knows that does it."""

    id: str
    status: str
    """`running`, `completed`, `failed` or `cancelled`."""
    waits: bool
    """Whether the run, or a run below it, waits for an answer without a time limit."""
    seq: int
    """The number of its next chunk."""
    output: str | None = None
    """JSON: what it ended with."""
    summary: str | None = None
    error: str | None = None
    reason: str | None = None
    """Why it was aborted; of an error that may pass, or a limit that was reached, its code."""
    usage: str = "{}"
    """JSON: tokens and cost, by model."""
    progress: str | None = None
    """JSON: how far it last said it is."""

    @property
    def is_over(self) -> bool:
        return self.status != "running"


class RunBackend(Protocol):
    """Does the work of runs, in one agent."""

    def start(self, run: str, input: Any) -> int:
        """Begin, in this slice; return the number its chunks are stored by."""
        ...

    def cut(self, run: str, reason: str) -> None:
        """Stop what is going on, at once, and write nothing yet: others are to be stopped in the same breath."""
        ...

    def steer(self, run: str, key: str, text: str) -> Steered:
        """Send a message to the agent that executes a run, in this slice and once for each key."""
        ...

    def stands(self, work: str) -> str | None:
        """Return the status of a run, or turn; None if there is none."""
        ...

    def failure(self, work: str) -> str | None:
        """Return the error code of a run, or turn, that failed; `None` if it did not fail."""
        ...

    def cancel(self, work: str, reason: str) -> None:
        """Stop a turn, in this slice and for good, that does no run."""
        ...

    def wants(self, work: str) -> bool:
        """Return whether a run, or turn, may continue: neither it nor anything above it was cancelled."""
        ...

    def why_not(self, work: str) -> str:
        """Return the reason why a run, or turn, must not continue."""
        ...

    def waits(self, run: str) -> bool:
        """Return whether a run, or a run below it, waits for an answer."""
        ...

    def rests(self, run: str) -> bool:
        """Return whether a run waits for an answer with nothing of it in memory."""
        ...

    def wake(self, work: str) -> None:
        """Continue a run, or turn, that rested; those above it first."""
        ...

    def questions(self) -> list[Question]:
        """Return the open questions of this agent itself."""
        ...

    def question(self, id: str) -> Question | None:
        """Return the open question of this agent about a tool call."""
        ...

    def answer(self, id: str, answer: Answer, author: Author) -> bool | Awaitable[bool]:
        """Take the answer to one of these, in this slice, or by asking another server. `False` means not open."""
        ...

    def approvers(self, tool: str) -> Approvers | None:
        """Return who may approve calls of a tool. `None` means that the tool does not say."""
        ...

    def current(self) -> str | None:
        """Return the run that the code belongs to that runs now."""
        ...
