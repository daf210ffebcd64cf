"""Runs that other servers give an agent, over HTTP: it is asked to begin, how it stands, what happens, and to stop.

Each agent does one run from outside, under its own name: who asks again re-attaches. The reader of
a stream sets the pace: it is read from where it is stored, a page at a time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec

from sapwood import tracing
from sapwood.capabilities.connections import HttpOnly
from sapwood.errors import InvalidArguments, ProtocolMismatch, RemoteLost, SapwoodError, Unavailable, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.children_table import CHILDREN
from sapwood.kernel.marshal.disclosure import for_clients, told_of
from sapwood.runs.dispatch.activity import activity_of
from sapwood.runs.events.events import Ear, Feed
from sapwood.runs.execution.access_gates import refused_to_watch
from sapwood.runs.execution.contract import RunState, bounded_reason
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.http.events_http import OpenStreams
from sapwood.runs.http.nested_stream import NestedEar, NestedStream
from sapwood.runs.questions.remote_questions import questions_for, take_answer
from sapwood.runs.tables import executed_runs_table
from sapwood.web.errors import INTERNAL, status_of
from sapwood.wire import remote as wire
from sapwood.wire.frames import read_json

DIGITS = 18
PAGE = 64
"""Segments of what was said that are read at once; most have a few chunks."""
STATUS: tuple[tuple[type[SapwoodError], int], ...] = ((ProtocolMismatch, 426), (RemoteLost, 404), (UsageError, 501))
"""What those of our errors are told as that have no status elsewhere."""


class Bell(Ear):
    """Rings when something happens, and keeps nothing of it but how far the run last said it is."""

    progress: bytes | None = None
    """JSON."""
    has_questions = True
    """Whether the questions of the run may be others than were told last."""

    def send(self, event: Any) -> None:
        if event is None:
            self.has_questions = True
        elif event.kind == "progress":
            self.progress = msgspec.json.encode(event.body)
        self.close(0, "")

    def answer(self) -> None:
        """Reset the bell before its reader looks for what is new."""
        self.is_behind = False


class RunsFromOutside(HttpOnly):
    """What one agent does for other servers."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._run = actor.address.name
        self._answers: dict[tuple[str, str], Callable[[Any], Awaitable[Any]]] = {
            ("POST", wire.PATH): self._start,
            ("GET", wire.PATH): self._status,
            ("GET", wire.STREAM): self._stream,
            ("POST", wire.STREAM): self._stream,
            ("POST", wire.CANCEL): self._cancel,
            ("POST", wire.ANSWER): self._answer,
        }

    async def request(self, request: Any) -> Any:
        """Answer a request of another server; None if it is for something else, or this agent is not for others."""
        actor = self._actor
        answer = self._answers.get((request.method, request.scope["path"]))
        if answer is None or not actor.agent.expose_runs or actor.parent is not None:
            return None
        if (refused := await refused_to_watch(actor, request)) is not None:
            return refused
        try:
            _check_version(request)
            actor.check_live()
            response = await answer(request)
        except SapwoodError as error:
            is_ours = type(error) in (UsageError, ProtocolMismatch, RemoteLost)  # raised here, for the other server
            text = str(error) if is_ours else told_of(error)
            if text is None or status_told(error) == INTERNAL:
                raise
            response = _json(wire.Trouble(error.code, text), status_told(error))
        response.headers[wire.HEADER] = str(wire.VERSION)
        return response

    async def _start(self, request: Any) -> Any:
        given = _read(await request.body(), wire.Start)
        _read(bytes(given.input), object)  # a number may be too large to be decoded
        self._actor.check_live()
        await self._actor.of(RunExecutor).start(self._run, bytes(given.input), tracing.text())
        return _json(self._state())

    async def _status(self, request: Any) -> Any:
        return _json(self._state())

    async def _cancel(self, request: Any) -> Any:
        why = _read(await request.body() or b"{}", wire.CancelRequest)
        self._actor.check_live()
        self._actor.of(RunExecutor).cancel(self._run, bounded_reason(why.reason))
        return _json(self._state())

    async def _answer(self, request: Any) -> Any:
        given = _read(await request.body(), wire.AnswerRequest)
        self._actor.check_live()
        return _json(await take_answer(self._actor, request, given))

    async def _stream(self, request: Any) -> Any:
        from starlette.responses import StreamingResponse

        if request.method == "POST":
            after = _read(await request.body() or b"{}", wire.StreamFrom)
            self._actor.check_live()
        else:
            after = wire.StreamFrom(_number(request, "from_seq", 1), _number(request, "milestones", 0))
        if _is_number(last := request.headers.get("last-event-id", "")):
            after.from_seq = int(last) + 1
        if after.from_seq > self._state().seq + 1:
            raise RemoteLost(
                f"from_seq={after.from_seq} is past the end of this run ({self._state().seq} chunks). Start a new run."
            )
        return StreamingResponse(
            self._told(
                request, max(after.from_seq, 1), after.milestones, NestedStream(self._actor, request, after.nested)
            ),
            media_type=wire.SSE,
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )

    def _state(self) -> wire.RemoteRunState:
        state = self._actor.of(RunExecutor).inspect(self._run)
        if state is None:
            raise RemoteLost(f"{self._actor.address} has no run.")
        return _shown(state, nested=self._actor.database.has(CHILDREN))

    async def _told(self, request: Any, seq: int, milestones: int, nested: NestedStream) -> AsyncGenerator[bytes, None]:
        """Yield what happens in the run, from a number on, until it is over."""
        actor = self._actor
        feed, open_streams = actor.of(Feed), actor.host.shared(OpenStreams)
        bell, waits = Bell(actor.address, 0, actor.host.timings.event_queue), None
        bell.progress, told_questions = self._last_progress(), b""
        feed.ears |= {bell, nested_ear := NestedEar(bell)}
        open_streams.readers.add(bell)
        try:
            while not bell.is_over:
                bell.answer()  # before it is read: what happens during the read rings again
                page = self._page(seq, milestones)
                state = self._state()
                if page:
                    chunks = sum(told.kind == "chunk" for told in page)
                    seq, milestones = seq + chunks, milestones + len(page) - chunks
                    yield b"".join(told.encoded() for told in page)
                if bell.progress is not None and not state.is_over:
                    told, bell.progress = bell.progress, None
                    yield wire.RunEvent("progress", told).encoded()
                if bell.has_questions and not state.is_over:
                    bell.has_questions = False
                    asked = msgspec.json.encode(await questions_for(actor, request))
                    if asked != told_questions:
                        told_questions = asked
                        yield wire.RunEvent("questions", asked).encoded()
                is_last = state.is_over and not page and seq > state.seq
                if nested_ear.has_news or is_last:
                    nested_ear.has_news = False  # before it is read: what happens during the read rings again
                    async for batch in nested.batches(is_last=is_last):
                        yield wire.RunEvent("nested", batch).encoded()
                if page:
                    continue
                if is_last:
                    yield wire.RunEvent("end", wire.encoded(state)).encoded()
                    return
                if waits != state.waits or not await bell.news(actor.host.timings.event_keepalive_interval):
                    waits = state.waits
                    yield wire.RunEvent("quiet", wire.encoded(wire.Quiet(waits, self._idle()))).encoded()
        finally:
            open_streams.readers.discard(bell)
            feed.ears -= {bell, nested_ear}
            await nested.close()

    def _idle(self) -> float | None:
        """Return for how many seconds nothing has happened, here or below. `None` means that nothing was said."""
        found = activity_of(self._actor, self._run)
        return self._actor.host.clock.now() - found.last if found.said else None

    def _last_progress(self) -> bytes | None:
        row = executed_runs_table.find(self._actor.database, self._run)
        return None if row is None or row.progress is None else row.progress.encode()

    def _page(self, seq: int, milestones: int) -> list[wire.RunEvent]:
        """Return the next chunks and milestones, where they happened; of one number, the chunk is the last."""
        database = self._actor.database
        row = executed_runs_table.find(database, self._run)
        if row is None:
            raise Unavailable(f"{self._actor.address} no longer executes this run.")
        chunks = [
            (one.number + 1, 1, wire.RunEvent("chunk", one.text, one.number + 1))
            for one in executed_runs_table.said(database, row, after=seq - 2, segments=PAGE)
        ]
        reached = [
            (at, 0, wire.RunEvent("milestone", msgspec.json.encode(told)))
            for at, told in executed_runs_table.milestones(row)[milestones:]
            if not chunks or at <= chunks[-1][0]
        ]
        return [told for _, _, told in sorted([*chunks, *reached], key=lambda one: one[:2])]


