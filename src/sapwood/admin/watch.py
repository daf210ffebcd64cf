"""`watch`: what changes about the agents on a screen, twice a second.

It is a comparison with what was told before, so agents pay nothing for being watched, and its cost depends on the
screens and not on the number of agents.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from sapwood.address import Address
from sapwood.admin.agent_rows import AgentRows, doing
from sapwood.admin.endpoint import AdminCall, Endpoint, Event, SeveralAgents
from sapwood.errors import InvalidArguments, NotFound, SapwoodError, Unavailable
from sapwood.kernel.actors.children_table import ChildrenTable
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.node import Node
from sapwood.kernel.trees.deletion import child_stem
from sapwood.kernel.trees.tree import DESTROYED, Tree
from sapwood.kernel.trees.tree_files import ROOT_STEM
from sapwood.storage.database import Database

MOST = 300
"""Agents that one stream may watch."""
EVERY = 0.5
"""Seconds between two comparisons."""
AT_ONCE = 10
"""Agents that are read before other tasks have a turn."""
MOST_COUNTED = 1000
"""Agents with questions or dead letters that are counted at most below one agent."""
GONE = "gone"


class Link(NamedTuple):
    """One step from a root to an agent: in this database, a child has this file."""

    parent: Database
    type: str
    name: str
    stem: str
    """The file of the parent."""
    child: str
    """The file of the child."""


class WatchedRoot:
    """What is read once for all agents of a tree that are compared together."""

    def __init__(self, node: Node, root: Address) -> None:
        self._node = node
        self._root = root
        self.tree = node.trees.get(root)
        self.sockets = node.sockets.in_tree(root)
        held = node.loader.held_back(root)
        self.held = None if held is None else str(held)
        """Why the tree may not run."""

    @functools.cached_property
    def is_there(self) -> bool:
        """Whether the tree exists, if it is asleep."""
        folder = tree_folder(self._node.folder, self._root)
        return self._node.keeper is not None or (folder.exists() and not (folder / DESTROYED).exists())


class Facts(NamedTuple):
    """What memory knows of an agent."""

    status: str
    calls: int
    sockets: int
    held: str | None


class WatchedAgent:
    """One agent on a screen."""

    def __init__(self, rows: AgentRows, address: Address) -> None:
        self._rows = rows
        self._node = rows.node
        self.address = address
        self.root, self._is_root, self._text = address.root, address.parent is None, str(address)
        self._told: dict[str, Any] | None = None
        self._facts: Facts | None = None
        """What the row was made of, beside the databases."""
        self._tree: Tree | None = None
        """The tree that the databases belong to; `None` if none was read yet."""
        self._own: Database | None = None
        self._links: list[Link] = []
        self._children: int | None = None
        self._counts: tuple[int | None, int] = (None, 0)
        self._exists = True
        self._stamps: list[object | None] = [None]
        """Of the databases that the row was read from."""

    def is_as_told(self, root: WatchedRoot) -> bool:
        """Return whether the row must be what it was. This reads nothing."""
        if self._told is None or not self._exists or self._facts != self._facts_of(root):
            return False
        if root.tree is None:
            return self._tree is not None and root.is_there
        return root.tree is self._tree and root.tree.destroyed is None and self._is_unchanged(root.tree)

    def _facts_of(self, root: WatchedRoot) -> Facts:
        status, calls = doing(root.tree, self.address)
        return Facts(status, calls, len(root.sockets.get(self.address, ())), root.held)

    async def change(self, root: WatchedRoot) -> dict[str, Any] | None:
        """Return the row of the agent if it has changed."""
        row = await self._row(root)
        if row == self._told:
            return None
        self._told = row
        return row

    async def _row(self, root: WatchedRoot) -> dict[str, Any]:
        error: str | None = None
        try:
            await self._look(root)
        except SapwoodError as failed:  # damaged: the other agents are shown
            error = str(failed)
        status, calls, sockets, held = facts = self._facts_of(root)
        self._facts = facts if error is None else None
        if held is not None:
            status, error = "quarantined", held
        asks, dead = self._counts
        return {
            "address": self._text,
            "status": status if self._exists else GONE,
            "calls": calls,
            "sockets": sockets,
            "children": self._children if self._exists else None,
            "asks": asks,
            "dead": dead,
            "last_error": self._rows.content.text("error", error),
        }

    async def _look(self, root: WatchedRoot) -> None:
        tree = root.tree
        if tree is None and (self._tree is not None or self._node.keeper is not None):
            self._exists = self._exists and root.is_there  # asleep: nothing else can have changed
            return
        if tree is not None and tree is self._tree and tree.destroyed is None and self._is_unchanged(tree):
            return
        if tree is None or tree is not self._tree or tree.destroyed is not None or not self._is_where_it_was():
            await self._find()
        if self._exists and self._tree is not None:
            self._count(self._tree)
            self._stamps = self._stamps_now(self._tree)

    def _is_unchanged(self, tree: Tree) -> bool:
        """Return whether nothing was written to what the row was read from. All of it is open."""
        return self._exists and None not in self._stamps and self._stamps == self._stamps_now(tree)

    def _stamps_now(self, tree: Tree) -> list[object | None]:
        if self._own is None or self._is_root:
            return [None]  # a root has counts of the index of the node too
        own = self._own.stamp or "closed"  # so it cannot have changed
        return [own, tree.root.stamp, *(link.parent.stamp for link in self._links)]

    def _is_where_it_was(self) -> bool:
        """Return whether every agent on the way still has the same file. One that sleeps deletes no child."""
        return self._exists and all(
            not link.parent.is_open or _file_in(link, self._node) == link.child for link in self._links
        )

    async def _find(self) -> None:
        """Find the databases of the agent and of those above it."""
        self._own, self._links, self._children, self._counts = None, [], None, (None, 0)
        lookup, here = self._rows.lookup, self.root
        try:
            tree, _, stem = await lookup.find(self.address)
            above = ROOT_STEM
            for step in self.address.segments[1:]:
                here = here.child(*step)
                stem = (await lookup.find(here))[2]
                self._links.append(Link(lookup.database(tree, above), step.type, step.name, above, stem))
                above = stem
        except NotFound:
            self._exists = False
            return
        self._exists, self._tree, self._own = True, tree, lookup.database(tree, stem)

    def _count(self, tree: Tree) -> None:
        """Count again what an open database can have changed. What sleeps has not changed."""
        assert self._own is not None
        if self._children is None or self._own.is_open:
            self._children = ChildrenTable(self._own, self._node.clock).count() if self._own.exists else 0
        if self._is_root:
            self._counts = self._rows.root_counts(tree, self.address)
        elif tree.root.is_open:
            asking = tree.questions.owners_below(self.address, MOST_COUNTED, itself=True)
            self._counts = len(asking), len(tree.alarms.dead_at_or_below(self.address, MOST_COUNTED))


def _file_in(link: Link, node: Node) -> str | None:
    row = ChildrenTable(link.parent, node.clock).find((link.type,), link.name)
    return None if row is None else child_stem(link.stem, row.generation)


async def _watch(call: AdminCall, params: SeveralAgents) -> AsyncIterator[Event]:
    if not 1 <= len(params.addresses) <= MOST:
        raise InvalidArguments(f"`addresses` must name 1 to {MOST} agents, got {len(params.addresses)}.")
    rows = AgentRows(call.node, call.content)
    watched = [WatchedAgent(rows, Address.parse(text)) for text in params.addresses]
    roots = {one.root for one in watched}
    yield "rows", {"rows": await _changes(call.node, watched)}
    while True:
        await asyncio.sleep(EVERY)
        if not all(map(call.node.owns, roots)):
            raise Unavailable("Some of the agents have moved to another node. Open the stream again.")
        if changed := await _changes(call.node, watched):
            yield "rows", {"rows": changed}


async def _changes(node: Node, watched: Sequence[WatchedAgent]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    roots: dict[Address, WatchedRoot] = {}
    looks = 0
    for one in watched:
        if (root := roots.get(one.root)) is None:
            root = roots[one.root] = WatchedRoot(node, one.root)
        if one.is_as_told(root):
            continue
        if (row := await one.change(root)) is not None:
            found.append(row)
        looks += 1
        if looks % AT_ONCE == 0:
            await asyncio.sleep(0)
            roots.clear()
    return found


WATCH = Endpoint("watch", "look", SeveralAgents, stream=_watch)
