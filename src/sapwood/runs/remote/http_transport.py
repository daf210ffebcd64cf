"""The transport to agents of other sapwood servers, over HTTP.

What a server answers is sorted by who acts. One that cannot be reached, or is overloaded, is
`Unavailable`: the same is asked again later. What is refused would be refused again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import quote

import msgspec

from sapwood import tracing
from sapwood.address import PathSegment
from sapwood.errors import (
    ProtocolMismatch,
    Refused,
    RemoteLost,
    RemoteRefused,
    RemoteUnauthorized,
    Unavailable,
    UsageError,
)
from sapwood.runs.execution.contract import Progress
from sapwood.runs.remote.transport import (
    STATUSES,
    Chunk,
    End,
    Heartbeat,
    Milestone,
    NestedEvent,
    NestedEvents,
    OpenQuestions,
    Position,
    RemoteAnswer,
    RemoteEvent,
    RemoteQuestion,
    RemoteStatus,
    Status,
)
from sapwood.wire import final_errors, frames
from sapwood.wire import remote as wire

if TYPE_CHECKING:
    import httpx2

CONNECT = 10.0
"""Seconds to wait for a connection."""
SILENCE = 45.0
"""Seconds after which a server that sends nothing, not even a sign of life, is taken for gone."""
LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
"""What a server answers that may answer otherwise later."""
NOT_LET_IN = frozenset({401, 403})
NOT_THERE = frozenset({400, 404})
"""With what a server answers that knows no such agent."""
UPGRADE = 426
UNSAID = ""
"""The code of an answer that has none: it is none of an agent."""
LONGEST_TROUBLE = 64 * 1024
"""Bytes of a refusal that are read."""
SHOWN = 500
"""Characters of an answer that are repeated in an error."""


class HttpTransport:
    """The runs of one class of agents on another sapwood server."""

    def __init__(self, url: str, token: Callable[[], str | Awaitable[str | None] | None]) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            import httpx2
        except ImportError:
            raise UsageError("Remote agents require httpx2. Run: pip install 'sapwood[remote]'.") from None
        limits = httpx2.Timeout(SILENCE, connect=CONNECT)
        trusted = await asyncio.to_thread(_trusted)  # it takes a while, the first time
        self._client = await self._open.enter_async_context(httpx2.AsyncClient(verify=trusted, timeout=limits))
        self._broken = httpx2.TransportError
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._open.aclose()

    async def start(self, session: str, input: Any) -> RemoteStatus:
        """Start a run. Idempotent: a known run is not started again."""
        body = wire.encoded(wire.Start(msgspec.Raw(msgspec.json.encode(input))))
        return await self._state(session, "POST", wire.PATH, body)

    async def status(self, session: str) -> RemoteStatus:
        """Return the status of a run. Raises `RemoteLost` if the server does not know it."""
        return await self._state(session, "GET", wire.PATH)

    async def cancel(self, session: str, reason: str) -> RemoteStatus:
        """Cancel a run. A run that has not started is never started."""
        return await self._state(session, "POST", wire.CANCEL, wire.encoded(wire.CancelRequest(reason)))

    async def answer(self, session: str, answer: RemoteAnswer) -> bool:
        """Answer a question of a run. Raises `Refused` if the other server does not allow the answer."""
        body = wire.encoded(msgspec.convert(answer, wire.AnswerRequest, from_attributes=True))
        async with self._answer(session, "POST", wire.ANSWER, body) as response:
            try:
                answered = frames.read_json(await _body(response, LONGEST_TROUBLE), wire.AnswerReceipt)
            except (msgspec.MsgspecError, ValueError) as error:
                raise RemoteRefused(f"{self._url} sent an invalid response: {error}.") from None
        if answered.refused is not None:
            raise Refused(answered.refused)
        return answered.answered

    async def stream(self, session: str, after: Position) -> AsyncGenerator[list[RemoteEvent], None]:
        """Yield batches of events of a run until the run or the connection ends."""
        body, reader = wire.StreamFrom(after.seq + 1, after.milestones, after.nested), wire.EventStreamReader()
        async with self._answer(session, "POST", wire.STREAM, wire.encoded(body), accept=wire.SSE) as response:
            async for data in response.aiter_bytes():
                try:
                    yield list(_events(reader.read(data)))
                except (msgspec.MsgspecError, ValueError) as error:
                    raise RemoteRefused(f"{self._url} sent an invalid event: {error}.") from None

    async def _state(self, session: str, method: str, path: str, body: bytes | None = None) -> RemoteStatus:
        async with self._answer(session, method, path, body) as response:
            try:
                return _status(frames.read_json(await _body(response, wire.LONGEST), wire.RemoteRunState))
            except (msgspec.MsgspecError, ValueError) as error:
                raise RemoteRefused(f"{self._url} sent an invalid response: {error}.") from None

    @asynccontextmanager
    async def _answer(
        self, session: str, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> AsyncGenerator[httpx2.Response, None]:
        """Send a request; whatever goes wrong while its answer is read is one of our own errors."""
        headers[wire.HEADER] = str(wire.VERSION)
        token = self._token()
        if isawaitable(token):
            token = await token
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        if (trace := tracing.text()) is not None:
            headers["traceparent"] = trace
        if body is not None:
            headers["content-type"] = "application/json"
        url = f"{self._url}/{quote(session, safe='')}{path}"
        try:
            async with self._client.stream(method, url, headers=headers, content=body) as response:
                await self._check(response)
                yield response
        except self._broken as error:
            why = str(error) or type(error).__name__
            raise Unavailable(f"{self._url} cannot be reached: {why}") from error

    async def _check(self, response: httpx2.Response) -> None:
        """Raise unless the answer is one of a server that does what we ask, and as we understand it."""
        status, speaks = response.status_code, response.headers.get(wire.HEADER)
        if status == UPGRADE or (response.is_success and speaks != str(wire.VERSION)):
            raise ProtocolMismatch(
                f"{self._url} uses version {speaks or 'none'} of the remote run protocol, this program uses version "
                f"{wire.VERSION}. Use the same release of sapwood on both sides."
            )
        if response.is_success:
            return
        trouble = _trouble(await _body(response, LONGEST_TROUBLE, cut=True))
        told = f"{self._url} responded with {status}: {trouble.error}"
        if status in LATER and response.headers.get(final_errors.HEADER) not in final_errors.KINDS:
            raise Unavailable(told)
        if status in NOT_LET_IN and trouble.code == UNSAID:  # else the agent itself refuses
            raise RemoteUnauthorized(f"{told} Check the token, and `authenticate` of that server.")
        if trouble.code == RemoteLost.code:
            raise RemoteLost(told)
        if status in NOT_THERE and trouble.code == UNSAID:
            told = f"{told} `url` must name a class with expose_runs = True there, such as …/agents/researcher."
        raise RemoteRefused(told)


def _events(arrived: list[wire.RunEvent]) -> Iterator[RemoteEvent]:
    """Yield the events that a server sent; later versions may send kinds that this one does not know."""
    for told in arrived:
        if told.kind == "chunk":
            yield Chunk(told.seq or 0, msgspec.Raw(told.body))
        elif told.kind == "quiet":
            quiet = msgspec.json.decode(told.body, type=wire.Quiet)
            yield Heartbeat(quiet.waits, quiet.idle)
        elif told.kind == "questions":
            yield OpenQuestions(
                [_question(one) for one in msgspec.json.decode(told.body, type=list[wire.AskedQuestion])]
            )
        elif told.kind == "nested":
            if len(told.body) <= wire.MAX_NESTED_BATCH_BYTES:
                yield _nested(msgspec.json.decode(told.body, type=wire.NestedBatch))
        elif told.kind == "end":
            yield End(_status(msgspec.json.decode(told.body, type=wire.RemoteRunState)))
        elif told.kind == "progress":
            yield _progress(msgspec.json.decode(told.body, type=dict[str, Any]))
        elif told.kind == "milestone":
            body = msgspec.json.decode(told.body, type=dict[str, Any])
            yield Milestone(str(body.get("name")), _progress(body))


def _question(asked: wire.AskedQuestion) -> RemoteQuestion:
    path = tuple(PathSegment(one.type, one.name) for one in asked.path)
    return RemoteQuestion(asked.id, asked.tool, asked.arguments, path)


def _nested(told: wire.NestedBatch) -> NestedEvents:
    events = [
        NestedEvent(
            tuple(PathSegment(step.type, step.name) for step in one.path),
            one.run,
            cast("Any", one.kind),  # the caller checks it
            one.at,
            one.seq,
            one.body,
            one.parent,
        )
        for one in told.events
    ]
    return NestedEvents(events, told.cursor)


def _progress(body: dict[str, Any]) -> Progress:
    return Progress(**{name: body.get(name) for name in ("fraction", "message", "phase", "data")})


def _status(state: wire.RemoteRunState) -> RemoteStatus:
    if state.status not in STATUSES:
        raise ValueError(f"unknown status {state.status!r}")
    usage: dict[str, Any] = {}
    with suppress(msgspec.MsgspecError):  # it counts in another way
        usage = msgspec.json.decode(state.usage, type=dict[str, Any])
    return RemoteStatus(
        cast("Status", state.status),
        state.seq,
        waits=state.waits,
        output=state.output,
        summary=state.summary,
        error=state.error,
        reason=state.reason,
        usage=usage,
        nested=state.nested,
    )


async def _body(response: httpx2.Response, longest: int, *, cut: bool = False) -> bytes:
    """Return the body of a response; `ValueError` if it is longer than that, or only so much of it if `cut`."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > longest:
            if not cut:
                raise ValueError(f"it exceeds {longest} bytes")
            break
    return b"".join(parts)[:longest]


def _trouble(body: bytes) -> wire.Trouble:
    """Return why a server refuses; what is not of a sapwood server's own is repeated, as far as it is short."""
    try:
        return frames.read_json(body, wire.Trouble)
    except msgspec.MsgspecError:
        text = body.decode(errors="replace")[:SHOWN].strip()
        return wire.Trouble(UNSAID, f"{text}." if text else "No reason was given.")


@functools.cache
def _trusted() -> Any:
    """Return whom TLS trusts; made once, since reading all certificates takes a while."""
    import httpx2

    return httpx2.create_ssl_context()
