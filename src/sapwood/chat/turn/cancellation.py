"""Whether a turn may continue; and, if not, stops what it is doing and the runs below it, at once.

A cancelled turn has its tombstone in the database before anything stops. Of a whole tree no
stack unwinds before all are cut off; each turn writes its own end as it unwinds.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError, Future
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sapwood.chat.models.provider_sockets import ProviderSocket
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.execution.cancellation_latency import Stops, stopping
from sapwood.runs.execution.contract import CANCELLED

if TYPE_CHECKING:
    from pydantic_ai import CancellationToken

CLEARED = "cleared"
"""The tombstone if the whole conversation is to be forgotten: nothing of it is kept."""


class TurnCancelled(Exception):
    """The turn was cancelled."""


class Interrupts:
    """Stops the turns of one conversation."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._record = actor.of(ConversationRecord)
        self._turns = self._record.turns
        self.why: dict[int, str] = {}
        """Turns that were stopped and have not ended yet, and the reason of each."""
        self.active: CancellableTurn | None = None
        """The turn that runs now, if it is driven."""

    @contextmanager
    def cancels(self, turn: CancellableTurn) -> Generator[None, None, None]:
        """Drive a turn in this block: cancelling it cuts it off."""
        self.active = turn
        try:
            yield
        finally:
            if self.active is turn:  # the next turn may have begun
                self.active = None

    def going_on(self, number: int) -> TurnRow:
        """Return a turn as it is now; raise if it must not continue."""
        row = self._turns.of(number)
        if row is None or row.status != "running" or self.is_cancelled(row):
            raise TurnCancelled
        return row

    def is_cancelled(self, row: TurnRow | None) -> bool:
        """Return whether a turn was cancelled, or is no more."""
        return row is None or row.cancelled is not None or row.number in self.why

    def reason(self, row: TurnRow) -> str | None:
        """Return the reason why a turn was cancelled. `None` means that it was not, or by something above it."""
        was_cancelled = row.cancelled is not None or row.status == "cancelled"
        return self.why.get(row.number) or (row.reason if was_cancelled else None)

    def cancel(self, row: TurnRow, reason: str = CANCELLED, tombstone: str = CANCELLED) -> None:
        """Stop the running turn, for good. The first reason counts."""
        reason = self.why.setdefault(row.number, self.reason(row) or reason)
        if row.cancelled != CLEARED:
            self._turns.set(row.number, cancelled=tombstone, reason=reason)
        self._stop(row, reason)

    def cut(self, row: TurnRow, reason: str) -> None:
        """Stop the running turn because of something above it, which has the tombstone."""
        self._stop(row, self.why.setdefault(row.number, reason))

    def _stop(self, row: TurnRow, reason: str) -> None:
        with stopping(self._actor):
            if self.active is not None:
                self.active.cut_off()
            self._actor.of(Runs).cut_work(WorkId.run(row.id), reason)
        if self.active is None and self._record.rests(row.number):  # it is not driven now, so nothing would end it
            self._actor.of(Runs).wake_work(WorkId.run(row.id))
            self._record.wake(row)


class CancellableTurn:
    """The turn that runs now: its token, its request to the model, and the code of the agent that it runs."""

    is_streamed = True
    """Whether clients are told of what it does."""

    def __init__(self, actor: Actor, number: int) -> None:
        self._actor = actor
        self.number = number
        self._interrupts = actor.of(Interrupts)
        self.token = _new_token()
        """Cuts off what the model or a tool is doing now."""
        self.socket: ProviderSocket | None = None
        """The connection of the request to the model that is under way."""
        self.stopped: Future[None] = actor.host.loop.create_future()
        """Done when the turn is cancelled; ends its waiting for a provider."""
        self._in_own_code: asyncio.Task[None] | None = None
        """What runs code of the agent's own, which knows nothing of tokens."""
        self._is_cut = False
        """Whether that was cancelled by us."""

    def going_on(self) -> TurnRow:
        """Return the turn as it is stored now; raise if it must not continue."""
        return self._interrupts.going_on(self.number)

    def renew(self) -> None:
        """Start again what was cut off with the token."""
        self.token = _new_token()

    def cut_off(self) -> None:
        """Stop what the turn is doing now."""
        if self.socket is not None:
            self.socket.cut(self._actor.host.shared(Stops).now)
        self.token.cancel()
        if not self.stopped.done():
            self.stopped.set_result(None)
        self.cut_own_code()

    def cut_own_code(self) -> None:
        """Stop code of the agent's own, if any runs."""
        task = self._in_own_code
        if task is not None and task is not asyncio.current_task() and not self._is_cut:
            self._is_cut = True
            task.cancel()

    @contextmanager
    def own_code(self) -> Generator[None, None, None]:
        """Run code of the agent's own, and be cut off in it as in a request to the model."""
        self.going_on()
        self._in_own_code = task = asyncio.current_task()
        assert task is not None
        try:
            yield
        except CancelledError:
            if self._actor.dropped is not None or not self._is_cut:
                raise
            raise TurnCancelled from None
        finally:
            self._in_own_code = None
            if self._is_cut:
                self._is_cut = False
                task.uncancel()
        self.going_on()


def _new_token() -> CancellationToken:
    from pydantic_ai import CancellationToken

    return CancellationToken()
