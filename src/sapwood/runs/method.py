"""Runs that a method of the agent does: `on_run`, as a fiber."""

from __future__ import annotations

import asyncio
import inspect
import logging
from asyncio import CancelledError, Task
from collections.abc import Awaitable
from typing import Any

import msgspec

from sapwood import tracing
from sapwood.capabilities.agenda import Agenda
from sapwood.capabilities.exposed import Exposed
from sapwood.errors import UsageError
from sapwood.kernel.actor import Actor
from sapwood.kernel.copying import json_to_copy
from sapwood.kernel.crossing import describe, mistake
from sapwood.kernel.disclosure import as_stored
from sapwood.runs.contract import CANCELLED, Steered, code_of, doing
from sapwood.runs.following import Following
from sapwood.runs.outputs import read_output
from sapwood.runs.own_questions import OwnQuestions
from sapwood.runs.pacing import RUNNING, Driving, Pace, is_again, part_of
from sapwood.runs.question import Answer, Approvers, Author, Question
from sapwood.runs.runner import Runs
from sapwood.runs.served import Served

log = logging.getLogger(__name__)

TEXT = "text"


class MethodRuns:
    """The runs that `on_run` of one agent does."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._tasks: dict[str, Task[Any]] = {}
        self._cut: dict[str, str] = {}
        """Why those that were cut are not to go on."""

    def start(self, run: str, input: Any) -> int:
        actor = self._actor
        if not actor.kind.overrides("on_run"):
            name = actor.kind.cls.__name__
            raise UsageError(f"{name} has no on_run(). Write `async def on_run(self, input)`, or make it a ChatAgent.")
        return self._launch(run)

    def _launch(self, run: str) -> int:
        """Have a fiber do a run; return the number its chunks are stored by."""
        actor = self._actor
        actor.of(Agenda).fibers.launch(f"run {run}", actor.agent._sapwood_serve_run, (run,), {})
        row = actor.of(Served).row(run)
        assert row is not None
        return row.number

    def cut(self, run: str, reason: str) -> None:
        task = self._tasks.get(run)
        if task is None:
            row = self._actor.of(Served).row(run)
            if row is None or row.status != "running":
                return
        self._cut.setdefault(run, reason)
        if task is not None:
            task.cancel()
        self._actor.of(Runs).cut_work(run, self._cut[run])

    def steer(self, run: str, key: str, text: str) -> Steered:
        row = self._actor.of(Served).row(run)
        return "deaf" if row is not None and row.status == "running" else "over"

    def wants(self, work: str) -> bool:
        served = self._actor.of(Served)
        row = served.row(work)
        return row is not None and row.status == "running" and work not in self._cut and served.is_wanted(work)

    def stands(self, work: str) -> str | None:
        row = self._actor.of(Served).row(work)
        return None if row is None else row.status

    def why_not(self, work: str) -> str:
        return self._cut.get(work) or self._actor.of(Served).why_not(work)

    def cancel(self, work: str, reason: str) -> None:
        pass  # all it does are runs, which whoever gave them stops

    def waits(self, run: str) -> bool:
        return self._actor.of(OwnQuestions).waits(run) or self._actor.of(Following).all_wait(run)

    def rests(self, run: str) -> bool:
        return False  # its code waits in memory

    def wake(self, work: str) -> None:
        pass

    def questions(self) -> list[Question]:
        return []

    def question(self, id: str) -> Question | None:
        return None

    def answer(self, id: str, answer: Answer, author: Author) -> bool | Awaitable[bool]:
        return False

    def approvers(self, tool: str) -> Approvers | None:
        return None

    def current(self) -> str | None:
        found = doing.get()
        return found[1] if found is not None and found[0] is self._actor else None

    async def drive(self, run: str) -> None:
        """Execute a run to its end, when its driver starts it."""
        served = self._actor.of(Served)
        row = served.row(run)
        if row is None:
            return
        driver = self._actor.host.shared(Driving).driver
        part, is_known = part_of(self._actor, run, run, is_new=not is_again(self._actor)), False
        if row.status == RUNNING:
            if run in self._cut or not served.is_wanted(run):
                await self._stop(run, self.why_not(run))
                self._cut.pop(run, None)
            else:
                with driver.pacing(part) as pace:
                    await self._drive(run, pace)
                    if (row := served.row(run)) is not None:
                        is_known = pace.stepped(row.status, reason=row.reason if row.status == "failed" else None)
        if not is_known:
            await driver.over(part, self.stands(run) or "cancelled")

    async def _drive(self, run: str, pace: Pace) -> None:
        actor, served = self._actor, self._actor.of(Served)
        task = asyncio.current_task()
        assert task is not None
        self._tasks[run] = task
        doing.set((actor, run))
        try:
            if (asked := pace.asked()) is not None:
                with actor.host.shared(Driving).holding(actor.address, run):
                    await asked
                self._actor.check_live()
            with tracing.span(
                f"invoke_agent {actor.kind.type}",
                gen_ai__operation__name="invoke_agent",
                gen_ai__agent__name=actor.kind.type,
                sapwood__address=str(actor.address),
                sapwood__run__id=run,
            ):
                end = await self._worked(run, served.input(run))
            self._actor.check_live()
            if run in self._cut:  # it was told to stop, and did not listen
                await self._stop(run, self._cut[run])
                return
            served.ended(run, **end)
        except CancelledError:
            if actor.dropped is not None:
                raise
            self._actor.check_live()
            reason = self._cut.pop(run, None)
            await self._stop(run, reason or CANCELLED)
            if reason is None or task.uncancel():
                raise
        except Exception as error:
            self._actor.check_live()
            actor.last_error = describe(error)
            text, reference = as_stored(error)
            where = {"address": str(actor.address), "reference": reference}
            log.warning(
                "on_run failed address=%s reference=%s: %s",
                actor.address,
                reference,
                describe(error),
                extra=where,
                exc_info=mistake(error),
            )
            actor.of(Runs).let_go(run, is_done=False)
            served.ended(run, "failed", error=text, reason=code_of(error))
        finally:
            self._tasks.pop(run, None)
            self._cut.pop(run, None)

    async def _stop(self, run: str, reason: str) -> None:
        """Note, in this slice, that a run was stopped."""
        self._actor.of(Served).ended(run, "cancelled", reason=reason)

    async def _worked(self, run: str, input: str) -> dict[str, Any]:
        """Do a run; return how it ended, as it is noted."""
        value = await self._returned(run, input)
        summary = value if isinstance(value, str) else None
        output = json_to_copy(value, f"The result of {self._actor.kind.type}.on_run()").decode()
        read_output(self._actor.kind, output)  # an output that its caller could not read fails here
        return {"status": "completed", "output": output, "summary": summary}

    async def _returned(self, run: str, input: str) -> Any:
        method = self._actor.kind.own("on_run")
        value = method.function(self._actor.agent, *Exposed(method).arguments([msgspec.Raw(input.encode())]))
        if not inspect.isasyncgen(value):
            return await value
        served, texts = self._actor.of(Served), list[str]()
        try:
            async for said in value:
                self._actor.check_live()
                if isinstance(said, str):
                    start = [] if texts else [{"type": "text-start", "id": TEXT}]
                    served.say(run, *start, {"type": "text-delta", "id": TEXT, "delta": said})
                    texts.append(said)
                else:
                    served.say(run, said)
        finally:
            await value.aclose()
        self._actor.check_live()
        if texts:
            served.say(run, {"type": "text-end", "id": TEXT})
        return "".join(texts)
