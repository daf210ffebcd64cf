"""The way from an agent to those above it, to other trees, and to its own end."""

from __future__ import annotations

from collections.abc import Sequence

from sapwood.capabilities.children import Children
from sapwood.errors import UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import known
from sapwood.kernel.marshal.call import current
from sapwood.kernel.node.node import Node
from sapwood.kernel.rpc.stub import Stub
from sapwood.kernel.trees.tree import tree_of


class Family:
    """Whom one agent can reach beside its children."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    @property
    def _node(self) -> Node:
        host = self._actor.host
        assert isinstance(host, Node)
        return host

    async def parent(self, cls: type) -> Stub:
        self._actor.check_use()
        parent = self._actor.parent
        if parent is None:
            raise UsageError(f"{self._actor.address} is a root and has no parent.")
        return self._stub_of(parent, cls, "parent")

    async def ancestor(self, cls: type) -> Stub:
        self._actor.check_use()
        above = self._actor.parent
        while above is not None and not _is(above, cls):
            above = above.parent
        if above is None:
            path = " → ".join(step.type for step in self._actor.address.segments[:-1]) or "none"
            raise UsageError(
                f"{self._actor.address} has no ancestor of class {known(cls).type}. Its ancestors are {path}."
            )
        return self._node.stub_of(above)

    async def root(self, cls: type) -> Stub:
        self._actor.check_use()
        root = self._actor
        while root.parent is not None:
            root = root.parent
        return self._stub_of(root, cls, "root")

    def _stub_of(self, actor: Actor, cls: type, what: str) -> Stub:
        if not _is(actor, cls):
            raise UsageError(
                f"The {what} of {self._actor.address} is a {actor.address.type}, not a {known(cls).type}. "
                f"Ask for {actor.address.type}, or use ancestor({known(cls).type})."
            )
        return self._node.stub_of(actor)

    async def find(self, cls: type, name: str, sub: Sequence[tuple[type, str]]) -> Stub:
        self._actor.check_use()
        path = [(known(cls), name), *((known(kind), child) for kind, child in sub)]
        return await self._node.stub(path, current.get())

    async def destroy(self) -> None:
        self._actor.check_use()
        if self._actor.parent is not None:
            await self._actor.parent.of(Children).delete_after(self._actor)
        else:
            tree = tree_of(self._actor)
            await self._node.removal.destroy(tree)


def _is(actor: Actor, cls: type) -> bool:
    kind = known(cls)
    return actor.kind is kind or actor.address.type == kind.type
