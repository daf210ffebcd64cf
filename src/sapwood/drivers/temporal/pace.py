"""Has one turn or run go on when its workflow asks for a step, and answers how it stands afterwards."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sapwood.drivers.temporal.workflow import Answer
from sapwood.errors import Refused, SapwoodError, Unavailable
from sapwood.runs.pacing import RUNNING, Part

if TYPE_CHECKING:
    from sapwood.drivers.temporal.driver import TemporalDriver

log = logging.getLogger(__name__)

ENDED = ("FAILED", "CANCELED", "TERMINATED", "TIMED_OUT")
"""The end states of workflows that were not ended by the agent."""
LONGEST_WATCH = 300.0
"""Seconds between two looks at the workflow of one that is not asked for its next step."""
LONGEST_UNSEEN = 60.0
"""Seconds until the external end of a workflow is noticed whose turn waits for others."""


class TemporalPace:
    """Has one part go on when its workflow asks for a step."""

    def __init__(self, driver: TemporalDriver, part: Part) -> None:
        self._driver = driver
        self._part = part
        self.key = (str(part.address), part.id)
        self._since = datetime.now(UTC)
        self._asked: Future[None] | None = None
        """Done when a step is asked for."""
        self._answering: Future[Answer] | None = None
        """What whoever asked for the step waits for that is done now."""
        self._number = 0
        self._last: tuple[int, Answer] | None = None
        """The last step, and what was answered: whoever did not hear it asks again."""
        self._waits = False
        """Whether it waits for others, and no step can be asked for."""
        self._must_tell = True
        """Whether its workflow will not ask by itself."""
        self._prompting: Task[None] | None = None
        """Sees to it that somebody asks; or, while it waits for others, that nobody ends its workflow unnoticed."""

    def asked(self) -> Future[None] | None:
        """Return a future that is done when a step is requested, or `None` if one is."""
        self._waits = False
        if self._answering is not None:
            return None
        if self._must_tell:
            self._last = None  # it is over that it waited for, and whoever asks gets a step
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
        answer, answering = Answer(status, waits, reason), self._answering
        self._last, self._answering = (self._number, answer), None
        if not answering.done():
            answering.set_result(answer)
        if waits and status == RUNNING:
            self._see_to(self._watch())
        return True

    def step(self, number: int) -> Future[Answer]:
        """Have the next step be done; return what it is answered with. The same one may be asked for again."""
        if self._answering is not None:
            return self._answering
        answering: Future[Answer] = self._driver.node.loop.create_future()
        if self._last is not None and self._last[0] == number:
            answering.set_result(self._last[1])
        elif self._waits:
            answering.set_result(Answer("running", waits=True))
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
            self._answering.exception()  # perhaps nobody waits for it
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
                check(state)
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
                asked.exception()  # perhaps it was stopped meanwhile, and nobody waits any more

    async def _watch(self) -> None:
        """Stop it if its workflow is ended in Temporal while it waits for others."""
        state, wait = None, self._driver.patience
        with suppress(SapwoodError):  # the app ends, or the agent is no more
            while state not in ENDED:
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_UNSEEN)
                state = await self._driver.state(self._part, self._since)
            await self._driver.stop_work(self._part, state)


def check(state: str | None) -> None:
    """Raise if a workflow was ended from outside before it finished."""
    if state in ENDED:
        raise Refused(f"The workflow was closed in Temporal: {state.lower().replace('_', ' ')}.")
