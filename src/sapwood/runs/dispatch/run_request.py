"""What a caller asks of one run, and the tool call that the caller is part of."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.tables.runs_table import Run


@dataclass(frozen=True, slots=True)
class Detached:
    """The options of a run whose caller does not wait for it: see `Agent.start_run`."""

    on_finish: Callable[[Run], object] | None = None
    """The method of the caller that is called with the `Run` when it has ended or is interrupted."""
    notify: bool = False
    """Whether the result is posted to the conversation of the caller."""
    max_duration: timedelta | None = timedelta(hours=24)
    """Time after which it is interrupted. `None` means no limit."""
    idle_timeout: timedelta | None = timedelta(hours=1)
    """Time without progress after which it is interrupted, once there was some. `None` means no limit."""


@dataclass(slots=True)
class RunRequest:
    """All that is asked of one run."""

    id: str | None = None
    tool_call: str | None = None
    order: int | None = None
    """What tells it from other runs of the same tool call."""
    place: int = 0
    timeout: float | None = None
    detached: Detached | None = None
    on_disconnect: str = "cancel"
    display: Any = None
    work: WorkId | None = None
    child: str | None = None
    """The name of the persistent sub-agent that executes it. `None` means a separate sub-agent."""
    client_tools: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The tools of a client that it may use."""


@dataclass(slots=True)
class ToolCall:
    """The tool call that the code belongs to that runs now."""

    actor: Actor
    id: str
    work: WorkId
    runs: int = 0
    """How many runs it has given so far."""


tool_call: ContextVar[ToolCall | None] = ContextVar("sapwood_tool_call", default=None)
