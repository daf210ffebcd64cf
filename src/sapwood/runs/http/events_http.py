"""What happens in an agent's tree, over HTTP: `GET …/events`, as lines of JSON or as server-sent events.

The reader sets the pace: what it has not taken yet is not read from where it is stored.
That it leaves ends nothing but the reading.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager
from typing import Any, NamedTuple, Protocol

from sapwood.address import Address
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


class OpenEvents(NamedTuple):
    """One open stream of events."""

    number: int
    """Counts the streams of the node."""
    address: Address
    user: object
    client: str | None
    """The User-Agent."""
    began_at: float


class OpenStreams:
    """The readers by HTTP of one node: they would keep a server from ending."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._opened = 0
        self.readers: set[EventReader] = set()
        self._events: dict[Address, dict[int, OpenEvents]] = {}

    def events_of(self, address: Address) -> list[OpenEvents]:
        """Return the streams of events of an agent, the oldest first."""
        return list(self._events.get(address, {}).values())

    @contextmanager
    def opened(self, address: Address, user: object, client: str | None) -> Generator[None]:
        """List a stream of events in this block."""
        self._opened += 1
        one = OpenEvents(self._opened, address, user, client, self._clock.now())
        own = self._events.setdefault(address, {})
        own[one.number] = one
        try:
            yield
        finally:
            del own[one.number]
            if not own:
                self._events.pop(address, None)

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
            _lines(self._actor, watch, request, FORMATS[format](), media),
            media_type=media,
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )


async def _lines(
    actor: Actor, watch: Subscription, request: Any, projection: wire.Events | Helix, media: str
) -> AsyncGenerator[bytes, None]:
    host, depth = actor.host, len(actor.address.segments)
    gates = Gates(actor, request, "request", PATH)
    streams, admitted = host.shared(OpenStreams), dict[Path, bool]()
    streams.readers.add(watch)
    try:
        with streams.opened(actor.address, request.scope.get("user"), request.headers.get("user-agent")):
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
