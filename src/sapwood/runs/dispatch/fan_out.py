"""Starts several runs together, and decides from how some of them end whether the others are cancelled.

Every branch is a run like any other. The decision is written in the slice that records the end
it follows from: either the others have their tombstones, or the process died before both. A
caller that comes back after a crash finds the same decision.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from sapwood.clock import Timer
from sapwood.errors import PipelineFailed, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import known
from sapwood.kernel.trees.tree import tree_of
from sapwood.runs.dispatch.admission import AdmissionRefusal
from sapwood.runs.dispatch.lifecycle import CALLER_CANCELLED, Runs, text_of
from sapwood.runs.dispatch.results import Outcomes, RunCleared
from sapwood.runs.dispatch.run_request import RunRequest
from sapwood.runs.tables.runnable import O_co, Runnable
from sapwood.runs.tables.runs_table import HARD, Run, RunRow
from sapwood.when import Retry, is_a

I = TypeVar("I")  # noqa: E741 - input

IN_A_SLICE = 16
"""How many are given before others have their turn on the loop."""


@dataclass(frozen=True, slots=True)
class Branch(Generic[O_co]):
    """One run to start with `gather`, `race` or `pipeline`."""

    cls: type[Runnable[Any, O_co]]
    """The class of the sub-agent."""
    input: Any = None
    """The input. A step of a `pipeline` has no input of its own."""
    run_id: str | None = field(default=None, kw_only=True)
    """The id of the run. `None` means an id that follows from its position, as in `run_agent`."""
    timeout: float | None = field(default=None, kw_only=True)
    """The timeout of one attempt, in seconds."""
    display: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """Values for user interfaces, such as a title."""
    retry: Retry | None = field(default=None, kw_only=True)
    """How the run is retried after a transient failure. `None` means no retries."""

    if TYPE_CHECKING:  # the input has to fit the class

        def __init__(
            self,
            cls: type[Runnable[I, O_co]],
            input: I = ...,
            *,
            run_id: str | None = None,
            timeout: float | None = None,
            display: Mapping[str, Any] | None = None,
            retry: Retry | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.retry is not None and not is_a(self.retry, Retry):
            raise UsageError(f"Branch(retry={self.retry!r}): expected Retry(…).")


@dataclass(frozen=True, slots=True)
class Rule:
    """When the branches that have not ended are to stop, and what that is called; what is None never happens."""

    ok: int | None = None
    """Once so many have ended well."""
    failed: int | None = None
    """Once so many have not."""
    then: str = ""
    """Why, if so many have ended well: this, and the run that was the last of them."""
    otherwise: str = ""
    """Why, if so many have not."""

    def why(self, run: str, *, ok: int, failed: int) -> str | None:
        """Return why the others are to stop when this run has ended, as the last of so many."""
        if ok == self.ok:
            return f"{self.then} {run}"
        return f"{self.otherwise} {run}" if failed == self.failed else None


SETTLE = Rule()
FAIL_FAST = Rule(failed=1, otherwise="failed-with")
RACE = Rule(ok=1, then="lost-to")


class FanOut:
    """The runs that one agent gives together."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def gather(
        self,
        branches: Sequence[Branch],
        *,
        fail_fast: bool = False,
        quorum: int | None = None,
        concurrency: int | None = None,
    ) -> list[Run]:
        """Return how all branches have ended, in the order given."""
        if fail_fast and quorum is not None:
            raise UsageError("gather() accepts fail_fast or quorum, not both.")
        if quorum is not None and not 1 <= quorum <= len(branches):
            raise UsageError(
                f"gather(quorum={quorum!r}): expected an int from 1 to {len(branches)}, the number of branches."
            )
        if concurrency is not None and concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, got {concurrency!r}.")
        rule = FAIL_FAST if fail_fast else SETTLE
        if quorum is not None:
            too_many = len(branches) - quorum + 1
            rule = Rule(ok=quorum, failed=too_many, then="quorum-with", otherwise="no-quorum-after")
        fan = Fan(self._actor, branches, rule, concurrency)
        await fan.over()
        return fan.runs()

    async def race(self, branches: Sequence[Branch]) -> Run:
        """Return the first branch that ended well, while the others stop; if none did, the one given first."""
        if not branches:
            raise UsageError("race() needs at least one branch.")
        fan = Fan(self._actor, branches, RACE)
        await fan.decided()
        return fan.winner()

    async def pipeline(self, input: Any, steps: Sequence[type | Branch]) -> Run:
        """Return the last step once it is completed; each step gets the output of the one before."""
        if not steps:
            raise UsageError("pipeline() needs at least one step.")
        branches = [_step(step) for step in steps]
        chain = Chain(self._actor, [replace(branches[0], input=input), *branches[1:]], FAIL_FAST)
        await chain.over()
        runs = chain.runs()
        for number, run in enumerate(runs, 1):
            if not run.ok:
                raise self._failure(number, len(runs), run)
        return runs[-1]

    def _failure(self, number: int, count: int, run: Run) -> PipelineFailed:
        return PipelineFailed(
            f"Step {number} of {count} ({run.agent.type}) did not complete: {run.error or run.reason or run.status}",
            path=(*self._actor.address.segments, run.agent),
            step=number,
            run_id=run.id,
        )

    async def map(self, cls: type, inputs: Iterable[Any], *, concurrency: int, **wishes: Any) -> list[Run]:
        """Give a run of one class for each input; return how they have ended, in the order of the inputs."""
        return await self.gather([Branch(cls, input, **wishes) for input in inputs], concurrency=concurrency)


