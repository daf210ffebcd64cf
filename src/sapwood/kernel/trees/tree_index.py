"""What the root of a tree knows of the agents below it: tables in the database of the root.

An entry is committed before the transaction of the agent that it is about. So after a crash an
index may say too much, and never too little.
"""

from __future__ import annotations

from sapwood.kernel.durability.slices import Slices
from sapwood.kernel.ports.durability import Gate
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema


class TreeIndex:
    """One index of a tree."""

    def __init__(self, root: Database, slices: Slices, gate: Gate) -> None:
        self._root = root
        self._slices = slices
        self._gate = gate

    def _begin(self, schema: Schema) -> None:
        """Open the transaction for an entry first: no limit refuses it."""
        self._root.begin()
        self._root.ensure(schema)

    def _commit_before(self, database: Database) -> None:
        """Commit the entry, so that it is durable before what is written in the database of the agent."""
        if database is not self._root:
            self._slices.commit()
            self._gate.follows(database, self._root)
