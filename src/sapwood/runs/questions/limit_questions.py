"""Asks a person to allow more of a limit that is reached: one question for a limit and period, however many wait.

The question belongs to an internal fiber of the agent that has the limit. It ends with an answer, with the period, or
when no turn waits any more. Then the turns that waited are told, in whichever agent below.
"""

from __future__ import annotations

import logging
from datetime import datetime
from math import ceil
from typing import Any

import msgspec

from sapwood.capabilities.due_work import Agenda
from sapwood.capabilities.steps import Steps
from sapwood.clock import sleep_until
from sapwood.errors import NotFound, SapwoodError, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import current
from sapwood.kernel.trees.budgets import NANO, money
from sapwood.kernel.trees.limit_extensions import CONTINUES, LimitKey, LimitPeriod, Wait
from sapwood.kernel.trees.tree import tree_of
from sapwood.runs.execution.run_hooks import run_hooks
from sapwood.runs.questions.asker import DENIED, Asker
from sapwood.runs.questions.questions import Questions
from sapwood.runs.tables.own_questions import OwnQuestions, QuestionRow
from sapwood.runs.tables.question import Question
from sapwood.when import Retry, zone

log = logging.getLogger(__name__)

EXTEND = "_sapwood_extend_limit"
"""The method whose fiber asks."""
ALLOW, DENY = "allow", "deny"
RETRY = Retry()
"""How often an agent is told that cannot be reached now."""


class LimitQuestions:
    """The questions of one agent about its own limits."""

    def __init__(self, actor: Actor) -> None:
        self._actor, self._tree = actor, tree_of(actor)
        self._extensions = self._tree.spending.extensions
        self._own = actor.of(OwnQuestions)

    async def start(self, limit: LimitPeriod) -> None:
        """Ask for more of a limit, unless that is asked already. A turn waits for it."""
        fibers, name = self._actor.of(Agenda).fibers, limit.key.question
        if not fibers.is_under_way(name, EXTEND):
            fibers.launch(name, EXTEND, limit)

    async def extend(self, limit: LimitPeriod) -> None:
        """Ask, store the answer, and tell the turns that wait."""
        actor, key = self._actor, limit.key
        work = actor.of(Steps).in_fiber(EXTEND)
        row = self._own.find(work.id, key.question)
        if row is None:
            missing = self._extensions.missing(key)
            if missing is None:
                return
            asker = actor.of(Asker)
            extra = _extra(limit, missing)
            row = asker.put(self._question(limit, extra), work, key.question)
            self._extensions.offer(key, row.id, extra, actor.database)
        if row.answer is None:
            work.progressed()
        outcome = await self._outcome(row, limit)
        if outcome is not None:
            self._extensions.settle(key, outcome, actor.database)
            await self._tell_all(key)
        if self._extensions.missing(key) is not None:  # turns that came to wait since
            actor.of(Agenda).fibers.launch(key.question, EXTEND, limit)

    async def _outcome(self, row: QuestionRow, limit: LimitPeriod) -> str | None:
        """Return what becomes of the turns that wait; `None` if there is none any more."""
        actor = self._actor
        work = actor.of(Steps).in_fiber(EXTEND)
        kind, value = await actor.of(Asker).answer_to(row, work, parks=True, ends_at=limit.ends_at)
        if kind == "withdrawn":
            return None
        if kind == "answered" and value == ALLOW:
            self._extensions.allow(row.id, actor.host.clock.now())
        elif kind != "expired":
            return value if kind == "denied" and value else DENIED
        return CONTINUES

    def _question(self, limit: LimitPeriod, extra: int) -> Question:
        per, ends = limit.period, datetime.fromtimestamp(limit.ends_at, zone(limit.zone)).isoformat()
        amount, more = _words(limit, _unit(limit, limit.amount)), _words(limit, extra)
        so_far = self._extensions.granted(limit.key)
        also = f", and {_words(limit, so_far)} that were allowed beside it," if so_far else ""
        prompt = (
            f"{self._actor.address} and all agents under it have reached their limit of {amount} per {per}{also} until "
            f"{ends}. Allow {more} more in this {per}?"
        )
        return Question.from_code(prompt, (ALLOW, DENY), None, limit.roles)

    async def _tell_all(self, key: LimitKey) -> None:
        """Tell the turns that waited. One that does not wait any more is left to its own agent."""
        for wait in self._extensions.settled(key):
            await self._tell(wait)

    async def _tell(self, wait: Wait) -> None:
        for failed in range(1, RETRY.max_attempts + 1):
            try:
                waiter = await self._tree.reach(wait.address, None, current.get())
                if waiter is None:
                    return
                await waiter.handle("limit settled", run_hooks(waiter).limit_settled, wait.turn)[1]
            except (NotFound, UsageError):  # deleted, or of a class that is no longer known
                return
            except SapwoodError as error:
                self._actor.check_live()
                if failed == RETRY.max_attempts:
                    log.warning("cannot resume a turn address=%s turn=%s: %s", wait.address, wait.turn, error)
                    return
                clock = self._actor.host.clock
                await sleep_until(clock, clock.now() + RETRY.wait(failed, self._actor.host.random))
            else:
                return

    async def withdraw(self, key: LimitKey) -> None:
        """Close the question about a limit, if no turn waits any more."""
        row = self._own.with_key(key.question)
        if row is not None and self._extensions.missing(key) is None:
            self._own.retract(row)
            self._actor.of(Questions).answered()

    def gave_up(self, stored: Any, error: str) -> None:
        """The question cannot be asked: the turns that wait fail."""
        key = msgspec.convert(stored, LimitPeriod).key
        self._extensions.settle(key, f"The question for more could not be asked: {error}", self._actor.database)
        self._actor.handle("limit settled", self._tell_all, key)


def _unit(limit: LimitPeriod, amount: float) -> int:
    return round(amount * NANO) if limit.name == "dollars" else int(amount)


def _extra(limit: LimitPeriod, missing: int) -> int:
    """Return how much is asked for: as many times `extend_by` as the request needs."""
    step = max(_unit(limit, limit.extend_by), 1)
    return ceil(missing / step) * step


def _words(limit: LimitPeriod, amount: int) -> str:
    return money(amount) if limit.name == "dollars" else f"{amount} tokens"
