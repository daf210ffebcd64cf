"""Which children an agent has: the table in its own database that is the truth about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sapwood.clock import Clock
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

CHILDREN = Schema("sapwood.kernel", "children")


@dataclass(frozen=True, slots=True)
class SubAgent:
    """One registered child, as `children.list` shows it."""

    type: str
    """The type id of its class."""
    name: str
    """Its own name."""
    created_at: float
    """Seconds since the epoch, UTC."""
    generation: int
    """Its number among all children this agent ever had; pass it on as `after=` to list further."""


class ChildRow(NamedTuple):
    generation: int
    type: str
    name: str
    created_at: float


class ChildrenTable:
    """The children of one agent. Reads never create the table; writes belong to the open slice."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._db = database
        self._clock = clock

    def find(self, types: tuple[str, ...], name: str) -> ChildRow | None:
        """Return the living child of this name whose type is one of these ids."""
        if not self._db.has(CHILDREN):
            return None
        for type_ in types:
            rows = self._db.execute(
                "SELECT generation, type, name, created_at FROM sapwood_children"
                " WHERE type = ? AND name = ? AND deleted_at IS NULL",
                type_,
                name,
            )
            if rows:
                return ChildRow(*rows[0])
        return None

    def has(self, types: tuple[str, ...], name: str) -> bool:
        """Return whether there is a living child of this name; asks the index only."""
        return self._db.has(CHILDREN) and any(
            self._db.execute(
                "SELECT 1 FROM sapwood_children WHERE type = ? AND name = ? AND deleted_at IS NULL", type_, name
            )
            for type_ in types
        )

    def count(self) -> int:
        if not self._db.has(CHILDREN):
            return 0
        ((alive,),) = self._db.execute("SELECT alive FROM sapwood_children_count")
        return alive

    def add(self, type_: str, name: str, trace: str | None) -> ChildRow:
        self._db.ensure(CHILDREN)
        now = self._clock.now()
        ((generation,),) = self._db.execute(
            "INSERT INTO sapwood_children (type, name, created_at, trace) VALUES (?, ?, ?, ?) RETURNING generation",
            type_,
            name,
            now,
            trace,
        )
        self._db.execute("UPDATE sapwood_children_count SET alive = alive + 1")
        return ChildRow(generation, type_, name, now)

    def retype(self, generation: int, type_: str) -> None:
        """Store a child under its class's new type id."""
        self._db.execute("UPDATE sapwood_children SET type = ? WHERE generation = ?", type_, generation)

    def bury(self, generation: int) -> bool:
        """Turn a child into a tombstone: it no longer exists, its files are still to go. False: it was one already."""
        self._db.begin()  # also when there is no room left: it makes some
        buried = self._db.execute(
            "UPDATE sapwood_children SET deleted_at = ? WHERE generation = ? AND deleted_at IS NULL RETURNING 1",
            self._clock.now(),
            generation,
        )
        if buried:
            self._db.execute("UPDATE sapwood_children_count SET alive = alive - 1")
        return bool(buried)

    def forget(self, generation: int) -> None:
        """Remove a tombstone, once nothing is left of its subtree."""
        self._db.execute("DELETE FROM sapwood_children WHERE generation = ?", generation)

    def buried(self) -> list[ChildRow]:
        """Return those whose removal a crash may have interrupted."""
        if not self._db.has(CHILDREN):
            return []
        rows = self._db.execute(
            "SELECT generation, type, name, created_at FROM sapwood_children"
            " WHERE deleted_at IS NOT NULL ORDER BY generation"
        )
        return [ChildRow(*row) for row in rows]

    def generations(self, after: int, limit: int) -> list[tuple[int, bool]]:
        """Return generations in order, each with whether it is alive; tombstones included."""
        if not self._db.has(CHILDREN):
            return []
        rows = self._db.execute(
            "SELECT generation, deleted_at IS NULL FROM sapwood_children WHERE generation > ?"
            " ORDER BY generation LIMIT ?",
            after,
            limit,
        )
        return [(generation, bool(alive)) for generation, alive in rows]

    def page(self, type_: str | None, after: int, limit: int) -> list[SubAgent]:
        """Return living children in the order of their creation."""
        if not self._db.has(CHILDREN):
            return []
        if type_ is None:
            rows = self._db.execute(
                "SELECT type, name, created_at, generation FROM sapwood_children"
                " WHERE generation > ? AND deleted_at IS NULL ORDER BY generation LIMIT ?",
                after,
                limit,
            )
        else:
            rows = self._db.execute(
                "SELECT type, name, created_at, generation FROM sapwood_children"
                " WHERE type = ? AND generation > ? AND deleted_at IS NULL ORDER BY generation LIMIT ?",
                type_,
                after,
                limit,
            )
        return [SubAgent(*row) for row in rows]
