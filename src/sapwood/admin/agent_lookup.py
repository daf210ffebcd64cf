"""Finds the files of an agent, which stays asleep if it is."""

from __future__ import annotations

from datetime import UTC, datetime

from sapwood.address import Address
from sapwood.errors import NotFound
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.children_table import ChildrenTable
from sapwood.kernel.marshal.agent_class import AgentClass, resolve
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.node import Node
from sapwood.kernel.trees.deletion import child_stem
from sapwood.kernel.trees.tree import DESTROYED, Tree
from sapwood.kernel.trees.tree_files import ROOT_STEM
from sapwood.storage.database import Database

MOST_ROWS = 10_000
"""Rows that an operator is shown at most."""
SOME = 5
"""Of the children of an agent, so many are named in an error."""


class AgentLookup:
    """Finds the agents of one node by their addresses."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def find(self, address: Address) -> tuple[Tree, Address, str]:
        """Return the tree of an agent and the name of its file. It stays asleep if it is."""
        if not await self._node.loader.exists(address.root):
            self._node.loader.check_not_moved(address.root)
            raise NotFound(f"{address} does not exist: {self._no_root(address)}", path=address.segments)
        tree = await self._node.loader.load_files(address.root)
        stem, here = ROOT_STEM, address.root
        for step in address.segments[1:]:
            row = self.children(tree, stem).find((step.type,), step.name)
            if row is None:
                why = self._no_child(tree, stem, here, f"{step.type}:{step.name}")
                raise NotFound(f"{address} does not exist: {why}", path=address.segments)
            stem, here = child_stem(stem, row.generation), here.child(*step)
        return tree, here, stem

    def _no_root(self, address: Address) -> str:
        """Say why the root of an agent does not exist, and what would make it."""
        root = address.root
        roots = [known.type for known in self._node.roots]
        if roots and all(root.type not in known.type_ids for known in self._node.roots):
            return f"{root.type} is not a root of this app. Roots: {', '.join(roots)}."
        who = "it" if root == address else str(root)
        return f"{who} has not been created yet. The first page, socket or call creates it."

    def _no_child(self, tree: Tree, stem: str, parent: Address, missing: str) -> str:
        """Say that a child was not made yet, or was deleted, and which there are."""
        registry = self.children(tree, stem)
        alive = registry.count()
        known = ", ".join(f"{child.type}:{child.name}" for child in registry.page(None, 0, SOME))
        more = f" and {alive - SOME} more" if alive > SOME else ""
        has = f"It has {known}{more}." if alive else "It has no children."
        return f"{parent} has not created {missing}, or has deleted it. {has}"

    def database(self, tree: Tree, stem: str) -> Database:
        """Return the database of an agent."""
        return tree.database(stem, tree.limits)

    def children(self, tree: Tree, stem: str) -> ChildrenTable:
        """Return the table of the children of an agent."""
        return ChildrenTable(self.database(tree, stem), self._node.clock)

    def kind(self, tree: Tree, address: Address) -> AgentClass:
        """Return the class of an agent. Raises `UnknownAgent` if this process does not know it."""
        return tree.kinds.get(address.type) or resolve(address.type, self._node.roots)

    async def wake(self, address: Address) -> Actor:
        """Return an agent that is in memory, and load it if it is not."""
        if address.parent is None:
            return await self._node.reach(address, resolve(address.type, self._node.roots), None)
        return await self._node.reach(address, None, None)


def is_there(node: Node, root: Address) -> bool:
    """Return whether a tree that has a folder, or is in memory, was not destroyed.

    A tree in memory may have neither data nor agents: a request may have looked for an agent that does not exist.
    """
    tree = node.trees.get(root)
    if tree is not None:
        return (tree.destroyed is None or tree.is_replaced) and (bool(tree.actors) or tree.folder.exists())
    return not (tree_folder(node.folder, root) / DESTROYED).exists()


def iso_time(seconds: float | None) -> str | None:
    """Return a time as ISO 8601."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
