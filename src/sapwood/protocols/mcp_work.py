"""What one client does at its desk: start runs, follow them, answer their questions, cancel them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import msgspec

from sapwood.address import PathSegment
from sapwood.errors import InvalidArguments, OverLimit
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import id_of
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.protocols.exchange import Exchange
from sapwood.protocols.mcp_desk import ANONYMOUS, RETENTION, Answers, HeldRuns, McpDesk, Seal, Session, Sessions
from sapwood.protocols.mcp_questions import answer_to, elicitation
from sapwood.protocols.mcp_tools import RESULT, RunTool, Tool, is_object
from sapwood.randomness import new_id
from sapwood.runs.events.events import ENDS, Ear, Feed
from sapwood.runs.http.events_http import OpenStreams
from sapwood.runs.tables.question import Question
from sapwood.runs.tables.runs_table import Run

if TYPE_CHECKING:
    from starlette.requests import Request

    from sapwood.protocols.mcp_options import McpOptions

log = logging.getLogger(__name__)

POLL = timedelta(seconds=1)
"""How often a client is to look at a task."""


class RunBell(Ear):
    """Rings when one run of the desk has news: progress, its end, or other questions below the desk."""

    def __init__(self, actor: Actor, id: str) -> None:
        super().__init__(actor.address, 1, actor.host.timings.event_queue)
        self._id = id

    def send(self, event: Any) -> None:
        if event is None or (event.run_id == self._id and (event.kind in NEWS or event.kind in ENDS)):
            self.close(0, "")

    def reset(self) -> None:
        """Ring for what happens from now on."""
        self.is_behind = False


TIMED_OUT = "timed-out"
"""The reason of a run that took longer than its tool allows."""
NEWS = frozenset({"progress", "milestone", "started"})


class DeskWork:
    """The work of one client, for one request of it."""

    def __init__(self, options: McpOptions, desk: McpDesk, request: Request) -> None:
        self.options, self.request = options, request
        self._desk, self._actor = desk, desk._actor  # pyright: ignore[reportPrivateUsage]
        self.exchange = Exchange(self._actor, request)
        self.sessions, self.seal, self.held = Sessions(desk), Seal(desk), HeldRuns(desk)
        self._answers = Answers(desk)
        self.session: Session | None = None

    @property
    def is_anonymous(self) -> bool:
        """Whether the desk works for all clients without a user."""
        return self.exchange.address.name == ANONYMOUS

    @property
    def desk(self) -> McpDesk:
        """The desk itself."""
        return self._desk

    # Runs

    def new_run(self, tool: RunTool) -> str:
        """Return the id of a new run of a tool, which cannot be guessed."""
        return f"{tool.name}-{new_id(self._actor.host.random)}"

    def tool_of(self, run: Run) -> RunTool | None:
        """Return the tool whose call a run is, by its id; `None` if it is no longer offered."""
        tool = self.options.catalog.tools.get(run.id.rpartition("-")[0])
        return tool if isinstance(tool, RunTool) else None

    def run_of_request(self, id: object) -> str:
        """Return the id of the run of a request of the session: the same request is the same run."""
        assert self.session is not None
        return hashlib.sha256(msgspec.json.encode([self.session.id, id])).hexdigest()[:32]

    async def start(self, tool: RunTool, input: Any, id: str) -> Run:
        """Start a run; if there is one with this id, return it."""
        limit = self.options.max_duration
        self._know_owner()
        return await self._desk.start_run(
            cast("Any", tool.cls),
            input,
            run_id=id,
            max_duration=limit,
            idle_timeout=None,
            timeout=tool.tool.timeout,
            display=tool.tool.display,
        )

    def _know_owner(self) -> None:
        """Store for whom the runs of this desk are, before the first begins."""
        owner = id_of(self.exchange.user)
        if owner is not None and not list(self._desk.sql("SELECT 1 FROM owners")):
            self._desk.sql("INSERT INTO owners VALUES (?)", owner)

    def run(self, id: str) -> Run | None:
        """Return a run of this desk."""
        return self._desk.runs.get(id)

    def cancel(self, id: str, reason: str) -> None:
        """Cancel a run and everything below it, unless it has ended."""
        self._desk.runs.cancel(id, reason)

    @contextmanager
    def bell(self, id: str) -> Generator[RunBell, None, None]:
        """Listen to what happens in a run."""
        feed, bell = self._actor.of(Feed), RunBell(self._actor, id)
        streams = self._actor.host.shared(OpenStreams)
        feed.ears.add(bell)
        streams.readers.add(bell)
        try:
            yield bell
        finally:
            feed.ears.discard(bell)
            streams.readers.discard(bell)

    # Questions

    async def questions(self, run: Run) -> dict[str, Question]:
        """Return the open questions below a run that the client may answer, by ids that are never used again."""
        found, answered = await self.exchange.questions(), self._answers.of(run.id)
        return {
            one.full_id: one
            for one in found
            if one.kind != "client" and one.path and is_by(one.path[0], run) and one.full_id not in answered
        }

    async def answer(self, run: Run, responses: dict[str, Any]) -> None:
        """Pass on the answers of a client. Those to questions that are not open are ignored, as MCP wants it.

        Raises `InvalidArguments` if one does not fit its question, which stays open, and `Refused` if the client may
        not answer it.
        """
        asked = await self.questions(run)
        answers = [(key, answer_to(asked[key], response)) for key, response in responses.items() if key in asked]
        for key, answer in answers:
            try:
                await self.exchange.answer(key, answer)
            except OverLimit as error:
                raise InvalidArguments(str(error)) from None
            self._answers.add(run.id, key)

    async def requests(self, run: Run) -> dict[str, Any]:
        """Return the open questions below a run as requests to the client."""
        return {} if run.is_over else {id: elicitation(one) for id, one in (await self.questions(run)).items()}

    # What clients are told

    def result(self, tool: RunTool | None, run: Run) -> dict[str, Any]:
        """Return the result of a run that is over, as that of a tool call. Without its tool, it is text."""
        self._answers.forget(run.id)
        if not run.ok:
            return failed(for_clients(run.error or run.reason or f"{run.agent.type} did not complete."))
        if tool is None:
            return {"content": [{"type": "text", "text": run.summary}]}
        try:
            value = tool.output(run.output, run.summary)
        except ValueError as error:
            log.error("output of a tool does not fit its type tool=%s run=%s: %s", tool.name, run.id, error)
            return failed(f"The output of {tool.name} does not fit its type.")
        return succeeded(value, tool)

    async def task(self, tool: RunTool | None, run: Run) -> dict[str, Any]:
        """Return a run as a task, with its result or its questions."""
        now = datetime.fromtimestamp(self._actor.host.clock.now(), UTC)
        told: dict[str, Any] = {
            "taskId": run.id,
            "createdAt": time_of(run.started_at or now),
            "lastUpdatedAt": time_of(run.ended_at or now),
            "ttlMs": int(RETENTION.total_seconds() * 1000),
            "pollIntervalMs": int(POLL.total_seconds() * 1000),
        }
        if run.status == "cancelled":
            return {**told, "status": "cancelled", "statusMessage": for_clients(run.reason or run.status)}
        if run.status == "interrupted" or run.reason == TIMED_OUT:
            text = for_clients(run.error or run.reason or "The run was interrupted.")
            return {**told, "status": "failed", "statusMessage": text, "error": {"code": -32603, "message": text}}
        if run.is_over:
            return {**told, "status": "completed", "result": self.result(tool, run)}
        if requests := await self.requests(run):
            return {**told, "status": "input_required", "inputRequests": requests}
        message = words_of(run.progress)
        return {**told, "status": "working", **({"statusMessage": message} if message else {})}


def is_by(step: PathSegment, run: Run) -> bool:
    """Return whether a run is executed by the sub-agent at a step of a path."""
    return (step.type, step.name) == (run.agent.type, run.agent.name)


def words_of(progress: Any) -> str:
    """Return what a run last said of its progress, as a text for a person."""
    found = cast("dict[str, Any]", progress) if isinstance(progress, dict) else {}
    return str(found.get("message") or found.get("phase") or "")


def succeeded(value: Any, tool: Tool) -> dict[str, Any]:
    """Return the result of a tool call that returned a value: as text and, if it has a schema, as data."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
    schema = tool.returned_schema
    if schema is not None:
        result["structuredContent"] = value if is_object(schema) else {RESULT: value}
    return result


def failed(text: str) -> dict[str, Any]:
    """Return the result of a tool call that failed: the model reads why."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


def time_of(time: datetime) -> str:
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")
