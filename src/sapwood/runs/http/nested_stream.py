"""The events of the runs below a run of a root, for the calling server: in batches, each with where to resume after it.

The calling server sees what it could see at `…/events`: the gates between the root and an agent below it are asked.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from sapwood.errors import Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.runs.dispatch.subscription import Subscription
from sapwood.runs.events.events import Ear, Event
from sapwood.runs.execution.access_gates import Gates, Path
from sapwood.runs.http.events_http import PATH
from sapwood.runs.remote.nested_log import fitted
from sapwood.wire import remote as wire

log = logging.getLogger(__name__)


class NestedEar(Ear):
    """Rings the bell of a stream when something happens to a run below its agent."""

    def __init__(self, bell: Ear) -> None:
        super().__init__(bell.address, float("inf"), 0, runs_only=True)
        self._bell = bell
        self.has_news = True
        """Whether there may be events that were not read."""

    def send(self, event: Any) -> None:
        self.close(0, "")

    def close(self, code: int, reason: str) -> None:
        self.has_news = True
        self._bell.close(0, "")


class NestedStream:
    """The events of the runs below a run, for one calling server."""

    def __init__(self, actor: Actor, request: Any, after: str | None) -> None:
        self._actor = actor
        self._depth = len(actor.address.segments)
        self._watch = Subscription(actor, "tree", after, runs_only=True)
        self._events = self._watch.events_or_silence(0.0)
        self._gates = Gates(actor, request, "request", PATH)
        self._admitted: dict[Path, bool] = {}
        self._is_too_long = False

    async def close(self) -> None:
        """Stop reading."""
        await self._events.aclose()

    async def batches(self, *, is_last: bool) -> AsyncGenerator[bytes, None]:
        """Yield what happened and was not told yet, as JSON. With `is_last`, also what was not heard yet."""
        if is_last:
            self._watch.look_again()
        is_more = True
        while is_more:
            found: list[wire.NestedEvent] = []
            while is_more and len(found) < wire.MAX_NESTED_EVENTS:
                event = await self._next()
                is_more = event is not None
                if event is not None and await self._is_told(event):
                    found.append(self._shown(event))
            if found and self._fits(cursor := self._watch.cursor()):
                yield wire.encoded(wire.NestedBatch(found, cursor))

    async def _next(self) -> Event | None:
        """Return the next event; `None` if there is none now, or if what is below cannot be read any more."""
        try:
            return await anext(self._events, None)
        except Exception:
            self._actor.check_live()
            where = {"address": str(self._actor.address)}
            log.exception("events of nested runs cannot be read address=%s", self._actor.address, extra=where)
            return None  # and from now on: the run itself is told to its end

    async def _is_told(self, event: Event) -> bool:
        if len(event.path) == self._depth or event.run_id is None:
            return False
        path = event.path[self._depth : len(event.path) - event.remote]
        if path not in self._admitted:
            try:
                is_admitted = await self._gates.admits(path)
            except Unavailable:  # an agent on the way cannot be asked
                is_admitted = False
            self._actor.check_live()  # a gate that ends with its agent has not refused: the caller asks again
            self._admitted[path] = is_admitted
        return self._admitted[path]

    def _shown(self, event: Event) -> wire.NestedEvent:
        assert event.run_id is not None
        path = [wire.PathStep(step.type, step.name) for step in event.path[self._depth :]]
        body = msgspec.Raw(fitted(event.kind, event.body))
        return wire.NestedEvent(path, event.run_id, event.kind, event.at, event.seq, body, event.parent_run_id)

    def _fits(self, cursor: str) -> bool:
        """Return whether the caller could resume with a cursor; what it could see twice otherwise is left out."""
        if len(cursor) > wire.MAX_CURSOR and not self._is_too_long:
            self._is_too_long = True
            log.warning("too many nested runs, their events are not sent address=%s", self._actor.address)
        return len(cursor) <= wire.MAX_CURSOR
