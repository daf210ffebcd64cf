"""What the kernel needs to make commits durable: a gate.

The gate is where durability levels differ: one process, its disk, or a replicated log. It receives every commit of a
tree in the order of the writes, with the frames the commit added to the write-ahead log.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.ports.log import OutOfTouch
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

    async def bury(self, root: Address, folder: Path | None, objects: str = "") -> None:
        """Return when it is durable that a tree was destroyed. `folder` has the tombstone, if there is one.

        `objects`: the folder of its files in the archive.
        """
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
