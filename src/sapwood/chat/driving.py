"""Drives turns: each in a fiber of its own, begun again after a crash.

When the next step begins is for the fiber to say, or for a driver outside that asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager

from sapwood import tracing
from sapwood.capabilities.fiber_rows import UNTIL_WOKEN
from sapwood.capabilities.steps import Work
from sapwood.chat.interrupting import Interrupts
from sapwood.chat.record import Record
from sapwood.chat.steps import Steps
from sapwood.chat.turns import Row
from sapwood.kernel.actor import Actor
from sapwood.kernel.context import current
from sapwood.kernel.crossing import describe
from sapwood.runs.contract import doing
from sapwood.runs.following import Following
from sapwood.runs.outcomes import Outcomes
from sapwood.runs.pacing import RUNNING, Driver, Driving, Pace, Part, is_again, part_of
from sapwood.runs.questions import Questions
from sapwood.runs.served import Served


class FiberDriver:
    """Drives the turns of one conversation."""

    def __init__(self, actor: Actor, steps: Steps) -> None:
        self._actor = actor
        self._steps = steps
        self._turns = actor.of(Record).turns
        self._interrupts = actor.of(Interrupts)

    @property
    def _driver(self) -> Driver:
        return self._actor.host.shared(Driving).driver

    async def drive(self, number: int) -> None:
        """Drive a turn to its end, or until it waits for an answer."""
        self._actor.of(Questions).settle_soon()
        row, is_known = self._turns.of(number), False
        if row is not None and row.run is not None:
            await self._wake_above(row, row.run)
            row = self._turns.of(number)
        if row is not None and row.status == "running":
            doing.set((self._actor, row.id))
            again = is_again(self._actor)
            with self._interrupts.turn():
                await self._steps.take_up(row, again=again)
                with self._span_of(row) as span, self._driver.pacing(self._part(row, again=again)) as pace:
                    is_known = await self._drive(number, span, pace)
        elif row is not None and row.run is not None and not row.is_open:
            await self._actor.of(Served).ended_at_rest(row.run)
        # Also if the process died while it was told, or nobody had to drive it to its end.
        await self._steps.tell_end(number)
        if row is not None and not is_known:
            self._actor.check_live()
            ended = self._turns.of(number)
            if ended is None or not ended.is_open:
                await self._driver.over(self._part(row), "cancelled" if ended is None else ended.status)

    def _part(self, row: Row, *, again: bool = False) -> Part:
        # One that was over, and goes on after all, begins as if it were new.
        is_new = row.ended_at is not None or not (again or row.continues or self._has_rested())
        return part_of(self._actor, row.id, row.run, is_new=is_new)

    def _has_rested(self) -> bool:
        call = current.get()
        return call is not None and isinstance(call.work, Work) and call.work.resumed

    async def _wake_above(self, row: Row, run: str) -> None:
        """Have those go on who rest with a turn that was woken, or ended otherwise while it waited for somebody."""
        served = self._actor.of(Served)
        # One that rested and is not wanted was stopped from above.
        if row.status != "running" or (self._has_rested() and served.is_wanted(run)):
            served.wake_above(run)

    def _span_of(self, row: Row) -> AbstractContextManager[tracing.Span]:
        who = str(self._actor.address)
        return tracing.span(
            f"invoke_agent {self._actor.kind.type}",
            gen_ai__operation__name="invoke_agent",
            gen_ai__agent__name=self._actor.kind.type,
            gen_ai__conversation__id=who,
            sapwood__address=who,
            sapwood__turn__id=row.id,
            sapwood__run__id=row.run,
            sapwood__recovered=row.recovering_at is not None or None,
        )

    async def _drive(self, number: int, span: tracing.Span, pace: Pace) -> bool:
        """Drive a turn as far as it goes; return whether whoever paces it knows how it stands."""
        try:
            status = await self._go(number, pace)
            await self._steps.finish(number, status)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is how the turn ended
            status = await self._steps.fail(number, error)
            if status == "cancelled":
                span.set(sapwood__turn__status="cancelled")
            else:
                span.fail(describe(error))
        if (row := self._turns.of(number)) is None:
            return False
        return pace.stepped(row.status, waits=row.is_open, reason=row.reason if row.status == "failed" else None)

    async def _go(self, number: int, pace: Pace) -> str:
        """Do one step after the other; return how the turn stands that is to be finished."""
        await self._asked(number, pace)
        status, has_stepped = await self._steps.begin(number), False
        while True:
            self._actor.check_live()
            started = self._steps.start_runs(number)
            if status == RUNNING and (started or has_stepped):
                pace.stepped(status, waits=bool(started))
            for call, run in started:
                await self._over(number, run, [one for _, one in started])
                self._steps.take_run(call, run)
            if status != RUNNING:
                return status
            await self._asked(number, pace)
            status, has_stepped = await self._steps.step(number), True

    async def _asked(self, number: int, pace: Pace) -> None:
        """Return when the next step may begin; raise if the turn is not to go on."""
        asked = pace.asked()
        if asked is None:
            return
        row = self._interrupts.going_on(number)  # it may have been stopped before the process ended
        with self._actor.host.shared(Driving).holding(self._actor.address, row.id):
            await asyncio.wait({asked, self._interrupts.stopped}, return_when=asyncio.FIRST_COMPLETED)
        self._actor.check_live()
        self._interrupts.going_on(number)
        asked.result()

    async def _over(self, number: int, run: str, beside: Sequence[str]) -> None:
        """Return when a run is over; raise if the turn is not to go on."""
        runs = self._actor.of(Outcomes)
        while not runs.of(run).is_over:
            news = {runs.changing(run)}
            if self._actor.of(Following).rests(run):
                self._rest(number, beside)
                news = {runs.changing(one) for one in beside}
            await asyncio.wait({*news, self._interrupts.stopped}, return_when=asyncio.FIRST_COMPLETED)
            self._actor.check_live()
            self._interrupts.going_on(number)

    def _rest(self, number: int, started: Sequence[str]) -> None:
        """Leave the memory if all the runs have that the turn waits for: each waits for somebody."""
        runs, following, call = self._actor.of(Outcomes), self._actor.of(Following), current.get()
        if not all(runs.of(one).is_over or following.rests(one) for one in started):
            return
        if call is not None and isinstance(call.work, Work) and (rest := call.work.park(UNTIL_WOKEN)) is not None:
            self._steps.come_to_rest(number)
            raise rest
