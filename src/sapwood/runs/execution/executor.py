"""The runs that an agent does for its parent: begun once, told as they go, and ended.

The agent that does a run is the truth about it. Its rows and chunks can be read while it
sleeps, and outlive the run.
"""

from __future__ import annotations

import logging
from asyncio import Future, TimerHandle
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sapwood.capabilities.due_work import Agenda
from sapwood.capabilities.state import State
from sapwood.errors import Refused, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.outbox import Outbox
from sapwood.kernel.marshal.copier import json_to_copy
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.kernel.ports.history import MomentKind
from sapwood.kernel.ports.work_id import WorkId
from sapwood.randomness import new_id
from sapwood.runs.events.events import ENDS, Event, Feed, Kind, ears_of, tell, tell_here
from sapwood.runs.execution.cancellation_latency import stopping
from sapwood.runs.execution.clients import RunClients
from sapwood.runs.execution.contract import UNWANTED, Progress, RunState, Steered, reason_below
from sapwood.runs.execution.run_hooks import run_hooks
from sapwood.runs.execution.run_journal import RunJournals
from sapwood.runs.tables.executed_runs_table import (
    CHUNKS,
    PLACE,
    SERVED,
    ExecutedRunRow,
    find,
    input_of,
    length,
    milestone_chunk,
)
from sapwood.runs.tables.inputs import InputDetail
from sapwood.runs.tables.own_questions import OwnQuestions
from sapwood.runs.tables.question import Question
from sapwood.runs.tables.runs_table import HARD, RunsTable, failure, given_with, parent_run, preview
from sapwood.runs.tables.runs_table import RunRow as Given
from sapwood.wire import runs as wire

log = logging.getLogger(__name__)

FOLLOW = "_sapwood_follow_run"
"""The method whose fibers follow runs."""
PACE = 0.2
"""Seconds between two reports of progress; of more, the last one counts."""


