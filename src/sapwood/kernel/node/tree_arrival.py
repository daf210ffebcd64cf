"""A tree that was moved learns its new address when its folder is opened for the first time."""

from __future__ import annotations

import logging
from pathlib import Path

from sapwood.address import Address
from sapwood.errors import InvalidName, StoredDataError
from sapwood.kernel.node.data_folder import labelled
from sapwood.kernel.node.forwards import ARRIVING
from sapwood.kernel.node.tree_host import TreeHost
from sapwood.kernel.trees.former_addresses import rename_agents
from sapwood.kernel.trees.tree import Tree
from sapwood.kernel.trees.tree_files import LABEL

log = logging.getLogger(__name__)


def settle_arrival(node: TreeHost, tree: Tree) -> None:
    """Store the address of a tree at its root, if it was moved since it was open last."""
    mark = tree.folder / ARRIVING
    if not mark.exists():
        return
    former = _former(tree, mark)
    if former != tree.address and tree.root.exists:
        node.alarms.earlier(tree.address, node.clock.now(), 0)  # whatever it has to do
        node.history.renamed(former, tree.address)
        try:
            tree.root.begin()  # first, because no limit refuses it
            rename_agents(tree.root, former, tree.address, node.clock.now())
            tree.slices.commit()
        except StoredDataError as error:  # a restore replaces the folder, with the mark
            log.warning("moved tree is damaged root=%s error=%s", tree.address, error)
            return
    node.forwards.remove(tree.address)
    node.background.start(_remove_mark(node, tree, mark))


def _former(tree: Tree, mark: Path) -> Address:
    """Return the address that a tree had: of its mark or, if that is damaged, of the label of its folder."""
    try:
        return Address.parse(mark.read_text())
    except (InvalidName, UnicodeDecodeError):
        if isinstance(label := labelled(tree.folder), Address):
            return label
        raise StoredDataError(
            f"{tree.address} was moved, and the files {ARRIVING!r} and {LABEL!r} in the folder {tree.folder.name} are "
            f"damaged. Write the former address, such as {tree.address}, into {ARRIVING!r}."
        ) from None


async def _remove_mark(node: TreeHost, tree: Tree, mark: Path) -> None:
    """Remove the mark once the address is durable. Until then, a crash has it stored again."""
    if (waiting := node.gate.wait(tree.root)) is not None:
        await waiting
    if tree.destroyed is None:
        node.files.remove(mark)
