"""The workflow that drives one turn or one run: it asks the agent for one step after the other.

It knows nothing of the conversation. All it keeps is how many steps there were; the rest
is with the agent, and the same step asked for twice is done once.

Workflows that run now were begun by older versions of this file. Which commands it gives, in
which order, may only change behind `workflow.patched`: `tests/unit/test_temporal_histories.py`
replays histories of what was begun, and those of a released version stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, WorkflowAlreadyStartedError

from sapwood.drivers.temporal.messages import (
    GIVE,
    INTERRUPT,
    LOOK,
    NAME,
    NOT_FOUND,
    OVER,
    READY,
    STEP,
    STOP,
    Driven,
    StepAnswer,
    StepRequest,
)

TYPE = SearchAttributeKey.for_keyword("SapwoodType")
PATH = SearchAttributeKey.for_keyword("SapwoodPath")
ROOT = SearchAttributeKey.for_keyword("SapwoodRoot")
MOST_PATH = 1000
"""Characters of an address that can be searched for."""
AGAIN = RetryPolicy(
    initial_interval=timedelta(milliseconds=100), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=5)
)
"""How often a server is asked that does not answer: until it does. What it refuses is not asked again."""


def search_attributes(driven: Driven) -> TypedSearchAttributes:
    """Return the attributes by which operators find a workflow."""
    if not driven.searchable:
        return TypedSearchAttributes.empty
    root, _, _ = driven.address.partition("/")
    type_, _, _ = driven.address.rpartition("/")[2].partition(":")
    pairs = {TYPE: type_, PATH: driven.address[:MOST_PATH], ROOT: root[:MOST_PATH]}
    return TypedSearchAttributes([SearchAttributePair(key, value) for key, value in pairs.items()])


@workflow.defn(name=NAME)
class WorkWorkflow:
    """Drives one turn or run."""

    @workflow.init
    def __init__(self, driven: Driven) -> None:
        self._driven = driven
        self._asked = StepRequest(driven.address, driven.id)
        self._ready = driven.ready
        self._stop = driven.stop
        self._is_cancelled = False
        """Whether Temporal was asked to cancel it."""
        self._ended: StepAnswer | None = None
        """How it ended, if the agent said so unasked."""
        self._children: set[str] = set()
        """Workflows of runs below that are under way."""

    @workflow.run
    async def run(self, driven: Driven) -> str:
        """Drive it to its end; return how it ended."""
        answer = await self._drive(driven.steps)
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self._is_cancelled:
            raise asyncio.CancelledError
        if answer.status == "failed":
            raise ApplicationError(
                "It ended with an error; the agent knows which.", type=answer.reason or "failed", non_retryable=True
            )
        return answer.status

    @workflow.signal(name=READY)
    def ready(self) -> None:
        """The agent can continue, and waits to be asked."""
        self._ready = True

    @workflow.signal(name=OVER)
    def over(self, status: str, reason: str | None = None) -> None:
        """The work has finished without a request for a step."""
        self._ended = StepAnswer(status, reason=reason)

    @workflow.signal(name=INTERRUPT)
    def interrupt(self, reason: str = "interrupted") -> None:
        """Have the agent stop it, and all below it."""
        self._stop = self._stop or reason

    @workflow.signal(name=GIVE)
    async def give(self, child: Driven) -> None:
        """Start the workflow that drives a run below, which outlives this one."""
        if child.workflow in self._children:
            return
        self._children.add(child.workflow)
        try:
            begun = await workflow.start_child_workflow(
                WorkWorkflow.run,
                child,
                id=child.workflow,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                search_attributes=search_attributes(child),
                execution_timeout=child.timeout,
                task_timeout=timedelta(seconds=child.patience),
                static_summary=child.address,
            )
        except WorkflowAlreadyStartedError:  # it waits, perhaps since an earlier one of its name was cleared away
            self._children.discard(child.workflow)
            with suppress(FailureError):  # it has just ended; the agent tells again
                await workflow.get_external_workflow_handle(child.workflow).signal(READY)
            return
        begun.add_done_callback(lambda done: self._child_ended(child.workflow, done))

    def _child_ended(self, id: str, done: asyncio.Future[str]) -> None:
        self._children.discard(id)
        if not done.cancelled():
            done.exception()  # the agent above knows how it ended

    async def _drive(self, steps: int) -> StepAnswer:
        while True:
            await self._until_ready()
            if self._ended is not None:
                return self._ended
            self._ready = False
            steps += 1
            answer = await self._step(steps)
            if answer.is_over and not self._ready:  # else the agent continues it: it said so before it was over here
                return answer
            self._ready = self._ready or not answer.waits
            if steps % self._driven.most_steps == 0 or workflow.info().is_continue_as_new_suggested():
                await self._until(workflow.all_handlers_finished)
                if self._ended is None:
                    workflow.continue_as_new(replace(self._driven, steps=steps, ready=self._ready, stop=self._stop))

    async def _until_ready(self) -> None:
        """Return when a step can be asked for, or it is over."""
        while not self._ready and self._ended is None:
            try:
                await workflow.wait_condition(
                    lambda: self._ready or self._ended is not None or self._stop is not None,
                    timeout=timedelta(seconds=self._driven.look),
                )
            except TimeoutError:
                self._take(await self._answer(LOOK, self._asked))
            except asyncio.CancelledError:
                self._cancel()
            if self._stop is not None:
                self._take(await self._tell_stop())
                self._stop = None

    def _take(self, answer: StepAnswer) -> None:
        if answer.is_over:
            self._ended = answer
        elif not answer.waits:
            self._ready = True

    async def _step(self, number: int) -> StepAnswer:
        """Ask for a step; return how it stands afterwards."""
        doing = asyncio.ensure_future(self._ask(STEP, replace(self._asked, step=number)))
        try:
            await workflow.wait_condition(lambda: doing.done() or self._stop is not None)
        except asyncio.CancelledError:
            self._cancel()
        if self._stop is not None and not doing.done():
            await self._tell_stop()
            self._stop = None
        await self._until(doing.done)
        return doing.result()

    async def _until(self, true: Callable[[], bool]) -> None:
        """Return when this is true; a cancellation during the wait stops the agent, and the wait continues."""
        while not true():
            try:
                await workflow.wait_condition(true)
            except asyncio.CancelledError:
                self._cancel()

    def _cancel(self) -> None:
        self._is_cancelled = True
        self._stop = self._stop or "cancelled"

    async def _tell_stop(self) -> StepAnswer:
        return await self._answer(STOP, replace(self._asked, reason=self._stop or ""))

    async def _answer(self, what: str, asked: StepRequest) -> StepAnswer:
        """Ask the agent for something that is not taken back."""
        asking = asyncio.ensure_future(self._ask(what, asked))
        await self._until(asking.done)
        return asking.result()

    async def _ask(self, what: str, asked: StepRequest) -> StepAnswer:
        """Ask the agent for something; what is no more is over."""
        try:
            return await workflow.execute_activity(
                what,
                asked,
                result_type=StepAnswer,
                schedule_to_close_timeout=None,
                start_to_close_timeout=timedelta(days=30),
                heartbeat_timeout=timedelta(seconds=self._driven.patience),
                retry_policy=AGAIN,
                summary=f"step {asked.step}" if what == STEP else None,
            )
        except ActivityError as error:
            if isinstance(error.cause, ApplicationError) and error.cause.type == NOT_FOUND:
                return StepAnswer("gone")
            raise
