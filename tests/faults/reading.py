"""Reads what a dead process left of a tree, with nothing but SQLite. Reading changes files: give it a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from sapwood.address import Address
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.trees.deletion import child_stem


@contextmanager
def opened(path: Path) -> Iterator[apsw.Connection]:
    """Open one file. One whose first write was cut off by a loss of power is none: sapwood makes it anew."""
    database = apsw.Connection(str(path))
    try:
        with suppress(apsw.CorruptError, apsw.NotADBError):
            yield database
    finally:
        database.close()


def has(database: apsw.Connection, table: str) -> bool:
    return bool(list(database.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,))))


def walk(data: Path, root: Address, read: Callable[[Address, str, apsw.Connection | None], None]) -> None:
    """Call `read` with the address, the stem and the database of every agent of a tree; with None if it has no file."""
    home = tree_folder(data, root)
    if not (home / "root.db").exists() or (home / "destroyed").exists():
        return
    left: list[tuple[str, Address]] = [("root", root)]
    while left:
        stem, address = left.pop()
        if not (home / f"{stem}.db").exists():
            read(address, stem, None)
            continue
        with opened(home / f"{stem}.db") as database:
            if has(database, "sapwood_children"):
                rows = database.execute("SELECT type, name, generation FROM sapwood_children WHERE deleted_at IS NULL")
                left += [(child_stem(stem, number), address.child(type_, name)) for type_, name, number in rows]
            read(address, stem, database)
