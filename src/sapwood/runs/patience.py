"""How long a run may take, and how long nothing may be heard of it: then it is stopped, or given up and followed on."""

from __future__ import annotations

import asyncio
from asyncio import Future
from typing import Any

from sapwood.capabilities.fiber_rows import UNTIL_WOKEN
from sapwood.capabilities.steps import Work
from sapwood.clock import Timer
from sapwood.errors import Unavailable
from sapwood.kernel.actor import Actor
from sapwood.kernel.context import current
from sapwood.runs.activity import activity_of
from sapwood.runs.followed import Followed
from sapwood.runs.outcomes import Outcomes
from sapwood.runs.pacing import Driving
from sapwood.runs.served import Served

LEEWAY = 1.0
"""Seconds that a caller waits longer, for each level below: the deepest silent run is given up first, and its own
caller can go on."""


class Patience:
    """Waits for the runs that one agent starts, up to their timeouts."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._outcomes = actor.of(Outcomes)

    async def until(self, due: float | None, *futures: Future[Any]) -> None:
        """Return when one of these is done, or it is this late."""
        timer: Timer | None = None
        late: Future[None] = self._actor.host.loop.create_future()
        if due is not None:
            timer = self._actor.host.clock.call_at(due, lambda: late.done() or late.set_result(None))
        try:
            await asyncio.wait({late, *futures}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if timer is not None:
                timer.cancel()

    async def while_not_due(self, followed: Followed, reply: Future[Any]) -> None:
        """Return when this is done, or the run is to stop; what takes too long is stopped, or given up and goes on."""
        while not reply.done() and followed.stopped is None:
            self._rest(followed)
            due = self._due(followed)
            await self.until(due, reply, followed.stop, followed.nudged())
            if not reply.done() and due is not None and self._actor.host.clock.now() >= due:
                self._is_due(followed)

    def _rest(self, followed: Followed) -> None:
        """Leave the memory if the run has, until it goes on; or until it takes too long, whoever is waited for."""
        child, row = followed.child, followed.row
        if child is None or child.dropped is not None:
            return
        if not child.of(Served).worker.rests(row.id):
            return
        ends = (row.deadline_at, None if followed.given_up else self._budget_ends(followed))
        call = current.get()
        if call is not None and isinstance(call.work, Work):
            until = min((end for end in ends if end is not None), default=UNTIL_WOKEN)
            if (suspended := call.work.park(until)) is not None:
                raise suspended

    def _due(self, followed: Followed) -> float | None:
        """Return when a run takes too long, as far as is known now."""
        row, detached = followed.row, followed.row.detached
        dues: list[float | None] = [row.deadline_at]
        if not followed.given_up:
            if (away := self._away(followed)) is not None:
                patience = self._actor.host.settings.run_idle_timeout if detached is None else detached["idle_timeout"]
                dues.append(None if patience is None else max(away[0], followed.since) + patience)
            if detached is not None:
                dues.append(self._budget_ends(followed))
                if detached["idle_timeout"] is not None:
                    dues.append(self._silent_until(followed, detached["idle_timeout"]))
            elif followed.again:
                dues.append(self._silent_until(followed, self._actor.host.settings.run_idle_timeout))
        return min((due for due in dues if due is not None), default=None)

    def _budget_ends(self, followed: Followed) -> float | None:
        budget = (followed.row.detached or {}).get("max_duration")
        return None if budget is None else followed.row.started_at + budget

    def _is_over_budget(self, followed: Followed) -> bool:
        ends = self._budget_ends(followed)
        return ends is not None and self._actor.host.clock.now() >= ends

    def _away(self, followed: Followed) -> tuple[float, str] | None:
        """Return since when the server that does a run cannot be reached, and why; None if it can, or is our own."""
        child = followed.child
        return None if child is None or child.dropped is not None else child.of(Served).away.get(followed.row.id)

    def _silent_until(self, followed: Followed, silence: float) -> float:
        """Return when a run has been silent for this long, with all runs below it that it waits for."""
        found = activity_of(followed.child, followed.row.id)
        last = max(found.last, followed.since)
        if followed.row.detached is not None and found.said < followed.since:
            # Nothing was heard yet, or not since it waited: look again later, and count from what was heard by then.
            # What it said before a restart counts from the restart.
            last = last if followed.again and found.has_spoken else self._actor.host.clock.now()
        return last + silence + LEEWAY * found.height

    def _is_due(self, followed: Followed) -> None:
        """Stop a run whose time is over; give up one that is silent."""
        now, row = self._actor.host.clock.now(), followed.row
        if row.deadline_at is not None and now >= row.deadline_at:
            followed.timed_out = True
            if (away := self._away(followed)) is not None:
                followed.trouble = away[1]
            followed.cut("timed-out")
            return
        due = self._due(followed)
        if due is None or now < due:
            return  # something was heard meanwhile
        if self._waits(followed) and not self._is_over_budget(followed):
            followed.since = now  # it waits for somebody, and that may take any time
            return
        self.give_up(followed)

    def _waits(self, followed: Followed) -> bool:
        """Return whether a run waits for a person, or for whoever drives it."""
        if (child := followed.child) is None or self._away(followed) is not None:
            return False
        return child.of(Served).worker.waits(followed.row.id) or child.host.shared(Driving).holds(child.address)

    def give_up(self, followed: Followed) -> None:
        """Wait no longer for a run. Its sub-agent may go on, and is followed on."""
        reason, text = "no-progress", "The run made no progress for too long."
        if self._is_over_budget(followed):
            reason, text = "budget-exceeded", "The run exceeded max_duration."
        elif (away := self._away(followed)) is not None:
            reason, text = "unreachable", self._outcomes.text_of(followed.row, Unavailable(away[1]))
        elif followed.child is None and followed.trouble is not None:
            reason, text = "inspect-failed", self._outcomes.text_of(followed.row, Unavailable(followed.trouble))
        elif followed.child is None:
            reason, text = "inspect-timeout", "The sub-agent did not start."
        self._outcomes.give_up(followed, reason, text, still_running=True)
