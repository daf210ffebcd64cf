"""Server-sent events of the admin API: how they are written, read from another node, and joined."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio import CancelledError, Queue, Task
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from sapwood.admin.endpoint import Answer, Endpoint, Event, Params
from sapwood.errors import Refused, SapwoodError, Unavailable
from sapwood.kernel.marshal.copier import json_hook
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.transport import Exchange
from sapwood.runs.http.events_http import OpenStreams

KEEP_ALIVE = 15.0
"""Seconds without an event after which a comment is sent."""
QUIET = b":\n\n"
END, ERROR = "end", "error"
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
WAITING = 64
"""Events of several nodes that wait until the client has read earlier ones."""


class EventStream:
    """The events of one response. The server may end it when it stops."""

    def __init__(self, node: Node, events: AsyncGenerator[Event, None], is_allowed: Callable[[], bool]) -> None:
        """`is_allowed` says whether the token is still valid. It is called before each event and each comment."""
        self._is_allowed = is_allowed
        self._streams = node.shared(OpenStreams)
        self._events = events
        self._stopped = asyncio.Event()

    def end(self) -> None:
        """Tell the client that the server stops."""
        self._stopped.set()

    async def response(self) -> Response:
        """Return the response. An error before the first event is raised, so that it gets its own status."""
        try:
            first = await anext(self._events)
        except StopAsyncIteration:
            first = None
        return StreamingResponse(self._lines(first), media_type="text/event-stream", headers=HEADERS)

    async def _lines(self, first: Event | None) -> AsyncGenerator[bytes, None]:
        self._streams.readers.add(self)
        stopped = asyncio.ensure_future(self._stopped.wait())
        is_over = first is None
        try:
            if first is not None:
                yield encoded(*first)
            while not is_over:
                coming = asyncio.ensure_future(anext(self._events, None))
                try:
                    while not coming.done() and not stopped.done():
                        await asyncio.wait({coming, stopped}, timeout=KEEP_ALIVE, return_when="FIRST_COMPLETED")
                        if not self._is_allowed():
                            raise Refused("The token is not valid any more.")
                        if not coming.done() and not stopped.done():
                            yield QUIET
                    if not coming.done():
                        raise Unavailable("The server stops.")
                    event = coming.result()
                finally:
                    await _cancelled(coming)
                is_over = event is None
                if event is not None:
                    yield encoded(*event)
        except SapwoodError as error:
            yield encoded(ERROR, {"error": str(error), "code": error.code})
        finally:
            self._streams.readers.discard(self)
            await _cancelled(stopped)
            await self._events.aclose()


async def _cancelled(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        with contextlib.suppress(CancelledError, StopAsyncIteration, SapwoodError):
            await task


def encoded(name: str, data: Any) -> bytes:
    """Return an event as it is sent."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(data, enc_hook=json_hook))


async def events_from(opening: Awaitable[Exchange]) -> AsyncGenerator[Event, None]:
    """Yield the events that another node sends."""
    exchange = await opening
    try:
        waiting, status = b"", 200
        while (packed := await exchange.receive()) is not None:
            message = msgspec.msgpack.decode(packed, type=dict[str, Any])
            status = message.get("status", status)
            waiting += message.get("body", b"")
            if status != 200:
                continue
            *events, waiting = waiting.split(b"\n\n")
            for text in events:
                if (event := _decoded(text)) is not None:
                    yield event
        if status != 200:
            raise Unavailable(f"Another process refused the request: {waiting.decode(errors='replace')}")
    finally:
        exchange.drop()


def _decoded(text: bytes) -> Event | None:
    name, _, data = text.partition(b"\n")
    if not name.startswith(b"event: "):
        return None
    event, told = name.removeprefix(b"event: ").decode(), msgspec.json.decode(data.removeprefix(b"data: "))
    if event == ERROR:
        raise Unavailable(str(told["error"]))
    return event, told


async def together(parts: Sequence[AsyncGenerator[Event, None]]) -> AsyncGenerator[tuple[int, Event], None]:
    """Yield the events of several sources as they come, each with the number of its source."""
    queue: Queue[tuple[int, Event] | Exception | None] = Queue(WAITING)

    async def pump(number: int, part: AsyncGenerator[Event, None]) -> None:
        try:
            async with contextlib.aclosing(part):
                async for event in part:
                    await queue.put((number, event))
            await queue.put(None)
        except Exception as error:  # noqa: BLE001 - the stream must not wait for this source without end
            await queue.put(error)

    tasks: list[Task[None]] = [asyncio.create_task(pump(number, part)) for number, part in enumerate(parts)]
    try:
        left = len(tasks)
        while left:
            match await queue.get():
                case None:
                    left -= 1
                case Exception() as error:
                    raise error
                case told:
                    yield told
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def one_stream(
    endpoint: Endpoint[Any], params: Params, events: AsyncGenerator[tuple[int, Event], None]
) -> AsyncGenerator[Event, None]:
    """Yield the events of several nodes as one would send them: as many rows as were asked for, and one end."""
    ends: list[Answer] = []
    left: int = getattr(params, "limit", sys.maxsize)
    async for _, (name, data) in events:
        if name == END:
            ends.append(data)
            continue
        if "rows" in data:
            if len(data["rows"]) > left:
                ends.append({"searched": 0, "more": True})
            data["rows"] = data["rows"][:left]
            left -= len(data["rows"])
            if not data["rows"]:
                continue
        yield name, data
    if ends:
        yield END, endpoint.merge(params, ends) if endpoint.merge is not None else ends[0]
