"""What an agent asks of its node that concerns no other agent."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Callable, Sequence
from contextvars import Context
from pathlib import Path as FilePath
from typing import Protocol, TypeVar

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.errors import (
    SapwoodError,
    StoredDataError,
)
from sapwood.kernel.actors.erasing import Erasing
from sapwood.kernel.actors.sockets import Sockets
from sapwood.kernel.alarms.node_index import NodeAlarms
from sapwood.kernel.durability.storage_state import StorageState
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.marshal.failure_log import FailureLog
from sapwood.kernel.ports.durability import Gate
from sapwood.kernel.ports.file_archive import FileArchive
from sapwood.kernel.ports.history import History
from sapwood.randomness import Random
from sapwood.settings import Settings
from sapwood.timings import Timings

C = TypeVar("C")


class StartCycleCheck(Protocol):
    """Sees whether agents would wait for each other's start in a circle."""

    def refuse(self, agent: Address, waiting: Sequence[Address]) -> Task[None] | None: ...


class NodeServices(Protocol):
    """A node, as far as it can be used without knowing its agents."""

    loop: asyncio.AbstractEventLoop
    thread: int
    """The one thread its agents may be used on."""
    context: Context
    clock: Clock
    random: Random
    gate: Gate
    history: History
    settings: Settings
    timings: Timings
    deps: object
    sockets: Sockets
    alarms: NodeAlarms
    failures: FailureLog
    storage: StorageState
    erasing: Erasing
    damage: dict[FilePath, StoredDataError]
    """The databases that were found damaged, until their tree is replaced."""
    file_archive: FileArchive | None
    """Where the larger files of agents lie, or `None` if they lie beside their databases."""
    authentication: str | None
    """How clients are authenticated; `None` means not at all."""
    calls_done: int
    """How many calls have ended on it."""
    holds_lease: Callable[[], bool]
    """Whether its trees are its own for certain now, by its own clock."""

    def shared(self, kind: Callable[..., C]) -> C:
        """Return the node's one instance of something, made when first asked for."""
        ...

    def damaged(self, root: Address, file: str, how: str) -> SapwoodError:
        """Return the error to raise for a damaged file of a tree."""
        ...

    def crashed_before(self, root: Address) -> float | None:
        """Return when the node took over a tree from one that did not shut down cleanly, or `None` if that one did."""
        ...

    def check_deps(self, kind: AgentClass) -> None: ...
