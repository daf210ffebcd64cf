"""One agent's SQLite file: opened when needed, written in slices, closed at any quiet moment.

The first write of a slice opens a transaction; the owner of the slice commits it. The
file appears with the first write, as a copy of an empty image that is already in WAL
mode, and each owner's tables appear with that owner's first write.
"""

# apsw's own stubs name a type that Python has only from 3.12, so to 3.11 its values are unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
import stat
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import apsw

from sapwood.errors import (
    ForbiddenSql,
    MigrationFailed,
    NotFound,
    OverLimit,
    SapwoodError,
    SlowSql,
    SqlError,
    Unavailable,
    UsageError,
)
from sapwood.storage.availability import StorageUnavailable, refused_by
from sapwood.storage.engine import NO_CHECKSUMS, has_checksums
from sapwood.storage.files import Files
from sapwood.storage.image import PAGE_SIZE, empty_image, is_cut, wal_bytes
from sapwood.storage.marks import Mark, Marks, clear_log_after, generation_of, loss, position, stored_version
from sapwood.storage.migrations import APPLIED, Schema, Script, check_known, to_come
from sapwood.storage.query_reader import QueryReader
from sapwood.storage.rows import Rows, SqlValue
from sapwood.storage.slice_owner import SUSPENDED, SliceOwner
from sapwood.storage.sql_errors import DatabaseDamage, argument_error, damage, opening_error, refusal_of, sql_error
from sapwood.storage.sql_permissions import is_reserved, no_look, no_use
from sapwood.timings import DEFAULTS

log = logging.getLogger(__name__)

PROGRESS_STEPS = 50_000
NEVER = float("inf")
READING = ("SELECT", "PRAGMA")
"""How those of the framework's own statements begin that write nothing."""

# User statements and the framework's own share one cache of prepared statements, and
# SQLite asks the authorizer only when it prepares. Different flags keep them apart: a
# user cannot reach a statement that was prepared for the framework.
USER_FLAGS = apsw.SQLITE_PREPARE_PERSISTENT
OWN_FLAGS = 0


