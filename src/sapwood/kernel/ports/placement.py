"""What the kernel needs to find the node that runs a tree."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from sapwood.address import Address
from sapwood.errors import NotFound, Unavailable
from sapwood.kernel.ports.log import Epoch


class Directory(Protocol):
    """Knows which node runs a tree."""

    @property
    def here(self) -> str:
        """The name of this node."""
        ...

    def is_here(self, root: Address) -> bool:
        """Return whether this node may run the tree. At most one node gets `True`."""
        ...

    def fixed_owner(self, root: Address) -> str | None:
        """Return the node that runs the tree permanently, or `None` if it may change: then ask `owner`."""
        ...

    async def owner(self, root: Address) -> str:
        """Return the node that runs the tree; `Unavailable` if no node does for too long."""
        ...

    def epoch_of(self, shard: int) -> Epoch | None:
        """Return this node's ownership of a shard, or `None` if it is not ours, or they are not counted."""
        ...

    def heard_wrong(self, shard: int) -> None:
        """The node that was named for a tree of this shard does not run it."""
        ...

    async def until_moved(self, shard: int, seconds: float) -> None:
        """Return when it is known that a shard has another owner than now, after so many seconds at the latest."""
        ...

    async def everybody(self) -> Iterable[str]:
        """Return all nodes, this one included."""
        ...

    def pool_of(self, node: str) -> str:
        """Return the pool that a node is for; "": all classes that name none."""
        ...

    def lock_of(self, node: str) -> str:
        """Return the name of the file in the data folder that has the id of a node's process."""
        ...


class ShardHost(Protocol):
    """Runs the trees of the shards that this node owns; notified when that changes."""

    async def gained(self, shards: Mapping[int, bool]) -> None:
        """These are ours now; calls come once this returns. Each with whether the owner before ended well."""
        ...

    def large_trees(self, shards: Collection[int]) -> list[Address]:
        """Return the trees of these that run here, and take a while to be read by their next owner."""
        ...

    async def fetch(self, trees: Iterable[Address]) -> None:
        """Have the files of trees here that another node is about to let go of."""
        ...

    async def let_go(self, shards: Collection[int]) -> None:
        """Have nothing of these run or be written any more; another node has them once this returns."""
        ...

    def lost(self, shards: Collection[int]) -> None:
        """Drop these at once, without writing: another node has them."""
        ...


class NotBegun(Unavailable):
    """Nothing of what was asked was begun: the node is gone, or does not run the tree. A retry is safe.

    It is never what an agent fails with: then something was begun.
    """


class Moved(NotBegun):
    """The node that was asked does not run the tree now."""

    def __init__(self, root: Address | str) -> None:
        super().__init__(f"{root} is run by another process.")


class Forwarded(NotFound):
    """The tree that was asked for was moved to another address. Nothing was begun."""

    def __init__(self, root: Address, target: Address) -> None:
        super().__init__(f"{root} was moved to {target}. Use that address.", path=root.segments)
        self.root = str(root)
        self.target = str(target)

    def follow(self, address: Address) -> Address | None:
        """Return where an agent is now, or `None` if this is about another tree."""
        if str(address.root) != self.root:
            return None
        return Address((*Address.parse(self.target).segments, *address.segments[1:]))
