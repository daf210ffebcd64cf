"""What lists show of an agent: from memory, from the table of children of its parent, and from the indexes of its tree.

Nothing that is asleep is woken, and of a page of children no database but those of the parent and of the root is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from sapwood.address import Address
from sapwood.admin.agent_lookup import AgentLookup
from sapwood.admin.content import Content
from sapwood.errors import SapwoodError
from sapwood.kernel.actors.children_table import SubAgent
from sapwood.kernel.node.node import Node
from sapwood.kernel.trees.tree import Tree

MOST_COUNTED = 10_000
"""Agents with questions or dead letters that are counted at most below one agent."""


class Doing(NamedTuple):
    """What an agent is doing now."""

    status: str
    calls: int


def doing(tree: Tree | None, address: Address) -> Doing:
    """Return what an agent does, from memory."""
    actor = None if tree is None else tree.actors.get(address)
    if actor is None:
        return Doing("aborted" if tree is not None and address in tree.aborted else "asleep", 0)
    status = "starting" if actor.is_starting else "busy" if actor.calls else "live"
    return Doing(status, len(actor.calls))


class AgentRows:
    """Makes the rows of agents for one request."""

    def __init__(self, node: Node, content: Content) -> None:
        self.node = node
        self.lookup = AgentLookup(node)
        self.content = content

    def root(self, root: Address) -> dict[str, Any]:
        """Return the row of a root. That it cannot be read is its last error: the others are shown."""
        tree, damage = self.node.trees.get(root), None
        try:
            asks, dead = self.root_counts(tree, root)
        except SapwoodError as error:
            asks, dead, damage = None, 0, str(error)
        row = self.row(tree, root, None, asks, dead) | {"last_error": self.content.text("error", damage)}
        if (held := self.node.loader.held_back(root)) is not None:
            row["status"], row["last_error"] = "quarantined", self.content.text("error", str(held))
        return row

    def root_counts(self, tree: Tree | None, root: Address) -> tuple[int | None, int]:
        """Return how many agents of a tree ask and have dead letters; from the node's index if it sleeps."""
        if tree is not None and tree.root.is_open and tree.destroyed is None:
            asking, dead = waiting_in(tree, root)
            return len(asking) + bool(self._asks_itself(tree)), len(dead)
        stored = self.node.alarms.stored(root)
        return None, 0 if stored is None else stored[1]

    def _asks_itself(self, tree: Tree) -> bool:
        return any(read(tree.root, 1) for read in self.node.read_models.questions)

    def children(self, tree: Tree, parent: Address, page: Iterable[SubAgent]) -> list[dict[str, Any]]:
        """Return the rows of children."""
        asking, dead = waiting_in(tree, parent)
        depth = len(parent.segments)
        asks, letters = by_child(asking, depth), by_child(dead, depth)
        rows: list[dict[str, Any]] = []
        for child in page:
            address = parent.child(child.type, child.name)
            text = str(address)
            rows.append(self.row(tree, address, child.created_at, asks[text], letters[text]))
        return rows

    def row(
        self, tree: Tree | None, address: Address, created_at: float | None, asks: int | None, dead: int
    ) -> dict[str, Any]:
        """Return the row of an agent with what is known about it from elsewhere."""
        status, calls = doing(tree, address)
        return {
            "address": str(address),
            "type": address.type,
            "name": address.name,
            "status": status,
            "calls": calls,
            "sockets": self.node.sockets.number_of(address),
            "children": None,
            "created_at": created_at,
            "asks": asks,
            "dead": dead,
            "last_error": None,
        }


def waiting_in(tree: Tree, address: Address) -> tuple[list[str], list[str]]:
    """Return the agents below an agent that ask, and those at or below it that have dead letters."""
    asking = tree.questions.owners_below(address, MOST_COUNTED)
    return asking, tree.alarms.dead_at_or_below(address, MOST_COUNTED)


def by_child(owners: Iterable[str], depth: int) -> Counter[str]:
    """Count agents by the child, of an agent at this depth, that they are or are below."""
    return Counter("/".join(owner.split("/", depth + 1)[: depth + 1]) for owner in owners)
