"""Continues one turn or run when its workflow asks for a step, and answers with its status afterwards."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sapwood.drivers.temporal.messages import CLOSED, StepAnswer, refuse_closed
from sapwood.drivers.temporal.ports import Driver
from sapwood.errors import SapwoodError, Unavailable
from sapwood.runs.execution.driver import RUNNING, DrivenWork

log = logging.getLogger(__name__)

LONGEST_WATCH = 300.0
"""Seconds between two looks at the workflow of one that is not asked for its next step."""
LONGEST_UNSEEN = 60.0
"""Seconds until the external end of a workflow is noticed whose turn waits for others."""


class TemporalPace:
    """Continues one part when its workflow asks for a step."""

    def __init__(self, driver: Driver, part: DrivenWork) -> None:
        self._driver = driver
        self._part = part
        self.key = (str(part.address), part.id)
        self._since = datetime.now(UTC)
        self._asked: Future[None] | None = None
        """Done when a step is asked for."""
        self._answering: Future[StepAnswer] | None = None
        """The answer that the caller of the current step waits for."""
        self._number = 0
        self._last: tuple[int, StepAnswer] | None = None
        """The last step, and its answer: a caller that did not receive it asks again."""
        self._waits = False
        """Whether it waits for others, and no step can be asked for."""
        self._must_tell = True
        """Whether its workflow asks only when it is told to."""
        self._prompting: Task[None] | None = None
        """Makes sure that a step is asked for; or, while it waits for others, notices the end of its workflow."""

    def asked(self) -> Future[None] | None:
        """Return a future that is done when a step is requested, or `None` if one is."""
        self._waits = False
        if self._answering is not None:
            return None
        if self._must_tell:
            self._last = None  # what it waited for is over, and the next request gets a step
        self._asked = self._driver.node.loop.create_future()
        self._see_to(self._prompt(self._asked))
        return self._asked

    def _see_to(self, work: Coroutine[Any, Any, None]) -> None:
        if self._prompting is not None:
            self._prompting.cancel()
        self._prompting = self._driver.node.loop.create_task(work)

    def stepped(self, status: str, *, waits: bool = False, reason: str | None = None) -> bool:
        """Answer the request for a step. Returns `False` if there was none."""
        self._must_tell = self._waits = waits
        if self._answering is None:
            return False
        answer, answering = StepAnswer(status, waits, reason), self._answering
        self._last, self._answering = (self._number, answer), None
        if not answering.done():
            answering.set_result(answer)
        if waits and status == RUNNING:
            self._see_to(self._watch())
        return True

    def step(self, number: int) -> Future[StepAnswer]:
        """Have the next step be done; return what it is answered with. The same one may be asked for again."""
        if self._answering is not None:
            return self._answering
        answering: Future[StepAnswer] = self._driver.node.loop.create_future()
        if self._last is not None and self._last[0] == number:
            answering.set_result(self._last[1])
        elif self._waits:
            answering.set_result(StepAnswer("running", waits=True))
        else:
            self._number, self._answering = number, answering
            self._must_tell, self._part = False, replace(self._part, is_new=False)
            if self._prompting is not None:
                self._prompting.cancel()
            if self._asked is not None and not self._asked.done():
                self._asked.set_result(None)
        return answering

    def leave(self) -> None:
        """The part is not executed any more, in this process or for now."""
        if self._prompting is not None:
            self._prompting.cancel()
        if self._answering is not None and not self._answering.done():
            self._answering.set_exception(Unavailable("The step was interrupted and resumes later."))
            self._answering.exception()  # perhaps no caller waits for it
        self._answering = None

    async def _prompt(self, asked: Future[None]) -> None:
        """Have the workflow ask, and see that it does not end before it has."""
        wait, waited = self._driver.patience, 0.0
        try:
            if self._must_tell:
                await self._driver.ready(self._part)
                self._must_tell, self._part = False, replace(self._part, is_new=False)
            while True:
                await asyncio.sleep(wait)
                waited, wait = waited + wait, min(wait * 2, LONGEST_WATCH)
                state = await self._driver.state(self._part, self._since)
                refuse_closed(state)
                log.warning(
                    "no worker has requested the next step of %s %s for %.0f s. Check that a worker runs for the "
                    "queue %r and reaches this server with its token (sapwood temporal worker).",
                    *self.key,
                    waited,
                    self._driver.queue,
                )
                await self._driver.ready(self._part)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is why no step will be asked for
            if not asked.done():
                asked.set_exception(error)
                asked.exception()  # perhaps it was stopped since, and no caller waits any more

    async def _watch(self) -> None:
        """Stop it if its workflow is ended in Temporal while it waits for others."""
        state, wait = None, self._driver.patience
        with suppress(SapwoodError):  # the app ends, or the agent is no more
            while state not in CLOSED:
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_UNSEEN)
                state = await self._driver.state(self._part, self._since)
            await self._driver.stop_work(self._part, state)
