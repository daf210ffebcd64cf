"""The objects of an agent's larger files, as rows of its own database: none is in the archive that no row knows of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

OBJECTS = Schema("sapwood.kernel", "objects")
PAGE = 500
UPLOADING, NAMED, REMOVED = "uploading", "named", "removed"


class UnnamedObject(NamedTuple):
    """An object that no file refers to: an upload, or what is left of a deleted file."""

    key: str
    state: str
    changed_at: float


class ObjectsTable:
    """The objects of one agent. All writes belong to the slice that makes them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def exists(self) -> bool:
        return self._database.has(OBJECTS)

    def add(self, key: str, size: int, now: float) -> None:
        """An upload is about to begin."""
        self._database.ensure(OBJECTS)
        self._database.execute("INSERT INTO sapwood_objects VALUES (?, ?, ?, ?)", key, size, UPLOADING, now)

    def change(self, key: str, state: str, now: float) -> None:
        """A file names an object, or does so no more."""
        self._database.execute("UPDATE sapwood_objects SET state = ?, changed_at = ? WHERE key = ?", state, now, key)

    def unnamed(self, without: Sequence[str] = ()) -> list[UnnamedObject]:
        """Return some objects that no file refers to, except these."""
        if not self.exists:
            return []
        rows = self._database.execute(
            "SELECT key, state, changed_at FROM sapwood_objects WHERE state <> 'named' LIMIT ?",
            PAGE + len(without),
        )
        return [row for row in (UnnamedObject(*row) for row in rows) if row.key not in without]

    def forget(self, keys: Sequence[str]) -> int:
        """The archive knows that these are to be removed; return how many bytes of them counted for the tree."""
        freed = 0
        for key in keys:
            rows = self._database.execute("DELETE FROM sapwood_objects WHERE key = ? RETURNING size, state", key)
            freed += sum(size for size, state in rows if state == REMOVED)  # none if another task was faster
        return freed

    def total(self) -> int:
        """Return the size of all objects that files refer to."""
        if not self.exists:
            return 0
        rows = self._database.execute("SELECT ifnull(sum(size), 0) FROM sapwood_objects WHERE state = 'named'")
        return rows[0][0]


def folder_of(root: Database) -> str | None:
    """Return the folder of a tree in the archive, from the database of its root; `None` if it has none yet."""
    if not root.has(OBJECTS):
        return None
    rows = root.execute("SELECT name FROM sapwood_object_folder")
    return rows[0][0] if rows else None


def store_folder(root: Database, name: str) -> None:
    """Store which folder a tree has in the archive."""
    root.ensure(OBJECTS)
    root.execute("INSERT INTO sapwood_object_folder VALUES (1, ?)", name)
