"""The agents of a node that have due work or dead letters, as the indexes of alarms name them, sorted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from sapwood.address import Address
from sapwood.admin.root_names import RootNames
from sapwood.errors import UsageError
from sapwood.kernel.marshal.agent_class import resolve
from sapwood.kernel.node.node import Node
from sapwood.kernel.trees.tree import Tree

AT_ONCE = 500
"""Entries that are read before other tasks have a turn."""


class DueAgents:
    """Reads the indexes of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def roots(self) -> list[Address]:
        """Return the trees that have an entry, sorted. All trees, if the index is still being made."""
        found: list[Address] = []
        if not self._node.alarms.is_whole:
            names, _ = await self._node.shared(RootNames).sorted_after(self._node, None)
            found = [Address.parse(name) for name in names.copy()]
        else:
            last = ""
            while page := self._node.alarms.roots_after(last):
                found += [root for root in page if root.segments]
                last = str(page[-1])
                await asyncio.sleep(0)
        named = [await self._known_as(root) for root in found]
        return sorted({root for root in named if self._node.owns(root)}, key=str)

    async def _known_as(self, root: Address) -> Address:
        """Return a root by the type id that its class has now, if its tree has moved there already."""
        try:
            type = resolve(root.type, self._node.roots).type
        except UsageError:
            return root
        if type == root.type or await self._node.loader.exists(root):
            return root
        return Address.root_of(type, root.name)

    async def below(self, tree: Tree, address: Address, after: Address | None) -> AsyncGenerator[Address]:
        """Yield the agents at and below an agent that have an entry, in order, from `after` on."""
        own, root, first = str(address), str(address.root), str(address if after is None else after)
        for text in await self._owners(tree, root, first):
            if text >= first and (text == own or text.startswith(f"{own}/")):
                yield Address.parse(text)

    async def _owners(self, tree: Tree, root: str, first: str) -> list[str]:
        """Return the agents that have an entry, sorted, at least those from `first` on."""
        last, found = first[:-1], set[str]()
        for text in (*tree.alarms.owners_after("", 1), *tree.alarms.owners_after(f"{root}0", 1)):
            if text.partition("/")[0] != root:
                last = ""  # it was made when the root had another type id, so they are not sorted as they are named now
        while tree.destroyed is None and (page := tree.alarms.owners_after(last, AT_ONCE)):
            found |= {root + slash + rest for _, slash, rest in (text.partition("/") for text in page)}
            last = page[-1]
            await asyncio.sleep(0)
        return sorted(found)
