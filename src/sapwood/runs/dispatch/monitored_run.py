"""A run that is followed now, and can be stopped at once."""

from __future__ import annotations

from asyncio import Future
from contextlib import suppress
from dataclasses import dataclass

from sapwood.errors import Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.runs.execution.cancellation_latency import stopping
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.tables.runs_table import RunRow


@dataclass(slots=True)
class MonitoredRun:
    """A run that is followed now."""

    row: RunRow
    """As it was when it began to be followed."""
    stop: Future[str]
    """Done when it is to stop; why."""
    since: float
    """When it began to be followed."""
    again: bool
    """Whether it was followed before the process ended."""
    rested: bool = False
    """Whether it continues after it waited for an answer."""
    child: Actor | None = None
    """Who does it, once they are awake."""
    given_up: bool = False
    timed_out: bool = False
    trouble: str | None = None
    """Why the last attempt to reach the sub-agent failed. `None` if it succeeded."""
    troubled_since: float = 0.0
    """When it could first not be reached."""
    arrived: Future[None] | None = None
    """Done when the caller starts the run again, with its input; `None` if that is not waited for."""
    nudge: Future[None] | None = None
    """Done when the run is requested again or comes to rest, so that the wait is evaluated again."""

    @property
    def stopped(self) -> str | None:
        return self.stop.result() if self.stop.done() else None

    def cut(self, reason: str) -> None:
        """Stop the run and all below it, at once; what has to be written of it follows."""
        if self.stop.done():
            return
        self.stop.set_result(reason)
        if self.child is not None and self.child.dropped is None:
            with stopping(self.child), suppress(Unavailable):  # one that is about to end stops without it
                self.child.of(RunExecutor).cut(self.row.id, reason)

    def take_input(self) -> None:
        """Record that the input has arrived."""
        if self.arrived is not None and not self.arrived.done():
            self.arrived.set_result(None)

    def nudged(self) -> Future[None]:
        """Return a future that is done when the wait has to be evaluated again."""
        if self.nudge is None or self.nudge.done():
            self.nudge = self.stop.get_loop().create_future()
        return self.nudge

    def look_again(self) -> None:
        """Evaluate the wait again."""
        if self.nudge is not None and not self.nudge.done():
            self.nudge.set_result(None)

    def wanted_again(self, now: float) -> None:
        """Record that the run was requested again: if it was abandoned, that is undone."""
        if self.given_up:
            self.given_up, self.since = False, now
            self.look_again()
