"""Where the leases of nodes and the owners of shards are kept, as nodes use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from sapwood.runtimes.cluster.base.leases import NodeLease
from sapwood.runtimes.cluster.base.placement import ShardOwner

FETCH = "fetch"
"""The question whether a node fetches trees that it is about to own."""


class Held(NamedTuple):
    """An owner message, and its place in its stream."""

    sequence: int
    owner: ShardOwner


NOBODY = Held(0, ShardOwner(0, ""))
"""The record of a shard that never had an owner."""


class Ground(Protocol):
    """Where leases and owners are kept."""

    async def renew(self, lease: NodeLease, after: int) -> int | None:
        """Store a lease if the last one of the node has this place; return its place, None: it has another."""
        ...

    async def last_lease(self, node: str) -> tuple[int, NodeLease | None]:
        """Return the last lease of a node and its place, as the leader knows it."""
        ...

    async def leases(self) -> dict[str, NodeLease]:
        """Return the leases of all nodes, as any of the servers knows them."""
        ...

    async def changes(self) -> dict[int, Held]:
        """Return owners that changed since the last call, all at first. It lacks none that was there when asked."""
        ...

    async def read(self, shards: Iterable[int]) -> dict[int, Held]:
        """Return the owners of these, as the leader knows them; empty if a shard never had one."""
        ...

    async def write(self, owners: Mapping[int, Held]) -> dict[int, Held]:
        """Store owners, each if the one before has this place; return those that were stored, and where."""
        ...

    def stream_of(self, shard: int) -> int:
        """Return where a shard lies: owners of one stream are stored together."""
        ...

    async def ask(self, node: str, shards: Sequence[int], question: str) -> bool:
        """Ask a node something about shards; return whether it agreed."""
        ...

    async def have_fetched(self, node: str, trees: Sequence[str], patience: float) -> None:
        """Have a node fetch trees, for so many seconds."""
        ...

    async def is_heard(self, node: str) -> bool:
        """Return whether a process may listen by this name; the process of one that was killed does not."""
        ...

    async def listen(
        self,
        node: str,
        lease: Callable[[NodeLease], None],
        owners: Callable[[Mapping[int, Held]], None],
        asked: Callable[[str, Sequence[int], str, Sequence[str]], Awaitable[bool]],
    ) -> None:
        """Have these called with what others send: a lease, owners that were stored, and questions from a node."""
        ...

    async def is_there(self) -> bool:
        """Return whether the server that we ask is there."""
        ...

    async def go_elsewhere(self) -> None:
        """Ask another server from now on."""
        ...

    async def close(self) -> None:
        """Listen no more."""
        ...
