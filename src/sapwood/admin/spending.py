"""What the trees of a node have used of models, as an operator sees it. No agent is woken."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import Any

from sapwood.address import Address
from sapwood.admin.agent_lookup import AgentLookup
from sapwood.errors import NotFound, SapwoodError
from sapwood.kernel.forks.origin import inherited
from sapwood.kernel.node.data_folder import roots_in
from sapwood.kernel.node.node import Node
from sapwood.kernel.trees.tree import Tree
from sapwood.kernel.trees.usage import Spent

DEFAULT_LIMIT = 20

Totals = Mapping[tuple[str, str], Spent]
"""What was used, by class and model. The class of deleted agents is "", and so is that of all classes together."""


class AdminSpending:
    """Adds up what the agents of one node have used."""

    def __init__(self, node: Node, lookup: AgentLookup) -> None:
        self._node = node
        self._lookup = lookup

    async def list(
        self, address: str | None = None, *, by_class: bool = False, limit: int = DEFAULT_LIMIT
    ) -> dict[str, Any]:
        """Return what an agent and those below it have used; without an address, what all trees have used.

        Of all trees, the most expensive ones are listed, at most so many. The rows have the sums of all of them, by
        model, and with `by_class` also by class.
        """
        trees: list[tuple[Address, Spent]] = []
        sums: defaultdict[tuple[str, str], Spent] = defaultdict(Spent)
        unread: list[dict[str, str]] = []
        for one in [Address.parse(address)] if address is not None else roots_of(self._node):
            try:
                found, used = await self._used(one, by_class=by_class, with_inherited=address is not None)
            except SapwoodError as error:
                if address is not None:
                    raise
                if isinstance(error, NotFound):
                    continue  # it was destroyed
                unread.append({"address": str(one), "error": str(error)})  # damaged: the others are shown
                continue
            for key, spent in used.items():
                sums[key] = sums[key].plus(spent)
            if used:
                trees.append((found, _sum(used.values())))
        told = [{"address": str(root), **spent._asdict()} for root, spent in trees]
        return {
            "trees": most_expensive(told, limit),
            "count": len(trees),
            "rows": [{"class": kind, "model": model, **spent._asdict()} for (kind, model), spent in sums.items()],
            "unread": unread,
        }

    async def _used(self, address: Address, *, by_class: bool, with_inherited: bool) -> tuple[Address, Totals]:
        """Return what an agent and those below it have used. In sums over trees, a fork lacks what its source used."""
        await asyncio.sleep(0)  # other agents have their turn
        tree, found, stem = await self._lookup.find(address)
        tree.slices.commit()
        totals = tree.spending.by_model(stem, below=True)
        if by_class:
            used = _by_class(tree, found, totals)
        else:
            used = {("", model): spent for model, spent in totals.items()}
        return found, used if with_inherited else _without(used, inherited(tree.root), by_class=by_class)


def _without(used: Totals, before: Totals, *, by_class: bool) -> Totals:
    """Return what a fork has used itself."""
    found = dict(used)
    for (kind, model), spent in before.items():
        key = (kind if by_class else "", model)
        found[key] = found.get(key, Spent()).plus(spent, -1)
    return {key: spent for key, spent in found.items() if any(spent)}


def roots_of(node: Node) -> list[Address]:
    """Return the trees that a node runs, sorted."""
    roots = {*roots_in(node.folder), *node.trees}
    return sorted((root for root in roots if node.owns(root)), key=str)


def _by_class(tree: Tree, address: Address, totals: Mapping[str, Spent]) -> Totals:
    found: defaultdict[tuple[str, str], Spent] = defaultdict(Spent)
    for owner, model, spent in tree.spending.by_agent(address):
        key = (owner.type, model)
        found[key] = found[key].plus(spent)
    for model, spent in totals.items():
        known = _sum(one for (_, of), one in found.items() if of == model)
        if any(rest := spent.plus(known, -1)):
            found["", model] = rest  # what deleted agents have used stays counted above them
    return found


def _sum(spent: Iterable[Spent]) -> Spent:
    total = Spent()
    for one in spent:
        total = total.plus(one)
    return total


def most_expensive(trees: Iterable[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """Return so many trees, the most expensive first, as far as prices are known, and then by their tokens."""
    return nsmallest(
        limit,
        trees,
        key=lambda one: (-one["nanodollars"], -one["input_tokens"] - one["output_tokens"], one["address"]),
    )
