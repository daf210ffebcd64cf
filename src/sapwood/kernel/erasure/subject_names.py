"""All addresses that an erased agent has had: its tree may have been moved, and classes may have other type ids now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from sapwood.address import Address, PathSegment
from sapwood.errors import StoredDataError
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.trees.former_addresses import former_addresses, within
from sapwood.kernel.trees.tree import Tree


def names_of(subject: Address, tree: Tree, roots: Sequence[AgentClass]) -> list[str]:
    """Return all addresses of an agent, the present one first. `tree`: its tree. `roots`: the classes of the app."""
    try:
        former = former_addresses(tree.root) if tree.root.exists else []
    except StoredDataError:
        former = []  # a damaged tree can be erased, too
    first, *below = subject.segments
    heads = [PathSegment(type_, root.name) for root in (subject.root, *former) for type_ in _types(first.type, roots)]
    kinds = tree.kinds.values()
    tails = product(*([PathSegment(type_, one.name) for type_ in _types(one.type, kinds)] for one in below))
    found = [Address((head, *tail)) for tail in tails for head in heads]
    return [str(one) for one in dict.fromkeys([subject, *(within(subject, root) for root in former), *found])]


def _types(type_: str, kinds: Iterable[AgentClass]) -> list[str]:
    """Return the type ids of a class, the given one first."""
    kind = next((kind for kind in kinds if type_ in kind.type_ids), None)
    return [type_] if kind is None else list(dict.fromkeys((type_, *kind.type_ids)))
