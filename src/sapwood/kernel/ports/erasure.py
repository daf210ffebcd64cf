"""What an erasure asks of the parts above the kernel, and what they ask of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sapwood.address import Address, PathSegment
from sapwood.storage.database import Database


class ErasedBelow(NamedTuple):
    """A subtree that is erased, as one of the agents above it knows it."""

    subjects: Sequence[Address]
    """All addresses of the erased agent, the present one first."""
    depth: int
    """How many agents are above that agent."""
    types: Sequence[str]
    """The type ids that the class of the erased agent has had."""

    @property
    def paths(self) -> list[tuple[PathSegment, ...]]:
        """The paths from a child of that agent to the erased agent, by all type ids."""
        return list(dict.fromkeys(one.segments[self.depth + 1 :] for one in self.subjects))


async def _no_children(parent: Any, type: str, name: str) -> None:
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ErasureHooks:
    """What is removed beside the files of the erased agents."""

    delete_child: Callable[[Any, str, str], Awaitable[None]] = _no_children
    """Deletes the sub-agent of an agent that has this type and name."""
    rows: Sequence[Callable[[Database, ErasedBelow], int]] = ()
    """Each removes what the database of an agent above has of the subtree, and returns from how many rows."""
    knows: Sequence[Callable[[Database, ErasedBelow], bool]] = ()
    """Each returns whether the database of an agent above has something of the subtree, also if that was deleted."""
    history: Callable[[Any, Address], Awaitable[int]] | None = None
    """Forgets the past of a whole tree that a node runs, and returns how many files that removed.

    `None` means that nothing keeps a past. A past of the tree has the erased sub-agents too.
    """
    memory: Sequence[Callable[[Any, Address], int]] = ()
    """Each removes what a node has in memory, and returns how many records."""
    kept: Sequence[Callable[[Path, Sequence[Address]], str]] = ()
    """Each returns what a data folder keeps on purpose, as a sentence; an empty string for nothing."""


class ErasurePort(Protocol):
    """Erases trees and subtrees."""

    async def erase(self, address: Address, *, by: str, id: str | None = None) -> Any:
        """Erase an agent with all below it, and return the signed receipt."""
        ...

    async def gained(self, shards: Collection[int]) -> None:
        """Learn which agents of these shards are being erased. Calls reach their trees once this returns."""
        ...
