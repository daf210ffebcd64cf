"""The alarms of one tree: which of its agents is due next, and when."""

from __future__ import annotations

from sapwood.address import Address
from sapwood.kernel.alarms.node_index import FOREVER, NodeAlarms
from sapwood.kernel.durability.slices import Slices
from sapwood.kernel.ports.durability import Commit, Gate
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

# "/" separates the steps of an address, and "0" is the character after it.
BELOW = "(owner >= ?1 || '/' AND owner < ?1 || '0')"
"""Rows of those below an agent; its address is the first parameter."""
OWN_AND_BELOW = f"(owner = ?1 OR {BELOW})"
"""Its own, too."""

TREE = Schema("sapwood.kernel", "alarms")


class TreeAlarms:
    """The index of one tree, in its root's database."""

    def __init__(self, tree: Address, root: Database, slices: Slices, alarms: NodeAlarms, gate: Gate) -> None:
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
        self._alarms.earlier(self._tree, due, self._dead(owner, dead))
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

    def dead_at_or_below(self, address: Address, most: int) -> list[str]:
        """Return up to `most` agents that have dead letters, at or below an agent."""
        if not self._root.has(TREE):
            return []
        sql = f"SELECT owner FROM sapwood_alarms WHERE dead > 0 AND {OWN_AND_BELOW} ORDER BY owner LIMIT ?2"  # noqa: S608 - ours
        return [owner for (owner,) in self._root.execute(sql, str(address), most)]

    def owners_after(self, last: str, most: int) -> list[str]:
        """Return up to `most` agents that have due work or dead letters, in order: those after one."""
        if not self._root.has(TREE):
            return []
        sql = "SELECT owner FROM sapwood_alarms WHERE owner > ? ORDER BY owner LIMIT ?"
        return [owner for (owner,) in self._root.execute(sql, last, most)]

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
        ((due, dead),) = self._root.execute(
            "SELECT (SELECT min(due_at) FROM sapwood_alarms WHERE due_at IS NOT NULL),"
            " (SELECT count(*) FROM sapwood_alarms WHERE dead > 0)"
        )
        return due, dead

    def _dead(self, owner: Address, dead: int) -> int:
        """Return how many dead letters the tree has, if an agent has so many."""
        if not self._root.has(TREE):
            return dead
        ((counted, all),) = self._root.execute(
            "SELECT coalesce((SELECT dead FROM sapwood_alarms WHERE owner = ?), 0),"
            " (SELECT count(*) FROM sapwood_alarms WHERE dead > 0)",
            str(owner),
        )
        return all + max(dead - counted, 0)
