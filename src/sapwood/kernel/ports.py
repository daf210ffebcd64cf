"""What the kernel asks of the place it runs in.

The gate is where durability levels differ: one process, its disk, later a replicated
log. It is told of every commit of a tree in the order of the writes, with the frames
the commit added to the write-ahead log.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.storage.database import Database


class Commit(NamedTuple):
    """One commit of one agent."""

    root: Address | None
    """The tree it belongs to; None: the node's own."""
    database: Database
    first_frame: int
    last_frame: int


class Gate(Protocol):
    """Holds what wants to leave until what was committed before it is durable."""

    @property
    def synced(self) -> bool:
        """Whether SQLite has to order its own writes for a loss of power."""
        ...

    def opened(self, database: Database) -> None:
        """Take note that a database was opened; what it holds may come from a process that died."""
        ...

    def committed(self, commit: Commit) -> None:
        """Take note of a commit. Called in the order of commits; must not block."""
        ...

    def wait(self, database: Database) -> Future[None] | None:
        """Return what to await before something may leave the agent; None: it may leave now."""
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
    """Let everybody who waits go on, or fail."""
    for waiter in waiting:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(Unavailable(str(error)))  # each its own: one raised twice gathers tracebacks
