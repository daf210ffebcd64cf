"""Drives turns with fibers of this process: one turn in one fiber, begun again after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager

from sapwood import tracing
from sapwood.capabilities.agenda import Agenda
from sapwood.capabilities.fibers import UNTIL_WOKEN
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
from sapwood.runs.questions import Questions
from sapwood.runs.served import Served


class FiberDriver:
    """Drives the turns of one conversation."""

    def __init__(self, actor: Actor, steps: Steps) -> None:
        self._actor = actor
        self._steps = steps
        self._turns = actor.of(Record).turns
        self._interrupts = actor.of(Interrupts)

    async def drive(self, number: int) -> None:
        """Drive a turn to its end, or to where somebody has to be asked."""
        self._actor.of(Questions).settle_soon()
        row = self._turns.of(number)
        if row is not None and row.run is not None:
            await self._wake_above(row, row.run)
            row = self._turns.of(number)
        if row is not None and row.status == "running":
            doing.set((self._actor, row.id))
            with self._interrupts.turn():
                await self._steps.take_up(row, again=self._is_again())
                with self._span_of(row) as span:
                    await self._drive(number, span)
        elif row is not None and row.run is not None and not row.is_open:
            await self._actor.of(Served).ended_at_rest(row.run)
        # Also if the process died while it was told, or nobody had to drive it to its end.
        await self._steps.tell_end(number)

    async def _wake_above(self, row: Row, run: str) -> None:
        """Have those go on who rest with a turn that was woken, or ended otherwise while it waited for somebody."""
        call, served = current.get(), self._actor.of(Served)
        has_rested = call is not None and isinstance(call.work, Work) and call.work.resumed
        if row.status != "running" or (has_rested and served.is_wanted(run)):  # if not, it was stopped from above
            await served.may_wake_above()
            self._actor.check_live()
            served.wake_above(run)

    def _is_again(self) -> bool:
        """Return whether the fiber that runs now was interrupted before."""
        call = current.get()
        work = call.work if call is not None else None
        if not isinstance(work, Work) or work.fiber is None:
            return False
        return self._actor.of(Agenda).fibers.current().recoveries > 0

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

    async def _drive(self, number: int, span: tracing.Span) -> None:
        try:
            await self._steps.finish(number, await self._go(number))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is how the turn ended
            if await self._steps.fail(number, error) == "aborted":
                span.set(sapwood__turn__status="aborted")
            else:
                span.fail(describe(error))

    async def _go(self, number: int) -> str:
        """Do one step after the other; return how the turn stands that is to be finished."""
        status = await self._steps.begin(number)
        while True:
            await self._actor.free()
            started = self._steps.start_runs(number)
            for call, run in started:
                await self._over(number, run, [one for _, one in started])
                self._steps.take_run(call, run)
            if status != "running":
                return status
            status = await self._steps.step(number)

    async def _over(self, number: int, run: str, beside: Sequence[str]) -> None:
        """Return when a run is over; raise if the turn is not to go on."""
        runs = self._actor.of(Outcomes)
        while not runs.of(run).is_over:
            news = {runs.changing(run)}
            if self._actor.of(Following).rests(run):
                self._rest(number, beside)
                news = {runs.changing(one) for one in beside}
            await asyncio.wait({*news, self._interrupts.stopped}, return_when=asyncio.FIRST_COMPLETED)
            await self._actor.free()
            self._interrupts.going_on(number)

    def _rest(self, number: int, started: Sequence[str]) -> None:
        """Leave the memory if all the runs have that the turn waits for: each waits for somebody."""
        runs, following, call = self._actor.of(Outcomes), self._actor.of(Following), current.get()
        if not all(runs.of(one).is_over or following.rests(one) for one in started):
            return
        if call is not None and isinstance(call.work, Work) and (rest := call.work.park(UNTIL_WOKEN)) is not None:
            self._steps.come_to_rest(number)
            raise rest
