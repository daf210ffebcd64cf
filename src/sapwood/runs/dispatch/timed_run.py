"""How long a run may take, and how long nothing may be heard of it: then it is stopped, or given up and followed on."""

from __future__ import annotations

import asyncio
from asyncio import Future
from typing import Any

from sapwood.capabilities.fiber_rows import UNTIL_WOKEN
from sapwood.capabilities.steps import Work
from sapwood.clock import Timer
from sapwood.errors import Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import current
from sapwood.runs.dispatch.activity import activity_of
from sapwood.runs.dispatch.monitored_run import MonitoredRun
from sapwood.runs.dispatch.results import Outcomes
from sapwood.runs.execution.driver import NodeDriver
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.tables.runs_table import RunRow

LEEWAY = 1.0
"""Seconds that a caller waits longer, for each level below: the deepest silent run is given up first, and its own
caller can continue."""


class TimedRun(MonitoredRun):
    """A run that is followed now, up to its timeouts."""

    def __init__(self, actor: Actor, row: RunRow, *, again: bool, rested: bool) -> None:
        super().__init__(
            row,
            stop=actor.host.loop.create_future(),
            since=actor.host.clock.now(),
            again=again,
            rested=rested,
            given_up=row.status == "interrupted",
        )
        self._actor = actor
        self._outcomes = actor.of(Outcomes)

    async def while_not_due(self, reply: Future[Any]) -> None:
        """Return when this is done, or the run has to stop; on a timeout it is stopped, or abandoned and continues."""
        while not reply.done() and self.stopped is None:
            self._rest()
            due = self._due()
            await until(self._actor, due, reply, self.stop, self.nudged())
            if not reply.done() and due is not None and self._actor.host.clock.now() >= due:
                self._is_due()

    def _rest(self) -> None:
        """Leave memory if the run has, until it continues; or until its timeout, whatever it waits for."""
        child, row = self.child, self.row
        if child is None or child.dropped is not None:
            return
        if not child.of(RunExecutor).worker.rests(row.id):
            return
        ends = (row.deadline_at, None if self.given_up else self._budget_ends())
        call = current.get()
        if call is not None and isinstance(call.work, Work):
            wakes_at = min((end for end in ends if end is not None), default=UNTIL_WOKEN)
            if (suspended := call.work.park(wakes_at)) is not None:
                raise suspended

    def _due(self) -> float | None:
        """Return when a run takes too long, as far as is known now."""
        row, detached = self.row, self.row.detached
        dues: list[float | None] = [row.deadline_at]
        if not self.given_up:
            if (away := self._away()) is not None:
                patience = self._actor.host.settings.run_idle_timeout if detached is None else detached["idle_timeout"]
                dues.append(None if patience is None else max(away[0], self.since) + patience)
            if detached is not None:
                dues.append(self._budget_ends())
                if detached["idle_timeout"] is not None:
                    dues.append(self._silent_until(detached["idle_timeout"]))
            elif self.again:
                dues.append(self._silent_until(self._actor.host.settings.run_idle_timeout))
        return min((due for due in dues if due is not None), default=None)

    def _budget_ends(self) -> float | None:
        budget = (self.row.detached or {}).get("max_duration")
        return None if budget is None else self.row.started_at + budget

    def _is_over_budget(self) -> bool:
        ends = self._budget_ends()
        return ends is not None and self._actor.host.clock.now() >= ends

    def _away(self) -> tuple[float, str] | None:
        """Return since when the server that does a run cannot be reached, and why; None if it can, or is our own."""
        child = self.child
        return None if child is None or child.dropped is not None else child.of(RunExecutor).away.get(self.row.id)

    def _silent_until(self, silence: float) -> float:
        """Return when a run has been silent for this long, with all runs below it that it waits for."""
        found = activity_of(self.child, self.row.id)
        last = max(found.last, self.since)
        if self.row.detached is not None and found.said < self.since:
            # Nothing was heard yet, or not since it waited: look again later, and count from what was heard by then.
            # What it said before a restart counts from the restart.
            last = last if self.again and found.has_spoken else self._actor.host.clock.now()
        return last + silence + LEEWAY * found.height

    def _is_due(self) -> None:
        """Stop a run whose time is over; give up one that is silent."""
        now, row = self._actor.host.clock.now(), self.row
        if row.deadline_at is not None and now >= row.deadline_at:
            self.timed_out = True
            if (away := self._away()) is not None:
                self.trouble = away[1]
            self.cut("timed-out")
            return
        due = self._due()
        if due is None or now < due:
            return  # something was heard since
        if self._waits() and not self._is_over_budget():
            self.since = now  # it waits for a person or a driver, and that may take any time
            return
        self.give_up()

    def _waits(self) -> bool:
        """Return whether a run waits for a person, or for its driver."""
        if (child := self.child) is None or self._away() is not None:
            return False
        return child.of(RunExecutor).worker.waits(self.row.id) or child.host.shared(NodeDriver).holds(child.address)

    def give_up(self) -> None:
        """Wait no longer for a run. Its sub-agent may continue, and is still followed."""
        reason, text = "no-progress", "The run made no progress for too long."
        if self._is_over_budget():
            reason, text = "budget-exceeded", "The run exceeded max_duration."
        elif (away := self._away()) is not None:
            reason, text = "unreachable", self._outcomes.text_of(self.row, Unavailable(away[1]))
        elif self.child is None and self.trouble is not None:
            reason, text = "inspect-failed", self._outcomes.text_of(self.row, Unavailable(self.trouble))
        elif self.child is None:
            reason, text = "inspect-timeout", "The sub-agent did not start."
        self._outcomes.give_up(self, reason, text, still_running=True)


async def until(actor: Actor, due: float | None, *futures: Future[Any]) -> None:
    """Return when one of these is done, or at this time of the clock of the agent."""
    timer: Timer | None = None
    late: Future[None] = actor.host.loop.create_future()
    if due is not None:
        timer = actor.host.clock.call_at(due, lambda: late.done() or late.set_result(None))
    try:
        await asyncio.wait({late, *futures}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if timer is not None:
            timer.cancel()
