"""The one open transaction of a tree.

A slice is the stretch of an agent's code between two suspensions. Its first write opens
a transaction, and a callback that the loop runs right after the slice commits it. A
write in another agent of the tree commits first, so commits follow the order of writes:
the death of the process cannot keep a later write of a tree and lose an earlier one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sapwood.address import Address
from sapwood.errors import SapwoodError, Unavailable
from sapwood.kernel.ports import Commit, Gate
from sapwood.storage.database import Database

log = logging.getLogger(__name__)


class Slices:
    """Begins and ends the transactions of one tree."""

    def __init__(self, root: Address, gate: Gate, loop: asyncio.AbstractEventLoop) -> None:
        self._root = root
        self._gate = gate
        self._loop = loop
        self._open: Database | None = None
        self.may_checkpoint = True
        """False while a backup copies the files; the logs grow on meanwhile."""
        self._before_commit: dict[str, Callable[[], None]] = {}

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def begin(self, database: Database) -> None:
        """Make `database` the one that is being written."""
        if self._open is not None:
            self.commit()
        self._open = database
        self._loop.call_soon(self.commit)

    def before_commit(self, key: str, step: Callable[[], None]) -> None:
        """Run `step` once before the open transaction commits; what it writes elsewhere lands before it."""
        self._before_commit[key] = step

    def commit(self) -> None:
        """Commit what is open, if anything is. Where that fails the agent it belongs to is dropped, and nobody else."""
        database = self._open
        if database is None:
            return
        try:
            self._commit(database)
        except SapwoodError as error:
            log.warning("a commit failed", extra={"root": str(self._root)}, exc_info=error)

    def _commit(self, database: Database) -> None:
        database.break_block()
        steps, self._before_commit = self._before_commit, {}
        self._open = None
        if steps:
            try:
                for step in steps.values():
                    step()
                if self._open is not None:
                    self._commit(self._open)
            except Exception as error:
                # Whatever it was: left open it would swallow all that is written from now on.
                database.give_up(error)
                raise Unavailable(f"What has to be kept before this commit was not: {error}") from error
        if not database.in_transaction:
            return
        self.commit_alone(database)

    def commit_alone(self, database: Database) -> None:
        """Commit this database, which is not the open one, and tell the gate."""
        before = database.frames
        database.commit()
        if database.frames > before:  # some transactions change no page
            self._gate.committed(Commit(self._root, database, before + 1, database.frames))
        if self.may_checkpoint:
            database.checkpoint_if_long()

    def forget(self, database: Database) -> None:
        """Undo what is open in this database; its agent is gone."""
        if self._open is database:
            self._open = None
            self._before_commit.clear()
        database.rollback()
