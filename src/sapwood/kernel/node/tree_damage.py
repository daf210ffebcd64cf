"""Trees whose files this process must not run: they are damaged, or a newer version has written them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn

from sapwood.address import Address
from sapwood.errors import SapwoodError, StoredDataError, Unavailable
from sapwood.kernel.node.tree_host import TreeHost
from sapwood.kernel.ports.cluster import Cluster
from sapwood.kernel.ports.placement import Moved
from sapwood.kernel.ports.shards import shard_of
from sapwood.kernel.trees.tree import Tree
from sapwood.storage.migrations import NewerData

log = logging.getLogger(__name__)


def damaged_file(
    node: TreeHost, lose: Callable[[Tree, Unavailable], None], root: Address, file: str, how: str
) -> SapwoodError:
    """Return the error to raise for a damaged file of a tree. A copy of what the log has is dropped by `lose`."""
    if node.keeper is None:
        return StoredDataError(
            f"The file {file} of {root} is damaged: {how}. Restore the tree from a backup: "
            f"`sapwood restore FOLDER {root} --data {node.folder}`."
        )
    error = Unavailable(f"The local copy of {root} is damaged ({file}: {how}) and is read again from the log.")
    tree = node.trees.get(root)
    if tree is not None:
        # Not now: a statement of it is being executed.
        node.loop.call_soon(lambda: lose(tree, error) if node.trees.get(root) is tree else None)
    return error


def pass_on(cluster: Cluster | None, root: Address, error: NewerData) -> NoReturn:
    """Have a node run a tree that knows what is in its files; this one must not."""
    if cluster is None:
        raise error
    log.warning("not run on this node: %s", error, extra={"root": str(root)})
    if not cluster.pass_on(shard_of(root), error.owner, error.number):
        raise Unavailable(f"{error} The cluster has no such node now.") from error
    raise Moved(root) from None
