"""Goes through the agents of a tree, parents first, and wakes none. Other agents have their turn after each.

The ledger at the root names the agents that have children, so no database is opened of one that has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from sapwood.address import Address
from sapwood.admin.agent_lookup import AgentLookup
from sapwood.errors import SapwoodError
from sapwood.kernel.actors.children_table import SubAgent
from sapwood.kernel.trees.deletion import child_stem
from sapwood.kernel.trees.tree import Tree
from sapwood.kernel.trees.tree_files import ROOT_STEM
from sapwood.storage.database import Database

PAGE = 256
"""Children that are read at once."""


class Visited(NamedTuple):
    """One agent on the way."""

    tree: Tree
    address: Address
    stem: str
    child: SubAgent | None
    """Its row at its parent; `None` for the agent that the walk starts with."""
    lookup: AgentLookup

    @property
    def database(self) -> Database:
        """Its database, which is opened when it is read."""
        return self.lookup.database(self.tree, self.stem)


async def walk(lookup: AgentLookup, start: Address, *, below: bool = True) -> AsyncGenerator[Visited, None]:
    """Yield an agent, and with `below` those below it: children in the order of their creation, each before its own.

    Agents that cannot be read are left out with what is below them.
    """
    tree, address, stem = await lookup.find(start)
    tree.visitors += 1  # or it may be forgotten before this ends, and its files opened twice
    try:
        to_visit: list[tuple[Address, str, SubAgent | None]] = [(address, stem, None)]
        parents = {ROOT_STEM, *(_parents(tree) if below else ())}
        while to_visit and tree.destroyed is None:
            address, stem, child = to_visit.pop()
            tree.slices.commit()
            yield (one := Visited(tree, address, stem, child, lookup))
            await asyncio.sleep(0)
            # One that is in memory may have got children since.
            may_be_parent = below and (stem in parents or address in tree.actors)
            if may_be_parent and tree.destroyed is None and one.database.exists:
                to_visit += reversed(_children(lookup, tree, address, stem))
    finally:
        tree.visitors -= 1


def _parents(tree: Tree) -> list[str]:
    """Return the files of the agents below the root that have children, and perhaps of some that had."""
    tree.slices.commit()
    try:
        return tree.ledger.holders() if tree.root.exists else []
    except SapwoodError:  # damaged: what can be found without it is shown
        return []


def _children(lookup: AgentLookup, tree: Tree, address: Address, stem: str) -> list[tuple[Address, str, SubAgent]]:
    found: list[tuple[Address, str, SubAgent]] = []
    try:
        table, after = lookup.children(tree, stem), 0
        while page := table.page(None, after, PAGE):
            found += [(address.child(one.type, one.name), child_stem(stem, one.generation), one) for one in page]
            after = page[-1].generation
    except SapwoodError:  # damaged, which `verify` reports; the others are shown
        pass
    return found
