"""The alarms of one node: which of its trees is due next, and when.

This index and those of the trees are derived from the databases of the agents. An entry moves to an earlier time, and
is durable, before the commit that makes it necessary, and to a later time only afterwards: so it may be too early,
which costs a look, and is never too late. A restart opens the trees that are due and no other.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from sapwood.address import Address
from sapwood.clock import Clock, Timer
from sapwood.errors import InvalidName, MigrationFailed, SapwoodError, StoredDataError, Unavailable
from sapwood.kernel.alarms.index_file import MARKS, remove_index
from sapwood.kernel.ports.durability import Commit, Gate
from sapwood.storage.availability import StorageUnavailable
from sapwood.storage.database import Database
from sapwood.storage.files import Files
from sapwood.storage.marks import Marks
from sapwood.storage.migrations import Schema
from sapwood.storage.sql_errors import is_damage
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
NODE = Schema("sapwood.kernel", "node")
AT_ONCE = 16
"""How many trees to look at before other tasks have a turn: each may have to be opened."""
LET_GO_AT_ONCE = 500
BEGINNING = (float("-inf"), "")
LOOK_AGAIN = 1.0
"""Seconds after which to look again at an agent that ended, or could not end what it did, while something was due."""
TROUBLED = 5.0
"""Seconds after which to read the index again that could not be read."""
LARGEST = 1 << 40
FOREVER = float("inf")


def rebuilt_if_damaged(method: Callable[Concatenate[NodeAlarms, P], T]) -> Callable[Concatenate[NodeAlarms, P], T]:
    """Let a method that reads or writes the index start over with an empty one if the file is damaged."""

    @functools.wraps(method)
    def guarded(self: NodeAlarms, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except SapwoodError as error:
            if not is_damage(error):
                raise
            self.start_over(error)
            return method(self, *args, **kwargs)

    return guarded


class NodeAlarms:
    """Rings for every tree when it is due; kept in a file of the node's own."""

    def __init__(
        self,
        path: Path,
        *,
        files: Files,
        gate: Gate,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        timings: Timings = DEFAULTS,
    ) -> None:
        self._path = path
        self._gate = gate
        self._clock = clock
        self._loop = loop
        self._files = files
        self._timings = timings
        wal = path.with_name(f"{path.name}-wal")
        if not path.is_file() or wal.is_dir():
            remove_index(path, files)  # a log without its file has only a part of the index
        self.database = self._new_database()
        self._damaged: list[Database] = []
        """Databases that were replaced, until the end: the gate may still have to sync them."""
        self.losses = 0
        """How often the index was damaged, and begun again without entries."""
        self.when_lost: Callable[[], object] = lambda: None
        """Called then: the index has to be made from what the trees hold."""
        self.when_refused: Callable[[StorageUnavailable], None] = lambda error: None
        """Called when the operating system refuses a write."""
        self._whole = False
        self._look: Callable[[Address], None] | None = None
        self._held: dict[Address, float] = {}
        """Trees that were looked at and still have what is due, with when to look again: what is stored says
        that they are due, and stays so until all of it is done."""
        self._rings: list[tuple[float, str, Address]] = []
        """When to look again at those, earliest first; what `_held` does not confirm is void."""
        self._from = BEGINNING
        """A place in the order of due time and root, up to which all that is stored is held: it is not read again."""
        self._timer: Timer | None = None
        self._timer_at = FOREVER

    def _new_database(self) -> Database:
        return Database(
            self._path,
            self._files,
            self,
            exists=self._path.exists(),
            synced=self._gate.synced,
            sql_timeout=60.0,
            max_bytes=LARGEST,
            checkpoint_frames=self._timings.checkpoint_frames,
            marks=Marks(self._path.parent, self._files, self._path.with_suffix(MARKS).name),
        )

    def mark(self) -> None:
        """Store how far the index is written: if it is ever behind that, it is rebuilt."""
        if not self.database.is_marked and self._gate.is_quiet(self.database):
            with suppress(OSError, Unavailable):  # the file was removed, or the disk failed to store it
                self._gate.wait(self.database)
                self.database.mark()

    def start_over(self, error: SapwoodError) -> None:
        """Replace an index that cannot be used by an empty one. It is derived, so nothing is lost but time."""
        log.warning(
            "alarm index cannot be used; rebuilding it from the trees: %s", error, extra={"file": self._path.name}
        )
        self.database.rollback()
        self._damaged.append(self.database)
        self._gate.moved(self._path.parent)
        remove_index(self._path, self._files)
        self.database = self._new_database()
        self._whole, self._from = False, BEGINNING
        self.losses += 1
        self.when_lost()

    @property
    def is_whole(self) -> bool:
        """Whether every tree that has an alarm is in the index; if not, it has to be made from what the trees hold."""
        self._whole = self._whole or self._is_marked()
        return self._whole

    @rebuilt_if_damaged
    def _is_marked(self) -> bool:
        if not self.database.has(NODE):
            return False
        if self.database.version(NODE.owner) > len(NODE.scripts):
            self.start_over(MigrationFailed("a newer version of sapwood has written it"))
            return False
        return bool(self.database.execute("SELECT 1 FROM sapwood_node_alarms WHERE root = ''"))

    def complete(self) -> None:
        """Every tree is in the index, or there is none."""
        self._whole = True
        self._mark_whole()

    @rebuilt_if_damaged
    def prepare(self) -> None:
        """Make the file, so that it is known from now on that the index has every tree."""
        self.database.ensure(NODE)

    @rebuilt_if_damaged
    def _mark_whole(self) -> None:
        if self._whole and self.database.has(NODE):
            self.database.execute("INSERT INTO sapwood_node_alarms (root) VALUES ('') ON CONFLICT DO NOTHING")

    @rebuilt_if_damaged
    def rows(self) -> list[tuple[str, float | None, int]]:
        """Return what is stored: the address of each tree, when it is due, and how many dead letters it has."""
        if not self.database.has(NODE):
            return []
        rows = self.database.execute("SELECT root, due_at, dead FROM sapwood_node_alarms WHERE root <> ''")
        return [(str(_root(text)), due, dead) for text, due, dead in rows]

    def take_over(self, rows: Iterable[tuple[str, float | None, int]], *, is_whole: bool) -> None:
        """Have a new index say what others said; `is_whole`: they said all that this one has to."""
        self.database.ensure(NODE)
        for row in rows:
            self.database.execute("INSERT INTO sapwood_node_alarms VALUES (?, ?, ?)", *row)
        if is_whole:
            self.complete()
        self.commit()

    def gained(self, rows: Iterable[tuple[Address, float | None, int]]) -> None:
        """Trees are this node's now; ring for them too."""
        for root, due, dead in rows:
            self._held.pop(root, None)
            self._store(root, due, dead)
        self.commit()
        self._set_timer()

    def refill(self, rows: Iterable[tuple[Address, float | None, int]]) -> None:
        """Enter trees into an index that was lost, unless they have set an earlier alarm since."""
        for root, due, dead in rows:
            known, count = self.stored(root) or (None, 0)
            self._store(root, min((at for at in (known, due) if at is not None), default=None), max(count, dead))
        self.commit()
        self._set_timer()

    async def let_go(self, is_gone: Callable[[Address], bool]) -> None:
        """Trees are another node's now: ring for none of them any more, without saying that they have nothing to do."""
        last = ""
        while self._look is not None:
            rows = self.roots_after(last)
            if not rows:
                break
            for root in rows:
                if is_gone(root):
                    self.lose(root)
            last = str(rows[-1])
            await asyncio.sleep(0)

    @rebuilt_if_damaged
    def roots_after(self, last: str) -> list[Address]:
        """Return some of the trees that have an entry, sorted by address: those after one."""
        if not self.database.has(NODE):
            return []
        rows = self.database.execute(
            "SELECT root FROM sapwood_node_alarms WHERE root > ? ORDER BY root LIMIT ?", last, LET_GO_AT_ONCE
        )
        return [_root(text) for (text,) in rows]

    @rebuilt_if_damaged
    def lose(self, root: Address) -> None:
        """The tree is another node's."""
        self._held.pop(root, None)
        if self.database.has(NODE):
            self.database.execute("DELETE FROM sapwood_node_alarms WHERE root = ?", str(root))

    def start(self, look: Callable[[Address], None]) -> None:
        """Call `look` with every tree that is due, from now on."""
        self._look = look
        self._set_timer()

    def stop(self) -> None:
        """Stop ringing."""
        self._look = None
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Let go of the file."""
        self.stop()
        self._commit_soon()
        self.mark()
        for database in (*self._damaged, self.database):
            self._gate.forget(database)
            database.close()

    def die(self) -> None:
        """Let go of the file as the end of the process does."""
        self.stop()
        self.database.rollback()
        for database in (*self._damaged, self.database):
            database.close()

    @rebuilt_if_damaged
    def stored(self, root: Address) -> tuple[float | None, int] | None:
        """Return when a tree is due as far as is stored, and how many dead letters it has."""
        if not self.database.has(NODE):
            return None
        rows = self.database.execute("SELECT due_at, dead FROM sapwood_node_alarms WHERE root = ?", str(root))
        return rows[0] if rows else None

    @rebuilt_if_damaged
    def due(self) -> int:
        """Return how many trees have something to do by now, what is under way included."""
        if not self.database.has(NODE):
            return 0
        now = self._clock.now()
        ((count,),) = self.database.execute(
            "SELECT count(*) FROM sapwood_node_alarms WHERE due_at IS NOT NULL AND due_at <= ?", now
        )
        return count

    @rebuilt_if_damaged
    def with_dead_letters(self) -> list[tuple[Address, int]]:
        """Return the trees that have dead letters, and how many each."""
        if not self.database.has(NODE):
            return []
        rows = self.database.execute("SELECT root, dead FROM sapwood_node_alarms WHERE dead > 0 ORDER BY root")
        return [(_root(text), dead) for text, dead in rows]

    @rebuilt_if_damaged
    def earlier(self, root: Address, due: float | None, dead: int) -> None:
        """Have the tree looked at by then, and its dead letters counted; committed when this returns."""
        found = self.stored(root)
        known, count = found or (None, 0)
        if due is not None and (known is None or due < known):
            known = due
        elif found is not None and dead <= count:
            return
        dead = max(dead, count)
        self._store(root, known, dead)
        self.commit()
        self._gate.alarmed(root, known, dead)
        if due is not None:
            self.look_by(root, due)

    @rebuilt_if_damaged
    def _store(self, root: Address, due: float | None, dead: int) -> None:
        if not self.database.has(NODE):
            self.database.ensure(NODE)
            self._mark_whole()
        self.database.execute(
            "INSERT INTO sapwood_node_alarms VALUES (?, ?, ?)"
            " ON CONFLICT (root) DO UPDATE SET due_at = excluded.due_at, dead = excluded.dead",
            str(root),
            due,
            dead,
        )
        self._moved_to(due)

    @rebuilt_if_damaged
    def exactly(self, root: Address, due: float | None, dead: int) -> None:
        """The tree has nothing to do before then; what said otherwise is kept as done."""
        self._held.pop(root, None)
        if self.database.has(NODE):
            if due is None and not dead:
                if self.database.execute("DELETE FROM sapwood_node_alarms WHERE root = ? RETURNING root", str(root)):
                    self._gate.alarmed(root, due, dead)
            elif self.database.execute(
                "UPDATE sapwood_node_alarms SET due_at = ?1, dead = ?2"
                " WHERE root = ?3 AND (due_at, dead) IS NOT (?1, ?2) RETURNING root",
                due,
                dead,
                str(root),
            ):
                self._gate.alarmed(root, due, dead)
            self._moved_to(due)
            self._set_timer()

    def _moved_to(self, due: float | None) -> None:
        if due is not None:
            self._from = min(self._from, (due, ""))

    def forget(self, root: Address) -> None:
        """The tree is no more."""
        self.exactly(root, None, 0)

    def look_by(self, root: Address, when: float) -> None:
        """Look at a tree by then, whatever is stored."""
        if when < self._held.get(root, FOREVER):
            if root in self._held:
                self._hold(root, when)
            self._set_timer(when)

    def look_again(self, root: Address) -> None:
        """Look at a tree again soon: what was done there by the clock may be due still."""
        self.look_by(root, self._clock.now() + LOOK_AGAIN)

    def hold(self, root: Address, until: float) -> None:
        """The tree was looked at; do so again then, although what is stored says now.

        Unless an agent asked for an earlier time since, or the stored time was corrected.
        """
        if until < self._held.get(root, -FOREVER):
            self._hold(root, until)
        self._set_timer()

    def _hold(self, root: Address, until: float) -> None:
        self._held[root] = until
        if until < FOREVER:
            heapq.heappush(self._rings, (until, str(root), root))
            if len(self._rings) > 2 * len(self._held) + 64:  # most of it is void
                self._rings = [(when, str(one), one) for one, when in self._held.items() if when < FOREVER]
                heapq.heapify(self._rings)

    def _set_timer(self, at_most: float | None = None) -> None:
        if self._look is None:
            return
        if at_most is None:
            when = min(self._next_held(), self._next_stored())
        elif at_most < self._timer_at:
            when = at_most
        else:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._clock.call_at(when, self._ring) if when < FOREVER else None

    def _next_held(self) -> float:
        while self._rings and self._held.get(self._rings[0][2]) != self._rings[0][0]:
            heapq.heappop(self._rings)
        return self._rings[0][0] if self._rings else FOREVER

    def _next_stored(self) -> float:
        rows = self._first_stored(1, FOREVER)
        return rows[0][1] if rows else FOREVER

    @rebuilt_if_damaged
    def _first_stored(self, most: int, until: float) -> list[tuple[Address, float]]:
        """Return the first trees that are due until then and were not looked at."""
        found: list[tuple[Address, float]] = []
        if not self.database.has(NODE):
            return found
        after, last = self._from
        while len(found) < most:
            rows = self.database.execute(
                "SELECT root, due_at FROM sapwood_node_alarms"
                " WHERE due_at IS NOT NULL AND due_at <= ? AND (due_at, root) > (?, ?) ORDER BY due_at, root LIMIT ?",
                until,
                after,
                last,
                most + 4,  # some are held
            )
            if not rows:
                break
            for text, due in rows:
                root = _root(text)
                if root not in self._held:
                    found.append((root, due))
                    if len(found) == most:
                        break
                elif not found:
                    self._from = (due, text)
            if len(rows) < most + 4:
                break
            last, after = rows[-1]
        return found

    def _ring(self) -> None:
        self._timer, self._timer_at = None, FOREVER
        look = self._look
        if look is None:
            return
        try:
            for root in self._due(self._clock.now()):
                self._held[root] = FOREVER
                look(root)
            self._set_timer()
        except SapwoodError:
            log.exception(
                "reading the node's alarm index failed; if this persists, stop the node and remove %s", self._path.name
            )
            self._set_timer(self._clock.now() + TROUBLED)

    def _due(self, now: float) -> list[Address]:
        """Return the trees to look at: first those that were to be looked at again, but not those alone."""
        due: dict[Address, None] = {}
        while len(due) < AT_ONCE // 2 and self._next_held() <= now:
            due[heapq.heappop(self._rings)[2]] = None
        for root, _ in self._first_stored(AT_ONCE - len(due), now):
            due[root] = None
        return list(due)

    def commit(self) -> None:
        """Commit what was written to the index."""
        if not self.database.in_transaction:
            return
        before = self.database.frames
        self.database.commit()
        if self.database.frames > before:
            self._gate.committed(Commit(None, self.database, before + 1, self.database.frames))
        self.database.checkpoint_if_long()

    def _commit_soon(self) -> None:
        try:
            self.commit()
        except StorageUnavailable:
            pass  # it was told
        except SapwoodError:
            log.exception("updating the node's alarm index failed; some entries are due too early")

    def before_create(self, database: Database) -> None:
        pass

    def before_write(self, database: Database, sql: str) -> None:
        self._loop.call_soon(self._commit_soon)

    def whose_slice(self) -> object:
        return self

    def opened(self, database: Database) -> None:
        self._gate.opened(database)

    def lost(self, database: Database, error: BaseException) -> None:
        self._from = BEGINNING
        if not isinstance(error, StorageUnavailable | StoredDataError):  # those are logged where they are handled
            log.error("the node's alarm index lost a transaction", exc_info=error)

    def refused(self, error: StorageUnavailable) -> None:
        self.when_refused(error)

    def damaged(self, database: Database, how: str) -> SapwoodError:
        return StoredDataError(f"The alarm index {database.path.name} is damaged: {how}.")


def _root(text: str) -> Address:
    try:
        return Address.parse(text)
    except InvalidName as error:
        raise StoredDataError(f"The alarm index has an entry that is not a tree. {error}") from None
