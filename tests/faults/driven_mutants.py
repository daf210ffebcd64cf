"""Ways to break the driver on purpose, so that the tests can show that they would notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from temporalio import activity

from sapwood.address import Address
from sapwood.capabilities.agenda import Agenda
from sapwood.chat.agent import ChatAgent
from sapwood.chat.record import Record
from sapwood.drivers.temporal import door, worker
from sapwood.drivers.temporal.driver import TemporalDriver
from sapwood.drivers.temporal.pace import TemporalPace
from sapwood.drivers.temporal.workflow import Answer, Asked, WorkWorkflow
from sapwood.runs.pacing import OwnPace, Pace, Part


def over_untold() -> None:
    """A workflow is not told that its turn was stopped while nobody asked for a step."""

    async def over(self: TemporalDriver, part: Part, status: str) -> None:
        pass

    TemporalDriver.over = over


def other_workflow() -> None:
    """The worker runs another version of the workflow: it waits a moment before each step."""
    step = WorkWorkflow._step

    async def step_later(self: WorkWorkflow, number: int) -> Answer:
        await asyncio.sleep(0.001)
        return await step(self, number)

    WorkWorkflow._step = step_later


def begun_again() -> None:
    """A turn is begun again, beside itself, when its workflow asks for another step."""
    found, pacing = door.Door._found, TemporalDriver.pacing

    async def begin_again(self: door.Door, address: Address, id: str) -> TemporalPace | Answer:
        pace = self._driver.paces.get((str(address), id))
        if pace is not None and pace._number:
            actor = await self._reach(address)

            async def launch() -> None:
                row = actor.of(Record).turns.get(id)
                if row is not None and isinstance(actor.agent, ChatAgent):
                    actor.of(Agenda).fibers.launch(f"again {id}", actor.agent._sapwood_drive_turn, (row.number,), {})

            await door._done(actor, launch)
        return await found(self, address, id)

    @contextmanager
    def pace_beside(self: TemporalDriver, part: Part) -> Iterator[Pace]:
        if (str(part.address), part.id) in self.paces:
            yield OwnPace()
            return
        with pacing(self, part) as pace:
            yield pace

    door.Door._found, TemporalDriver.pacing = begin_again, cast("Any", pace_beside)


def given_up() -> None:
    """A worker that is to ask for a step that another one had asked for has it stopped."""
    answer = worker.Door._answer

    async def give_up(self: worker.Door, what: str, asked: Asked) -> Answer:
        if what == "step" and activity.info().attempt > 1:
            what = "stop"
        return await answer(self, what, asked)

    worker.Door._answer = give_up


MUTANTS: dict[str, Callable[[], None]] = {
    "over-untold": over_untold,
    "other-workflow": other_workflow,
    "begun-again": begun_again,
    "given-up": given_up,
}
