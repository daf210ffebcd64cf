"""What happens in a tree of agents, as events: told to whoever listens at the agent itself, or at one above it.

An event names the agent it happened in, by its path, and the run it belongs to. How it
looks on a wire is another matter: projections make frames of it.
"""

from __future__ import annotations

from asyncio import Queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from sapwood.address import Step
from sapwood.kernel.actor import Actor
from sapwood.kernel.outbox import Outbox
from sapwood.kernel.sockets import Socket

Kind = Literal["started", "chunk", "progress", "milestone", "finished", "error", "aborted", "interrupted"]
Depth = Literal["self", "children", "tree"]
LEVELS: dict[str, float] = {"self": 0, "children": 1, "tree": float("inf")}
"""How many levels below the agent its listeners hear of."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in an agent, or to a run it does."""

    path: tuple[Step, ...]
    """The agent it happened in, root first."""
    run_id: str | None
    """The run it belongs to; None if the agent does it for nobody."""
    parent_run_id: str | None
    """The run in which that run was given; None if it was given in none."""
    seq: int
    """Its number in its run, or turn: 0 is the start, and no number comes twice but for progress and milestones."""
    at: float
    """When it happened, in seconds since the epoch, UTC."""
    kind: Kind
    """What happened."""
    body: Any = None
    """What there is to tell: for a chunk, the chunk; for a start, the input; for an end, how it ended."""


class Ear:
    """One listener. An agent's outbox takes it for a socket, so what it hears has passed the gate, in order."""

    is_open = True

    def __init__(self, depth: Depth, heard: Callable[[Event], None]) -> None:
        self.levels = LEVELS[depth]
        self._heard = heard
        self.lost: Callable[[], None] = lambda: None
        """Called when what was written is lost: whoever listens has to come again."""

    def send(self, event: Any) -> None:
        if self.is_open:
            self._heard(event)

    def close(self, code: int, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self.lost()


class Feed:
    """Who listens at one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self.ears: set[Ear] = set()

    def listen(self, depth: Depth, heard: Queue[Event | None]) -> Ear:
        """Have what happens from now on put into a queue; None says that no more will come."""
        ear = Ear(depth, heard.put_nowait)
        ear.lost = lambda: heard.put_nowait(None)
        self.ears.add(ear)
        return ear


def ears_of(actor: Actor, path: tuple[Step, ...]) -> list[Ear]:
    """Return who hears of what happens at this path, told by this agent: those who listen here and above."""
    found: list[Ear] = []
    at: Actor | None = actor
    while at is not None:
        feed = at.found(Feed)
        if feed is not None and feed.ears:
            level = len(path) - len(at.address.steps)
            found += [ear for ear in feed.ears if level <= ear.levels]
        at = at.parent
    return found


def tell(actor: Actor, event: Event) -> None:
    """Tell everybody who listens, once what this agent wrote is kept."""
    for ear in ears_of(actor, event.path):
        actor.of(Outbox).put(cast("Socket", ear), cast("Any", event))
