"""The addresses that a tree had before it was moved: one row each, at its root.

Ids of rows, keys of calls and names of sessions contain an address. They stay the same when a tree is moved, because
they contain the first address of the agent, which is called its birthplace.
"""

from __future__ import annotations

from typing import Any, Protocol

from sapwood.address import Address
from sapwood.kernel.alarms.tree_index import TREE
from sapwood.kernel.trees.limit_extensions import EXTENSIONS
from sapwood.kernel.trees.pending_questions import QUESTIONS
from sapwood.kernel.trees.usage import SPENDING
from sapwood.storage.file_reader import FileReader
from sapwood.storage.migrations import Schema

MOVES = Schema("sapwood.kernel", "moves")
ALL_FORMER = "SELECT address FROM sapwood_former_addresses ORDER BY number"
ADDRESSES = (
    (TREE, "sapwood_alarms", "owner"),
    (QUESTIONS, "sapwood_questions", "owner"),
    (SPENDING, "sapwood_spending", "path"),
    (EXTENSIONS, "sapwood_limit_waits", "path"),
)
"""The columns at a root that hold addresses of agents of its tree."""


class RootTables(Protocol):
    """The database of a root, open or not."""

    def has(self, schema: Schema) -> bool: ...

    def execute(self, sql: str, /, *arguments: Any) -> list[tuple[Any, ...]]: ...


class WritableRootTables(RootTables, Protocol):
    """The database of a root that can be written."""

    def ensure(self, schema: Schema) -> None: ...


def former_addresses(root: RootTables) -> list[Address]:
    """Return the addresses that a tree had, oldest first."""
    if not root.has(MOVES):
        return []
    return [Address.parse(text) for (text,) in root.execute(ALL_FORMER)]


def birthplace(root: RootTables) -> Address | None:
    """Return the first address of a tree, or `None` if it was never moved."""
    return next(iter(former_addresses(root)), None)


def stored_birthplace(root: FileReader) -> Address | None:
    """Return the same of a tree whose files no process has open."""
    if not root.has(MOVES):
        return None
    return next((Address.parse(text) for (text,) in root.rows(f"{ALL_FORMER} LIMIT 1")), None)


def within(address: Address, root: Address | None) -> Address:
    """Return the address that an agent has in a tree of another address. `None` means its own."""
    return address if root is None else Address((*root.segments, *address.segments[1:]))


def rename_agents(root: WritableRootTables, former: Address, address: Address, now: float) -> None:
    """Store, at the root of a tree that was moved, its address in place of the former one. Again is safe."""
    root.ensure(MOVES)
    root.execute(
        "INSERT INTO sapwood_former_addresses (address, until) VALUES (?, ?) ON CONFLICT DO NOTHING", str(former), now
    )
    for schema, table, column in ADDRESSES:
        if root.has(schema):
            # "/" separates the segments of an address.
            root.execute(
                f"UPDATE {table} SET {column} = ?1 || substr({column}, length(?2) + 1)"  # noqa: S608 - our names
                f" WHERE {column} = ?2 OR substr({column}, 1, length(?2) + 1) = ?2 || '/'",
                str(address),
                str(former),
            )


def forget_moves(root: RootTables) -> None:
    """Forget the former addresses: the tree is a fork, and its ids are its own."""
    if root.has(MOVES):
        root.execute("DELETE FROM sapwood_former_addresses")
