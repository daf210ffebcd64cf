"""What happens in a tree of agents, as events: sent to the subscribers of the agent itself and of those above it.

An event names its agent by path, and the run it belongs to. Frames on a wire are projections
of events, made elsewhere.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from sapwood.address import Address, PathSegment
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.outbox import Outbox

Kind = Literal[
    "started",
    "chunk",
    "progress",
    "milestone",
    "waiting",
    "resumed",
    "retracted",
    "completed",
    "failed",
    "cancelled",
    "interrupted",
]
ENDS: dict[str, Kind] = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "interrupted": "interrupted",
}
"""The kind of event for a run, or turn, that has this status."""
RETRACTED = "retracted"
"""The type of the chunk that follows what a turn had said of a step that it begins again. No client is sent it."""
Depth = Literal["self", "children", "tree"]
LEVELS: dict[str, float] = {"self": 0, "children": 1, "tree": float("inf")}
"""How many levels below the agent its listeners hear of."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in an agent, or in a run that it executes."""

    path: tuple[PathSegment, ...]
    """The path of the agent, root first."""
    run_id: str | None
    """The run that it belongs to; `None` for a turn that no caller started as a run."""
    parent_run_id: str | None
    """The run that started that run; `None` if it was not started in a run."""
    seq: int
    """Its number in the run or turn. 0 is the start. Only progress and milestones may repeat a number. `waiting` and
    `resumed`, which belong to no run, always have 0."""
    at: float
    """When it happened, in seconds since the epoch, UTC. Over HTTP, it is in milliseconds."""
    kind: Kind
    """What happened."""
    body: Any = None
    """The data of the event: the chunk, the input of a start, or the result of an end. For `waiting`, the ids of the
    open questions of the agent; for `retracted`, the number after which all chunks of the turn are invalid."""
    cursor: str | None = None
    """The position for `subscribe(after=…)`. `None` for some events while very many runs are active."""
    remote: int = 0
    """Number of segments at the end of `path` that are on another server, below the stand-in of a remote agent."""


@dataclass(frozen=True, slots=True)
class OwnTurn:
    """A running turn that belongs to no run."""

    id: str
    stream: int
    """What its chunks are stored by."""
    began_at: float

    def started(self, path: tuple[PathSegment, ...]) -> Event:
        return Event(path, None, None, 0, self.began_at, "started", {"turn": self.id})


def turn_event(path: tuple[PathSegment, ...], seq: int, at: float, chunk: dict[str, Any]) -> Event:
    """Return the event for a stored chunk of a turn that belongs to no run."""
    if chunk["type"] == RETRACTED:
        return Event(path, None, None, seq, at, "retracted", {"after": chunk["after"]})
    return Event(path, None, None, seq, at, "chunk", chunk)


class Ear:
    """One listener. It is a sink of the agent's outbox, so what it hears has passed the gate, in order."""

    def __init__(self, address: Address, levels: float, most: int, *, runs_only: bool = False) -> None:
        self.address = address
        self.levels = levels
        self.runs_only = runs_only
        """Whether it hears of runs only: not what they say, not of turns that are no runs, and not of questions."""
        self._most = most
        """Events that may wait for it."""
        self.heard: deque[Event | None] = deque()
        """What happened since it last was not behind. `None`: questions were asked or answered."""
        self.is_behind = True
        """Whether something happened that it has not heard."""
        self.is_over = False
        self._waiting: Future[None] | None = None

    def send(self, event: Any) -> None:
        if len(self.heard) >= self._most:
            self._miss()
        elif not self.is_behind:
            self.heard.append(event)
            self._wake()

    def close(self, code: int, reason: str) -> None:
        """Something that was written is lost, and what was about to be told of it."""
        self._miss()

    def _miss(self) -> None:
        self.is_behind = True
        self.heard.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def end(self) -> None:
        """It is to hear no more."""
        self.is_over = True
        self._wake()

    async def news(self, patience: float | None = None) -> bool:
        """Return when there is something to hear, or something was missed; False if nothing was for so many seconds."""
        if self.heard or self.is_behind or self.is_over:
            return True
        loop = asyncio.get_running_loop()
        waiting = self._waiting = loop.create_future()
        timer = None if patience is None else loop.call_later(patience, self._wake)
        try:
            await waiting
        finally:
            if timer is not None:
                timer.cancel()
        return bool(self.heard or self.is_behind or self.is_over)


class Feed:
    """The subscribers of one agent, and its turns that belong to no run."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self.ears: set[Ear] = set()
        self.turn: OwnTurn | None = None
        """Its own turn that is running."""
        self.last: Event | None = None
        """How its own last turn ended, in this life."""

    def listen(self, levels: float, *, runs_only: bool = False) -> Ear:
        """Add a subscriber. It counts as behind until it has read what is stored."""
        ear = Ear(self._actor.address, levels, self._actor.host.timings.event_queue, runs_only=runs_only)
        self.ears.add(ear)
        return ear

    def begin(self, turn: OwnTurn) -> None:
        """A turn of the agent's own begins, or continues."""
        self.turn = turn
        tell(self._actor, turn.started(self._actor.address.segments))

    def say(self, first: int, chunks: list[Any], at: float) -> None:
        """Tell what the turn says."""
        path = self._actor.address.segments
        for number, chunk in enumerate(chunks, first + 1):
            tell(self._actor, turn_event(path, number, at, chunk))

    def end(self, kind: Kind | None, seq: int, body: dict[str, Any]) -> None:
        """Record that the turn has ended or, with `None`, waits for an answer."""
        turn, self.turn = self.turn, None
        if turn is not None and kind is not None:
            now = self._actor.host.clock.now()
            told = {"turn": turn.id, **body}
            self.last = Event(self._actor.address.segments, None, None, seq, now, kind, told)
            tell(self._actor, self.last)


def ears_of(actor: Actor, path: tuple[PathSegment, ...], *, is_run: bool = False) -> list[Ear]:
    """Return who hears of what happens at this path, told by this agent: those who listen here and above.

    `is_run` says that it is about a run as a whole.
    """
    found: list[Ear] = []
    at: Actor | None = actor
    while at is not None:
        feed = at.found(Feed)
        if feed is not None and feed.ears:
            level = len(path) - len(at.address.segments)
            found += [ear for ear in feed.ears if level <= ear.levels and (is_run or not ear.runs_only)]
        at = at.parent
    return found


def tell(actor: Actor, event: Event) -> None:
    """Send an event to all subscribers, once what this agent wrote is committed."""
    is_run = event.kind != "chunk" and event.run_id is not None
    _put(actor, ears_of(actor, event.path, is_run=is_run), event)


def tell_here(actor: Actor, event: Event) -> None:
    """Tell those who listen at this agent: those above it hear the same from its parent."""
    feed = actor.found(Feed)
    if feed is not None and feed.ears:
        _put(actor, list(feed.ears), event)


def _put(actor: Actor, ears: list[Ear], event: Event) -> None:
    for ear in ears:
        actor.of(Outbox).put(ear, event)