class RunExecutor:
    """The runs that one agent does."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._db = actor.database
        self.worker = run_hooks(actor).run_backend()
        self._own_questions = actor.of(OwnQuestions)
        self._over: dict[str, list[Future[None]]] = {}
        self._given: dict[str, Given | None] = {}
        """How the parent has stored those that are going on."""
        self._reports: dict[str, tuple[float, TimerHandle | None, Progress | None]] = {}
        """When progress was last told, and what is to be told next."""
        self.last_heard: dict[str, float] = {}
        """When something last happened in those that are going on."""
        self.told: dict[str, int] = {}
        """The number that follows all that was told of those that are going on."""
        self.when_resting: dict[str, Callable[[], None]] = {}
        """Whom to tell when one of them comes to rest."""
        self.away: dict[str, tuple[float, str]] = {}
        """Since when the server cannot be reached that does one of them, and why."""

    def questions(self) -> list[Question]:
        """Return the open questions of this agent: of its tool calls, and of its code."""
        return [*self.worker.questions(), *self._own_questions.open()]

    def question(self, id: str) -> Question | None:
        """Return an open question of this agent."""
        return self._own_questions.get(id) or self.worker.question(id)

    def row(self, run: str) -> ExecutedRunRow | None:
        return find(self._db, run)

    def input(self, run: str) -> str:
        """Return what a run was given, as JSON."""
        return input_of(self._db, run)

    def given(self, run: str) -> Given | None:
        """Return how the parent has stored a run."""
        parent = self._actor.parent
        if run not in self._given and parent is not None:
            self._given[run] = RunsTable(parent.database, self._actor.host.clock).get(run)
        return self._given.get(run)

    def goes_on(self, work: WorkId) -> bool:
        """Return whether a run that this agent executes, or a turn or fiber of its own, may continue."""
        if work.kind == "fiber":
            return self._actor.of(Agenda).fibers.goes_on(work)
        return self.worker.wants(work.id)

    def has_completed(self, work: WorkId) -> bool:
        """Return whether a run it executes, or a turn, has completed. A fiber that completed has released its runs."""
        return work.kind == "run" and self.worker.stands(work.id) == "completed"

    def why_stopped(self, work: WorkId | None) -> str:
        """Return the reason for what is below a run it executes, a turn or a fiber of its own, that has stopped."""
        if work is None or work.kind == "fiber":
            return UNWANTED
        return reason_below(self.worker.why_not(work.id))

    def is_wanted(self, run: str) -> bool:
        """Return whether a run is still wanted: neither it nor anything above it was cancelled."""
        parent = self._actor.parent
        if parent is None:
            own = self.row(run)
            return own is None or own.cancelled is None
        row = RunsTable(parent.database, self._actor.host.clock).get(run)
        return row is not None and row.status not in HARD and row.is_wanted_by(parent.of(RunExecutor))

    def why_not(self, run: str) -> str:
        """Return the reason why a run is not wanted any more: its own, or that of what is above it."""
        parent = self._actor.parent
        if parent is None:
            own = self.row(run)
            return UNWANTED if own is None else own.cancelled or own.reason or UNWANTED
        row = RunsTable(parent.database, self._actor.host.clock).get(run)
        return UNWANTED if row is None else row.why_unwanted_by(parent.of(RunExecutor))

    async def start(self, run: str, input: bytes, trace: str | None = None) -> None:
        """Begin a run, once."""
        if self.row(run) is not None:
            return
        if self._actor.agent.input_as_state:
            self._actor.of(State).start_with(input, f"The input of run {run!r}")
        self._add(run, input, trace)
        stream = self.worker.start(run, msgspec.json.decode(input))
        journal = self._actor.of(RunJournals).at_start(run)
        self._db.execute("UPDATE sapwood_served_runs SET stream = ?, journal = ? WHERE id = ?", stream, journal, run)
        self._tell_here(run)

    def _add(self, run: str, input: bytes, trace: str | None) -> None:
        self._actor.host.history.mark(self._actor.address, MomentKind.BEFORE_RUN, run)
        for schema in (SERVED, CHUNKS):
            self._db.ensure(schema)
        self._db.execute(
            "INSERT INTO sapwood_served_runs (id, status, input, stream, trace, started_at)"
            " VALUES (?, 'running', ?, 0, ?, ?)",
            run,
            input.decode(),
            trace,
            self._actor.host.clock.now(),
        )

    def inspect(self, run: str) -> RunState | None:
        """Return how a run stands; None if nothing is known of it."""
        row = self.row(run)
        if row is None:
            return None
        return RunState(
            id=run,
            status=row.status,
            waits=row.status == "running" and self.worker.waits(run),
            seq=self.next_seq(row),
            output=row.output,
            summary=row.summary,
            error=row.error,
            reason=row.reason,
            usage=row.usage,
            progress=row.progress,
        )

    def is_running(self) -> bool:
        """Return whether a run of this agent is not over."""
        if not (self._db.exists and self._db.has(SERVED)):
            return False
        return bool(self._db.execute("SELECT 1 FROM sapwood_served_runs WHERE status = 'running' LIMIT 1"))

    def has_spoken(self, run: str) -> bool:
        """Return whether anything was ever heard of a run."""
        row = self.row(run)
        return row is not None and (self.next_seq(row) > 0 or row.progress is not None or row.milestones != "[]")

    def next_seq(self, row: ExecutedRunRow) -> int:
        """Return the number of a run's next chunk."""
        return length(self._db, row.stream) if row.length is None else row.length

    async def result(self, run: str) -> RunState:
        """Return how a run ended, once it has."""
        while True:
            state = self.inspect(run)
            if state is None:
                raise Refused(f"{self._actor.address} has no run {run!r}.")
            if state.is_over:
                return state
            waiting: Future[None] = self._actor.host.loop.create_future()
            self._over.setdefault(run, []).append(waiting)
            await waiting
            self._actor.check_live()

    def rests(self, run: str) -> None:
        """Report that a run rests, in this slice: its follower may rest too."""
        if (tell := self.when_resting.get(run)) is not None:
            tell()

    def wake_above(self, run: str) -> None:
        """Resume the follower of a run if it rests, before the run itself resumes."""
        parent = self._actor.parent
        if parent is not None and parent.of(Agenda).fibers.wake(following(run), FOLLOW):
            # Also a loss of power keeps nothing of what this agent does from here on without that.
            self._actor.home.slices.commit()
            self._actor.host.gate.follows(self._actor.database, parent.database)

    async def ended_at_rest(self, run: str) -> None:
        """Inform the resting follower of a run that ended without a driver."""
        self.wake_above(run)
        await self._actor.leave()

    async def steer(self, run: str, key: str, text: str) -> Steered:
        """Send a message to the agent that executes a run; once for each key, however often it is sent."""
        return self.worker.steer(run, key, text)

    def cut(self, run: str, reason: str) -> None:
        """Stop a run, and all below it, at once; what is written of it follows."""
        self.worker.cut(run, reason)

    def cancel(self, run: str, reason: str) -> None:
        """Stop a run that was given from outside, for good; one that has not begun never will."""
        row = self.row(run)
        if row is None:
            self._add(run, b"null", None)
            self.ended(run, "cancelled", reason=reason)
        elif row.status == "running" and row.cancelled is None:
            self._db.execute("UPDATE sapwood_served_runs SET cancelled = ? WHERE id = ?", reason, run)
            with stopping(self._actor):
                self.cut(run, reason)

    def ended(
        self,
        run: str,
        status: str,
        *,
        output: str | None = None,
        summary: str | None = None,
        error: str | None = None,
        reason: str | None = None,
        usage: str = "{}",
    ) -> None:
        """Note, in this slice, how a run ended."""
        self._tell_progress(run)
        row = self.row(run)
        if row is None or row.status != "running":
            return
        self._db.execute(
            "UPDATE sapwood_served_runs SET status = ?, length = ?, output = ?, summary = ?, error = ?, reason = ?,"
            " usage = ?, ended_at = ?, journal = ifnull(?, journal) WHERE id = ?",
            status,
            self.next_seq(row),
            output,
            summary,
            error,
            reason,
            usage,
            self._actor.host.clock.now(),
            self._actor.of(RunJournals).at_end(run),
            run,
        )
        self._actor.host.history.mark(self._actor.address, MomentKind.AFTER_RUN, run)
        self._tell_here(run)
        for what in (self._given, self.last_heard, self.told, self._reports, self.away):
            what.pop(run, None)
        for waiting in self._over.pop(run, ()):
            if not waiting.done():
                waiting.set_result(None)

    def say(self, run: str, *chunks: Any) -> None:
        """Store chunks of a run that is no turn, and tell them."""
        row = self.row(run)
        assert row is not None
        first, now = self.next_seq(row), self._actor.host.clock.now()
        texts = [json_to_copy(chunk, f"A chunk of the run {run!r}") for chunk in chunks]
        self._db.execute(
            "INSERT INTO sapwood_chunks VALUES (?, ?, 0, ?, ?)",
            row.stream,
            first,
            now,
            (b"[" + b",".join(texts) + b"]").decode(),
        )
        self.said(run, first, texts, now)

    def heard(self, run: str, at: float) -> None:
        """Note that something happened in a run at this time."""
        self.last_heard[run] = max(at, self.last_heard.get(run, 0.0))

    def said(self, run: str, first: int, texts: Sequence[bytes], at: float) -> None:
        """Send what was stored of a run to the clients of the parent, and to all subscribers."""
        self.last_heard[run] = at
        self.told[run] = first + len(texts)
        given = self.given(run)
        self._to_clients(
            run,
            given,
            lambda: [
                wire.chunk(number, run, text, tool_call=_tool_call(given))
                for number, text in enumerate(texts, first + 1)
            ],
        )
        if ears_of(self._actor, self._actor.address.segments):
            for number, text in enumerate(texts, first + 1):
                self._tell("chunk", run, number, msgspec.json.decode(text), at)

    def _to_clients(self, run: str, given: Given | None, frames: Callable[[], Sequence[str]]) -> None:
        """Send frames to the clients of the parent, unless they were told already that the run is over."""
        parent = self._actor.parent
        is_over = given is not None and given.status in HARD
        sockets = parent.of(RunClients).of(run) if parent is not None and not is_over else ()
        # Through our own outbox: what we have written has to be durable first, and only it knows when that is.
        outbox, told = self._actor.of(Outbox), frames() if sockets else ()
        for socket in sockets:
            for frame in told:
                outbox.put(socket, frame)

    def _tell(self, kind: Kind, run: str, seq: int, body: Any, at: float) -> None:
        tell(self._actor, self.event(kind, run, seq, body, at))

    def event(self, kind: Kind, run: str, seq: int, body: Any, at: float) -> Event:
        """Return something that happened in a run this agent does."""
        given = self.given(run)
        return Event(
            path=self._actor.address.segments,
            run_id=run,
            parent_run_id=None if given is None else parent_run(given),
            seq=seq,
            at=at,
            kind=kind,
            body=body,
        )

    def _tell_here(self, run: str) -> None:
        """Tell those who listen here that a run has begun or ended: those above hear it from who gave it."""
        row = self.row(run)
        if row is not None and (feed := self._actor.found(Feed)) is not None and feed.ears:
            tell_here(self._actor, self.started(row) if row.status == "running" else self.over(row))

    def started(self, row: ExecutedRunRow, input: InputDetail = "preview") -> Event:
        """Return that a run has begun."""
        given = self.given(row.id)
        body = {} if given is None else given_with(given)
        if given is None or input == "full":
            whole = msgspec.json.decode(self.input(row.id))
            body["input"] = whole if input == "full" else preview(whole)
        return self.event("started", row.id, 0, body, row.started_at)

    def over(self, row: ExecutedRunRow) -> Event:
        """Return how a run has ended, as far as the agent that did it knows."""
        at, seq = row.ended_at or row.started_at, self.next_seq(row) + 1
        if row.status == "completed":
            output = None if row.output is None else msgspec.json.decode(row.output)
            return self.event("completed", row.id, seq, output, at)
        told = failure(self._actor.address.type, row.status, error=for_clients(row.error), reason=row.reason)
        return self.event(ENDS[row.status], row.id, seq, told, at)

    def report(self, progress: Progress, milestone: str | None) -> bool:
        """Report the progress of the current run. A milestone is stored, and replayed to clients that connect later."""
        self._actor.check_use()
        run = self.worker.current()
        if run is None:
            log.warning("report_progress() ignored outside of a run address=%s", self._actor.address)
            return False
        if progress.data is not None:
            json_to_copy({"data": progress.data}, f"The progress of the run {run!r}")
        self._report(run, progress, milestone)
        return True

    def _report(self, run: str, progress: Progress, milestone: str | None) -> None:
        self.last_heard[run] = self._actor.host.clock.now()
        if milestone is not None:
            self._report_milestone(run, milestone, progress)
            return
        last, timer, _ = self._reports.get(run, (float("-inf"), None, None))
        now = self._actor.host.loop.time()
        self._reports[run] = (last, timer, progress)
        if (progress.fraction or 0) >= 1 or now - last >= PACE:
            self._tell_progress(run)
        elif timer is None:
            timer = self._actor.host.loop.call_later(last + PACE - now, self._tell_progress_in_time, run)
            self._reports[run] = (last, timer, progress)

    def _tell_progress_in_time(self, run: str) -> None:
        try:
            self._tell_progress(run)
        except Unavailable:  # the agent is about to end: no client here could be told
            last, _, progress = self._reports[run]
            timer = self._actor.host.loop.call_later(PACE, self._tell_progress_in_time, run)
            self._reports[run] = (last, timer, progress)

    def _tell_progress(self, run: str) -> None:
        _, timer, progress = self._reports.get(run, (0.0, None, None))
        if timer is not None:
            timer.cancel()
        row = self.row(run) if progress is not None and self._actor.dropped is None else None
        if progress is None or row is None or row.status != "running":
            return
        told = progress.told()
        kept = {name: one for name, one in told.items() if name != "data"}
        self._db.execute(
            "UPDATE sapwood_served_runs SET progress = ? WHERE id = ?", msgspec.json.encode(kept).decode(), run
        )
        self._reports[run] = (self._actor.host.loop.time(), None, None)
        chunk = {"type": "data-agent-progress", "id": new_id(self._actor.host.random), "transient": True, "data": told}
        self._tell_aside("progress", row, chunk)

    def _report_milestone(self, run: str, name: str, progress: Progress) -> None:
        row = self.row(run)
        if row is None or row.status != "running":
            return
        reached: list[dict[str, Any]] = msgspec.json.decode(row.milestones)
        told: dict[str, Any] = {
            "name": name,
            "sequence": len(reached) + 1,
            "at": int(self._actor.host.clock.now() * 1000),
        }
        told |= progress.told()
        self._db.execute(
            "UPDATE sapwood_served_runs SET milestones = ? WHERE id = ?",
            msgspec.json.encode([*reached, {**told, PLACE: self.next_seq(row) + 1}]).decode(),
            run,
        )
        self._tell_aside("milestone", row, milestone_chunk(told))

    def _tell_aside(self, kind: Kind, row: ExecutedRunRow, chunk: dict[str, Any]) -> None:
        """Send something that has no number of its own among the chunks of a run: it gets that of the next one."""
        seq = self.next_seq(row) + 1
        text, given = msgspec.json.encode(chunk), self.given(row.id)
        self._to_clients(row.id, given, lambda: [wire.chunk(seq, row.id, text, tool_call=_tool_call(given))])
        self._tell(kind, row.id, seq, chunk["data"], self._actor.host.clock.now())


def following(run: str) -> str:
    """Return the name of the fiber that follows a run, in the agent that has given it."""
    return f"run {run}"


def _tool_call(given: Given | None) -> str | None:
    return None if given is None else given.tool_call
