"""Whether a turn is to go on; and, if not, stops what it is doing and the runs below it, at once.

A cancelled turn has its tombstone in the database before anything stops. Of a whole tree no
stack unwinds before all are cut off; each turn writes its own end as it unwinds.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError, Future
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sapwood.chat.record import Record
from sapwood.chat.turns import Row
from sapwood.chat.wires import Wire
from sapwood.kernel.actor import Actor
from sapwood.runs.contract import CANCELLED
from sapwood.runs.runner import Runs
from sapwood.runs.stops import Stops, stopping

if TYPE_CHECKING:
    from pydantic_ai import CancellationToken

CLEARED = "cleared"
"""The tombstone if the whole conversation is to be forgotten: nothing of it is kept."""
TOMBSTONES = (CANCELLED, CLEARED)
"""What a turn's error says from the moment it is cancelled. It survives the process, as the reason beside it does."""


class Cancelled(Exception):
    """The turn was cancelled."""


class Interrupts:
    """Stops the turns of one conversation."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._record = actor.of(Record)
        self._turns = self._record.turns
        self.why: dict[int, str] = {}
        """Turns that were stopped and have not ended yet, and the reason of each."""
        self.token: CancellationToken | None = None
        """Cuts off what the model or a tool is doing now."""
        self.wire: Wire | None = None
        """How the model is asked now."""
        self.stopped: Future[None] = actor.host.loop.create_future()
        """Done when the turn is cancelled; ends its waiting for a provider."""
        self._in_own_code: asyncio.Task[None] | None = None
        """What runs code of the agent's own, which knows nothing of tokens."""
        self._is_cut = False
        """Whether that was cancelled by us."""

    @contextmanager
    def turn(self) -> Generator[None, None, None]:
        """Do a turn in this block: it can be cut off."""
        self.renew()
        token, self.stopped = self.token, self._actor.host.loop.create_future()
        try:
            yield
        finally:
            if self.token is token:  # the next turn may have begun
                self.token = None

    def renew(self) -> None:
        """What was cut off with the token is begun again."""
        from pydantic_ai import CancellationToken

        self.token = CancellationToken()

    def going_on(self, number: int) -> Row:
        """Return a turn as it is now; raise if it is not to go on."""
        row = self._turns.of(number)
        if row is None or row.status != "running" or self.is_cancelled(row):
            raise Cancelled
        return row

    def is_cancelled(self, row: Row | None) -> bool:
        """Return whether a turn was cancelled, or is no more."""
        return row is None or row.error in TOMBSTONES or row.number in self.why

    def reason(self, row: Row) -> str | None:
        """Return the reason why a turn was cancelled. `None` means that it was not, or by something above it."""
        was_cancelled = row.error in TOMBSTONES or row.status == "cancelled"
        return self.why.get(row.number) or (row.reason if was_cancelled else None)

    def cancel(self, row: Row, reason: str = CANCELLED, tombstone: str = CANCELLED) -> None:
        """Stop the running turn, for good. The first reason counts."""
        reason = self.why.setdefault(row.number, self.reason(row) or reason)
        if row.error != CLEARED:
            self._turns.set(row.number, error=tombstone, reason=reason)
        self._stop(row, reason)

    def cut(self, row: Row, reason: str) -> None:
        """Stop the running turn because of something above it, which has the tombstone."""
        self._stop(row, self.why.setdefault(row.number, reason))

    def _stop(self, row: Row, reason: str) -> None:
        with stopping(self._actor):
            self._cut_off()
            self._actor.of(Runs).cut_work(row.id, reason)
        if self.token is None and self._record.rests(row.number):  # nobody drives it now who could end it
            self._actor.of(Runs).wake_work(row.id)
            self._record.wake(row)

    def _cut_off(self) -> None:
        if self.wire is not None:
            self.wire.cut(self._actor.host.shared(Stops).now)
        if self.token is not None:
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
    def own_code(self, number: int) -> Generator[None, None, None]:
        """Run code of the agent's own, and be cut off in it as in a request to the model."""
        self.going_on(number)
        self._in_own_code = task = asyncio.current_task()
        assert task is not None
        try:
            yield
        except CancelledError:
            if self._actor.dropped is not None or not self._is_cut:
                raise
            raise Cancelled from None
        finally:
            self._in_own_code = None
            if self._is_cut:
                self._is_cut = False
                task.uncancel()
        self.going_on(number)
