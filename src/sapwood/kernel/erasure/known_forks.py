"""Forks of an erased agent: trees of their own, which have a copy of its data."""

from __future__ import annotations

import asyncio

from sapwood.address import Address
from sapwood.errors import SapwoodError
from sapwood.kernel.actors.fork_origin import origin_of
from sapwood.kernel.erasure.receipt import ErasedPlace
from sapwood.kernel.node.data_folder import TREES, roots_in, tree_folder
from sapwood.kernel.node.node import Node

NOTE = "A fork is a tree of its own, and may have a copy. The file 'address' in the folder names its root."


async def known_forks(node: Node, subject: Address, here: str) -> list[ErasedPlace]:
    """Return the trees of this process that were forked from an agent, from one above it, or from one below it."""
    if node.keeper is not None:
        return []  # the folder of a node has only some trees
    found: list[ErasedPlace] = []
    for root in [root for root in roots_in(node.folder) if node.owns(root)]:
        try:
            origin = origin_of((await node.loader.load_files(root)).root)
        except (SapwoodError, ValueError, OverflowError):
            continue  # it was destroyed since, or is damaged
        if origin is not None and _are_related(origin.address, subject):
            where = f"{TREES}/{tree_folder(node.folder, root).name}"
            found.append(ErasedPlace(place="fork", state="unknown", node=here, where=where, note=NOTE))
        await asyncio.sleep(0)
    return found


def _are_related(source: Address, subject: Address) -> bool:
    return source == subject or source.is_below(subject) or subject.is_below(source)
