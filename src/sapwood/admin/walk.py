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


class Siblings(NamedTuple):
    """The children of an agent on the way that are not read yet: those after this generation."""

    parent: Address
    stem: str
    after: int = 0


async def walk(lookup: AgentLookup, start: Address, *, below: bool = True) -> AsyncGenerator[Visited, None]:
    """Yield an agent, and with `below` those below it: children in the order of their creation, each before its own.

    Agents that cannot be read are left out with what is below them.
    """
    tree, address, stem = await lookup.find(start)
    tree.visitors += 1  # or it may be forgotten before this ends, and its files opened twice
    try:
        to_visit: list[Siblings | Visited] = [Visited(tree, address, stem, None, lookup)]
        parents = {ROOT_STEM, *(_parents(tree) if below else ())}
        while to_visit and tree.destroyed is None:
            one = to_visit.pop()
            tree.slices.commit()
            if isinstance(one, Siblings):
                to_visit += _children(lookup, tree, one)
                await asyncio.sleep(0)
                continue
            yield one
            await asyncio.sleep(0)
            # One that is in memory may have got children since.
            may_be_parent = below and (one.stem in parents or one.address in tree.actors)
            if may_be_parent and tree.destroyed is None and one.database.exists:
                to_visit.append(Siblings(one.address, one.stem))
    finally:
        tree.visitors -= 1


def _parents(tree: Tree) -> list[str]:
    """Return the files of the agents below the root that have children, and perhaps of some that had."""
    tree.slices.commit()
    try:
        return tree.ledger.holders() if tree.root.exists else []
    except SapwoodError:  # damaged: what can be found without it is shown
        return []


def _children(lookup: AgentLookup, tree: Tree, of: Siblings) -> list[Siblings | Visited]:
    """Return some children of an agent and what stands for the others, the first ones last."""
    try:
        page = lookup.children(tree, of.stem).page(None, of.after, PAGE)
    except SapwoodError:  # damaged, which `verify` reports; the others are shown
        return []
    found: list[Siblings | Visited] = [
        Visited(tree, of.parent.child(one.type, one.name), child_stem(of.stem, one.generation), one, lookup)
        for one in reversed(page)
    ]
    if len(page) == PAGE:
        found.insert(0, of._replace(after=page[-1].generation))
    return found
