"""The agents of a fork, as values: where each comes from, and where its file is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sapwood.address import Address
from sapwood.kernel.actors.fork_origin import WorkRule
from sapwood.storage.offline_edit import OfflineEdit


@dataclass(slots=True, eq=False)
class ForkedAgent:
    """One agent of a fork."""

    address: Address
    source: Address
    """The agent that it is a copy of."""
    stem: str
    source_stem: str
    database: Path
    """Its file. It does not exist if the agent has stored nothing."""
    children: list[ForkedAgent] = field(default_factory=list["ForkedAgent"])

    def below(self) -> Iterator[ForkedAgent]:
        """Yield this agent and all agents below it, parents first."""
        yield self
        for child in self.children:
            yield from child.below()


@dataclass(frozen=True, slots=True)
class ForkedTree:
    """A fork that no process has open yet."""

    root: ForkedAgent
    work: WorkRule
    at: float
    """The moment that it shows."""
    now: float
    questions: dict[str, str]
    """The questions that the source's index has, by the address of the asking agent in the fork."""


@dataclass(slots=True)
class HeldWork:
    """How much unfinished work a fork has, that does not continue in it by itself."""

    calls: int = 0
    fibers: int = 0
    turns: int = 0
    runs: int = 0
    questions: int = 0
    """Open questions. An answer in the fork counts only there."""


class Due:
    """What an agent of a fork has to do by itself."""

    __slots__ = ("at", "has_dead_letters")

    def __init__(self, at: float | None, *, has_dead_letters: bool) -> None:
        self.at = at
        self.has_dead_letters = has_dead_letters


class UnfinishedWork(Protocol):
    """Settles the unfinished work of one fork. `look` sees each agent first, parents before children."""

    @property
    def has_driver(self) -> bool:
        """Whether an external system decides when turns and runs continue. It knows them by the address."""
        ...

    def look(self, agent: ForkedAgent, edit: OfflineEdit, *, is_rewind: bool) -> None:
        """Read what an agent has to do. A tree that is rewound keeps what belongs to it alone."""
        ...

    def settle(self, tree: ForkedTree) -> tuple[HeldWork, dict[Address, Due], dict[Address, str]]:
        """Change the agents' files; return what is held, what is due, and the questions that are open, as the index
        of the tree has them."""
        ...
