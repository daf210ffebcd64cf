"""Compacts a conversation: after a turn, so that no user waits for it; before a request only if that was not enough.

After a turn it runs in a fiber of its own, so a crash in between starts it again, until its result is stored. A turn
that begins in the meantime waits for it. If it fails, the conversation goes on without it until another turn has ended.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from typing import Any, cast

from sapwood.capabilities.due_work import Agenda
from sapwood.chat.models.loop import LoopTurn
from sapwood.chat.models.model_check import check_model
from sapwood.chat.store.chat_behavior import ChatBehavior
from sapwood.chat.store.compaction import BEFORE, CompactionPlan, plan_of
from sapwood.chat.store.record import COMPACT, ConversationRecord
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.turn.cancellation import CancellableTurn, TurnCancelled
from sapwood.chat.turn.model_requests import LOOP, ModelRequests
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.exceptions import describe, mistake

log = logging.getLogger(__name__)


class Compaction:
    """Keeps the conversation of one agent short for its model."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._agent: ChatBehavior = actor.agent
        self._record = actor.of(ConversationRecord)
        self._transcript = self._record.transcript
        self._over: Future[None] | None = None
        """Done when the compaction that is under way has ended."""
        self._after: AfterTurn | None = None
        self._is_in_turn = False
        """Whether a turn has come to its requests: what they were sent does not change below them."""
        self._has_failed = False
        """Whether the last one failed: the next turn does without."""

    def _plan(self) -> CompactionPlan:
        allowed = self._agent.compact_above
        if allowed is None or self._actor.kind.overrides("respond"):
            return CompactionPlan()
        return plan_of(self._transcript.entries(), allowed, self._transcript.pinned())

    def turn_ended(self, row: TurnRow, status: str) -> None:
        """Start a compaction, in the slice in which a turn ends. The sub-agent of a run rarely has a next turn."""
        self._has_failed = self._is_in_turn = False
        if status == "completed" and row.run is None and self._over is None and self._plan():
            self._actor.of(Agenda).fibers.launch("compaction", COMPACT, row.number)

    async def after_turn(self, number: int) -> None:
        """Compact the conversation in a fiber, if that is still to be done."""
        row = self._record.turns.of(number)
        if row is None or self._over is not None or self._is_in_turn:
            return  # a turn that has begun since compacts by itself
        self._after = running = AfterTurn(self._actor, row)
        try:
            turn = _loop_turn(self._actor)
        except Exception as error:  # noqa: BLE001 - a hook of the agent's own, or its model
            self._failed(error)
        else:
            await self._compact(running, ModelRequests(self._actor, running), row, turn)
        finally:
            self._after = None

    async def before_request(
        self, running: CancellableTurn, requests: ModelRequests, row: TurnRow, turn: LoopTurn
    ) -> None:
        """Compact the conversation now if it is too long, or wait until that has been done."""
        self._is_in_turn = True
        while self._over is not None:
            await asyncio.wait({self._over, running.stopped}, return_when=asyncio.FIRST_COMPLETED)
            self._actor.check_live()
            running.going_on()
        if self._over is None and not self._has_failed:
            await self._compact(running, requests, row, turn)
            running.going_on()

    def cut_off(self) -> None:
        """The conversation is cleared: what is under way after a turn is not needed."""
        if self._after is not None:
            self._after.cut_off()

    async def _compact(self, running: CancellableTurn, requests: ModelRequests, row: TurnRow, turn: LoopTurn) -> None:
        plan = self._plan()
        if not plan:
            return
        self._over = over = self._actor.host.loop.create_future()
        try:
            self._transcript.clear_results(plan.cleared, row.message)
            if plan.summarised:
                await self._actor.leave()
                await self._summarise(running, requests, row, turn, plan)
            await self._actor.leave()
            self._actor.check_live()
        except TurnCancelled:
            if running is not self._after:
                raise
        except Exception as error:  # noqa: BLE001 - the conversation goes on, whatever it is
            self._actor.check_live()
            if running is not self._after:
                running.going_on()
            elif running.stopped.done():
                return
            self._failed(error)
        finally:
            self._over = None
            over.set_result(None)

    def _failed(self, error: Exception) -> None:
        """The conversation goes on as it is."""
        self._has_failed = True
        address = str(self._actor.address)
        log.warning(
            "compaction failed address=%s: %s",
            address,
            describe(error),
            extra={"address": address},
            exc_info=mistake(error),
        )

    async def _summarise(
        self, running: CancellableTurn, requests: ModelRequests, row: TurnRow, turn: LoopTurn, plan: CompactionPlan
    ) -> None:
        history, revision = self._transcript.history(), self._transcript.revision
        old = [history[at] for at in plan.summarised]
        with running.own_code():
            summary = await self._agent.compact(await self._record.files.filled(old))
        if summary is None:
            summary = await requests.summary(row, turn, old)
        self._actor.check_live()
        if revision == self._transcript.revision:  # if not, what it is about was changed or taken back
            text = BEFORE.format(count=len(old)) + summary
            self._transcript.shorten(plan.summarised, LOOP.said_by_user(text), row.message)


class AfterTurn(CancellableTurn):
    """What runs for a turn that has ended: its requests are counted for that turn, and shown to no client."""

    is_streamed = False

    def __init__(self, actor: Actor, row: TurnRow) -> None:
        super().__init__(actor, row.number)
        self._row = row

    def going_on(self) -> TurnRow:
        if self.stopped.done():
            raise TurnCancelled
        return self._row


def _loop_turn(actor: Actor) -> LoopTurn:
    """Return what a request needs that uses no tools."""
    agent: ChatBehavior = actor.agent
    model = agent.get_model()
    check_model(model)
    unused = cast(Any, None)
    return LoopTurn(
        model=model,
        instructions=None,
        output_type=str,
        settings=agent.model_settings,
        deps=actor.host.deps,
        client_tools=(),
        toolbox=unused,
        within=unused,
        journal=unused,
        before_tool_call=unused,
        after_tool_call=unused,
        stored_bytes=unused,
        tool_raised=unused,
        ready=agent.loop,
        prices=actor.host.settings.prices,
    )
