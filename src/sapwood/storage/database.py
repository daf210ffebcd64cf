"""One agent's SQLite file: opened when needed, written in slices, closed at any quiet moment.

The first write of a slice opens a transaction; the owner of the slice commits it. The
file appears with the first write, as a copy of an empty image that is already in WAL
mode, and each owner's tables appear with that owner's first write.
"""

# apsw's own stubs name a type that Python has only from 3.12, so to 3.11 its values are unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import apsw

from sapwood.errors import (
    ForbiddenSql,
    MigrationFailed,
    NotFound,
    OverLimit,
    SapwoodError,
    SlowSql,
    SqlError,
    StoredDataError,
    Unavailable,
    UsageError,
)
from sapwood.storage.files import Files
from sapwood.storage.image import PAGE_SIZE, empty_image, is_cut, wal_bytes
from sapwood.storage.migrations import APPLIED, Schema, Script, check_known, to_come
from sapwood.storage.permitted import is_reserved, no_look, no_use
from sapwood.storage.reader import Reader
from sapwood.storage.rows import Rows, SqlValue
from sapwood.storage.sql_errors import argument_error, sql_error
from sapwood.timings import DEFAULTS

log = logging.getLogger(__name__)

PROGRESS_STEPS = 50_000
NEVER = float("inf")
READING = ("SELECT", "PRAGMA")
"""How those of the framework's own statements begin that write nothing."""
DISK_IS_FULL = 1024 * 1024

# User statements and the framework's own share one cache of prepared statements, and
# SQLite asks the authorizer only when it prepares. Different flags keep them apart: a
# user cannot reach a statement that was prepared for the framework.
USER_FLAGS = apsw.SQLITE_PREPARE_PERSISTENT
OWN_FLAGS = 0


def _without_lookaside() -> None:
    """Have SQLite not set aside memory for every connection: it would double what an open database costs.

    A setting of the whole library, so only while nobody in the process has a connection.
    """
    if not apsw.connections():
        apsw.shutdown()
        apsw.config(apsw.SQLITE_CONFIG_LOOKASIDE, 0, 0)
        apsw.initialize()  # apsw's SQLite does not do it by itself, and without it has no mutexes


_without_lookaside()


class Owner(Protocol):
    """The owner of the slices that write to a database."""

    def before_create(self, database: Database) -> None:
        """Called before the file appears; may refuse by raising."""
        ...

    def before_write(self, database: Database, sql: str) -> None:
        """Called before the first write after each commit; may refuse by raising."""
        ...

    def whose_slice(self) -> object:
        """Return what tells the slices of two tasks apart."""
        ...

    def opened(self, database: Database) -> None:
        """Called when the file was opened."""
        ...

    def lost(self, database: Database, error: BaseException) -> None:
        """Called when SQLite rolled back the transaction: it is unknown which writes are left."""
        ...


