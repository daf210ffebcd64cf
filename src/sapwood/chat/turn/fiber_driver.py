"""Drives turns: each in its own fiber, begun again after a crash.

When the next step begins is for the fiber to say, or for a driver outside that asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager

from sapwood import tracing
from sapwood.capabilities.fiber_rows import UNTIL_WOKEN
from sapwood.capabilities.steps import Work
from sapwood.chat.store.chat_behavior import ChatBehavior
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.turn.active_turn import ActiveTurn, EndTurn
from sapwood.chat.turn.cancellation import Interrupts
from sapwood.chat.turn.request_owner import owner_of
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import current
from sapwood.kernel.marshal.exceptions import describe
from sapwood.runs.dispatch.results import Outcomes
from sapwood.runs.dispatch.run_monitors import RunMonitors
from sapwood.runs.execution.contract import DrivenPart, doing
from sapwood.runs.execution.driver import RUNNING, DrivenWork, Driver, DriverPace, NodeDriver, is_again, part_of
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.questions.questions import Questions


class FiberDriver:
    """Drives the turns of one conversation."""

    def __init__(self, actor: Actor, end: EndTurn) -> None:
        self._actor = actor
        self._end = end
        self._agent: ChatBehavior = actor.agent
        self._record = actor.of(ConversationRecord)
        self._turns = self._record.turns
        self._interrupts = actor.of(Interrupts)

    @property
    def _driver(self) -> Driver:
        return self._actor.host.shared(NodeDriver).driver

    async def drive(self, number: int) -> None:
        """Drive a turn to its end, or until it waits for an answer."""
        self._actor.of(Questions).settle_soon()
        row, is_known = self._turns.of(number), False
        if row is not None and row.run is not None:
            await self._wake_above(row, row.run)
            row = self._turns.of(number)
        if row is not None and row.status == "running":
            owner, call = owner_of(self._actor, row), current.get()
            if call is not None and owner.kind == "user":
                call.user = owner.id  # also of what its tools do in other trees
            doing.set(DrivenPart(self._actor, row.id, row.id, row.run))
            again = is_again()
            turn = ActiveTurn(self._actor, number, self._end)
            with self._interrupts.cancels(turn):
                await turn.take_up(row, again=again)
                with self._span_of(row) as span, self._driver.pacing(self._part(row, again=again)) as pace:
                    is_known = await self._drive(turn, span, pace)
        elif row is not None and row.run is not None and not row.is_open:
            await self._actor.of(RunExecutor).ended_at_rest(row.run)
        # Also if the process died while reporting it, or no driver was needed to end it.
        await self._tell_end(number)
        if row is not None and not is_known:
            self._actor.check_live()
            ended = self._turns.of(number)
            if ended is None or not ended.is_open:
                status, reason = ("cancelled", None) if ended is None else (ended.status, ended.reason)
                await self._driver.over(self._part(row), status, reason if status == "failed" else None)

    async def _tell_end(self, number: int) -> None:
        """Tell the agent that a turn is over, if it is; again if the process died in it."""
        self._actor.check_live()
        row = self._turns.of(number)
        if row is None or row.is_open:
            return
        await self._actor.tell(self._agent.after_turn, self._record.ended_turn(row))

    def _part(self, row: TurnRow, *, again: bool = False) -> DrivenWork:
        # One that was over, and continues after all, begins as if it were new.
        is_new = row.ended_at is not None or not (again or row.continues or self._has_rested())
        return part_of(self._actor, row.id, row.run, is_new=is_new)

    def _has_rested(self) -> bool:
        call = current.get()
        return call is not None and isinstance(call.work, Work) and call.work.resumed

    async def _wake_above(self, row: TurnRow, run: str) -> None:
        """Wake those that rest with a turn that was woken, or that ended otherwise while it waited for an answer."""
        served = self._actor.of(RunExecutor)
        # One that rested and is not wanted was stopped from above.
        if row.status != "running" or (self._has_rested() and served.is_wanted(run)):
            served.wake_above(run)

    def _span_of(self, row: TurnRow) -> AbstractContextManager[tracing.Span]:
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

    async def _drive(self, turn: ActiveTurn, span: tracing.Span, pace: DriverPace) -> bool:
        """Drive a turn as far as it goes; return whether its pacer knows its status."""
        try:
            status = await self._go(turn, pace)
            await turn.finish(status)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is how the turn ended
            status = await turn.fail(error)
            if status == "completed":
                pass  # a capability had an answer all the same
            elif status == "cancelled":
                span.set(sapwood__turn__status="cancelled")
            else:
                span.fail(describe(error))
        finally:
            await turn.let_go()
        if (row := self._turns.of(turn.number)) is None:
            return False
        return pace.stepped(row.status, waits=row.is_open, reason=row.reason if row.status == "failed" else None)

    async def _go(self, turn: ActiveTurn, pace: DriverPace) -> str:
        """Do one step after the other; return how the turn stands that is to be finished."""
        await self._asked(turn, pace)
        status, has_stepped = await turn.begin(), False
        while True:
            self._actor.check_live()
            started = turn.start_runs()
            if status == RUNNING and (started or has_stepped):
                pace.stepped(status, waits=bool(started))
            for call, run in started:
                await self._over(turn, run, [one for _, one in started])
                turn.take_run(call, run)
            if status != RUNNING:
                return status
            await self._asked(turn, pace)
            status, has_stepped = await turn.step(), True

    async def _asked(self, turn: ActiveTurn, pace: DriverPace) -> None:
        """Return when the next step may begin; raise if the turn must not continue."""
        asked = pace.asked()
        if asked is None:
            return
        row = turn.going_on()  # it may have been stopped before the process ended
        with self._actor.host.shared(NodeDriver).holding(self._actor.address, row.id):
            await asyncio.wait({asked, turn.stopped}, return_when=asyncio.FIRST_COMPLETED)
        self._actor.check_live()
        turn.going_on()
        asked.result()

    async def _over(self, turn: ActiveTurn, run: str, beside: Sequence[str]) -> None:
        """Return when a run is over; raise if the turn must not continue."""
        runs = self._actor.of(Outcomes)
        while not runs.of(run).is_over:
            news = {runs.changing(run)}
            if self._actor.of(RunMonitors).rests(run):
                self._rest(turn, beside)
                news = {runs.changing(one) for one in beside}
            await asyncio.wait({*news, turn.stopped}, return_when=asyncio.FIRST_COMPLETED)
            self._actor.check_live()
            turn.going_on()

    def _rest(self, turn: ActiveTurn, started: Sequence[str]) -> None:
        """Leave memory if all the runs that the turn waits for have: each waits for an answer."""
        runs, following, call = self._actor.of(Outcomes), self._actor.of(RunMonitors), current.get()
        if not all(runs.of(one).is_over or following.rests(one) for one in started):
            return
        if call is not None and isinstance(call.work, Work) and (rest := call.work.park(UNTIL_WOKEN)) is not None:
            turn.come_to_rest()
            raise rest
