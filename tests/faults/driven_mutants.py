"""Ways to break the driver on purpose, so that the tests can show that they would notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from temporalio import activity

from sapwood.address import Address
from sapwood.capabilities.due_work import Agenda
from sapwood.chat.agent import ChatAgent
from sapwood.chat.store.record import DRIVE, ConversationRecord
from sapwood.drivers.temporal import worker, worker_http
from sapwood.drivers.temporal.driver import TemporalDriver
from sapwood.drivers.temporal.messages import StepAnswer, StepRequest
from sapwood.drivers.temporal.step_runner import TemporalPace
from sapwood.drivers.temporal.workflow import WorkWorkflow
from sapwood.runs.execution.driver import DrivenWork, DriverPace, OwnPace


def over_untold() -> None:
    """A workflow is not told that its turn was stopped while nobody asked for a step."""

    async def over(self: TemporalDriver, part: DrivenWork, status: str, reason: str | None = None) -> None:
        pass

    TemporalDriver.over = over


def other_workflow() -> None:
    """The worker runs another version of the workflow: it waits a moment before each step."""
    step = WorkWorkflow._step

    async def step_later(self: WorkWorkflow, number: int) -> StepAnswer:
        await asyncio.sleep(0.001)
        return await step(self, number)

    WorkWorkflow._step = step_later


def begun_again() -> None:
    """A turn is begun again, beside itself, when its workflow asks for another step."""
    found, pacing = worker_http.WorkerHttp._found, TemporalDriver.pacing

    async def begin_again(self: worker_http.WorkerHttp, address: Address, id: str) -> Any:
        pace = self._driver.paces.get((str(address), id))
        if isinstance(pace, TemporalPace) and pace._number:
            actor = await self._reach(address)

            async def launch() -> None:
                row = actor.of(ConversationRecord).turns.get(id)
                if row is not None and isinstance(actor.agent, ChatAgent):
                    actor.of(Agenda).fibers.launch(f"again {id}", DRIVE, row.number)

            await worker_http._done(actor, launch)
        return await found(self, address, id)

    @contextmanager
    def pace_beside(self: TemporalDriver, part: DrivenWork) -> Iterator[DriverPace]:
        if (str(part.address), part.id) in self.paces:
            yield OwnPace()
            return
        with pacing(self, part) as pace:
            yield pace

    worker_http.WorkerHttp._found, TemporalDriver.pacing = begin_again, cast("Any", pace_beside)


def given_up() -> None:
    """A worker that is to ask for a step that another one had asked for has it stopped."""
    answer = worker.StepClient._answer

    async def give_up(self: worker.StepClient, what: str, asked: StepRequest) -> StepAnswer:
        if what == "step" and activity.info().attempt > 1:
            what = "stop"
        return await answer(self, what, asked)

    worker.StepClient._answer = give_up


MUTANTS: dict[str, Callable[[], None]] = {
    "over-untold": over_untold,
    "other-workflow": other_workflow,
    "begun-again": begun_again,
    "given-up": given_up,
}
