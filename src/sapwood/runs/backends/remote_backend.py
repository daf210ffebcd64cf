"""Runs that an agent of another server does: what happens there is stored here as it arrives, and told from here.

So a run that is done elsewhere looks like any other: its chunks have the same numbers, and can be
replayed while the other server is away. After a crash on either side the next number is asked
for: nothing is missing and nothing comes twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec

from sapwood.capabilities.due_work import Agenda
from sapwood.errors import RemoteRefused, Unavailable, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.copier import json_to_copy, to_json
from sapwood.kernel.trees.tree import tree_of
from sapwood.kernel.trees.usage import Claims
from sapwood.runs.backends.method_backend import MethodRuns
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.dispatch.results import Outcomes
from sapwood.runs.execution.contract import MAX_REASON, UNWANTED, Progress, reason_below
from sapwood.runs.execution.driver import is_again
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.execution.run_hooks import class_hooks
from sapwood.runs.questions.remote_questions import Mirror
from sapwood.runs.remote.nested_log import NestedLog
from sapwood.runs.remote.remote_run import RemoteRun, open_run
from sapwood.runs.remote.remote_sessions import FAILED, LAST_TRY, RemoteSessions, SessionMemo, back_off
from sapwood.runs.remote.transport import (
    Chunk,
    End,
    Heartbeat,
    Milestone,
    NestedEvents,
    OpenQuestions,
    Position,
    RemoteEvent,
    RemoteStatus,
)
from sapwood.runs.tables import executed_runs_table
from sapwood.runs.tables.decisions import LONGEST_TEXT
from sapwood.runs.tables.question import Answer, Approvers, Author, Question

log = logging.getLogger(__name__)

BEGUN = "begun"
"""What is stored once the other server has taken a run."""
MAX_MILESTONES = 256 * 1024
"""Maximum length of the milestones of one run, as JSON: they are one row, which each new one writes again."""


NESTED_TRIES = 8
"""How often the events below a run whose end is known are asked for."""
NOT_FOLLOWED = "not-followed"
"""Why a run below a remote run is given up that was not over when the remote run was completed."""


class ConnectionLost(Unavailable):
    """The connection to another server ended before the run did."""


class RemoteRuns(MethodRuns):
    """The runs that one agent has another server do."""

    def __init__(self, actor: Actor) -> None:
        super().__init__(actor)
        self._waiting: set[str] = set()
        """Those that wait for a person."""
        self._mirror = Mirror(actor)
        self._tried: set[str] = set()
        """Those that the other server was asked to start: also one that refused may have taken them before."""
        self._with_all_milestones: set[str] = set()
        """Those that have as many milestones as are stored."""
        self._nested = NestedLog(actor)

    def start(self, run: str, input: Any) -> int:
        return self._launch(run)

    def _remote(self, run: str) -> dict[str, Any] | None:
        given = self._actor.of(RunExecutor).given(run)
        return None if given is None or given.remote is None else msgspec.json.decode(given.remote)

    def waits(self, run: str) -> bool:
        return run in self._waiting

    def questions(self) -> list[Question]:
        return self._mirror.all() if self._actor.of(RunExecutor).is_running() else []

    def question(self, id: str) -> Question | None:
        return next((one for one in self.questions() if one.id == id), None)

    def approvers(self, tool: str) -> Approvers | None:
        return class_hooks(self._actor.kind).approvers_of(self._actor.kind, tool)

    def answer(self, id: str, answer: Answer, author: Author) -> bool | Awaitable[bool]:
        question = self.question(id)
        return False if question is None else self._answer(question, answer, author)

    async def _answer(self, question: Question, answer: Answer, author: Author) -> bool:
        run = self._actor.address.name
        if (session := self._session(run)) is None:
            return False
        await self._actor.leave()
        memo = SessionMemo(self._actor, run)
        async with open_run(self._actor, self._actor.agent, session, memo) as remote:
            return await self._mirror.answer(remote, question, answer, author)

    async def _stop(self, run: str, reason: str) -> None:
        self._actor.check_live()
        self._mirror.withdraw()
        self._nested.close("cancelled", reason_below(reason))
        self._sessions.stop(self._actor.address, reason, self._actor)
        await super()._stop(run, reason)

    @property
    def _sessions(self) -> RemoteSessions:
        return RemoteSessions.of(self._actor)

    async def _worked(self, run: str, input: str) -> dict[str, Any]:
        session = self._session(run)
        if session is None:
            raise UsageError(f"{self._actor.kind.cls.__name__} is a remote agent: other agents start its runs.")
        self._sessions.add(self._actor, session)
        try:
            memo = SessionMemo(self._actor, run)
            async with open_run(self._actor, self._actor.agent, session, memo) as remote:
                return _ended(await self._followed_to_end(run, input, remote))
        except Exception as error:
            self._actor.check_live()
            self._mirror.withdraw()
            self._nested.close("cancelled", FAILED)
            if self._has_begun() or run in self._tried or is_again():
                # The other server may still do it, and no agent here reads it any more: a reply to the start, or to
                # one before a crash, may have been lost.
                self._sessions.stop(self._actor.address, FAILED, self._actor)
            else:
                self._sessions.remove(self._actor.address)
            if not isinstance(error, RemoteRefused):
                raise
            log.warning("remote run refused run=%s address=%s: %s", run, self._actor.address, error)
            return {"status": "failed", "error": _shortened(f"{error.code}: {error}", LONGEST_TEXT)}
        finally:
            self._waiting.discard(run)
            self._tried.discard(run)
            self._with_all_milestones.discard(run)

    async def _followed_to_end(self, run: str, input: str, remote: RemoteRun) -> RemoteStatus:
        """Follow a run to its end, and retry while the other server cannot be reached."""
        failed = 0
        while True:
            before = self._length(run)
            try:
                state = await self._followed(run, input, remote)
                state = await self._counted(run, state)
                self._mirror.withdraw()
                if state.status == "completed":  # a detached run may outlive the run that started it
                    self._nested.close("interrupted", NOT_FOLLOWED)
                else:
                    self._nested.close("cancelled", state.reason or UNWANTED)
                self._sessions.remove(self._actor.address)
                return state
            except Unavailable as error:
                self._actor.check_live()
                failed = 1 if self._length(run) > before else failed + 1
                if self._is_away(run, error) > LAST_TRY:
                    raise
                await asyncio.sleep(back_off(failed, self._actor.host.random))

    def _has_begun(self) -> bool:
        return self._actor.of(Agenda).fibers.current().checkpoint == BEGUN

    def _session(self, run: str) -> str | None:
        """Return what a run is called on the other server: the same, however often it is asked for."""
        given = self._actor.of(RunExecutor).given(run)
        return None if given is None or given.remote is None else msgspec.json.decode(given.remote)["session"]

    async def _followed(self, run: str, input: str, remote: RemoteRun) -> RemoteStatus:
        """Have a run begin, or find out how it stands, and hear of it to its end."""
        if self._has_begun():
            state = await remote.status()
        else:
            await self._actor.leave()
            self._tried.add(run)
            state = await remote.start(msgspec.json.decode(input))
            await self._actor.of(Agenda).fibers.checkpoint(BEGUN)
        self._actor.check_live()
        self._is_in_touch(run, waits=state.waits)
        self._actor.of(Runs).waits()
        if not state.is_over or state.seq != self._length(run):
            state = await self._heard(run, remote)
        elif state.nested:
            await self._heard_below(run, remote)
        return state

    async def _heard_below(self, run: str, remote: RemoteRun) -> None:
        """Store what happened below a run whose end is known; a server that is away now delays that end a little."""
        for failed in range(1, NESTED_TRIES + 1):
            try:
                await self._heard(run, remote)
                return
            except RemoteRefused:
                return
            except Unavailable:
                await asyncio.sleep(back_off(failed, self._actor.host.random))
                self._actor.check_live()

    async def _heard(self, run: str, remote: RemoteRun) -> RemoteStatus:
        """Store what another server tells of a run, until it tells how it ended."""
        actor, served = self._actor, self._actor.of(RunExecutor)
        row = served.row(run)
        assert row is not None
        after = Position(self._length(run), len(executed_runs_table.milestones(row)), self._nested.cursor())
        async with aclosing(remote.stream(after)) as arrivals:
            async for arrived in arrivals:
                actor.check_live()
                state = self._take(run, arrived)
                if state is not None:
                    return state
                if any(isinstance(event, NestedEvents) for event in arrived):
                    await asyncio.sleep(0)  # a server that sends very many of them holds up no other agent
        raise ConnectionLost("The other server closed the connection before the run ended.")

    def _take(self, run: str, arrived: Sequence[RemoteEvent]) -> RemoteStatus | None:
        """Store, in this slice, what arrived at once; return how the run ended, if that is known now."""
        served, length, chunks = self._actor.of(RunExecutor), self._length(run), list[Any]()
        for event in arrived:
            if isinstance(event, Chunk):
                length += 1
                if event.seq != length:
                    raise ConnectionLost(f"The other server sent event {event.seq} out of order.")
                chunks.append(event.body)
                continue
            if chunks:
                served.say(run, *chunks)
                chunks.clear()
            if isinstance(event, End):
                if event.status.seq != length or not event.status.is_over:
                    raise ConnectionLost("The other server ended the run before it sent all chunks.")
                return event.status
            self._take_aside(run, event)
        if chunks:
            served.say(run, *chunks)
            self._is_in_touch(run, waits=False)
        return None

    def _take_aside(self, run: str, event: RemoteEvent) -> None:
        served = self._actor.of(RunExecutor)
        if isinstance(event, Heartbeat):
            self._is_in_touch(run, waits=event.waits)
            if event.idle is not None:  # not everything below that run is told here, and all of it is progress
                served.heard(run, self._actor.host.clock.now() - max(event.idle, 0.0))
        elif isinstance(event, OpenQuestions):
            self._mirror.replace(event.questions)
        elif isinstance(event, NestedEvents):
            self._nested.take(event, run, self._session(run))
        elif isinstance(event, Milestone):
            if self._may_add_milestone(run):
                served.report(event.progress, event.name)
        elif isinstance(event, Progress):
            served.report(event, None)

    def _may_add_milestone(self, run: str) -> bool:
        """Return whether the milestones of a run are not too long yet."""
        if run in self._with_all_milestones:
            return False
        row = self._actor.of(RunExecutor).row(run)
        if row is None or len(row.milestones) < MAX_MILESTONES:
            return True
        self._with_all_milestones.add(run)
        where = self._actor.address
        log.warning("milestones of a remote run left out: address=%s limit=%d", where, MAX_MILESTONES)
        return False

    async def _counted(self, run: str, state: RemoteStatus) -> RemoteStatus:
        """Count what the other server says a run has used; again after a crash, and then it is known.

        Returns the status without a usage that cannot be counted.
        """
        tree = tree_of(self._actor)
        self._actor.check_live()
        try:
            used = msgspec.convert(state.usage, Claims)
        except msgspec.ValidationError as error:  # it counts in another way, or lies
            log.warning(
                "usage of a remote run not counted: address=%s run=%s error=%s", self._actor.address, run, error
            )
            return replace(state, usage={})
        tree.spending.put_right(self._actor, run, {model: told.spent() for model, told in used.items()})
        return state

    def _length(self, run: str) -> int:
        served = self._actor.of(RunExecutor)
        row = served.row(run)
        return 0 if row is None else served.next_seq(row)

    def _is_in_touch(self, run: str, *, waits: bool) -> None:
        self._actor.of(RunExecutor).away.pop(run, None)
        (self._waiting.add if waits else self._waiting.discard)(run)

    def _is_away(self, run: str, error: Unavailable) -> float:
        """Note that the other server cannot be reached, for who gave the run; return for how many seconds."""
        away = self._actor.of(RunExecutor).away
        if run in away:
            since, _ = away[run]
            away[run] = (since, str(error))
            return self._actor.host.clock.now() - since
        log.info("remote server unreachable, waiting address=%s: %s", self._actor.address, error)
        away[run] = (self._actor.host.clock.now(), str(error))
        parent = self._actor.parent
        if parent is not None and (followed := parent.of(Outcomes).followed.get(run)) is not None:
            followed.look_again()
        return 0.0


def _ended(state: RemoteStatus) -> dict[str, Any]:
    """Return how another server says a run ended, as it is noted here."""
    return {
        "status": state.status,
        "output": json_to_copy(state.output, "The result of a remote run").decode()
        if state.status == "completed"
        else None,
        "summary": state.summary,
        "error": _shortened(state.error, LONGEST_TEXT),
        "reason": _shortened(state.reason, MAX_REASON),
        "usage": to_json(dict(state.usage)).decode(),
    }


def _shortened(text: object, length: int) -> str | None:
    return None if text is None else str(text)[:length]