class Database:
    """The database of one agent."""

    __slots__ = (
        "__weakref__",
        "_attempt",
        "_beginning",
        "_broken_blocks",
        "_checkpoint_frames",
        "_connection",
        "_cursor",
        "_deadline",
        "_denied",
        "_description",
        "_files",
        "_for_user",
        "_in_block",
        "_looking",
        "_owner",
        "_reader_frames",
        "_savepoints",
        "_sql_timeout",
        "_stale",
        "_synced",
        "_versions",
        "beside",
        "descriptor",
        "exists",
        "frames",
        "in_transaction",
        "last_used",
        "let_go",
        "max_bytes",
        "path",
        "readers",
        "removed",
        "settled",
        "undone",
    )

    def __init__(
        self,
        path: Path,
        files: Files,
        owner: Owner,
        *,
        exists: bool,
        synced: bool,
        sql_timeout: float,
        max_bytes: int,
        checkpoint_frames: int = DEFAULTS.checkpoint_frames,
        reader_frames: int = DEFAULTS.reader_frames,
    ) -> None:
        self.path = path
        self.exists = exists
        self.removed = False
        """True once the agent was deleted: the file may never come back under this name."""
        self.let_go = False
        """True once the agent sleeps: whoever wakes it makes another object, and the file can be opened only once."""
        self.max_bytes = max_bytes
        self._checkpoint_frames = checkpoint_frames
        self._reader_frames = reader_frames
        self.in_transaction = False
        self.readers: set[Reader] = set()
        """The queries of `read_sql` that run on other threads. No checkpoint runs before they end."""
        self.frames = 0
        """Frames in the WAL after the last commit."""
        self.descriptor: int | None = None
        """Our own descriptor of the file, to sync it; open as long as SQLite's, because closing any one of
        them drops the locks of all."""
        self.settled = False
        """Whether the file and its name were synced since this process first used it."""
        self.beside: Path | None = None
        """A file that has to be on the disk with this one."""
        self.undone = 0
        """How often a block was undone: what was read before may no longer be true."""
        self.last_used = 0.0
        """When a statement last ran, by the monotonic clock."""
        self._files = files
        self._owner = owner
        self._synced = synced
        self._sql_timeout = sql_timeout
        self._connection: apsw.Connection | None = None
        self._cursor: apsw.Cursor | None = None
        """For the user's statements, of which nobody knows beforehand whether they write."""
        self._versions: dict[str, int] = {}
        self._for_user = ""
        self._looking = False
        """Whether a statement runs that may only read."""
        self._description: Any = ()
        self._deadline = NEVER
        self._denied: str | None = None
        self._stale = False
        self._beginning = False
        self._savepoints = 0
        self._in_block: object = None
        self._attempt = False
        """Whether what was written since `attempt` can still be undone."""
        self._broken_blocks: set[object] = set()

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    @property
    def in_use(self) -> bool:
        """Whether it may not be closed: written to, about to be, or read by `read_sql`."""
        return self.in_transaction or self._beginning or bool(self.readers)

    @property
    def wal(self) -> Path:
        return self.path.with_name(self.path.name + "-wal")

    def _open(self) -> apsw.Connection:
        if self._connection is not None:
            return self._connection
        if self.removed:
            raise NotFound("This agent was deleted.")
        if self.let_go:
            raise Unavailable("This agent went to sleep.")
        if not self.exists:
            self._owner.before_create(self)
            if self._synced and self.wal.exists():
                # A loss of power at its birth kept this name and lost the file's own: nobody was told what is in it.
                self._files.remove(self.wal)
            self.descriptor = self._files.create(self.path, empty_image())
            self.exists = True
        else:
            self._mend_birth()
            self.descriptor = self._files.open(self.path) if self._synced else None
        if not self._synced:
            self._close_descriptor()
        connection: apsw.Connection | None = None
        try:
            connection = apsw.Connection(
                str(self.path),
                flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX,
                vfs=self._files.vfs,
                statementcachesize=48,
            )
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
            connection.execute(
                "PRAGMA locking_mode = EXCLUSIVE; PRAGMA wal_autocheckpoint = 0; PRAGMA temp_store = MEMORY;"
                f"PRAGMA synchronous = {'NORMAL' if self._synced else 'OFF'}; PRAGMA foreign_keys = ON;"
                f"{self._max_pages()}"
            ).fetchall()
            self._read_versions(connection)
        except apsw.Error as error:
            if connection is not None:
                connection.close(True)  # or it has the file locked for as long as the error is remembered
            self._close_descriptor()
            raise StoredDataError(f"The database {self.path.name} cannot be opened: {error}") from error
        connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_wal_hook(self._note_frames)
        connection.authorizer = self._authorize
        connection.set_progress_handler(self._out_of_time, PROGRESS_STEPS)
        self.frames = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
        self._connection = connection
        self._new_cursor()
        self._owner.opened(self)
        return connection

    def _new_cursor(self) -> None:
        assert self._connection is not None
        if self._cursor is not None:
            self._cursor.close(True)
        self._cursor = self._connection.cursor()
        self._cursor.exec_trace = self._before_statement

    def _read_versions(self, connection: apsw.Connection) -> None:
        rows = connection.execute("SELECT owner, max(number) FROM sapwood_migrations GROUP BY owner").fetchall()
        self._versions = {str(owner): int(number) for owner, number in rows}  # pyright: ignore[reportArgumentType]

    def _mend_birth(self) -> None:
        """Write the empty image again if a crash cut the file's very first write short.

        Then the file is the image with sectors missing, and all it ever held is in the
        WAL: the image below it may be put back. SQLite would throw the WAL of an empty
        file away.
        """
        image = empty_image()
        if self.path.stat().st_size <= len(image) and is_cut(self.path.read_bytes()):
            self._files.overwrite(self.path, image)

    def close(self) -> None:
        """Let go of the file. Only between transactions; the next use opens it again."""
        self.stop_readers(Unavailable("The agent stopped while read_sql() ran."))
        if self._connection is not None:
            self._connection.close(True)
            self._connection = self._cursor = None
        self._close_descriptor()

    def _close_descriptor(self) -> None:
        if self.descriptor is not None:
            self._files.close(self.descriptor)
            self.descriptor = None

    def execute(self, sql: str, *arguments: SqlValue) -> list[tuple[Any, ...]]:
        """Run one of the framework's own statements."""
        connection = self._ready()
        self.last_used = time.monotonic()
        self._deadline = self.last_used + self._sql_timeout
        try:
            if not self.in_transaction and not sql.startswith(READING):
                self._begin(sql)
            return connection.execute(sql, arguments, prepare_flags=OWN_FLAGS).fetchall()
        except apsw.Error as error:
            raise self._translated(error, sql) from error
        finally:
            self._deadline = NEVER

    def run(self, sql: str, arguments: Sequence[object] | dict[str, object]) -> Rows:
        """Run a statement of the user's, and read all its rows."""
        self._ready()
        assert self._cursor is not None
        self.last_used = time.monotonic()
        self._deadline = self.last_used + self._sql_timeout
        self._for_user = sql
        self._description = ()
        try:
            try:
                cursor = self._cursor.execute(sql, arguments, prepare_flags=USER_FLAGS)  # pyright: ignore[reportArgumentType]
                rows: list[tuple[Any, ...]] = cursor.fetchall()
            except BaseException:
                self._new_cursor()  # one that failed may hold a statement open
                raise
            return Rows(tuple([column[0] for column in self._description]), rows)
        except apsw.Error as error:
            raise self._translated(error, sql) from error
        except (TypeError, KeyError) as error:
            raise argument_error(error, sql) from None
        finally:
            self._for_user = ""
            self._deadline = NEVER

    def look(self, sql: str, arguments: Sequence[object], most: int) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Run a statement that can only read, the framework's tables too; return its columns and its first rows."""
        connection = self._ready()
        self.last_used = time.monotonic()
        cursor: Any = connection.cursor()
        cursor.exec_trace = self._before_statement
        connection.execute("PRAGMA query_only = ON", prepare_flags=OWN_FLAGS)
        self._deadline = self.last_used + self._sql_timeout
        self._for_user, self._description, self._looking = sql, (), True
        try:
            # Never from the cache of prepared statements: the authorizer is asked only when one is prepared.
            rows = cursor.execute(sql, arguments, can_cache=False)
            found = list(islice(rows, most))
            return tuple([column[0] for column in self._description]), found
        except apsw.Error as error:
            raise self._translated(error, sql) from error
        except TypeError as error:
            raise UsageError(f"SQL arguments must be null, numbers or strings: {error}. In: {sql}") from None
        finally:
            self._for_user, self._looking = "", False
            self._deadline = NEVER
            cursor.close(True)
            connection.execute("PRAGMA query_only = OFF", prepare_flags=OWN_FLAGS)

    def _ready(self) -> apsw.Connection:
        if self._in_block is not None and self._owner.whose_slice() is not self._in_block:
            self.break_block()
        if self._broken_blocks and self._owner.whose_slice() in self._broken_blocks:
            raise UsageError(SUSPENDED)
        connection = self._connection or self._open()
        if self._stale:
            self._read_versions(connection)
            self._stale = False
        return connection

    def _before_statement(self, cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        if self._looking and not cursor.is_readonly:
            raise ForbiddenSql(f"Only reads are allowed here. In: {sql}")
        if not self.in_transaction and not cursor.is_readonly:
            self._begin(sql)
        if self._for_user:
            # Here, because SQLite forgets the columns of a statement as soon as it has ended.
            columns = cursor.get_description()
            if columns and self._description:
                raise UsageError(f"Only one statement may return rows. In: {self._for_user}")
            self._description = columns or self._description
        return True

    def begin(self) -> None:
        """Open the transaction of the slice now, for the framework's own accounts: no limit refuses them."""
        self._ready()
        if not self.in_transaction:
            self._begin("DELETE")

    def _begin(self, sql: str) -> None:
        assert self._connection is not None
        for_user, self._for_user, deadline = self._for_user, "", self._deadline
        try:
            self._beginning = True
            self._owner.before_write(self, sql)
            self.in_transaction = True
            self._connection.execute("BEGIN IMMEDIATE", prepare_flags=OWN_FLAGS)
        finally:
            self._beginning = False
            self._for_user, self._deadline = for_user, deadline

    def _translated(self, error: apsw.Error, sql: str) -> Exception:
        """Return the error to raise; let the owner know if SQLite ended the transaction by itself."""
        assert self._connection is not None
        denied, self._denied = self._denied, None
        lost = self.in_transaction and not self._connection.in_transaction
        if lost:
            self.in_transaction = self._attempt = False
            self._forget_blocks()
            self._all_undone()
            self._owner.lost(self, error)
        if isinstance(error, apsw.FullError):
            if shutil.disk_usage(self.path.parent).free < DISK_IS_FULL:
                return Unavailable("The disk is full.")
            return OverLimit(
                f"The database has reached its limit of {self.max_bytes} bytes. Delete rows, or raise "
                "Limits(database_bytes=…).",
                limit="database_bytes",
            )
        if isinstance(error, apsw.InterruptError):
            return SlowSql(
                f"A statement exceeded sql_timeout ({self._sql_timeout} s) and was interrupted, because it blocks "
                f"every agent of the process. Add an index, or use await self.read_sql(…). In: {sql}"
            )
        if lost:
            return Unavailable(
                f"SQLite rolled back the transaction ({error}): the writes of this slice are undone, and the "
                "agent restarts."
            )
        return sql_error(error, denied, sql, self.path.name)

    def _authorize(self, action: int, first: str | None, second: str | None, schema: str | None, by: str | None) -> int:
        if not self._for_user:
            return apsw.SQLITE_OK
        if action == apsw.SQLITE_ANALYZE and is_reserved(first) and not self._looking:
            return apsw.SQLITE_IGNORE  # its samples would show what the framework's tables hold
        reason = no_look(action, first) if self._looking else no_use(action, first, second, by, self._for_user)
        if reason is None:
            return apsw.SQLITE_OK
        self._denied = reason
        return apsw.SQLITE_DENY

    def _out_of_time(self) -> bool:
        return time.monotonic() > self._deadline

    def _note_frames(self, connection: apsw.Connection, name: str, frames: int) -> int:
        self.frames = frames
        return apsw.SQLITE_OK

    def commit(self) -> None:
        """End the open transaction; what it wrote is now in the WAL."""
        assert self._connection is not None
        self.in_transaction = self._attempt = False
        try:
            self._connection.execute("COMMIT", prepare_flags=OWN_FLAGS)
        except apsw.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK", prepare_flags=OWN_FLAGS)
            self._all_undone()
            self._owner.lost(self, error)
            raise Unavailable(f"The commit failed ({error}): its writes are undone, and the agent restarts.") from error

    def give_up(self, error: BaseException) -> None:
        """Undo the open transaction because it cannot be committed."""
        self.rollback()
        self._owner.lost(self, error)

    def rollback(self) -> None:
        """Forget the open transaction, if there is one."""
        if self.in_transaction and self._connection is not None:
            self.in_transaction = self._attempt = False
            self._forget_blocks()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK", prepare_flags=OWN_FLAGS)
            self._all_undone()

    def _all_undone(self) -> None:
        """What the transaction made, tables too, is gone again."""
        self._stale = True
        self.undone += 1

    def checkpoint_if_long(self) -> None:
        """Copy the WAL into the file once it has grown long."""
        if self.frames < self._checkpoint_frames or self._connection is None:
            return
        if self.readers and self.frames < self._reader_frames:
            return
        self.stop_readers(
            SlowSql(
                f"read_sql() was interrupted: the agent wrote {wal_bytes(self.frames)} bytes while it ran, and its "
                "write-ahead log has to be emptied. Read fewer rows at a time."
            )
        )
        try:
            self._checkpoint(self._connection)
        except apsw.Error as error:  # all of it is still in the WAL; the next commit tries again
            log.warning("checkpoint failed", extra={"file": self.path.name}, exc_info=error)

    def _checkpoint(self, connection: apsw.Connection) -> bool:
        """Copy the WAL into the file; return whether the file has all of it now."""
        frames, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self.frames = 0
        return frames == copied

    def stop_readers(self, reason: SapwoodError) -> None:
        """Interrupt `read_sql`, which raises `reason`; the file may change then."""
        for reader in self.readers:
            reader.cancel(reason)
        self.readers.clear()

    def reader(self, *, may_checkpoint: bool) -> Reader | None:
        """Return a reader of what is committed now. The file does not change until it is taken from `readers`.

        Returns `None` if the file lacks commits, and a checkpoint has to wait: for an older reader, or a backup.
        """
        connection = self._ready()
        if self.frames:
            if self.readers or not may_checkpoint:
                return None
            try:
                is_whole = self._checkpoint(connection)
            except apsw.Error as error:
                raise Unavailable(f"The checkpoint before read_sql() failed: {error}") from error
            if not is_whole:
                return None
        reader = Reader(self.path, self._files.vfs)
        self.readers.add(reader)
        return reader

    @contextmanager
    def block(self) -> Generator[None, None, None]:
        """Undo what the block wrote if it raises. It must not be suspended: others' writes would fall into it."""
        connection = self._ready()
        if not self.in_transaction:
            self._begin("")
        self._savepoints += 1
        depth = self._savepoints
        connection.execute(f"SAVEPOINT sapwood_{depth}", prepare_flags=OWN_FLAGS)
        me = self._in_block = self._owner.whose_slice()
        try:
            yield
        except BaseException:
            if self._leave_block(me, depth):
                self._undo(depth)
            raise
        else:
            if self._leave_block(me, depth):
                connection.execute(f"RELEASE sapwood_{depth}", prepare_flags=OWN_FLAGS)
            else:
                raise UsageError(SUSPENDED)

    def attempt(self) -> None:
        """Make what is written from here on undoable, until `keep`, `undo` or the next commit."""
        connection = self._ready()
        if not self.in_transaction:
            self._begin("")
        connection.execute("SAVEPOINT sapwood_attempt", prepare_flags=OWN_FLAGS)
        self._attempt = True

    def keep(self) -> None:
        """Let what was written since `attempt` stay."""
        if self._attempt:
            assert self._connection is not None
            self.break_block()
            self._attempt = False
            self._connection.execute("RELEASE sapwood_attempt", prepare_flags=OWN_FLAGS)

    def undo(self) -> None:
        """Undo what was written since `attempt`, unless it was committed since."""
        if self._attempt:
            assert self._connection is not None
            self._forget_blocks()
            self._attempt = False
            self._connection.execute("ROLLBACK TO sapwood_attempt", prepare_flags=OWN_FLAGS)
            self._connection.execute("RELEASE sapwood_attempt", prepare_flags=OWN_FLAGS)
            self._read_versions(self._connection)
            self.undone += 1

    def refuse_in_block(self, what: str) -> None:
        """Refuse what reaches beyond this database, and could not be undone with a block."""
        if self._in_block is not None and self._in_block is self._owner.whose_slice():
            raise UsageError(f"{what} cannot be rolled back. Move it out of `with self.transaction():`.")

    def _leave_block(self, me: object, depth: int) -> bool:
        """Return whether the block is still whole: not suspended, and its transaction not lost."""
        whole = self._in_block is me and self._savepoints == depth and self.in_transaction
        if depth == 1:
            self._broken_blocks.discard(me)
        if whole:
            self._savepoints -= 1
            if self._savepoints == 0:
                self._in_block = None
        return whole

    def break_block(self) -> None:
        """Undo a block that was suspended by an await; its task learns of it at its next statement."""
        if self._in_block is None:
            return
        self._broken_blocks.add(self._in_block)
        self._forget_blocks()
        if self.in_transaction:
            self._undo(1)

    def _undo(self, depth: int) -> None:
        assert self._connection is not None
        self._connection.execute(f"ROLLBACK TO sapwood_{depth}", prepare_flags=OWN_FLAGS)
        self._connection.execute(f"RELEASE sapwood_{depth}", prepare_flags=OWN_FLAGS)
        self._read_versions(self._connection)  # tables made in the block are gone again
        self.undone += 1

    def _forget_blocks(self) -> None:
        self._in_block, self._savepoints = None, 0

    def limit(self, max_bytes: int) -> None:
        """Let the file grow to this size."""
        if max_bytes != self.max_bytes:
            self.max_bytes = max_bytes
            if self._connection is not None:
                self._connection.execute(self._max_pages(), prepare_flags=OWN_FLAGS)

    def _max_pages(self) -> str:
        return f"PRAGMA max_page_count = {max(self.max_bytes // PAGE_SIZE, 1)}"

    def used_bytes(self) -> int:
        """Return how much of the file holds data."""
        ((pages,),) = self.execute("PRAGMA page_count")
        ((free,),) = self.execute("PRAGMA freelist_count")
        return (pages - free) * PAGE_SIZE

    def has(self, schema: Schema) -> bool:
        """Return whether these tables exist; reading never creates them."""
        if not self.exists:
            return False
        self._ready()
        version = self._versions.get(schema.owner, 0)
        if 0 < version < len(schema.scripts):
            self._apply(schema.scripts[version:], self.execute)
        return version > 0

    def ensure(self, schema: Schema) -> None:
        """Bring these tables up to date, creating them at their first write."""
        self._ready()
        version = self._versions.get(schema.owner, 0)
        if version < len(schema.scripts):
            self._apply(schema.scripts[version:], self.execute)

    def version(self, owner: str) -> int:
        """Return how many scripts of this owner the file has seen."""
        self._ready()
        return self._versions.get(owner, 0)

    def check_known(self) -> None:
        """Refuse a file that a newer version of the framework has written."""
        self._ready()
        check_known(self._versions)

    def migrate(self, scripts: Sequence[Script]) -> None:
        """Apply the user's migrations that this file has not seen, and refuse edited ones."""
        applied = self.execute(APPLIED)
        self._apply(to_come(applied, scripts), lambda sql: self.run(sql, ()))

    def _apply(self, scripts: Sequence[Script], execute: Callable[[str], object]) -> None:
        for script in scripts:
            try:
                with self.block():
                    execute(script.sql)
                    self.execute(
                        "INSERT INTO sapwood_migrations VALUES (?, ?, ?)", script.owner, script.number, script.digest
                    )
            except SqlError as error:
                raise MigrationFailed(f"{script.name} failed: {error}") from error
            self._versions[script.owner] = script.number


SUSPENDED = (
    "`with self.transaction():` was suspended by an await, and its writes are rolled back. Keep awaits outside "
    "the block."
)
