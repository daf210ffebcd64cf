"""Ways to break runs on purpose, so that the tests can show that they would notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from tests.faults import span_mutants

from sapwood.chat.runs import ChatRuns
from sapwood.chat.store.stream import ChatStream
from sapwood.chat.turn.intake import Intake
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.trees.usage import Spent, UsageMeter
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.dispatch.results import Outcomes
from sapwood.runs.dispatch.run_monitors import RunMonitors
from sapwood.runs.execution.driver import is_again
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.tables.runs_table import Run, RunRow, RunsTable
from sapwood.storage.database import Database


def no_follower() -> None:
    """Nobody follows a run any more after a crash."""
    follow = RunMonitors.follow

    async def follow_once(self: RunMonitors, id: str) -> None:
        if not is_again():
            await follow(self, id)

    RunMonitors.follow = follow_once


def row_later() -> None:
    """The row of a run is stored when its sub-agent has begun."""
    add, get, change = RunsTable.add, RunsTable.get, RunsTable.set
    pending: dict[tuple[Database, str], RunRow] = {}

    def add_later(self: RunsTable, id: str, *what: Any, **more: Any) -> RunRow:
        row = pending[self._db, id] = add(self, id, *what, **more)
        self.remove([id])

        def store() -> None:
            row = pending.pop((self._db, id))
            names = ", ".join(row._fields)
            marks = ", ".join("?" * len(row))
            self._db.execute(f"INSERT INTO sapwood_runs ({names}) VALUES ({marks})", *row)

        asyncio.get_running_loop().call_later(0.02, store)
        return row

    def get_it(self: RunsTable, id: str) -> RunRow | None:
        return pending.get((self._db, id)) or get(self, id)

    def set_it(self: RunsTable, id: str, **news: Any) -> None:
        if (row := pending.get((self._db, id))) is not None:
            pending[self._db, id] = row._replace(**news)
        else:
            change(self, id, **news)

    RunsTable.add, RunsTable.get, RunsTable.set = add_later, get_it, set_it


def callback_apart() -> None:
    """A run ends in one commit, and whoever is to be told of it is called in another."""
    deliver = Outcomes._deliver

    def deliver_later(self: Outcomes, row: RunRow, run: Run) -> None:
        loop = self._actor.host.loop
        loop.call_later(0.003, lambda: None if self._actor.detached else deliver(self, row, run))

    Outcomes._deliver = deliver_later


def chunks_gone() -> None:
    """What a run had said before a crash, in a step that is begun again, is forgotten."""

    def put_aside(self: ChatStream, run: str, number: int, step: int) -> None:
        pass

    ChatStream._put_aside = put_aside


def no_tombstones() -> None:
    """Whoever is begun again after a crash does not ask whether it is still wanted."""
    RunExecutor.is_wanted = lambda self, run: True


def twice() -> None:
    """A run that is given again is begun again."""
    give_again = Runs._give_again

    def begin_again(self: Runs, row: RunRow, kind: AgentClass, text: bytes) -> RunRow:
        followed = self._outcomes.followed.get(row.id)
        child = followed.child if followed is not None else None
        if child is not None and child.of(RunExecutor).row(row.id) is not None:
            worker, input = child.of(RunExecutor).worker, msgspec.json.decode(text)
            if isinstance(worker, ChatRuns):
                said = {"id": f"msg-{row.id}-again", "role": "user", "parts": [{"type": "text", "text": str(input)}]}
                child.of(Intake).ask([said], id=f"{row.id}-again", run=row.id)
            else:
                worker.start(row.id, input)
        return give_again(self, row, kind, text)

    Runs._give_again = begin_again


def account_later() -> None:
    """The root is told a while later what a sub-agent has used."""
    add = UsageMeter.add

    def add_later(self: UsageMeter, actor: Actor, run: str, model: str, spent: Spent) -> None:
        if actor.parent is None:
            add(self, actor, run, model, spent)
        elif self._slices.ended is None:
            asyncio.get_running_loop().call_later(0.3, add, self, actor, run, model, spent)

    UsageMeter.add = add_later


MUTANTS: dict[str, Callable[[], None]] = {
    "no-follower": no_follower,
    "row-later": row_later,
    "callback-apart": callback_apart,
    "chunks-gone": chunks_gone,
    "no-tombstones": no_tombstones,
    "twice": twice,
    "account-later": account_later,
    **span_mutants.MUTANTS,
}
