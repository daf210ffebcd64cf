"""Turns that wait until a person allows more of a limit. They use no memory, and continue after a crash."""

from __future__ import annotations

from sapwood.capabilities.queue import Queue
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.errors import OverLimit
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import current
from sapwood.kernel.trees.budgets import Extensible
from sapwood.kernel.trees.limit_extensions import period_of
from sapwood.kernel.trees.tree import tree_of
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.questions.limit_questions import LimitQuestions

QUEUE = "sapwood limits"
LEAVE = "_sapwood_leave_limit"
"""The method that says that a turn waits no longer."""


class LimitWaits:
    """The turns of one conversation that wait for more of a limit."""

    def __init__(self, actor: Actor) -> None:
        self._actor, self._tree = actor, tree_of(actor)
        record = self._record = actor.of(ConversationRecord)
        self._turns, self._stream = record.turns, record.stream
        self._extensions = self._tree.spending.extensions

    def check(self, row: TurnRow) -> None:
        """Raise if a person refused to allow more for this turn."""
        why = self._extensions.outcome(self._actor.stem, row.id)
        if why:
            raise OverLimit(f"{self._actor.address} cannot call the model: a limit is reached. {why}")

    async def ask(self, row: TurnRow, reached: Extensible) -> None:
        """Have the agent that has the limit ask a person, before this turn waits for the answer."""
        actor, owner = self._actor, reached.budget.owner.address
        limit = period_of(reached.budget, actor.host.clock.now())
        self._extensions.wait(actor, row.id, limit.key, reached.missing)
        asking = await self._tree.reach(owner, None, current.get())
        actor.check_live()
        if asking is None:
            raise reached.refusal
        await asking.handle("ask for more of a limit", asking.of(LimitQuestions).start, limit)[1]
        actor.check_live()

    def settle(self, turn: str) -> None:
        """Resume a turn that waits, if it does not have to wait any more."""
        row = self._turns.get(turn)
        if row is None or not row.waits_for_limit:
            return
        stem = self._actor.stem
        if self._extensions.is_known(stem, turn) and self._extensions.outcome(stem, turn) is None:
            return
        if row.run is not None:
            # Before anything is written here: in a crash between the two, they find that it still waits.
            self._actor.of(RunExecutor).wake_above(row.run)
        self._stream.go_on(row.number)
        self._turns.set(row.number, status="running", reason=None, continues=row.continues + 1)
        self._record.launch(row.number)

    def ended(self, row: TurnRow) -> None:
        """A turn has ended, in this slice: if it has waited, its row is deleted after the commit."""
        if self._extensions.is_known(self._actor.stem, row.id):
            self._actor.of(Queue).call_back(QUEUE, LEAVE, "turn", row.id)

    async def leave(self, turn: str) -> None:
        """Delete the row of a turn that has ended, and withdraw the question if no other turn waits for it."""
        row = self._turns.get(turn)
        if row is not None and row.is_open:
            return
        limit = self._extensions.leave(self._actor.stem, turn)
        if limit is None:
            return
        owner = next((one for one in self._actor.lineage() if one.stem == limit.agent), None)
        asking = None if owner is None else await self._tree.reach(owner.address, None, current.get())
        if asking is not None:
            await asking.handle("withdraw a question", asking.of(LimitQuestions).withdraw, limit)[1]
