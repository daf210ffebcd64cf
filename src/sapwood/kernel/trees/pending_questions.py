"""Which agents of a tree wait for an answer: an index in its root's database.

Derived from what the agents' own databases hold. An agent is in it before the commit that
makes it wait, and leaves it only after the one that ends that: so it may say too much for a
moment, and never too little.
"""

from __future__ import annotations

from sapwood.address import Address
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.alarms.tree_index import BELOW, OWN_AND_BELOW
from sapwood.kernel.trees.tree_index import TreeIndex
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

QUESTIONS = Schema("sapwood.kernel", "questions")


class TreeQuestions(TreeIndex):
    """The questions of one tree, but for the root's own."""

    def put(self, owner: Address, database: Database, body: str) -> None:
        """Have it be known what an agent waits for. A step before the commit of its database, not part of it."""
        self._begin(QUESTIONS)
        self._root.execute(
            "INSERT INTO sapwood_questions VALUES (?, ?) ON CONFLICT (owner) DO UPDATE SET body = excluded.body",
            str(owner),
            body,
        )
        self._commit_before(database)

    def of(self, owner: Address) -> str | None:
        """Return what an agent waits for, as far as is stored."""
        if not self._root.has(QUESTIONS):
            return None
        rows = self._root.execute("SELECT body FROM sapwood_questions WHERE owner = ?", str(owner))
        return rows[0][0] if rows else None

    def has(self, address: Address) -> bool:
        """Return whether an agent, or one below it, waits for an answer."""
        return self.of(address) is not None or bool(self.below(address))

    def forget(self, owner: Address) -> None:
        """An agent does not wait for an answer any more, and that is committed."""
        if self._root.has(QUESTIONS):
            self._root.begin()
            self._root.execute("DELETE FROM sapwood_questions WHERE owner = ?", str(owner))

    def forget_below(self, address: Address, by: Actor) -> None:
        """Neither an agent nor one below it waits for an answer any more, because of `by`, which tells clients."""
        gone = [owner for owner, _ in self.below(address)]
        if self.of(address) is not None:
            gone.append(address)
        if not gone:
            return
        self._root.begin()
        self._root.execute(f"DELETE FROM sapwood_questions WHERE {OWN_AND_BELOW}", str(address))  # noqa: S608 - ours
        by.hooks.questions_closed(gone)

    def owners_below(self, address: Address, most: int, *, itself: bool = False) -> list[str]:
        """Return up to `most` agents that wait below an agent."""
        if not self._root.has(QUESTIONS):
            return []
        which = OWN_AND_BELOW if itself else BELOW
        sql = f"SELECT owner FROM sapwood_questions WHERE {which} ORDER BY owner LIMIT ?2"  # noqa: S608 - ours
        return [owner for (owner,) in self._root.execute(sql, str(address), most)]

    def below(self, address: Address) -> list[tuple[Address, str]]:
        """Return who waits below an agent, and for what."""
        if not self._root.has(QUESTIONS):
            return []
        rows = self._root.execute(
            f"SELECT owner, body FROM sapwood_questions WHERE {BELOW} ORDER BY owner",  # noqa: S608 - ours
            str(address),
        )
        return [(Address.parse(owner), body) for owner, body in rows]
