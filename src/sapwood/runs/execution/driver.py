"""What decides when the work of an agent continues: the agent itself, or a driver that outlives its process.

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
from sapwood.capabilities.steps import Work
from sapwood.clock import Clock
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.call import current
from sapwood.runs.execution.executor import RunExecutor
from sapwood.settings import Settings

if TYPE_CHECKING:
    from sapwood.kernel.node.node import Node
    from sapwood.web.asgi_types import ASGI

RUNNING = "running"


@dataclass(frozen=True, slots=True)
class DrivenWork:
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


class DriverPace(Protocol):
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
    """Decides when turns and runs continue."""

    def pacing(self, part: DrivenWork) -> AbstractContextManager[DriverPace]:
        """Pace a part in this block."""
        ...

    async def over(self, part: DrivenWork, status: str, reason: str | None = None) -> None:
        """Tell the driver that a part is over, if that could not be told after a step; `reason` as in `stepped`."""
        ...


class OutsideDriver(Driver, Protocol):
    """A driver beyond this process: for `App(driver=…)`."""

    path: str
    """Where it comes in, below the app's own URL."""

    async def start(self, node: Node) -> None:
        """Begin to drive what the agents of this node do."""
        ...

    async def stop(self) -> None:
        """Stop; what is under way continues when it is started again."""
        ...

    @property
    def door(self) -> ASGI:
        """What answers requests below `path`."""
        ...


class OwnPace:
    """Continues without waiting for a driver."""

    def asked(self) -> None:
        return None

    def stepped(self, status: str, *, waits: bool = False, reason: str | None = None) -> bool:
        return True


class OwnDriver:
    """Lets everything continue at once: what drives it is its fiber."""

    @contextmanager
    def pacing(self, part: DrivenWork) -> Generator[DriverPace, None, None]:
        yield OwnPace()

    async def over(self, part: DrivenWork, status: str, reason: str | None = None) -> None:
        pass


class NodeDriver:
    """Who drives the turns and runs of one node."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.driver: Driver = OwnDriver()
        self._held: set[tuple[Address, str]] = set()
        """Turns and runs that are ready to continue and wait for the driver."""

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


def is_again() -> bool:
    """Return whether the fiber that runs now was interrupted, and has not progressed since."""
    call = current.get()
    return call is not None and isinstance(call.work, Work) and call.work.recovered


def part_of(actor: Actor, id: str, run: str | None, *, is_new: bool) -> DrivenWork:
    """Return what is driven: the turn or run of this id, which does this run for the agent above."""
    given = None if run is None else actor.of(RunExecutor).given(run)
    parent, above, seconds = actor.parent, None, None
    work = None if given is None else given.work_id
    if work is not None and parent is not None and work.kind == "run":
        above = (parent.address, work.id)
    if given is not None and given.deadline_at is not None:
        seconds = max(given.deadline_at - actor.host.clock.now(), 0.0)
    return DrivenWork(actor.address, id, is_new, above, seconds)
