"""Ways to break sapwood on purpose, so that the tests can show that they would notice."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from pathlib import Path

from tests.faults import chat_mutants, run_mutants, team_mutants, time_mutants
from tests.faults.disk import Disk, DiskFiles

from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.durability.local_gates import DiskGate
from sapwood.kernel.durability.slices import Slices
from sapwood.kernel.ports.durability import settle
from sapwood.kernel.trees.deletion import Deletion
from sapwood.kernel.trees.tree import Tree
from sapwood.storage.database import Database

files: Callable[[Disk], DiskFiles] = DiskFiles
"""What a life under `disk` makes its file layer with."""


class FilesThatNeverSyncContent(DiskFiles):
    def sync_descriptor(self, path: Path, descriptor: int) -> None:
        pass

    def sync_file(self, path: Path) -> None:
        pass


class FilesThatNeverSyncNames(DiskFiles):
    def sync_folder(self, path: Path) -> None:
        pass


def no_content() -> None:
    """What was written to files is never synced."""
    global files  # noqa: PLW0603 - a fork that is about to die
    files = FilesThatNeverSyncContent


def no_names() -> None:
    """The names of files are never synced."""
    global files  # noqa: PLW0603
    files = FilesThatNeverSyncNames


def no_waiting() -> None:
    """The gate is always open."""

    def wait(self: DiskGate, database: Database) -> Future[None] | None:
        return None

    def let_go(self: DiskGate, database: Database, leaving: list[Future[None]]) -> None:
        settle(leaving, None)

    DiskGate.wait, DiskGate.let_go = wait, let_go


def no_recovery() -> None:
    """What a dead process left unsynced is shown before it is synced."""

    def opened(self: DiskGate, database: Database) -> None:
        pass

    DiskGate.opened = opened


def no_row_first() -> None:
    """A child may have a file before the disk has the row that names it."""

    def until_named(self: Tree, parent: Actor, generation: int) -> Future[None] | None:
        return None

    Tree.until_named = until_named


def no_tombstone_first() -> None:
    """A deletion removes files before the disk has its tombstone."""

    async def durable(self: Deletion, database: Database) -> None:
        pass

    Deletion._durable = durable


def no_order() -> None:
    """A write in another agent of the tree does not commit the open transaction first."""

    before_write, commit = Tree.before_write, Slices.commit
    beginning: list[Database] = []

    def write(self: Tree, database: Database, sql: str) -> None:
        beginning.append(database)
        try:
            before_write(self, database, sql)
        finally:
            beginning.pop()

    def commit_unless_beginning(self: Slices) -> None:
        if not beginning:
            commit(self)

    def begin(self: Slices, database: Database) -> None:
        before, self.open = self.open, database
        self._loop.call_soon(self.commit)
        if before is not None:
            self._loop.call_soon(lambda: self.commit_alone(before) if before.in_transaction else None)

    Tree.before_write, Slices.commit, Slices.begin = write, commit_unless_beginning, begin


MUTANTS: dict[str, Callable[[], None]] = {
    "no-content": no_content,
    "no-names": no_names,
    "no-waiting": no_waiting,
    "no-recovery": no_recovery,
    "no-row-first": no_row_first,
    "no-tombstone-first": no_tombstone_first,
    "no-order": no_order,
    **time_mutants.MUTANTS,
    **chat_mutants.MUTANTS,
    **run_mutants.MUTANTS,
    **team_mutants.MUTANTS,
}


def apply(name: str | None) -> None:
    if name is not None:
        MUTANTS[name]()