class Database:
    """The database of one agent."""

    __slots__ = (
        "__weakref__",
        "_attempt",
        "_attempt_start",
        "_beginning",
        "_block_starts",
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
        "_marks",
        "_now",
        "_owner",
        "_reader_frames",
        "_reverts",
        "_savepoints",
        "_sql_timeout",
        "_stale",
        "_synced",
        "_version",
        "_versions",
        "beside",
        "damage",
        "descriptor",
        "exists",
        "frames",
        "in_transaction",
        "is_marked",
        "is_new",
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
        owner: SliceOwner[Database],
        *,
        exists: bool,
        synced: bool,
        sql_timeout: float,
        max_bytes: int,
        marks: Marks | None = None,
        checkpoint_frames: int = DEFAULTS.checkpoint_frames,
        reader_frames: int = DEFAULTS.reader_frames,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.exists = exists
        self.removed = False
        """True once the agent was deleted: the file may never come back under this name."""
        self.let_go = False
        """True once the agent sleeps: waking it makes another object, and the file can be opened only once."""
        self.damage: SapwoodError | None = None
        """Set once a statement found the file damaged. From then on, it is neither read nor written."""
        self.max_bytes = max_bytes
        self._checkpoint_frames = checkpoint_frames
        self._reader_frames = reader_frames
        self.in_transaction = False
        self.readers: set[QueryReader] = set()
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
        """When a statement last ran, by the clock that was handed in."""
        self._now = now
        self.is_marked = True
        """Whether its mark names every commit."""
        self._marks = marks
        self._version = 0
        """How often the WAL was copied into the file."""
        self.is_new = False
        """Whether its file was created when it was opened last."""
        self._files = files
        self._owner = owner
        self._synced = synced
        self._sql_timeout = sql_timeout
        self._connection: apsw.Connection | None = None
        self._cursor: apsw.Cursor | None = None
        """For the user's statements, of which it is unknown beforehand whether they write."""
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
        self._reverts: list[Callable[[], None]] = []
        """What takes back in memory what is written now, if it is undone."""
        self._block_starts: list[int] = []
        """How many of them there were when each open block began."""
        self._attempt_start = 0
        self._broken_blocks: set[object] = set()

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    @property
    def stamp(self) -> object | None:
        """Another value after each change of a row, and each time that the file was opened; `None` while it is not."""
        connection = self._connection
        return None if connection is None else (connection, connection.total_changes())

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
        mark: Mark | None = None
        try:
            mark = self._open_file()
        except OSError as error:
            if (refusal := refused_by(error)) is None:
                raise
            if not self.exists:
                self._owner.lost(self, refusal)
            raise self._told(refusal) from error
        if not self._synced:
            self._close_descriptor()
        frames = 0
        connection: apsw.Connection | None = None
        try:
            connection = apsw.Connection(
                str(self.path),
                flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX,
                vfs=self._files.vfs,
                statementcachesize=80,  # a turn of a chat executes about 60; with fewer, each is compiled again
            )
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
            connection.execute(
                "PRAGMA locking_mode = EXCLUSIVE; PRAGMA wal_autocheckpoint = 0; PRAGMA temp_store = MEMORY;"
                f"PRAGMA synchronous = {'NORMAL' if self._synced else 'OFF'}; PRAGMA foreign_keys = ON;"
                f"{self._max_pages()}"
            ).fetchall()
            if not has_checksums(connection):
                raise DatabaseDamage(NO_CHECKSUMS)
            self._read_versions(connection)
            frames = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
            self._compare(mark, frames)
        except (apsw.Error, DatabaseDamage) as error:
            if connection is not None:
                connection.close(True)  # or it has the file locked for as long as the error is remembered
            self._close_descriptor()
            failure = error if isinstance(error, DatabaseDamage) else opening_error(error, self.path)
            if isinstance(failure, DatabaseDamage):
                raise self._owner.damaged(self, str(failure)) from error
            raise self._told(failure) from error
        connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_wal_hook(self._note_frames)
        connection.authorizer = self._authorize
        connection.set_progress_handler(self._out_of_time, PROGRESS_STEPS)
        self.frames = frames
        self._connection = connection
        self._new_cursor()
        self._owner.opened(self)
        return connection

    def _open_file(self) -> Mark | None:
        """Create the file, or open it to sync it. Return how far it was written."""
        self.is_new = not self.exists
        if self.is_new:
            self._owner.before_create(self)
            if self._synced and self.wal.exists():
                # A loss of power at its birth kept this name and lost the file's own: no caller has an answer about it.
                self._files.remove(self.wal)
            self.descriptor = self._create()
            self.exists = True
            return None
        if not self.path.exists():
            raise self._owner.damaged(self, "it is missing")
        mark = self._find_mark()
        self._mend_birth(mark)
        self._version = 0 if self._marks is None else stored_version(self.path)
        self.descriptor = self._files.open(self.path) if self._synced else None
        return mark

    def _told(self, error: SapwoodError) -> SapwoodError:
        """Return an error, after reporting it to the owner if the operating system refused something."""
        if isinstance(error, StorageUnavailable):
            self._owner.refused(error)
        return error

    def _new_cursor(self) -> None:
        assert self._connection is not None
        if self._cursor is not None:
            self._cursor.close(True)
        self._cursor = self._connection.cursor()
        self._cursor.exec_trace = self._before_statement

    def _read_versions(self, connection: apsw.Connection) -> None:
        rows = connection.execute("SELECT owner, max(number) FROM sapwood_migrations GROUP BY owner").fetchall()
        self._versions = {str(owner): int(number) for owner, number in rows}  # pyright: ignore[reportArgumentType]

    def _create(self) -> int:
        try:
            return self._files.create(self.path, empty_image())
        except FileExistsError:
            mark = self._find_mark()
            if mark is None or mark.counts(self._files.boot):
                raise self._owner.damaged(self, "it exists, though the file of its parent does not name it") from None
            # A restart of the machine took the row of the parent, and left this.
            log.warning("removing the file of an unknown agent file=%s", self.path)
            self._files.remove(self.path)
            self._files.remove(self.wal)
            return self._files.create(self.path, empty_image())

    def _mend_birth(self, mark: Mark | None) -> None:
        """Write the empty image again if a crash cut the file's very first write short.

        Then the file is the image with sectors missing, and all it ever held is in the WAL: the image below it may be
        put back. SQLite would throw the WAL of an empty file away.
        """
        image, found = empty_image(), self.path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise self._owner.damaged(self, "it is not a file")
        if mark is not None and (mark.generation or not mark.frames) and mark.counts(self._files.boot):
            return  # the file held something itself
        if found.st_size <= len(image) and is_cut(self.path.read_bytes()):
            self._files.overwrite(self.path, image)

    def _find_mark(self) -> Mark | None:
        return None if self._marks is None else self._marks.find(self.path.stem)

    def _compare(self, mark: Mark | None, frames: int) -> None:
        """Raise `DatabaseDamage` if the file lacks something that it had and could not lose."""
        boot = self._files.boot
        if mark is None:
            if self._marks is not None:
                clear_log_after(self.path, frames, self._files)
            return
        generation = generation_of(self.path, frames)
        how = loss(mark, self.path, generation, frames, self._version, boot)
        if how is not None and mark.counts(boot):
            raise DatabaseDamage(how)
        if how is not None:
            log.warning("writes lost in a restart of the machine file=%s lost=%s", self.path, how)
        if mark.boot != boot:
            clear_log_after(self.path, frames, self._files)
        is_too_strong = mark.is_durable and not self._synced  # it counts for good, and what is written now may not
        if mark.boot != boot or how is not None or (generation or 0) < mark.generation or is_too_strong:
            # Not durable yet: what is in the log may be from a process that died before the disk had it.
            self._store(position(self.path, frames, self._version, boot, is_durable=False))
            self.is_marked = False
        if is_too_strong and self._marks is not None:
            self._marks.sync()  # else a power loss could bring it back

    def mark(self) -> None:
        """Store how far the file is written. Only when all of it is as durable as it will be."""
        if self._connection is None or self.in_transaction or self.damage is not None:
            return
        try:
            self._store(self._position(self.frames))
        except FileNotFoundError:
            self.damaged("it was removed while it was open")
        else:
            self.is_marked = True

    def _position(self, frames: int) -> Mark:
        return position(self.path, frames, self._version, self._files.boot, is_durable=self._synced)

    def _store(self, mark: Mark) -> None:
        if self._marks is not None:
            self._marks.write(self.path.stem, mark)

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
        self.last_used, self._deadline = self._now(), time.monotonic() + self._sql_timeout
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
        self.last_used, self._deadline = self._now(), time.monotonic() + self._sql_timeout
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
        self.last_used = self._now()
        cursor: Any = connection.cursor()
        cursor.exec_trace = self._before_statement
        connection.execute("PRAGMA query_only = ON", prepare_flags=OWN_FLAGS)
        self._deadline = time.monotonic() + self._sql_timeout
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
        if self.damage is not None:
            raise type(self.damage)(str(self.damage))
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
        """Return the error to raise; notify the owner if SQLite itself ended the transaction."""
        assert self._connection is not None
        denied, self._denied = self._denied, None
        if (how := damage(error)) is not None:
            return self.damaged(how)
        writes = self.in_transaction
        lost = writes and not self._connection.in_transaction
        if lost:
            self.in_transaction = self._attempt = False
            self._forget_blocks()
            self._all_undone()
        if (refusal := refusal_of(error, self.path.parent)) is not None:
            if writes:
                self.rollback()
                self._owner.lost(self, refusal)
            return self._told(refusal)
        if lost:
            self._owner.lost(self, error)
        if isinstance(error, apsw.FullError):
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
        return sql_error(error, denied, sql)

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
        self.is_marked = False
        return apsw.SQLITE_OK

    def commit(self) -> None:
        """End the open transaction; what it wrote is now in the WAL."""
        assert self._connection is not None
        self.in_transaction = self._attempt = False
        self._reverts.clear()
        try:
            self._connection.execute("COMMIT", prepare_flags=OWN_FLAGS)
        except apsw.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK", prepare_flags=OWN_FLAGS)
            self._all_undone()
            if (how := damage(error)) is not None:
                raise self.damaged(how) from error
            refusal = refusal_of(error, self.path.parent)
            self._owner.lost(self, refusal or error)
            if refusal is not None:
                raise self._told(refusal) from error
            raise Unavailable(f"The commit failed ({error}): its writes are undone, and the agent restarts.") from error

    def damaged(self, how: str) -> SapwoodError:
        """Return the error to raise for damage. The open transaction is undone, and the file not used any more.

        A write to it would be acknowledged, and lost.
        """
        if self.damage is None:
            self.damage = self._owner.damaged(self, how)
            with suppress(apsw.Error):
                self.rollback()
            self._owner.lost(self, self.damage)
        return self.damage

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
        self._reverts.clear()  # the agent restarts
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
            self._checkpoint_failed(error)

    def _checkpoint_failed(self, error: apsw.Error) -> None:
        if (how := damage(error)) is not None:
            self.damaged(how)
        elif (refusal := refusal_of(error, self.path.parent)) is not None:
            self._owner.refused(refusal)
        else:
            log.warning("checkpoint failed", extra={"file": self.path.name}, exc_info=error)

    def _checkpoint(self, connection: apsw.Connection, mode: int = apsw.SQLITE_CHECKPOINT_PASSIVE) -> bool:
        """Copy the WAL into the file; return whether the file has all of it now."""
        version = self._version
        if self._marks is not None:
            # The file counts its checkpoints, so that an older copy of it is told from what it was.
            version = (version + 1) & 0x7FFFFFFF
            connection.execute(f"PRAGMA user_version = {version}", prepare_flags=OWN_FLAGS)
        frames, copied = connection.wal_checkpoint(mode=mode)
        self.frames = 0
        self.is_marked = False
        is_whole = frames == copied
        if is_whole:
            self._version = version
        return is_whole

    def empty_log(self) -> None:
        """Copy the WAL into the file and cut it to nothing, if that can be done: other programs may read the file."""
        if self._connection is None or self.in_use or not self.wal.exists():
            return
        # The mark first: a log that is empty begins from the start, and may not be behind its mark.
        self._store(self._position(0)._replace(generation=0))
        self.is_marked = False
        if not self.is_open:
            return  # the node has ended in between
        try:
            self._checkpoint(self._connection, apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            self._checkpoint_failed(error)

    def vacuum(self) -> None:
        """Write the file again without what was deleted from it, so that no byte of that is left in it.

        The log may have it until `empty_log`. Only between transactions, and if the file may be written.
        """
        connection = self._ready()
        self.stop_readers(SlowSql("read_sql() was interrupted: the database is written again without deleted rows."))
        self._new_cursor()
        connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 1)  # it attaches the new file
        try:
            connection.execute("VACUUM", prepare_flags=OWN_FLAGS).fetchall()
        except apsw.Error as error:
            raise self._translated(error, "VACUUM") from error
        finally:
            connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)

    def stop_readers(self, reason: SapwoodError) -> None:
        """Interrupt `read_sql`, which raises `reason`; the file may change then."""
        for reader in self.readers:
            reader.cancel(reason)
        self.readers.clear()

    def reader(self, *, may_checkpoint: bool) -> QueryReader | None:
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
        reader = QueryReader(self.path, self._files.vfs)
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
        self._block_starts[depth - 1 :] = [len(self._reverts)]
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
        self._attempt, self._attempt_start = True, len(self._reverts)

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
            self._revert(self._attempt_start)

    def on_undo(self, revert: Callable[[], None]) -> None:
        """Call `revert` if the block or the attempt that is open is undone."""
        if self._attempt or self._in_block is not None:
            self._reverts.append(revert)

    def _revert(self, start: int) -> None:
        """What was written since `start` is undone: take it back in memory, the latest first."""
        self.undone += 1
        steps, self._reverts[start:] = self._reverts[start:], []
        for step in reversed(steps):
            step()

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
        self._revert(self._block_starts[depth - 1])

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
        ((pages,),) = self.execute("SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count")
        return pages * PAGE_SIZE

    def has_room(self, size: int, limit: int) -> bool:
        """Return whether so many bytes more fit below a limit. A small database needs no statement for that."""
        with suppress(OSError):
            if self.path.stat().st_size + wal_bytes(self.frames) + size <= limit // 2:
                return True
        return self.used_bytes() + size <= limit

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
