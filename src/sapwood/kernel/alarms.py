"""When agents have to be woken: an index of each tree, and one of the node over its trees.

Both are derived from what the agents' own databases hold. An entry is moved earlier,
and kept, before the commit that makes it necessary, and later only after: so it may be
too early, which costs a look, and is never too late. Where no agent sleeps nothing is
read: a restart opens the trees that are due and no other.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from sapwood.address import Address
from sapwood.clock import Clock, Timer
from sapwood.errors import SapwoodError
from sapwood.kernel.owners import OWN_AND_BELOW
from sapwood.kernel.ports import Commit, Gate
from sapwood.kernel.slices import Slices
from sapwood.storage.database import Database
from sapwood.storage.files import Files
from sapwood.storage.migrations import Schema
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger(__name__)

TREE = Schema("sapwood.kernel", "alarms")
NODE = Schema("sapwood.kernel", "node")
FILE = "alarms.db"
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


def alarms_file(part: str) -> str:
    """Return the name of the file that a node keeps its index in, by the part of the trees it runs; "": all."""
    return FILE.replace(".", f"{part}.")


def remove_index(path: Path, files: Files) -> None:
    """Remove a node's index."""
    for one in (path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm"), path):
        files.remove(one)


class Alarms:
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
        self._name = path.name
        self._gate = gate
        self._clock = clock
        self._loop = loop
        self._files = files
        self.database = Database(
            path,
            files,
            self,
            exists=path.exists(),
            synced=gate.synced,
            sql_timeout=60.0,
            max_bytes=LARGEST,
            checkpoint_frames=timings.checkpoint_frames,
        )
        self._whole = False
        self._look: Callable[[Address], None] | None = None
        self._held: dict[Address, float] = {}
        """Trees that were looked at and still have what is due, with when to look again: what is stored says
        that they are due, and stays so until all of it is done."""
        self._rings: list[tuple[float, str, Address]] = []
        """When to look again at those, earliest first; what `_held` does not confirm is void."""
        self._from = BEGINNING
        """A place in the order of due time and root, up to which all that is stored is held: nobody reads it again."""
        self._timer: Timer | None = None
        self._timer_at = FOREVER

    @property
    def is_whole(self) -> bool:
        """Whether every tree that has an alarm is in the index; if not, it has to be made from what the trees hold."""
        self._whole = self._whole or (
            self.database.has(NODE) and bool(self.database.execute("SELECT 1 FROM sapwood_node_alarms WHERE root = ''"))
        )
        return self._whole

    def complete(self) -> None:
        """Every tree is in the index, or there is none."""
        self._whole = True
        if self.database.has(NODE):
            self._mark_whole()

    def _mark_whole(self) -> None:
        self.database.execute("INSERT INTO sapwood_node_alarms (root) VALUES ('') ON CONFLICT DO NOTHING")

    def rows(self) -> list[tuple[str, float | None, int]]:
        """Return what is stored: the address of each tree, when it is due, and how many dead letters it has."""
        if not self.database.has(NODE):
            return []
        rows = self.database.execute("SELECT root, due_at, dead FROM sapwood_node_alarms WHERE root <> ''")
        return [(root, due, dead) for root, due, dead in rows]

    def take_over(self, rows: Iterable[tuple[str, float | None, int]], *, is_whole: bool) -> None:
        """Have a new index say what others said; `is_whole`: they said all that this one has to."""
        self.database.ensure(NODE)
        for row in rows:
            self.database.execute("INSERT INTO sapwood_node_alarms VALUES (?, ?, ?)", *row)
        if is_whole:
            self._mark_whole()
        self.commit()

    def gained(self, rows: Iterable[tuple[Address, float | None, int]]) -> None:
        """Trees are this node's now; ring for them too."""
        for root, due, dead in rows:
            self._held.pop(root, None)
            self._store(root, due, dead)
        self.commit()
        self._set_timer()

    async def let_go(self, is_gone: Callable[[Address], bool]) -> None:
        """Trees are another node's now: ring for none of them any more, without saying that they have nothing to do."""
        last = ""
        while self._look is not None and self.database.has(NODE):
            rows = self.database.execute(
                "SELECT root FROM sapwood_node_alarms WHERE root > ? ORDER BY root LIMIT ?", last, LET_GO_AT_ONCE
            )
            if not rows:
                break
            for (text,) in rows:
                if is_gone(root := Address.parse(text)):
                    self.lose(root)
            ((last,),) = rows[-1:]
            await asyncio.sleep(0)

    def lose(self, root: Address) -> None:
        """The tree is another node's."""
        self._held.pop(root, None)
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
        if self.database.in_transaction:
            self.commit()
        self._gate.forget(self.database)
        self.database.close()

    def die(self) -> None:
        """Let go of the file as the end of the process does."""
        self.stop()
        self.database.rollback()
        self.database.close()

    def stored(self, root: Address) -> tuple[float | None, int] | None:
        """Return when a tree is due as far as is stored, and how many dead letters it has."""
        if not self.database.has(NODE):
            return None
        rows = self.database.execute("SELECT due_at, dead FROM sapwood_node_alarms WHERE root = ?", str(root))
        return rows[0] if rows else None

    def due(self) -> int:
        """Return how many trees have something to do by now, what is under way included."""
        if not self.database.has(NODE):
            return 0
        now = self._clock.now()
        ((count,),) = self.database.execute(
            "SELECT count(*) FROM sapwood_node_alarms WHERE due_at IS NOT NULL AND due_at <= ?", now
        )
        return count

    def with_dead_letters(self) -> list[tuple[Address, int]]:
        """Return the trees that have dead letters, and how many each."""
        if not self.database.has(NODE):
            return []
        rows = self.database.execute("SELECT root, dead FROM sapwood_node_alarms WHERE dead > 0 ORDER BY root")
        return [(Address.parse(root), dead) for root, dead in rows]

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

    def _store(self, root: Address, due: float | None, dead: int) -> None:
        if not self.database.has(NODE):
            self.database.ensure(NODE)
            if self._whole:
                self._mark_whole()
        self.database.execute(
            "INSERT INTO sapwood_node_alarms VALUES (?, ?, ?)"
            " ON CONFLICT (root) DO UPDATE SET due_at = excluded.due_at, dead = excluded.dead",
            str(root),
            due,
            dead,
        )
        self._moved_to(due)

    def exactly(self, root: Address, due: float | None, dead: int) -> None:
        """The tree has nothing to do before then; what said otherwise is kept as done."""
        self._held.pop(root, None)
        if self.database.has(NODE):
            if self.stored(root) not in (None, (due, dead)):
                self._gate.alarmed(root, due, dead)
            if due is None and not dead:
                self.database.execute("DELETE FROM sapwood_node_alarms WHERE root = ?", str(root))
            else:
                self.database.execute(
                    "UPDATE sapwood_node_alarms SET due_at = ?, dead = ? WHERE root = ?", due, dead, str(root)
                )
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
                root = Address.parse(text)
                if root not in self._held:
                    found.append((root, due))
                    if len(found) == most:
                        break
                elif not found:
                    self._from = (due, text)
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
                "reading the node's alarm index failed; if this persists, stop the node and remove %s", self._name
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
        log.error("the node's alarm index lost a transaction", exc_info=error)


class TreeAlarms:
    """The index of one tree, in its root's database."""

    def __init__(self, tree: Address, root: Database, slices: Slices, alarms: Alarms, gate: Gate) -> None:
        self._tree = tree
        self._root = root
        self._slices = slices
        self._alarms = alarms
        self._gate = gate
        self._changes = 0
        """How often an entry was moved earlier."""

    @property
    def exist(self) -> bool:
        """Whether any agent of the tree ever had something to do."""
        return self._root.has(TREE)

    def stored(self, owner: Address) -> tuple[float | None, int]:
        """Return when an agent is due as far as is stored, and how many dead letters it has."""
        if not self._root.has(TREE):
            return None, 0
        rows = self._root.execute("SELECT due_at, dead FROM sapwood_alarms WHERE owner = ?", str(owner))
        return rows[0] if rows else (None, 0)

    def earlier(self, owner: Address, database: Database, due: float | None, dead: int) -> None:
        """Have an agent woken by then. A step before the commit of its database, which this is not part of."""
        self._changes += 1
        _, counted = self.stored(owner)
        self._alarms.earlier(self._tree, due, self._dead() + max(dead - counted, 0))
        self._root.begin()  # first, because no limit refuses an alarm
        self._root.ensure(TREE)
        self._root.execute(
            "INSERT INTO sapwood_alarms VALUES (?1, ?2, ?3) ON CONFLICT (owner) DO UPDATE SET"
            " due_at = iif(due_at IS NULL OR ?2 < due_at, coalesce(?2, due_at), due_at), dead = max(dead, ?3)",
            str(owner),
            due,
            dead,
        )
        self._gate.follows(self._root, self._alarms.database)
        if database is not self._root:
            self._slices.commit()
            self._gate.follows(database, self._root)

    def is_known_by(self, due: float) -> bool:
        """Return whether the node's index has this tree looked at by then."""
        known = self._alarms.stored(self._tree)
        return known is not None and known[0] is not None and known[0] <= due

    def restore(self, owner: Address, database: Database, due: float | None, dead: int) -> None:
        """As `earlier`, for what a loss of power left without an index: it is committed, and no client may be told of
        it before the index is kept."""
        self.earlier(owner, database, due, dead)
        if database is not self._root:
            self._gate.committed(Commit(self._tree, database, database.frames + 1, database.frames))

    def exactly(self, owner: Address, due: float | None, dead: int) -> None:
        """An agent has nothing to do before then."""
        if not self._root.has(TREE):
            return
        self._root.begin()
        if due is None and not dead:
            self._root.execute("DELETE FROM sapwood_alarms WHERE owner = ?", str(owner))
        else:
            self._root.execute("UPDATE sapwood_alarms SET due_at = ?, dead = ? WHERE owner = ?", due, dead, str(owner))

    def forget_below(self, address: Address) -> None:
        """An agent is being deleted: neither it nor an agent below it is woken."""
        if not self._root.has(TREE):
            return
        self._root.begin()
        self._root.execute(f"DELETE FROM sapwood_alarms WHERE {OWN_AND_BELOW}", str(address))  # noqa: S608 - ours

    def due(self, now: float, after: tuple[float, str], most: int) -> list[tuple[str, float]]:
        """Return agents that are due by now, earliest first."""
        if not self._root.has(TREE):
            return []
        return self._root.execute(
            "SELECT owner, due_at FROM sapwood_alarms WHERE due_at IS NOT NULL AND due_at <= ?"
            " AND (due_at, owner) > (?, ?) ORDER BY due_at, owner LIMIT ?",
            now,
            *after,
            most,
        )

    def next_after(self, now: float) -> float:
        """Return when the next agent is due that is not due yet."""
        if not self._root.has(TREE):
            return FOREVER
        rows = self._root.execute(
            "SELECT due_at FROM sapwood_alarms WHERE due_at IS NOT NULL AND due_at > ? ORDER BY due_at LIMIT 1", now
        )
        return rows[0][0] if rows else FOREVER

    def with_dead_letters(self) -> list[tuple[Address, int]]:
        """Return the agents that have dead letters, and how many each."""
        if not self._root.has(TREE):
            return []
        rows = self._root.execute("SELECT owner, dead FROM sapwood_alarms WHERE dead > 0 ORDER BY owner")
        return [(Address.parse(owner), dead) for owner, dead in rows]

    async def tell_node(self) -> None:
        """Have the node's index say what this one says, once this one is kept."""
        while True:
            self._slices.commit()
            changes, summary = self._changes, self.summary()
            if (waiting := self._gate.wait(self._root)) is not None:
                await waiting
            if changes == self._changes:
                self._alarms.exactly(self._tree, *summary)
                return

    def summary(self) -> tuple[float | None, int]:
        """Return when the tree is due, and how many dead letters it has."""
        if not self._root.has(TREE):
            return None, 0
        ((due,),) = self._root.execute("SELECT min(due_at) FROM sapwood_alarms WHERE due_at IS NOT NULL")
        return due, self._dead()

    def _dead(self) -> int:
        if not self._root.has(TREE):
            return 0
        ((dead,),) = self._root.execute("SELECT count(*) FROM sapwood_alarms WHERE dead > 0")
        return dead
