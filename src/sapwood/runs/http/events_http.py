"""What happens in an agent's tree, over HTTP: `GET …/events`, as lines of JSON or as server-sent events.

The reader sets the pace: what it has not taken yet is not read from where it is stored.
That it leaves ends nothing but the reading.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from sapwood.capabilities.connections import HttpOnly
from sapwood.clock import Clock
from sapwood.errors import InvalidArguments
from sapwood.kernel.actors.actor import Actor
from sapwood.runs.dispatch.subscription import Subscription
from sapwood.runs.execution.access_gates import Gates, Path, refused_to_watch
from sapwood.settings import Settings
from sapwood.wire import events as wire
from sapwood.wire.helix import Helix

PATH = "/events"
FORMATS: dict[str, type[wire.Events | Helix]] = {"events": wire.Events, "helix": Helix}


class EventReader(Protocol):
    """A reader of events."""

    def end(self) -> None:
        """Have nothing further be told."""
        ...


class OpenStreams:
    """The readers by HTTP of one node: they would keep a server from ending."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.readers: set[EventReader] = set()

    def end(self) -> None:
        """End every stream; each reader comes back with its cursor."""
        for reader in self.readers:
            reader.end()


class Watchers(HttpOnly):
    """Those who watch one agent over HTTP."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def request(self, request: Any) -> Any:
        """Answer a request for what happens; None if it is for something else."""
        if request.method != "GET" or request.scope["path"] != PATH:
            return None
        if (refused := await refused_to_watch(self._actor, request)) is not None:
            return refused
        from starlette.responses import StreamingResponse

        asked = request.query_params
        depth, format = asked.get("depth", "tree"), asked.get("format", "events")
        if format not in FORMATS:
            raise InvalidArguments(f"`format` must be one of {', '.join(FORMATS)}, got {format!r}.")
        # A browser that comes back names what it saw last, and the URL is still the one of its first visit.
        after = request.headers.get("last-event-id") or asked.get("after")
        watch = Subscription(self._actor, depth, after, asked.get("input", "full" if format == "helix" else "preview"))
        media = wire.SSE if wire.SSE in request.headers.get("accept", "") else wire.NDJSON
        return StreamingResponse(
            _lines(self._actor, watch, Gates(self._actor, request, "request", PATH), FORMATS[format](), media),
            media_type=media,
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )


async def _lines(
    actor: Actor, watch: Subscription, gates: Gates, projection: wire.Events | Helix, media: str
) -> AsyncGenerator[bytes, None]:
    host, depth = actor.host, len(actor.address.segments)
    streams, admitted = host.shared(OpenStreams), dict[Path, bool]()
    streams.readers.add(watch)
    try:
        async with aclosing(watch.events_or_silence(host.timings.event_keepalive_interval)) as events:
            async for event in events:
                if event is None:
                    yield wire.QUIET[media]
                    continue
                # Beyond the sub-agent that stands for a remote one, there is no gate here: its own decides.
                if (path := event.path[depth : len(event.path) - event.remote]) not in admitted:
                    admitted[path] = await gates.admits(path)
                if admitted[path] and (sent := wire.encoded(projection.of(event), event.cursor, media)):
                    yield sent
    finally:
        streams.readers.discard(watch)
