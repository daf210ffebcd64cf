"""What answers workers and paces work asks of the driver."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from sapwood.drivers.temporal.messages import StepAnswer
from sapwood.kernel.node.node import Node
from sapwood.runs.execution.driver import DrivenWork


class PacedPart(Protocol):
    """Work that runs in this process, one step per request."""

    def step(self, number: int) -> Future[StepAnswer]:
        """Start a step. Return its answer; a repeated request gets the same one."""
        ...


class Driver(Protocol):
    """The driver of an app."""

    token: str
    queue: str
    patience: float
    changed: set[Future[None]]
    """Futures to set when work begins in this process."""

    @property
    def node(self) -> Node:
        """The node whose agents it drives."""
        ...

    @property
    def paces(self) -> Mapping[tuple[str, str], PacedPart]:
        """The work in this process, by address and id."""
        ...

    async def ready(self, part: DrivenWork) -> None:
        """Ask the workflow of a part to request the next step; start it if it does not exist."""
        ...

    async def state(self, part: DrivenWork, since: datetime | None = None) -> str | None:
        """Return the status of the workflow of a part; `None` if none was open since then."""
        ...

    async def stop_work(self, part: DrivenWork, state: str) -> None:
        """Stop a part whose workflow was ended in Temporal."""
        ...
