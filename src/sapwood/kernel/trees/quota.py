"""What a tree has used of its limits, kept once, at its root.

The sums are held in memory and stored in the root's database. A holder's entry is
raised before the commit that uses it and lowered after, so the death of the process can
leave it too high but never too low; only a power cut can, because files reach the disk
each on its own. It is put right when the holder next counts.
"""

from __future__ import annotations

from collections.abc import Callable

from sapwood.errors import OverLimit, Path
from sapwood.settings import Limits
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

LEDGER = Schema("sapwood.kernel", "ledger")
BYTES_AT_ONCE = 16 * 1024 * 1024
MEASURE_AGAIN = 1.0
"""Seconds before a full tree is measured again, file by file, because an agent still tries to write."""


class Ledger:
    """The account of one tree."""

    def __init__(
        self, root: Database, estimate: Callable[[], int], measure: Callable[[], int], now: Callable[[], float]
    ) -> None:
        self._root = root
        self._estimate = estimate
        self._measure = measure
        self._now = now
        self._refused_until = 0.0
        self._holders: dict[str, int] = {}
        self._children: int | None = None
        self._undone = root.undone
        self._bytes = 0
        self._granted = 0

    def _load(self) -> int:
        self._forget_if_undone()
        children = self._children
        if children is None:
            children = 0
            if self._root.has(LEDGER):
                rows = self._root.execute("SELECT children, bytes FROM sapwood_ledger WHERE holder = ''")
                ((children, self._granted),) = rows
            self._children = children
            if self._granted:
                # After a crash only the grant is known, not what was used of it.
                self._bytes = self._granted
            else:
                # It never outgrew the first grant, so there are few files to look at.
                self._granted = BYTES_AT_ONCE
                self._bytes = self._estimate()
        return children

    def reload(self) -> None:
        """The root lost a transaction: what is stored is the truth again."""
        self._children = None
        self._holders.clear()

    def _forget_if_undone(self) -> None:
        if self._undone != self._root.undone:
            self._undone = self._root.undone
            self.reload()

    def below_children(self) -> int:
        """Return how many agents the tree has below the root's own children."""
        return self._load()

    def hold(self, holder: str, children: int) -> None:
        """Store that an agent below the root has this many children."""
        if self.held(holder) == children:
            return
        self._root.ensure(LEDGER)
        # This commits what is open elsewhere in the tree, which may come back here: only then do the sums stand still.
        self._root.begin()
        # Entry and sum in one statement, from what is stored: whatever is remembered here, they cannot part.
        more = children - self._stored(holder)
        rows = self._root.execute(
            "INSERT INTO sapwood_ledger (holder, children) VALUES ('', ?1), (?2, ?1)"
            " ON CONFLICT (holder) DO UPDATE SET children = children + excluded.children RETURNING holder, children",
            more,
            holder,
        )
        self._load()
        self._children = dict(rows)[""]
        self._holders[holder] = children
        if not children:
            self._root.execute("DELETE FROM sapwood_ledger WHERE holder = ?", holder)

    def held(self, holder: str) -> int:
        """Return how many children an agent is down for."""
        self._forget_if_undone()
        if holder not in self._holders:
            self._holders[holder] = self._stored(holder) if self._root.has(LEDGER) else 0
        return self._holders[holder]

    def _stored(self, holder: str) -> int:
        rows = self._root.execute("SELECT children FROM sapwood_ledger WHERE holder = ?", holder)
        return rows[0][0] if rows else 0

    def holders(self) -> list[str]:
        """Return every agent that is down for children."""
        if not self._root.has(LEDGER):
            return []
        return [holder for (holder,) in self._root.execute("SELECT holder FROM sapwood_ledger WHERE holder <> ''")]

    def release(self, holder: str) -> None:
        """Forget an agent that is being deleted."""
        self._load()
        if self._root.has(LEDGER):
            self.hold(holder, 0)
        self._holders.pop(holder, None)

    def is_full(self, limits: Limits) -> bool:
        """Return whether the tree may not grow, as far as is known."""
        if self._children is None or self._undone != self._root.undone:
            self._load()
        return self._bytes >= limits.tree_bytes

    def shrink(self, by: int) -> None:
        """Account for a file that was removed; never refused."""
        self._load()
        self._bytes = max(self._bytes - by, 0)
        self.freed()

    def freed(self) -> None:
        """Something is being removed: measure before the next refusal."""
        self._refused_until = 0.0

    def grow(self, by: int, limits: Limits, path: Path) -> bool:
        """Account for something that grew; return whether the grant has to be raised before the next commit."""
        self._load()
        self._bytes = max(self._bytes + by, 0)
        if self._bytes >= limits.tree_bytes:
            if self._now() >= self._refused_until:
                self._bytes = self._measure()
            if self._bytes >= limits.tree_bytes:
                self._refused_until = self._now() + MEASURE_AGAIN
                raise OverLimit(
                    f"The databases and files of this tree have {self._bytes} bytes; the limit is {limits.tree_bytes}. "
                    "Delete rows, files or sub-agents, or raise Limits(tree_bytes=…).",
                    path=path,
                    limit="tree_bytes",
                )
        return self._bytes > self._granted

    def grant(self) -> None:
        """Store that the tree may grow on for a while without asking."""
        self._root.ensure(LEDGER)
        self._granted = self._bytes + BYTES_AT_ONCE
        self._root.execute("UPDATE sapwood_ledger SET bytes = ? WHERE holder = ''", self._granted)

    def settle(self) -> None:
        """Store what is really used; called when the tree is closed normally."""
        if self._granted > BYTES_AT_ONCE and self._root.exists:
            self._granted = self._bytes
            self._root.execute("UPDATE sapwood_ledger SET bytes = ? WHERE holder = ''", self._granted)
