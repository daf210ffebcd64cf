"""What a node needs of the cluster that it is part of."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol


class Cluster(Protocol):
    """The cluster of a node."""

    def holds_lease(self) -> bool:
        """Return whether the trees of this node are its own for certain now."""
        ...

    def is_over(self) -> str | None:
        """Return why this node can never answer again, or `None` if it can."""
        ...

    def refuses_writes(self) -> str | None:
        """Return why the cluster cannot keep what is written, or `None` if it can."""
        ...

    def pass_on(self, shard: int, owner: str, number: int, /) -> bool:
        """Hand a shard to a node that knows this migration of this owner. Returns `False` if there is none."""
        ...

    def leave(self, seconds: float, /) -> Awaitable[None]:
        """Hand all that this node runs to others. What is left after so many seconds is taken from it later."""
        ...

    def status(self) -> dict[str, Any]:
        """Return the nodes, what each owns, and the shards without an owner."""
        ...

    async def read_alarms(self) -> None:
        """Enter the alarms of all trees of this node into its index again."""
        ...