@dataclass(slots=True)
class Twig:
    """What becomes of one branch."""

    branch: Branch
    wish: RunRequest
    attempt: int = 1
    """Which of its runs is the last one: every attempt is a run, unless the same run can be asked for again."""
    tried: int = 0
    rest: Timer | None = None
    """What ends the wait before the next attempt."""

    @property
    def run(self) -> str:
        """The id of its last run."""
        assert self.wish.id is not None
        return self.wish.id if self.attempt == 1 else f"{self.wish.id}~{self.attempt}"

    def may_be_tried_again(self, row: RunRow) -> bool:
        """Return whether a run of it failed in a way that may pass, and there are attempts left."""
        is_passing = row.status == "interrupted" or (row.status == "failed" and row.may_pass)
        retry = self.branch.retry
        return is_passing and row.cancelled is None and retry is not None and self.tried < retry.max_attempts


class Fan:
    """Branches that are given together. Each waits to begin, runs, waits before another attempt, or has ended."""

    def __init__(self, actor: Actor, branches: Sequence[Branch], rule: Rule, concurrency: int | None = None) -> None:
        self._actor = actor
        self._rule = rule
        self._concurrency = concurrency
        self._runs = actor.of(Runs)
        self._outcomes = actor.of(Outcomes)
        self._registry = self._runs.registry
        self._work = self._runs.work()
        for branch in branches:
            _check(branch)  # before anything is given
        self._twigs = [self._placed(branch, at) for at, branch in enumerate(branches)]
        if len({twig.wish.id for twig in self._twigs}) < len(branches):
            raise UsageError("Two branches have the same run_id. Give each branch its own.")
        self._waiting: deque[Twig] = deque()
        self._going: dict[str, Twig] = {}
        """By the run that is waited for."""
        self._left = len(branches)
        """How many have not ended."""
        self._ok = self._failed = 0
        self._stopped: str | None = None
        """Why those that have not ended are to stop."""
        self._cleared: str | None = None
        """A run that was cleared away while it was waited for."""
        self._woken = asyncio.Event()
        self._refusal: AdmissionRefusal | None = None
        """Why none of those that wait may begin."""
        tree = tree_of(actor)
        self._freed = tree.givers.waiting
        """Called when a run has ended anywhere in the tree."""
        self._wanted: set[str] = set()
        """The runs that must not be deleted before the caller has the results of all."""

    def _placed(self, branch: Branch, at: int) -> Twig:
        wish = RunRequest(branch.run_id, timeout=branch.timeout, display=branch.display)
        self._runs.place(wish)
        if wish.tool_call is None:
            wish.place = at
        return Twig(branch, wish)

    def runs(self) -> list[Run]:
        """Return how the branches stand, in the order given."""
        return [self._outcomes.of(twig.run) for twig in self._twigs]

    def winner(self) -> Run:
        """Return the branch that ended well; a loser may have as well, before it could be stopped."""
        rows = [self._outcomes.row(twig.run) for twig in self._twigs]
        ids = {row.id for row in rows}
        won = (row for row in rows if row.status == "completed" and not self._was_stopped(row, ids))
        return self._outcomes.typed(next(won, rows[0]))

    async def over(self) -> None:
        """Return when all branches have ended."""
        await self._until(lambda: not self._left)

    async def decided(self) -> None:
        """Return when all branches have ended, or are about to stop."""
        await self._until(lambda: not self._left or (self._stopped is not None and not self._waiting))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        try:
            self._recall()
            given = 0
            while not is_so():
                if not self._may_begin():
                    if self._going:
                        self._runs.waits()
                    await self._news()
                else:
                    self._begin(self._waiting.popleft())
                    given += 1
                    if given % IN_A_SLICE == 0:
                        await asyncio.sleep(0)
                self._actor.check_live()
                if self._cleared is not None:
                    raise RunCleared(f"The run {self._cleared!r} was cleared before it ended.")
        except (Exception, CancelledError):
            if self._actor.dropped is None and self._stopped is None:
                self._actor.check_live()
                self._stop(CALLER_CANCELLED)
            raise
        finally:
            for id in list(self._going):
                self._hear_no_more(id)
            for id in self._wanted:
                self._outcomes.no_longer_waited_for(id)

    def _recall(self) -> None:
        """Take what an earlier life left: what was decided holds, what ended counts, what still runs is followed."""
        found = [(twig, self._last(twig)) for twig in self._twigs]
        for twig in self._twigs:
            self._want(twig)
        going = [twig for twig, row in found if row is not None and row.status not in HARD]
        for twig in going:
            self._hear(twig)
        ids = {twig.run for twig in self._twigs}
        decided = (row.cancelled for _, row in found if row is not None and self._was_stopped(row, ids))
        if (reason := next(decided, None)) is not None:
            self._stop(reason)
        for twig, row in found:
            if row is None:
                self._waiting.append(twig)
            elif row.status in HARD:
                self._ended(twig, row)
        for twig in going:
            if self._stopped is None:
                self._give(twig)

    def _want(self, twig: Twig) -> None:
        if twig.run not in self._wanted:
            self._wanted.add(twig.run)
            self._outcomes.waited_for[twig.run] += 1

    def _last(self, twig: Twig) -> RunRow | None:
        """Return the last run of a branch there is."""
        row = self._registry.get(twig.run)
        while row is not None and row.status in HARD:
            twig.tried += 1
            if not twig.may_be_tried_again(row):
                break
            twig.attempt += 1
            if (later := self._registry.get(twig.run)) is None:
                twig.attempt -= 1
                break
            row = later
        return row

    def _was_stopped(self, row: RunRow, ids: set[str]) -> bool:
        """Return whether a run was stopped because of how another of these ended."""
        why, _, other = (row.cancelled or "").partition(" ")
        return why != "" and why in (self._rule.then, self._rule.otherwise) and other in ids

    def _may_begin(self) -> bool:
        self._refusal = None
        if not self._waiting:
            return False
        if self._stopped is not None:
            return True
        if self._concurrency is not None and len(self._going) >= self._concurrency:
            return False
        self._refusal = self._runs.refusal()
        if self._refusal is None:
            return True
        # If none of its own runs, whose end would let another begin, those that do run may wait for this one.
        return not self._going and self._refusal.until is None

    async def _news(self) -> None:
        """Return when one of these has ended, is to be tried again, or may begin, if a limit is all it waited for."""
        self._woken.clear()
        look, timer = self._woken.set, None
        if self._refusal is not None:
            self._freed.add(look)
            if self._refusal.until is not None:
                timer = self._actor.host.clock.call_at(self._refusal.until, look)
        try:
            await self._woken.wait()
        finally:
            self._freed.discard(look)
            if timer is not None:
                timer.cancel()

    def _begin(self, twig: Twig) -> None:
        if self._stopped is None:
            self._give(twig)
        else:
            wish = replace(twig.wish, id=twig.run)
            self._runs.withhold(twig.branch.cls, self._input(twig), wish, self._stopped)
            self._left -= 1

    def _input(self, twig: Twig) -> Any:
        """Return what a branch is given."""
        return twig.branch.input

    def _give(self, twig: Twig) -> None:
        self._hear(twig)
        self._want(twig)
        twig.tried += 1
        row = self._runs.give(twig.branch.cls, self._input(twig), replace(twig.wish, id=twig.run))
        if not row.is_open and twig.run in self._going:
            self._changed(twig.run)

    def _hear(self, twig: Twig) -> None:
        if twig.run not in self._going:
            self._going[twig.run] = twig
            self._outcomes.deciding.setdefault(twig.run, []).append(self._changed)

    def _hear_no_more(self, id: str) -> Twig:
        heard = self._outcomes.deciding[id]
        heard.remove(self._changed)
        if not heard:
            del self._outcomes.deciding[id]
        return self._going.pop(id)

    def _changed(self, id: str) -> None:
        """Hear, in the slice that notes it, that the status of a run has changed."""
        if self._actor.dropped is not None:
            return  # nothing was noted
        row = self._registry.get(id)
        if row is not None and row.is_open:
            return
        twig = self._hear_no_more(id)
        if row is None:
            self._cleared = id
        else:
            if self._work is not None:
                self._work.progressed()
            self._ended(twig, row)
        self._woken.set()

    def _ended(self, twig: Twig, row: RunRow) -> None:
        if self._stopped is None and twig.may_be_tried_again(row):
            assert twig.branch.retry is not None
            due = self._actor.host.clock.now() + twig.branch.retry.wait(twig.tried, self._actor.host.random)
            self._rest(twig, due, is_new=row.status in HARD)
        else:
            self._settle(twig, is_ok=row.status == "completed")

    def _rest(self, twig: Twig, due: float, *, is_new: bool) -> None:
        """Have a branch be tried again then: by a new run, or the same one."""
        clock = self._actor.host.clock

        def look() -> None:
            if clock.now() < due:
                twig.rest = clock.call_at(due, look)
                return
            twig.rest = None
            twig.attempt += is_new
            self._waiting.appendleft(twig)
            self._woken.set()

        twig.rest = clock.call_at(due, look)

    def _settle(self, twig: Twig, *, is_ok: bool) -> None:
        """A branch has ended for good; if that decides it, the others stop."""
        self._left -= 1
        if self._stopped is not None:
            return
        self._ok, self._failed = self._ok + is_ok, self._failed + (not is_ok)
        if (why := self._rule.why(twig.run, ok=self._ok, failed=self._failed)) is not None:
            self._stop(why)

    def _stop(self, reason: str) -> None:
        """Stop, in this slice, what has not ended."""
        self._stopped = reason
        for twig in self._twigs:
            if twig.rest is not None:
                twig.rest.cancel()
                twig.rest = None
                self._left -= 1
            self._runs.cancel(twig.run, reason)


