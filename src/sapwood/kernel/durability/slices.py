"""The one open transaction of a tree.

A slice is the stretch of an agent's code between two suspensions. Its first write opens
a transaction, and a callback that the loop runs right after the slice commits it. A
write in another agent of the tree commits first, so commits follow the order of writes:
the death of the process cannot keep a later write of a tree and lose an earlier one.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable

from sapwood.address import Address
from sapwood.errors import SapwoodError, Unavailable
from sapwood.kernel.marshal.failure_log import FailureLog
from sapwood.kernel.ports.durability import Commit, Gate, settle
from sapwood.storage.availability import StorageUnavailable
from sapwood.storage.database import Database
from sapwood.storage.query_reader import QueryReader

log = logging.getLogger(__name__)


class Slices:
    """Begins and ends the transactions of one tree."""

    def __init__(
        self, root: Address, gate: Gate, loop: asyncio.AbstractEventLoop, failures: FailureLog | None = None
    ) -> None:
        self._root = root
        self._gate = gate
        self._loop = loop
        self._failures = failures or FailureLog(loop.time)
        self.open: Database | None = None
        """The database that is being written."""
        self.may_checkpoint = True
        """False while a backup copies the files; the logs keep growing during that time."""
        self.ended: SapwoodError | None = None
        """Why nothing is written any more, once the process is as good as dead."""
        self._called = False
        """Whether a callback of the loop is scheduled to end the slice."""
        self._before_commit: dict[str, Callable[[], None]] = {}
        self._next_commit: dict[Database, dict[str, Callable[[], None]]] = {}
        """Steps for the next commit of a database that is not open."""
        self._leaving: list[Future[None]] = []
        """Callers that wait for what is open now to be durable."""

    def begin(self, database: Database) -> None:
        """Make `database` the one that is being written."""
        if self.open is not None:
            self.commit()
        if self.ended is not None:  # by that commit, perhaps
            raise Unavailable(str(self.ended))
        self.open = database
        if steps := self._next_commit.pop(database, None):
            self._before_commit.update(steps)
        if not self._called:
            self._called = True
            self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._called = False
        self.commit()

    def before_commit(self, key: str, step: Callable[[], None]) -> None:
        """Run `step` once before the open transaction commits; what it writes elsewhere lands before it."""
        self._before_commit[key] = step

    def join_next_commit(self, database: Database, key: str, step: Callable[[], None]) -> None:
        """Run `step` once before the next commit of this database: the one that is open, or a later one."""
        steps = self._before_commit if self.open is database else self._next_commit.setdefault(database, {})
        steps[key] = step

    def leave_next_commit(self, database: Database) -> None:
        """Forget the steps for the next commit of this database: the agent that added them has stopped."""
        self._next_commit.pop(database, None)

    def leaving(self) -> Future[None]:
        """Return what is done when what is open now is durable.

        It does not commit: whatever else the loop runs before it does so lands in the
        same commit, and waits for the same sync.
        """
        waiter: Future[None] = self._loop.create_future()
        self._leaving.append(waiter)
        return waiter

    def commit(self) -> None:
        """Commit what is open, if anything is. Where that fails only the agent it belongs to is dropped."""
        database = self.open
        if database is None:
            return
        leaving, self._leaving = self._leaving, []
        try:
            self._commit(database)
        except SapwoodError as error:
            self._failures.report(
                log,
                logging.WARNING,
                "commit failed agent=%s",
                self._root,
                error=error,
                about=self._root,
                traceback=error,
                root=str(self._root),
            )
            settle(leaving, error)
        except BaseException as error:
            settle(leaving, error)
            raise
        else:
            if leaving:
                self._gate.let_go(database, leaving)

    def _commit(self, database: Database) -> None:
        database.break_block()
        steps, self._before_commit = self._before_commit, {}
        self.open = None
        if steps:
            try:
                for step in steps.values():
                    step()
                if self.open is not None:
                    self._commit(self.open)
            except Exception as error:
                # Whatever it was: left open it would swallow all that is written from now on.
                database.give_up(error)
                if isinstance(error, StorageUnavailable):
                    raise
                raise Unavailable(f"A write that this commit depends on was not stored: {error}") from error
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

    def reader(self, database: Database) -> QueryReader | None:
        """Commit, and return a reader of `database`; `None` while an older reader or a backup prevents that."""
        self.commit()
        return database.reader(may_checkpoint=self.may_checkpoint)

    def forget(self, database: Database) -> None:
        """Undo what is open in this database; its agent is gone."""
        self.leave_next_commit(database)
        if self.open is database:
            self.open = None
            self._before_commit.clear()
            leaving, self._leaving = self._leaving, []
            settle(leaving, Unavailable("The writes are undone: their agent has stopped."))
        database.rollback()
