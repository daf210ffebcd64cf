"""What the kernel asks of the place it runs in.

The gate is where durability levels differ: one process, its disk, later a replicated
log. It is told of every commit of a tree in the order of the writes, with the frames
the commit added to the write-ahead log.

The directory and the transport are where a single process and many differ: who runs a
tree, and how to speak with them.

The log and the archive are where data survives a machine: what was committed last, fenced
by the ownership of its shard, and what is old enough to lie in object storage.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.storage.database import Database


class Commit(NamedTuple):
    """One commit of one agent."""

    root: Address | None
    """The tree it belongs to. `None` means the node's own."""
    database: Database
    first_frame: int
    last_frame: int


class Gate(Protocol):
    """Holds what wants to leave until what was committed before it is durable."""

    @property
    def synced(self) -> bool:
        """Whether SQLite has to order its own writes for a loss of power."""
        ...

    @property
    def waiting(self) -> int:
        """How many wait for it now."""
        ...

    def opened(self, database: Database) -> None:
        """Take note that a database was opened; what it holds may come from a process that died."""
        ...

    def committed(self, commit: Commit) -> None:
        """Take note of a commit. Called in the order of commits; must not block."""
        ...

    def wait(self, database: Database) -> Future[None] | None:
        """Return what to await before something may leave the agent, or `None` if it may leave now."""
        ...

    def let_go(self, database: Database, leaving: list[Future[None]]) -> None:
        """Settle these as soon as everything committed so far in the database is durable."""
        ...

    def follows(self, database: Database, other: Database) -> None:
        """What is committed in `database` from now on becomes durable only after what is committed in `other` now."""
        ...

    def is_quiet(self, database: Database) -> bool:
        """Return whether nothing of this database is under way."""
        ...

    async def sync_folder(self, path: Path) -> None:
        """Return when names created and removed in a folder are durable."""
        ...

    def alarmed(self, root: Address, due: float | None, dead: int) -> None:
        """Take note of when a tree has to be woken and of its dead letters; kept before or with its next commit.

        If neither is given, the tree need not be looked at. It may then be kept later.
        """
        ...

    async def bury(self, root: Address, folder: Path | None) -> None:
        """Return when it is durable that a tree was destroyed. `folder` has the tombstone, if there is one."""
        ...

    async def flushed(self, root: Address) -> None:
        """Return when nothing of a tree is left to be made durable."""
        ...

    def drop(self, root: Address) -> None:
        """A tree is not written to here any more; calls that still wait for it fail."""
        ...

    def forget(self, database: Database) -> None:
        """The database is about to close; nothing of it waits any more."""
        ...

    def moved(self, folder: Path) -> None:
        """Another folder, or none, is under this name now: nothing below it is known."""
        ...

    def close(self) -> None:
        """Flush what is left, and stop."""
        ...


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


class Holder(Protocol):
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


class Exchange(Protocol):
    """One conversation with another node, seen from one of its ends.

    Messages arrive in order, each once, or the conversation fails as a whole. The side that opened it may send several
    messages after the first; the other side sends the last one.
    """

    def send(self, message: bytes) -> Awaitable[None] | None:
        """Send a message; return what to await before the next one, None: nothing.

        The other end grants credit as it takes messages, so no more is sent than it takes.
        """
        ...

    async def receive(self) -> bytes | None:
        """Return the next message. `None` means that was the last one. Raises what the other end failed with.

        `Unavailable` if the other node is gone.
        """
        ...

    def reply(self) -> Future[bytes]:
        """Return what is done with the only message that comes; it fails with what `receive` raises."""
        ...

    def end(self, message: bytes | None = None) -> None:
        """Say the last message, if any, and no more."""
        ...

    def fail(self, error: Exception) -> None:
        """Have the other end raise this error instead of receiving more; it keeps its type."""
        ...

    def drop(self) -> None:
        """Ask the other end to stop what it does for us, and listen to nothing it still says."""
        ...

    async def stop(self) -> None:
        """Ask the other end to stop what it does for us, and return when it has."""
        ...

    def when_stopped(self, act: Callable[[], object]) -> None:
        """Act when the other end asks us to stop, or is gone; at once if it has."""
        ...


Answer = Callable[[bytes, Exchange], None]
"""Takes the first message of an exchange that another node opened. It has to end the exchange sooner or later."""


class Transport(Protocol):
    """Carries exchanges between nodes."""

    async def open(self, node: str, verb: str, message: bytes, *, items: int = 0) -> Exchange:
        """Begin an exchange with a node: say what it is about, and the first message.

        `items`: how many messages the other end may send before the first is taken; 0: as many as fit into a number of
        bytes. `NotBegun` if the node cannot be reached for too long.
        """
        ...

    def open_now(self, node: str, verb: str, message: bytes) -> Exchange | None:
        """Begin an exchange without waiting for anything. `None` means `open` would have to wait."""
        ...

    def answer(self, verb: str, answer: Answer) -> None:
        """Have exchanges about this answered here."""
        ...

    @property
    def held_up(self) -> int:
        """How many exchanges may not send more now, until the other end has taken what it was sent."""
        ...


class NotBegun(Unavailable):
    """Nothing of what was asked was begun: the node is gone, or does not run the tree. A retry is safe.

    It is never what an agent fails with: then something was begun.
    """


class Moved(NotBegun):
    """The node that was asked does not run the tree now."""

    def __init__(self, root: Address | str) -> None:
        super().__init__(f"{root} is run by another process.")


class Differ(Unavailable):
    """The leader of the log and a replica do not hold the same, and have not for a while."""


class OutOfTouch(Unavailable):
    """This node may not answer now. Its trees may still be its own: what they do may go on when it may answer again."""

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

        Returns when a majority has it on its disks. Goes on trying while the log cannot be reached.
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


class Archive(Protocol):
    """Object storage."""

    async def put(self, key: str, data: bytes, *, only_new: bool = False) -> bool:
        """Store an object; False: `only_new` was asked for and there is one."""
        ...

    async def get(self, key: str) -> bytes | None:
        """Return an object, or `None` if there is none."""
        ...

    def keys(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        """Return the keys that begin so, in order, those after `after`."""
        ...

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are gone already are no trouble."""
        ...


def settle(waiting: Iterable[Future[None]], error: BaseException | None) -> None:
    """Let all waiters continue, or fail."""
    for waiter in waiting:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            # Each its own: one raised twice gathers tracebacks.
            waiter.set_exception(OutOfTouch() if isinstance(error, OutOfTouch) else Unavailable(str(error)))
            waiter.exception()  # known, whether or not anybody still waits
