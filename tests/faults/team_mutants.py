"""Ways to break teams on purpose, so that the tests can show that they would notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sapwood.address import Address
from sapwood.capabilities.child_states import ChildStates
from sapwood.kernel.ports.work_id import WorkId
from sapwood.kernel.trees.pending_questions import TreeQuestions
from sapwood.runs.dispatch.fan_out import Fan
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.execution.executor import RunExecutor
from sapwood.storage.database import Database


def losers_go_on() -> None:
    """What is not needed any more is not stopped."""

    def stop(self: Fan, reason: str) -> None:
        self._stopped = reason

    Fan._stop = stop


def unowned() -> None:
    """What a fiber has others do goes on without it."""
    goes_on = RunExecutor.goes_on

    def go_on(self: RunExecutor, work: WorkId) -> bool:
        return work.kind == "fiber" or goes_on(self, work)

    def let_go(self: Runs, work: WorkId, *, is_done: bool) -> None:
        pass

    RunExecutor.goes_on, Runs.let_go = go_on, let_go


def owed_apart() -> None:
    """A child owes its parent its state in another commit than the state."""
    changed = ChildStates.changed

    def change_later(self: ChildStates) -> None:
        loop = self._actor.host.loop
        loop.call_later(0.003, lambda: None if self._actor.detached else changed(self))

    ChildStates.changed = change_later


def asked_apart() -> None:
    """The root knows in another commit that somebody asks than the one in which it does."""
    put = TreeQuestions.put

    def put_later(self: TreeQuestions, owner: Address, database: Database, body: str) -> None:
        asyncio.get_running_loop().call_later(0.05, lambda: self._slices.ended or put(self, owner, database, body))

    TreeQuestions.put = put_later


def above_asleep() -> None:
    """Nobody wakes those above who rest, when somebody far down goes on."""

    def stay_asleep(self: RunExecutor, run: str) -> None:
        pass

    RunExecutor.wake_above = stay_asleep


MUTANTS: dict[str, Callable[[], None]] = {
    "losers-go-on": losers_go_on,
    "unowned": unowned,
    "owed-apart": owed_apart,
    "asked-apart": asked_apart,
    "above-asleep": above_asleep,
}