class Chain(Fan):
    """Branches that begin one after the other: each gets the output of the one before, once that is completed."""

    def _may_begin(self) -> bool:
        if self._stopped is None and self._waiting and not self._has_input(self._waiting[0]):
            self._refusal = None
            return False
        return super()._may_begin()

    def _has_input(self, twig: Twig) -> bool:
        if twig is self._twigs[0]:
            return True
        before = self._before(twig)
        return before is not None and before.status == "completed"

    def _input(self, twig: Twig) -> Any:
        if twig is self._twigs[0]:
            return twig.branch.input
        before = self._before(twig)
        # Without an output, the step is only stored as one that never begins.
        return None if before is None or before.output is None else msgspec.json.decode(before.output)

    def _before(self, twig: Twig) -> RunRow | None:
        """Return the last run of the step before this one."""
        return self._registry.get(self._twigs[self._twigs.index(twig) - 1].run)


def _step(step: type | Branch) -> Branch:
    """Return a step of a pipeline as a branch."""
    if isinstance(step, type):
        return Branch(step)
    if not is_a(step, Branch):
        raise UsageError(f"A step of a pipeline must be a class of agents or a Branch, got {step!r}.")
    if step.input is not None:
        raise UsageError(
            f"A step of a pipeline gets its input from the step before, got {step!r}. Pass the input of the first step "
            "as the first argument of pipeline()."
        )
    return step


def _check(branch: Branch) -> None:
    """Refuse what could not be given, before anything is."""
    if not is_a(branch, Branch):
        hint = " Write gather(*branches)." if isinstance(branch, list | tuple) else ""
        raise UsageError(
            f"Expected a Branch(…), got {branch!r}.{hint} To wait for work that has started, use asyncio.gather()."
        )
    known(branch.cls)
    text_of(branch.input)
