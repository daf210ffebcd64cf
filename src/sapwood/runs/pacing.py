"""Who says when the work of an agent goes on: the agent itself, or a driver that outlives its process.

Work is a turn of a conversation, or a run that a method does. It is done in the agent, one
step after the other, and all that comes of it is stored there. A driver does not do the
work: it says when the next step may begin, and is told how it stands after each.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sapwood.address import Address
from sapwood.capabilities.agenda import Agenda
from sapwood.capabilities.fibers import OWNER
from sapwood.capabilities.steps import Work
from sapwood.clock import Clock
from sapwood.kernel.actor import Actor
from sapwood.kernel.context import current
from sapwood.runs.served import Served
from sapwood.settings import Settings

if TYPE_CHECKING:
    from sapwood.kernel.node import Node
    from sapwood.web.asgi import ASGI

RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Part:
    """What a driver may drive: a turn or a run of one agent."""

    address: Address
    id: str
    """The id of the turn, or of the run."""
    is_new: bool = True
    """Whether it was never driven: it has neither waited for an answer nor been interrupted."""
    above: tuple[Address, str] | None = None
    """The agent whose turn or run it is part of, and the id of that."""
    seconds: float | None = None
    """Seconds that it may still take. `None` means no limit."""


class Pace(Protocol):
    """Paces one part while it is executed in this process."""

    def asked(self) -> Future[None] | None:
        """Return a future that is done when the next step may start, and raises if none may.

        `None` means that it may start now.
        """
        ...

    def stepped(self, status: str, *, waits: bool = False, reason: str | None = None) -> bool:
        """Tell how it stands after a step; return whether the driver knows now.

        It may have to wait for others before the next one, or be over; `reason` is the code of what went wrong.
        """
        ...


class Driver(Protocol):
    """Says when turns and runs go on."""

    def pacing(self, part: Part) -> AbstractContextManager[Pace]:
        """Pace a part in this block."""
        ...

    async def over(self, part: Part, status: str) -> None:
        """Have the driver know that a part is over which could not be told after a step."""
        ...


class OutsideDriver(Driver, Protocol):
    """A driver beyond this process: for `App(driver=…)`."""

    path: str
    """Where it comes in, below the app's own URL."""

    async def start(self, node: Node) -> None:
        """Begin to drive what the agents of this node do."""
        ...

    async def stop(self) -> None:
        """End; what is under way goes on when it is started again."""
        ...

    @property
    def door(self) -> ASGI:
        """What answers requests below `path`."""
        ...


class OwnPace:
    """Goes on by itself."""

    def asked(self) -> None:
        return None

    def stepped(self, status: str, *, waits: bool = False, reason: str | None = None) -> bool:
        return True


class OwnDriver:
    """Lets everything go on by itself: what drives it is its fiber."""

    @contextmanager
    def pacing(self, part: Part) -> Generator[Pace, None, None]:
        yield OwnPace()

    async def over(self, part: Part, status: str) -> None:
        pass


class Driving:
    """Who drives the turns and runs of one node."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.driver: Driver = OwnDriver()
        self._held: set[tuple[Address, str]] = set()
        """Turns and runs that could go on, as soon as the driver says so."""

    @contextmanager
    def holding(self, address: Address, id: str) -> Generator[None, None, None]:
        """Have this turn or run wait for its driver in this block."""
        self._held.add((address, id))
        try:
            yield
        finally:
            self._held.discard((address, id))

    def holds(self, above: Address) -> bool:
        """Return whether this agent, or one below it, waits for the driver."""
        return any(address.segments[: len(above.segments)] == above.segments for address, _ in self._held)


def is_again(actor: Actor) -> bool:
    """Return whether the fiber that runs now was interrupted before."""
    call = current.get()
    work = call.work if call is not None else None
    if not isinstance(work, Work) or work.fiber is None:
        return False
    return actor.of(Agenda).fibers.current().recoveries > 0


def part_of(actor: Actor, id: str, run: str | None, *, is_new: bool) -> Part:
    """Return what is driven: the turn or run of this id, which does this run for the agent above."""
    given = None if run is None else actor.of(Served).given(run)
    parent, above, seconds = actor.parent, None, None
    if given is not None and parent is not None and given.work is not None and not given.work.startswith(OWNER):
        above = (parent.address, given.work)
    if given is not None and given.deadline_at is not None:
        seconds = max(given.deadline_at - actor.host.clock.now(), 0.0)
    return Part(actor.address, id, is_new, above, seconds)
