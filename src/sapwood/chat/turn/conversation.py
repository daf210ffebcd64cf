"""One conversation: messages are queued, answered one turn at a time, and sent to all clients.

A turn is a fiber, so it continues after a crash. A turn that asks a question stops without
cost until the answer arrives.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from sapwood.capabilities.steps import Work
from sapwood.chat.store.record import DRIVE, ConversationRecord
from sapwood.chat.store.request_records import RequestRecords
from sapwood.chat.store.turn_names import TurnNames
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.store.turns import Turn
from sapwood.chat.turn.cancellation import CLEARED, Interrupts
from sapwood.chat.turn.compaction import Compaction
from sapwood.chat.turn.fiber_driver import FiberDriver
from sapwood.chat.turn.finish import TurnFinish
from sapwood.chat.turn.intake import Intake
from sapwood.chat.turn.limit_waits import LimitWaits
from sapwood.chat.turn.tool_answers import Answers
from sapwood.errors import Refused, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.sockets import Socket
from sapwood.kernel.marshal.call import current
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.execution.contract import CANCELLED, UNWANTED
from sapwood.runs.execution.executor import RunExecutor

BUSY = "The conversation has a {} turn ({}). Switch to another branch when it has ended, or cancel it."


class Conversation:
    """The conversation of one chat agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        record = self._record = actor.of(ConversationRecord)
        self._turns, self._stream = record.turns, record.stream
        self._interrupts = actor.of(Interrupts)
        self._ending = actor.of(TurnFinish)
        self._accepting = actor.of(Intake)
        self.driver = FiberDriver(actor, self.end)

    async def end(self, number: int, status: str, *, error: str | None = None, reason: str | None = None) -> None:
        """End a turn or leave it waiting for an answer, and start what follows."""
        ended = await self._ending.end(number, status, error, reason)
        if ended == "waiting":
            self._actor.of(Answers).maybe_go_on(number)
            self._actor.of(LimitWaits).settle(self._record.row(number).id)
        else:
            self._actor.of(Compaction).turn_ended(self._record.row(number), ended)
            self._accepting.begin_next()

    def gave_up(self, number: int, error: str) -> None:
        """End a turn whose fiber was started again too often without progress."""
        row = self._turns.of(number)
        if row is not None and row.status == "running":
            self._ending.gave_up(row, error)
            self._accepting.begin_next()
            self._record.tell_end(number)

    def check_may_wait(self) -> None:
        """Raise if the caller is part of a turn, before it waits for itself."""
        call = current.get()
        while call is not None:
            if call.actor is self._actor and isinstance(call.work, Work) and call.work.method == DRIVE:
                raise UsageError(
                    "A turn cannot wait for a later turn. Enqueue or schedule a method that sends the message."
                )
            call = call.caller

    async def over(self, number: int, *, cancels: bool = True) -> Turn[Any]:
        """Return a turn that has ended or waits for an answer. If `cancels`, cancelling the caller cancels the turn."""
        try:
            while True:
                row = self._record.row(number)
                if row.status not in ("queued", "running"):
                    return self._record.turn(row)
                await self._ending.over(number)
                self._actor.check_live()
        except CancelledError:
            row = self._turns.of(number) if cancels and self._actor.dropped is None else None
            if row is not None:
                self.cancel(row.id)
            raise

    def listen(self, row: TurnRow) -> AsyncIterator[bytes]:
        """Receive what a turn streams from now on, as JSON, until it ends or waits for an answer."""
        heard = self._stream.listen(row.number) if row.status in ("queued", "running") else None
        return self._heard(row.number, heard)

    async def _heard(self, number: int, heard: AsyncIterator[bytes] | None) -> AsyncIterator[bytes]:
        if heard is not None:
            async for chunk in heard:
                yield chunk
        row = self._turns.of(number)
        if row is not None and row.status == "failed":
            yield msgspec.json.encode({"type": "error", "errorText": for_clients(row.error)})

    def cancel(self, id: str | None = None, reason: str = CANCELLED) -> bool:
        """Cancel a turn, for good; return whether there was one to cancel."""
        reason = reason or CANCELLED
        row = self._turns.running() if id is None else self._turns.named(id)
        if row is None or not row.is_open:
            return False
        if row.status == "queued":
            self._ending.end_queued(row, "cancelled", reason)
            if self._turns.running() is None and not self._turns.queued():
                self._stream.release_parked()
        elif row.status == "waiting":
            self._ending.close_waiting("cancelled", reason)
            self._record.tell_all()
            self._accepting.begin_next()
        else:
            self._interrupts.cancel(row, reason)
        return True

    def cut(self, id: str, reason: str) -> None:
        """Stop a turn and the runs below it, at once; what has to be written of it follows."""
        active = self._stream.active
        # A Stop goes through a thousand of them in one pass: it reads no database that it need not.
        row = active if active is not None and active.id == id else self._turns.get(id)
        if row is None or not row.is_open:
            return
        if row.status == "running":
            self._interrupts.cut(row, reason)
        else:
            self.cancel(id, reason)

    def is_wanted(self, id: str) -> bool:
        """Return whether a turn may continue: neither it nor anything above it was cancelled."""
        row = self._turns.get(id)
        if row is None or not row.is_open or self._interrupts.is_cancelled(row):
            return False
        return row.run is None or self._actor.of(RunExecutor).is_wanted(row.run)

    def why_not(self, id: str) -> str:
        """Return the reason why a turn must not continue: its own, or that of what is above it."""
        row = self._turns.get(id)
        if row is None:
            return UNWANTED
        above = UNWANTED if row.run is None else self._actor.of(RunExecutor).why_not(row.run)
        return self._interrupts.reason(row) or above

    def switch(self, message: str) -> bool:
        """Make the path through a message active, and send it to all clients; return whether it was not."""
        self._actor.check_use()
        transcript = self._record.transcript
        if not transcript.known([message]):
            raise Refused(f"There is no message {message[:80]!r} in this conversation.")
        if transcript.is_active(message):
            return False
        if opened := self._turns.open():
            raise Refused(BUSY.format(opened[0].status, opened[0].id))
        transcript.switch(message)
        self._record.tell_all()
        return True

    def clear(self, sender: Socket | None = None) -> None:
        """Forget the whole conversation; what was about to be said is not said."""
        self._turns.forget_ended()
        TurnNames(self._actor.database).forget_gone()
        for row in self._turns.open():
            self._turns.set(row.number, replay_seconds=None)
        for row in self._turns.queued():
            self._ending.end_queued(row, "skipped")
        if (row := self._turns.running()) is not None:
            self._interrupts.cancel(row, CLEARED, CLEARED)
        runs = self._actor.of(Runs)
        runs.clear([one.id for one in runs.registry.all()])
        self._ending.close_waiting("cancelled", CLEARED)
        self._actor.of(Compaction).cut_off()
        self._actor.of(RequestRecords).delete_turns()
        self._record.transcript.clear()
        if self._turns.exist:
            self._stream.forget_others()
        self._stream.drop()
        self._stream.release_parked()
        self._stream.tell_cleared(without=sender)