def status_told(error: SapwoodError) -> int:
    """Return the HTTP status for an error that another server is told."""
    return next((status for kind, status in STATUS if isinstance(error, kind)), status_of(error))


def _shown(state: RunState, *, nested: bool) -> wire.RemoteRunState:
    return wire.RemoteRunState(
        status=state.status,
        seq=state.seq,
        waits=state.waits,
        output=msgspec.Raw((state.output or "null").encode()),
        summary=state.summary,
        error=for_clients(state.error),
        reason=state.reason,
        usage=msgspec.Raw(state.usage.encode()),
        nested=nested,
    )


def _check_version(request: Any) -> None:
    spoken = request.headers.get(wire.HEADER)
    if spoken != str(wire.VERSION):
        raise ProtocolMismatch(
            f"This server uses version {wire.VERSION} of the remote run protocol, the request uses version "
            f"{spoken or 'none'}. Use the same release of sapwood on both sides."
        )


def _read(body: bytes, kind: type[Any]) -> Any:
    try:
        return read_json(body, kind)
    except msgspec.MsgspecError as error:
        raise InvalidArguments(f"The request is invalid: {error}") from None


def _number(request: Any, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not _is_number(text):
        raise InvalidArguments(f"`{name}` must be a number of at most {DIGITS} digits, got {text[:DIGITS]!r}.")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= DIGITS


def _json(what: msgspec.Struct, status: int = 200) -> Any:
    from starlette.responses import Response

    return Response(wire.encoded(what), status, media_type="application/json")
