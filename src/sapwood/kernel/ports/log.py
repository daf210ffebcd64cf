"""What the kernel needs so that data survives a machine: a log and an archive.

The log has what was committed last, fenced by the ownership of its shard. The archive has older data, in
object storage.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from sapwood.address import Address
from sapwood.errors import Unavailable


class Differ(Unavailable):
    """The leader of the log and a replica do not hold the same, and have not for a while."""


class OutOfTouch(Unavailable):
    """This node may not answer now. It may still own its trees: what they do may continue when it may answer again."""

    def __init__(self, text: str = "This node cannot answer now: it has no connection to the cluster.") -> None:
        super().__init__(text)


class Fenced(Unavailable):
    """Another node owns the shard now: nothing of it may be written or answered here any more."""

    def __init__(self, shards: Collection[int]) -> None:
        super().__init__("Another node runs this tree now.")
        self.shards = shards
        """Those that were found to be taken."""


class Full(Unavailable):
    """The log has no room. Nothing of what it was given is stored, or will be."""


class Epoch(NamedTuple):
    """One ownership of a shard."""

    number: int
    """Grows with every owner."""
    sequence: int
    """Of the entry that took it, in the same log as the shard's trees: every write of the owner's is fenced by it."""


class Entry(NamedTuple):
    """What to store in the log."""

    shard: int
    tree: str
    """The tree's id: hexadecimal, made from its address."""
    data: bytes
    id: str
    """Stored once, however often it is sent."""
    is_alarm: bool = False
    """Whether it is the tree's line in the shard's index of alarms, and not a commit; each replaces the one before."""
    replaces: bool = False
    """Whether all that was stored for the tree before it goes."""


class Record(NamedTuple):
    """What the log holds."""

    tree: str
    sequence: int
    """Its place; all trees of a stream share one count."""
    data: bytes


class FencedLog(Protocol):
    """A replicated log of every tree, which only the owner of a tree's shard can write to."""

    async def append(self, entries: Sequence[Entry], epochs: Mapping[int, Epoch]) -> list[int]:
        """Store all of these, or none; return their places. They lie in one stream, their shards are owned by `epochs`.

        Returns when a majority has it on its disks. Retries while the log cannot be reached.
        `Fenced` if one of the shards has another owner; `Full` if there is no room; any other `Unavailable` if the log
        was out of reach for too long: then the outcome is unknown, and the trees have to be read again.
        """
        ...

    async def has_room(self, stream: int, size: int) -> bool:
        """Return whether a stream that was full would take so many bytes now, as far as is known."""
        ...

    async def read(self, shard: int, tree: str, after: int = 0) -> list[Record]:
        """Return what is stored for a tree after this place, in order, as the leader of the log knows it."""
        ...

    async def alarms(self, shards: Collection[int]) -> list[Record]:
        """Return the index of alarms of these shards."""
        ...

    async def trees(self, shards: Collection[int]) -> dict[int, dict[str, int]]:
        """Return which trees of these shards the log holds anything of, and in how many messages."""
        ...

    async def drop(self, shard: int, tree: str, up_to: int) -> None:
        """Forget a tree's commits up to this place; they are in the archive."""
        ...

    def stream_of(self, shard: int) -> int:
        """Return which of the streams a shard lies in: what is stored together has to lie in one."""
        ...


class SecondCopy(Protocol):
    """The second copy of the log, which is in the archive."""

    async def last_place(self, root: Address) -> int:
        """Return the last place of the stream that has the log of a tree."""
        ...

    async def has(self, root: Address) -> bool:
        """Return whether it has messages of a tree."""
        ...

    async def erase(self, root: Address, up_to: int) -> tuple[int, bool]:
        """Erase a tree up to a place of its stream; return from how many objects, and whether that is all of it."""
        ...


class Archive(Protocol):
    """Object storage."""

    async def put(self, key: str, data: bytes, *, only_new: bool = False) -> bool:
        """Store an object; False: `only_new` was asked for and there is one."""
        ...

    async def get(self, key: str) -> bytes | None:
        """Return an object, or `None` if there is none."""
        ...

    async def put_file(self, key: str, path: Path) -> None:
        """Store a file as an object, in parts: however large it is, little of it is in memory.

        `Unavailable` if the archive takes nothing for too long; a slow one may take as long as it needs.
        """
        ...

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return the bytes of an object from `start` to before `end`, or `None` if there is no such object.

        `start` must lie in the object. The bytes are fewer if it ends before `end`.
        """
        ...

    async def size(self, key: str) -> int | None:
        """Return how many bytes an object has, or `None` if there is none."""
        ...

    def keys(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        """Return the keys that begin so, in order, those after `after`."""
        ...

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are gone already are no trouble."""
        ...
