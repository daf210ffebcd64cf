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
from sapwood.capabilities.due_work import Agenda
from sapwood.capabilities.exposed_methods import MethodCodec
from sapwood.errors import UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import current
from sapwood.kernel.marshal.copier import json_to_copy
from sapwood.kernel.marshal.disclosure import as_stored
from sapwood.kernel.marshal.exceptions import describe, mistake
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.dispatch.run_monitors import RunMonitors
from sapwood.runs.execution.contract import CANCELLED, DrivenPart, Steered, code_of, doing
from sapwood.runs.execution.driver import RUNNING, DriverPace, NodeDriver, is_again, part_of
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.execution.run_hooks import TurnCause
from sapwood.runs.execution.run_journal import RunJournals
from sapwood.runs.execution.run_user import user_of
from sapwood.runs.tables.outputs import read_output
from sapwood.runs.tables.own_questions import OwnQuestions
from sapwood.runs.tables.question import Answer, Approvers, Author, Question

log = logging.getLogger(__name__)

TEXT = "text"
SERVE = "_sapwood_serve_run"
"""The method whose fibers execute runs."""


class MethodRuns:
    """The runs that `on_run` of one agent does."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._tasks: dict[str, Task[Any]] = {}
        self._cut: dict[str, str] = {}
        """Why the runs that were cut must not continue."""

    def start(self, run: str, input: Any) -> int:
        actor = self._actor
        if not actor.kind.overrides("on_run"):
            name = actor.kind.cls.__name__
            raise UsageError(f"{name} has no on_run(). Write `async def on_run(self, input)`, or make it a ChatAgent.")
        return self._launch(run)

    def _launch(self, run: str) -> int:
        """Have a fiber do a run; return the number its chunks are stored by."""
        actor = self._actor
        fiber = actor.of(Agenda).fibers.launch(serving(run), SERVE, run)
        actor.of(RunJournals).begin(run, fiber, self._remote(run))
        row = actor.of(RunExecutor).row(run)
        assert row is not None
        return row.number

    def _remote(self, run: str) -> dict[str, Any] | None:
        """Return where another server does a run; `None` if none does."""
        return None

    def cut(self, run: str, reason: str) -> None:
        task = self._tasks.get(run)
        if task is None:
            row = self._actor.of(RunExecutor).row(run)
            if row is None or row.status != "running":
                return
        self._cut.setdefault(run, reason)
        if task is not None:
            task.cancel()
        self._actor.of(Runs).cut_work(WorkId.run(run), self._cut[run])

    def steer(self, run: str, key: str, text: str) -> Steered:
        row = self._actor.of(RunExecutor).row(run)
        return "deaf" if row is not None and row.status == "running" else "over"

    def wants(self, work: str) -> bool:
        served = self._actor.of(RunExecutor)
        row = served.row(work)
        return row is not None and row.status == "running" and work not in self._cut and served.is_wanted(work)

    def stands(self, work: str) -> str | None:
        row = self._actor.of(RunExecutor).row(work)
        return None if row is None else row.status

    def failure(self, work: str) -> str | None:
        row = self._actor.of(RunExecutor).row(work)
        return row.reason if row is not None and row.status == "failed" else None

    def why_not(self, work: str) -> str:
        return self._cut.get(work) or self._actor.of(RunExecutor).why_not(work)

    def cancel(self, work: str, reason: str) -> None:
        pass  # all its work is runs, which their caller cancels

    def waits(self, run: str) -> bool:
        return self._actor.of(OwnQuestions).waits(run) or self._actor.of(RunMonitors).all_wait(WorkId.run(run))

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
        return found.id if found is not None and found.actor is self._actor else None

    async def drive(self, run: str) -> None:
        """Execute a run to its end, when its driver starts it."""
        served = self._actor.of(RunExecutor)
        row = served.row(run)
        if row is None:
            return
        driver = self._actor.host.shared(NodeDriver).driver
        part, is_known = part_of(self._actor, run, run, is_new=not is_again()), False
        if (call := current.get()) is not None:
            call.user = user_of(self._actor, TurnCause(run=run))
        if row.status == RUNNING:
            if is_again():
                self._actor.of(RunJournals).begin_again(run, row.started_at)
            if run in self._cut or not served.is_wanted(run):
                await self._stop(run, self.why_not(run))
                self._cut.pop(run, None)
            else:
                with driver.pacing(part) as pace:
                    await self._drive(run, pace)
                    if (row := served.row(run)) is not None:
                        is_known = pace.stepped(row.status, reason=self.failure(run))
        if not is_known:
            await driver.over(part, self.stands(run) or "cancelled", self.failure(run))

    async def _drive(self, run: str, pace: DriverPace) -> None:
        actor, served = self._actor, self._actor.of(RunExecutor)
        task = asyncio.current_task()
        assert task is not None
        self._tasks[run] = task
        doing.set(DrivenPart(actor, run, run=run))
        try:
            if (asked := pace.asked()) is not None:
                with actor.host.shared(NodeDriver).holding(actor.address, run):
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
            text, reference = as_stored(error, actor.host.random)
            where = {"address": str(actor.address), "reference": reference}
            log.warning(
                "on_run failed address=%s reference=%s: %s",
                actor.address,
                reference,
                describe(error),
                extra=where,
                exc_info=mistake(error),
            )
            actor.of(Runs).let_go(WorkId.run(run), is_done=False)
            served.ended(run, "failed", error=text, reason=code_of(error))
        finally:
            self._tasks.pop(run, None)
            self._cut.pop(run, None)

    async def _stop(self, run: str, reason: str) -> None:
        """Note, in this slice, that a run was stopped."""
        self._actor.of(RunExecutor).ended(run, "cancelled", reason=reason)

    async def _worked(self, run: str, input: str) -> dict[str, Any]:
        """Do a run; return how it ended, as it is noted."""
        value = await self._returned(run, input)
        summary = value if isinstance(value, str) else None
        output = json_to_copy(value, f"The result of {self._actor.kind.type}.on_run()").decode()
        read_output(self._actor.kind, output)  # an output that its caller could not read fails here
        return {"status": "completed", "output": output, "summary": summary}

    async def _returned(self, run: str, input: str) -> Any:
        method = self._actor.kind.own("on_run")
        await self._actor.until_leased()
        value = method.function(self._actor.agent, *MethodCodec(method).arguments([msgspec.Raw(input.encode())]))
        if not inspect.isasyncgen(value):
            return await value
        served, texts = self._actor.of(RunExecutor), list[str]()
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


def serving(run: str) -> str:
    """Return the name of the fiber in which a method executes a run."""
    return f"run {run}"
