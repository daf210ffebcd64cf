"""How trees end on a node: they are closed, lost to another node, destroyed, or replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from sapwood.address import Address
from sapwood.errors import NotFound, SapwoodError, StoredDataError, Unavailable, UsageError
from sapwood.kernel.actors.sockets import GOING_AWAY, RESTARTING
from sapwood.kernel.log.records import ChainBroken
from sapwood.kernel.node.data_folder import RESTORED, tree_folder
from sapwood.kernel.node.folder_removal import FolderRemoval
from sapwood.kernel.node.tree_host import TreeHost
from sapwood.kernel.node.tree_loader import TreeLoader
from sapwood.kernel.ports.placement import Moved
from sapwood.kernel.trees.former_addresses import former_addresses
from sapwood.kernel.trees.tree import DESTROYED, Tree

log = logging.getLogger(__name__)

CLOSING = 0.002
MOVED = "Another node runs this tree now."
LAST_WORDS = 5.0
"""Seconds that cancelled work is given to unwind."""


class TreeRemoval:
    """Ends the trees of one node."""

    def __init__(self, node: TreeHost, loader: TreeLoader, folders: FolderRemoval) -> None:
        self._node = node
        self._loader = loader
        self._folders = folders

    async def close(self, tree: Tree, error: SapwoodError) -> None:
        """Shut a tree down: what it wrote is durable when this returns, and its files are being put away."""
        await self.end(tree, error)
        if (closed := self._loader.put_away(tree)) is not None:
            await closed.kept.wait()

    def lose(self, tree: Tree, error: Unavailable | None = None) -> None:
        """Drop a tree as the end of the process does, and whatever lies here of it.

        `error`: why, or `None` if it is another node's.
        """
        self._loader.forget(tree)
        # What its agents said last may have been lost with it.
        self._node.sockets.close_within(tree.address, RESTARTING, "The agent restarts")
        tree.die(Unavailable(MOVED if error is None else str(error)))
        self._node.gate.drop(tree.address)
        for database in tree.databases.values():
            database.let_go = True
            self._node.gate.forget(database)
        if tree.folder.exists():
            self._folders.move_away(tree.folder)

    async def destroy(self, tree: Tree) -> None:
        """Remove a whole tree. It is gone for good when this returns; its files follow, after the current call."""
        if tree.destroyed is not None:
            return
        tree.slices.commit()
        if tree.folder.exists():
            # First the tombstone: if the disk refuses it, nothing has happened.
            self._node.files.close(self._node.files.create(tree.folder / DESTROYED, b""))
        self._node.sockets.close_within(tree.address, GOING_AWAY, "Agent destroyed")
        gone = tree.destroyed = self._node.loop.create_future()
        for actor in tree.actors.values():
            actor.detached = True
        me = asyncio.current_task()

        async def tear_down() -> None:
            try:
                await asyncio.wait({named})
                if me is not None:
                    await asyncio.wait({me}, timeout=LAST_WORDS)
                await self.end(tree, NotFound(f"{tree.address} was destroyed.", path=tree.address.segments))
                if tree.folder.exists():
                    self._folders.move_away(tree.folder)
                if named.exception() is None:
                    self._node.alarms.forget(tree.address)
            finally:
                # Also when it failed: the next caller of the tree finds the tombstone, and continues the removal.
                self._node.trees.pop(tree.address, None)
                gone.set_result(None)

        named = self._node.loop.create_task(self._name_destroyed(tree))
        named.add_done_callback(lambda named: named.cancelled() or named.exception())  # the caller may be gone
        self._node.background.start(tear_down())  # whatever becomes of the call that asked
        await asyncio.shield(named)

    async def erase(self, root: Address) -> None:
        """Remove a whole tree, and return once none of its files is left here, under any name."""
        tree = await self._loader.load_files(root)
        # In a task of its own: the files follow the end of the task that asked.
        await asyncio.shield(self._node.background.start(self.destroy(tree)))
        if tree.destroyed is not None:
            await asyncio.shield(tree.destroyed)
        await self._folders.remove_all_of(tree_folder(self._node.folder, root))

    async def remove_copies(self, root: Address) -> None:
        """Remove what is here of a tree that another node runs."""
        tree = self._node.trees.get(root)
        if tree is not None:
            self.lose(tree)
        await self._folders.remove_all_of(tree_folder(self._node.folder, root))

    async def _name_destroyed(self, tree: Tree) -> None:
        """Return when it is durable that a tree is no more."""
        folder = tree.folder if tree.folder.exists() else None
        await self._node.gate.bury(tree.address, folder, tree.stored_object_folder() or "")
        self._forget_forwards(tree)
        self._node.history.forget(tree.address, is_destroyed=True)
        if self._node.keeper is not None:
            self._node.background.start(self._node.keeper.destroyed(tree.address))

    def clear(self, tree: Tree) -> None:
        """Remove the folder of an ended tree that has no data."""
        if tree.folder.exists():
            self._folders.move_away(tree.folder)

    def _forget_forwards(self, tree: Tree) -> None:
        """Free the former addresses of a tree, which lead nowhere now."""
        try:
            former = former_addresses(tree.root) if tree.root.exists else []
        except StoredDataError as error:  # the next start looks for forwards that lead nowhere
            log.warning("former addresses not read root=%s error=%s", tree.address, error)
            return
        for address in former:
            self._node.forwards.remove(address)

    async def replace(
        self,
        root: Address,
        folder: Path,
        error: SapwoodError,
        *,
        is_new: bool = False,
        is_rewind: bool = False,
        arrival: str | None = None,
    ) -> None:
        """Put another folder in the place of a tree's own. Calls to it wait until then.

        With `is_new`, `UsageError` if there is such a tree. With `is_rewind`, `NotFound` if there is none. The folder
        is removed if the tree was not replaced, unless it is of an `arrival`: a move from another server, of this id.
        """
        # Not in the caller's task: half replaced is worse than either, and the caller may be cancelled.
        failed: list[Exception] = []

        async def replace() -> None:
            try:
                self._node.arrivals.check(root, id=arrival)
                await self._replace(root, folder, error, is_new=is_new, is_rewind=is_rewind)
            except (SapwoodError, OSError) as raised:
                if arrival is None:
                    self._remove_unused(folder)
                failed.append(raised)

        await asyncio.shield(self._node.background.start(replace()))
        if failed:
            raise failed[0]

    async def _replace(
        self, root: Address, folder: Path, error: SapwoodError, *, is_new: bool, is_rewind: bool
    ) -> None:
        # Looked up now, and again after every wait: while files were copied it may have slept and woken again.
        while (tree := await self._load_even_if_damaged(root, folder)).destroyed is not None:
            await asyncio.shield(tree.destroyed)
        self._node.erasing.check_tree(root)
        if is_new and tree.root.exists:
            raise UsageError(f"{root} exists already. Choose another name, or destroy it first.")
        if is_rewind and not tree.root.exists:
            raise NotFound(f"{root} was destroyed, so it was not rewound.", path=root.segments)
        done = tree.destroyed = self._node.loop.create_future()
        tree.is_replaced = True
        self._node.sockets.close_within(tree.address, RESTARTING, "The agent restarts")
        try:
            await self.end(tree, error)
            if not self._is_ours(tree):
                raise Moved(root)
            self._node.alarms.earlier(root, self._node.clock.now(), 0)  # whatever the other one has to do
            self._node.history.replaced(root)  # first: a crash must not leave it as if it had the new files
            whole = tree.folder.with_suffix(RESTORED)
            self._node.files.rename(folder, whole)
            if tree.folder.exists():
                self._folders.move_away(tree.folder)
            self._node.files.rename(whole, tree.folder)
            self._node.gate.moved(tree.folder)
            await self._node.gate.sync_folder(tree.folder.parent)
            await self._node.gate.flushed(root)
            if not self._is_ours(tree):
                raise Moved(root)  # to do it again is safe, also if the log has it
            self._node.arrivals.held.pop(root, None)  # it has arrived
        finally:
            if self._is_ours(tree):
                self._loader.put_away(tree)
            done.set_result(None)
        self._node.alarms.look_by(root, self._node.clock.now())

    def _remove_unused(self, folder: Path) -> None:
        """Remove a folder that did not become a tree."""
        if folder.exists():
            self._folders.remove(folder)

    def _is_ours(self, tree: Tree) -> bool:
        """Return whether a tree was not lost to another node since it was loaded."""
        return self._node.keeper is None or self._node.trees.get(tree.address) is tree

    async def _load_even_if_damaged(self, root: Address, folder: Path) -> Tree:
        """Return a tree; with the files of this folder if the log or the archive has damaged ones."""
        try:
            return await self._loader.load(root, only_files=True)
        except ChainBroken:
            if self._node.keeper is None:
                raise
            await self._node.keeper.replace_damaged(root, folder)
        return await self._loader.load(root, only_files=True)

    @asynccontextmanager
    async def hold(self, tree: Tree, error: SapwoodError, reason: str) -> AsyncGenerator[None, None]:
        """End a tree; its sockets are closed for this reason. In the block, its files are closed, and calls wait."""
        done = tree.destroyed = self._node.loop.create_future()
        tree.is_replaced = True
        try:
            self._node.sockets.close_within(tree.address, RESTARTING, reason)
            await self.end(tree, error)
            yield
        finally:
            self._loader.put_away(tree)
            done.set_result(None)

    async def end(self, tree: Tree, error: SapwoodError) -> None:
        """Cancel what runs in a tree, and close its files."""
        tree.slices.commit()
        tasks = [task for actor in tree.actors.values() for task in actor.calls.values()]
        root = tree.actors.get(tree.address)
        if root is not None:
            tree.drop(root, error)
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS)
        while tree.deletions:  # one may begin another
            await asyncio.wait(tree.deletions)
        await tree.may_remove()
        while not tree.close():  # noqa: ASYNC110 - flushes end soon
            await asyncio.sleep(CLOSING)
