"""What the parts of a node that load and end trees ask of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.actors.actor import Host
from sapwood.kernel.actors.erasing import Erasing
from sapwood.kernel.actors.quarantine import Strikes
from sapwood.kernel.log.tree_cache import Keeper
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.node.arrivals import Arrivals
from sapwood.kernel.node.background import Background
from sapwood.kernel.node.forwards import Forwards
from sapwood.kernel.ports.cluster import Cluster
from sapwood.kernel.trees.tree import Tree
from sapwood.storage.files import Files


class TreeHost(Host, Protocol):
    """The node, as its parts see it."""

    folder: Path
    files: Files
    roots: Sequence[AgentClass]
    """The classes that may be roots."""
    trees: dict[Address, Tree]
    """The trees in memory."""
    strikes: Strikes
    erasing: Erasing
    forwards: Forwards
    arrivals: Arrivals
    keeper: Keeper | None
    """Fetches and records the files of trees, or `None` if they lie in the folder, which is all there is of them."""
    cluster: Cluster | None
    """The cluster that it is a node of."""
    background: Background
    stopped: Unavailable | None
    """Why the node runs no tree any more, or `None` if it does."""

    def owns(self, root: Address) -> bool:
        """Return whether the tree is run here."""
        ...

    def on_other_thread(self) -> bool: ...
