"""The events of an A2A stream, and the silence between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import msgspec

from sapwood.kernel.actors.actor import Actor
from sapwood.protocols import a2a_wire as wire
from sapwood.runs.events.events import ENDS, Ear, Event, Feed
from sapwood.runs.http.events_http import OpenStreams

if TYPE_CHECKING:
    from starlette.requests import Request

KEEP_ALIVE = 15.0
"""Seconds without an event after which a stream sends a comment."""


def update(kind: str, id: str, context: str, **fields: Any) -> dict[str, Any]:
    """Return an update of a task."""
    return {kind: {"taskId": id, "contextId": context, **fields}}


def line(call: wire.Call, event: dict[str, Any]) -> bytes:
    """Return an event of a stream; an empty one is a comment, so that the connection is not taken for dead."""
    return b"data: " + msgspec.json.encode(wire.response(call.id, event)) + b"\n\n" if event else b": quiet\n\n"


class TaskBell(Ear):
    """Rings when a run of the desk has ended, or other questions are open below the desk."""

    def __init__(self, actor: Actor, id: str) -> None:
        super().__init__(actor.address, 1, actor.host.timings.event_queue)
        self._id = id

    def send(self, event: Any) -> None:
        if event is None or (event.run_id == self._id and event.kind in ENDS):
            self.close(0, "")

    def reset(self) -> None:
        """Ring for what happens from now on."""
        self.is_behind = False


@contextmanager
def bell_of(actor: Actor, id: str) -> Generator[TaskBell, None, None]:
    """Listen to the end and the questions of a run, until the server stops."""
    feed, streams, bell = actor.of(Feed), actor.host.shared(OpenStreams), TaskBell(actor, id)
    feed.ears.add(bell)
    streams.readers.add(bell)
    try:
        yield bell
    finally:
        feed.ears.discard(bell)
        streams.readers.discard(bell)


class Ending:
    """Ends a stream when the server stops."""

    def __init__(self) -> None:
        self.told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """Have nothing further be told."""
        if not self.told.done():
            self.told.set_result(None)


async def or_silence(
    streams: OpenStreams, events: AsyncGenerator[Event, None], seconds: float
) -> AsyncGenerator[Event | None, None]:
    """Yield events until the server stops, and `None` whenever nothing has happened for so long."""
    ending, following = Ending(), _next(events)
    streams.readers.add(ending)
    try:
        while True:
            await asyncio.wait({following, ending.told}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if ending.told.done():
                return
            if not following.done():
                yield None
                continue
            try:
                event = following.result()
            except StopAsyncIteration:  # the agent was deleted
                return
            following = _next(events)
            yield event
    finally:
        streams.readers.discard(ending)
        following.cancel()
        await asyncio.wait({following})
        if not following.cancelled():
            following.exception()  # no reader is left
        await events.aclose()


def _next(events: AsyncGenerator[Event, None]) -> asyncio.Task[Event]:
    return asyncio.ensure_future(cast("Any", anext(events)))


async def lost(request: Request) -> None:
    """Return when the client of a request whose body was read has gone."""
    message = await request.receive()
    while message["type"] != "http.disconnect":
        await asyncio.sleep(0)  # some servers say again that there is no more
        message = await request.receive()
