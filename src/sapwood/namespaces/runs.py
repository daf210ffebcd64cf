"""`self.runs`: the runs that an agent has started in sub-agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_base import AgentBase
from sapwood.kernel.marshal.agent_class import known
from sapwood.runs.dispatch.cleanup import Sweeper
from sapwood.runs.dispatch.fan_out import Branch, FanOut
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.dispatch.results import Outcomes
from sapwood.runs.execution.clients import RunClients
from sapwood.runs.execution.contract import CANCELLED
from sapwood.runs.tables.runnable import Runnable
from sapwood.runs.tables.runs_table import Run
from sapwood.when import Retry

I = TypeVar("I")  # noqa: E741 - input
O = TypeVar("O")  # noqa: E741 - output


class AgentRuns:
    """The runs of this agent. `self.run_agent(…)` and `self.start_run(…)` start one."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._runs = actor.of(Runs)

    def get(self, id: str) -> Run | None:
        """Return a run by its id."""
        self._actor.check_use()
        row = self._runs.registry.get(id)
        if row is None:
            return None
        progress, milestones = self._actor.of(RunClients).reported(id)
        remote = self._actor.of(Outcomes).remote(row)
        run = self._actor.of(Outcomes).listed(row)
        return replace(run, remote=remote, progress=progress, milestones=milestones)

    def has(self, cls: type[AgentBase], id: str) -> bool:
        """Return whether this agent has a run of this class and id."""
        run = self.get(id)
        return run is not None and run.agent.type in known(cls).type_ids

    def cancel(self, id: str, reason: str = CANCELLED) -> bool:
        """Cancel a run and everything below it. Returns `False` if it does not exist or has ended."""
        return self._runs.cancel(id, reason)

    async def clear(self, *, status: str | None = None, older_than: timedelta | None = None) -> int:
        """Delete runs and the sub-agents that executed them; unfinished ones are cancelled. Returns their number.

        Pinned runs stay.
        """
        return await self._runs.clear_all(status, older_than)

    def pin(self, id: str) -> bool:
        """Keep a run until `unpin`, regardless of `run_retention` and `clear`. Returns `False` if it does not exist."""
        return self._actor.of(Sweeper).pin(id, True)

    def unpin(self, id: str) -> bool:
        """Unpin a run, so that retention may delete it. Returns `False` if it does not exist."""
        return self._actor.of(Sweeper).pin(id, False)

    async def gather(
        self,
        *branches: Branch[O],
        fail_fast: bool = False,
        quorum: int | None = None,
        concurrency: int | None = None,
    ) -> list[Run[O]]:
        """Run several branches at once and return their runs, in the order of the branches, when all have ended.

        With `fail_fast`, the first run that does not complete cancels the others. With `quorum`, the others are
        cancelled as soon as this many runs completed, or can no longer complete. `concurrency` is the number of runs
        at a time. After a crash, runs that ended do not run again.
        """
        return await self._actor.of(FanOut).gather(
            branches, fail_fast=fail_fast, quorum=quorum, concurrency=concurrency
        )

    async def race(self, *branches: Branch[O]) -> Run[O]:
        """Run several branches at once, return the first run that completes, and cancel the others.

        If none completes, return the run of the first branch.
        """
        return await self._actor.of(FanOut).race(branches)

    async def pipeline(self, input: Any, *steps: type[AgentBase] | Branch) -> Run:
        """Run steps one after the other, and return the `Run` of the last: its `output` is the result.

        The first step gets `input`, each later one the output of the step before. A step is a class, or a `Branch`
        without an input. If a step does not complete, `PipelineFailed` names it and later steps do not start.
        After a crash, completed steps do not run again.
        """
        return await self._actor.of(FanOut).pipeline(input, steps)

    async def map(
        self,
        cls: type[Runnable[I, O]],
        inputs: Iterable[I],
        *,
        concurrency: int = 10,
        timeout: float | None = None,
        display: Mapping[str, Any] | None = None,
        retry: Retry | None = None,
    ) -> list[Run[O]]:
        """Run `cls` for each input, `concurrency` at a time, and return the runs in the order of the inputs."""
        return await self._actor.of(FanOut).map(
            cls, inputs, concurrency=concurrency, timeout=timeout, display=display, retry=retry
        )

    def list(self, status: str | None = None) -> list[Run]:
        """Return the runs in the order in which they were started; with `status`, those of this status."""
        self._actor.check_use()
        outcomes = self._actor.of(Outcomes)
        return [outcomes.listed(row) for row in self._runs.registry.all() if status in (None, row.status)]
