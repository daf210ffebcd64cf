"""Deletes a sub-agent that is known by its type id only, as operators know it."""

from __future__ import annotations

from sapwood.capabilities.children import Children
from sapwood.errors import UnknownAgent
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.trees.tree import tree_of
from sapwood.runs.dispatch.lifecycle import Runs


async def delete_child(parent: Actor, type: str, name: str) -> None:
    """Delete a sub-agent with all below it. Its runs end; its class may be gone."""
    try:
        kind = tree_of(parent).kind_of(type, parent.kind)
    except UnknownAgent:
        if (removal := parent.of(Children).bury((type,), name)) is not None:
            await removal
        return
    await parent.of(Runs).delete_child(kind.cls, name)
