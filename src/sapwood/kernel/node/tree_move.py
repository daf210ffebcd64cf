"""Moves a tree to another address in the same data folder: one rename of its folder.

1. The process that runs the new address makes sure that there is no tree, and holds up calls to it.
2. The process that runs the tree ends it, marks its folder, stores a forward, and renames the folder. Calls wait.
3. The process that runs the new address opens the folder, sees the mark, and stores the new address at the root.

The rename decides. After a crash before it, the tree is at the old address, where mark and forward do not count. After
a crash behind it, the tree is at the new address, and its next start does the third step.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from sapwood.address import Address
from sapwood.errors import NotFound, SapwoodError, Unavailable, UsageError
from sapwood.kernel.aio import to_the_end
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.forwards import ARRIVING
from sapwood.kernel.node.tree_host import TreeHost
from sapwood.kernel.node.tree_loader import TreeLoader
from sapwood.kernel.node.tree_removal import TreeRemoval
from sapwood.kernel.trees.tree import Tree
from sapwood.storage.availability import refusals

log = logging.getLogger(__name__)

MOVES = "The agent moves"
"""Why sockets are closed. Clients that connect again by the old URL reach the new address."""


class TreeMove:
    """One move, at the process that runs the old address or at the one that runs the new address."""

    def __init__(self, node: TreeHost, loader: TreeLoader, removal: TreeRemoval, source: Address, target: Address):
        self._node = node
        self._loader = loader
        self._removal = removal
        self._source = source
        self._target = target
        self._error = Unavailable(f"{source} is being moved to {target}.")
        self._is_cancelled = False

    async def receive(self, send: Callable[[], Awaitable[object]]) -> None:
        """Hold the new address for the tree while `send` brings it."""
        await self._whole(self._receive(send))

    async def _whole(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work to its end, whatever becomes of the caller."""
        failed: list[SapwoodError] = []

        async def caught() -> None:
            try:
                await work
            except SapwoodError as error:  # the caller learns of it, if it still waits
                failed.append(error)

        task = self._node.background.start(caught())
        await asyncio.wait({task})  # which continues if the caller is cancelled
        if task.cancelled():
            raise Unavailable("The app is not running.")
        task.result()
        if failed:
            raise failed[0]

    async def _receive(self, send: Callable[[], Awaitable[object]]) -> None:
        root = self._target
        self._loader.expected.add(root)
        try:
            tree = await self._free()
            async with self._removal.hold(tree, self._error, MOVES):
                self._removal.clear(tree)
                self._node.alarms.earlier(root, self._node.clock.now(), 0)  # whatever it has to do
                try:
                    await send()
                except Unavailable:
                    if not (tree_folder(self._node.folder, root) / ARRIVING).exists():
                        raise
                    log.warning("move finished without an answer source=%s target=%s", self._source, root)
            await self._loader.load(root, only_files=True)
        finally:
            self._loader.expected.discard(root)
        self._node.alarms.look_by(root, self._node.clock.now())

    async def _free(self) -> Tree:
        """Return the empty tree at the new address; `UsageError` if the address is taken."""
        root = self._target
        forward = self._loader.moved_to(root)
        if forward is not None and forward != self._source:
            raise UsageError(f"{root} is a former address of {forward}. Choose another name.")
        tree = await self._loader.load_files(root)
        self._node.erasing.check_tree(root)
        self._node.arrivals.check(root)
        if tree.root.exists:
            raise UsageError(f"{root} exists already. Choose another name, or destroy it first.")
        return tree

    async def send(self) -> None:
        """End the tree at the old address, and give its folder the new one."""
        # Not in the task of the caller, which may be cancelled at any step.
        try:
            await self._whole(self._send())
        except CancelledError:
            self._is_cancelled = True  # who asked is gone, and does not hold the new address any more
            raise

    async def _send(self) -> None:
        root = self._source
        while (tree := await self._loader.load(root, self._kind())).destroyed is not None:
            await asyncio.shield(tree.destroyed)
        self._node.erasing.check_tree(root)
        if root in self._node.forwards.departing:
            raise Unavailable(f"{root} is being moved to another server.")
        if (why := self._loader.held_back(root)) is not None:
            raise why
        if not tree.root.exists:
            raise NotFound(f"{root} has no data.", path=root.segments)
        self._node.alarms.earlier(root, self._node.clock.now(), 0)  # if it stays, it continues what is cut short
        try:
            async with self._removal.hold(tree, self._error, MOVES):
                with refusals():
                    await self._rename(tree.folder)
        finally:
            if tree.folder.exists():
                self._node.alarms.look_by(root, self._node.clock.now())

    def _kind(self) -> AgentClass | None:
        return next((known for known in self._node.roots if self._source.type in known.type_ids), None)

    async def _rename(self, folder: Path) -> None:
        """Rename the folder, or leave everything as it was."""
        node, target = self._node, tree_folder(self._node.folder, self._target)
        mark = folder / ARRIVING
        try:
            node.files.remove(mark)  # of an earlier move, which is complete: all databases are closed and durable
            node.files.close(node.files.create(mark, str(self._source).encode()))
            if node.gate.synced:  # its content: an empty mark does not say where the tree comes from
                node.files.sync_file(mark)
            await node.gate.sync_folder(folder)
            node.forwards.add(self._source, self._target)
            await node.gate.sync_folder(node.forwards.folder)
            if self._is_cancelled:
                raise Unavailable(f"{self._source} was not moved: the process that asked for it has ended.")
            node.files.rename(folder, target)
        except BaseException:
            node.forwards.remove(self._source)
            node.files.remove(mark)
            raise
        node.gate.moved(folder)
        node.gate.moved(target)
        await node.gate.sync_folder(folder.parent)
        node.history.renamed(self._source, self._target)
        node.alarms.forget(self._source)


def resume_moves(node: TreeHost) -> None:
    """Finish or undo the moves that a crash interrupted, and remove forwards that lead nowhere."""
    if ended := node.arrivals.resume(node.owns, node.clock.now()):
        node.background.start(to_the_end(node.arrivals.remove, ended))
    for root in node.arrivals.held:
        log.warning("address is held until the server that sends its tree decides root=%s", root)
    for problem in node.forwards.damaged():
        log.warning("former address is refused: %s Remove the file, or restore it from a copy.", problem)
    for former, address in list(node.forwards.all()):
        if node.owns(address) and (tree_folder(node.folder, address) / ARRIVING).exists():
            node.alarms.earlier(address, node.clock.now(), 0)
        if node.owns(former) and (node.forwards.has_tree(former) or _leads_nowhere(node, address)):
            node.forwards.remove(former)


def _leads_nowhere(node: TreeHost, address: Address) -> bool:
    kind = next((known for known in node.roots if address.type in known.type_ids), None)
    try:
        if kind is None or node.forwards.target(address, kind.type_ids) is not None:
            return False
    except SapwoodError:  # it is at another server now, or a forward is damaged
        return False
    return not any(node.forwards.has_tree(Address.root_of(type_, address.name)) for type_ in kind.type_ids)
