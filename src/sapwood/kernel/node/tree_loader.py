"""Which trees of a node are in memory: their files are fetched before, and recorded after."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError, Task
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sapwood.address import Address
from sapwood.errors import NotFound, Quarantined, Unavailable, WrongThread
from sapwood.kernel.log.tree_cache import Keeper
from sapwood.kernel.marshal.agent_class import AgentClass, brought_by
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.folder_removal import FolderRemoval
from sapwood.kernel.node.open_databases import OpenDatabases
from sapwood.kernel.node.tree_arrival import settle_arrival
from sapwood.kernel.node.tree_host import TreeHost
from sapwood.kernel.ports.placement import Forwarded, Moved
from sapwood.kernel.trees.tree import DESTROYED, Tree
from sapwood.storage.availability import StorageUnavailable, refusals


class ClosedTree(NamedTuple):
    """A tree that was closed, and whose files are being recorded."""

    kept: asyncio.Event
    """Nothing of it will be written any more: another node may have it."""
    work: Task[None]
    """Done when its files here may be used again."""


class TreeLoader:
    """Loads the trees of one node, and forgets them."""

    def __init__(self, node: TreeHost, databases: OpenDatabases, folders: FolderRemoval) -> None:
        self._node = node
        self._databases = databases
        self._folders = folders
        self._loading: dict[Address, Task[None]] = {}
        """The trees whose files are on their way here."""
        self._closed: dict[Address, ClosedTree] = {}
        self.expected: set[Address] = set()
        """The roots to which trees are being moved now: they may be former addresses of the same trees."""

    @property
    def is_loading(self) -> bool:
        """Whether files of a tree are on their way here."""
        return bool(self._loading)

    async def load(self, address: Address, kind: AgentClass | None = None, *, only_files: bool = False) -> Tree:
        """Return the tree an address belongs to, as `tree` does, once its files are here."""
        root = address.root
        while self._node.keeper is not None and root not in self._node.trees:
            self._check_may_open(root, only_files=only_files)
            loading = self._loading.get(root)
            if loading is None:
                aliases = self._former_types(address, kind)
                loading = self._loading[root] = self._node.loop.create_task(
                    self._load(self._node.keeper, root, aliases), context=self._node.context.copy()
                )
                loading.add_done_callback(lambda done: self._end_loading(root, done))
            try:
                await asyncio.shield(loading)
            except CancelledError:
                me = asyncio.current_task()
                if not loading.cancelled() or (me is not None and me.cancelling()):
                    raise
                raise Moved(address.root) from None
        return self.tree(address, kind, only_files=only_files)

    async def load_files(self, root: Address) -> Tree:
        """Return a tree whose files are read or copied. While they are being replaced or removed, it waits."""
        while (tree := await self.load(root, only_files=True)).destroyed is not None:
            await asyncio.shield(tree.destroyed)
        return tree

    def tree(self, address: Address, kind: AgentClass | None = None, *, only_files: bool = False) -> Tree:
        """Return the tree an address belongs to; `only_files`: none of its agents will run, it may be in quarantine."""
        if self._node.on_other_thread():
            raise WrongThread(
                f"{address} was requested from another thread than the one that its app runs on. Use the app on "
                "its own thread."
            )
        if self._node.stopped is not None:
            raise Unavailable(str(self._node.stopped))
        root = address.root
        if not only_files:
            self._node.arrivals.check(root)
        tree = self._node.trees.get(root)
        if tree is None:
            self._check_may_open(root, only_files=only_files)
            if self._node.keeper is not None:
                raise Unavailable(f"{root} does not exist on this node.")  # callers that may wait have it loaded
            folder = self._folder_of(root, self._former_types(address, kind))
            is_new = not folder.exists() and root not in self.expected
            if is_new and root not in self._node.arrivals.held and (target := self.moved_to(root)) is not None:
                raise Forwarded(root, target)
            tree = self._make_tree(root, folder)
            try:
                settle_arrival(self._node, tree)
            except BaseException as error:
                self.forget(tree)
                tree.die(Unavailable(f"{root} was moved, and does not know it yet: {error}"))
                raise
        elif tree.is_held and not only_files:
            tree.is_held = self._node.strikes.quarantined(root)
            if tree.is_held:
                raise self._quarantined(root)
        return tree

    def moved_to(self, root: Address) -> Address | None:
        """Return where a tree was moved to, or `None` if it was not."""
        kind = next((known for known in self._node.roots if root.type in known.type_ids), None)
        return self._node.forwards.target(root, () if kind is None else kind.type_ids)

    def check_not_moved(self, root: Address) -> None:
        """Refuse a root that does not exist because it was moved: the error says where it is now.

        It is not a `Forwarded`, which callers follow.
        """
        if (target := self.moved_to(root)) is not None:
            raise NotFound(str(Forwarded(root, target)), path=root.segments)

    async def exists(self, root: Address) -> bool:
        """Return whether a tree has data here, or an agent in memory."""
        tree = self._node.trees.get(root)
        if tree is None and self._node.keeper is not None and self._node.owns(root):
            tree = await self.load(root, only_files=True)
        if tree is not None and tree.destroyed is not None and not tree.is_replaced:
            return False
        if tree is not None and tree.actors:
            return True
        stored = (root, *(Address.root_of(type_, root.name) for type_ in self._former_types(root, None)))
        return any(self._node.forwards.has_tree(one) for one in stored)

    def _former_types(self, address: Address, kind: AgentClass | None) -> Sequence[str]:
        """Return the former type ids of the class of the root: its tree may still be stored under one of them."""
        if kind is None or len(address.segments) > 1:
            type_ = address.segments[0].type
            kind = next((known for known in self._node.roots if known.type == type_), None)
        return () if kind is None else kind.aliases

    def held_back(self, root: Address) -> Quarantined | None:
        """Return why a tree may not run, or `None` if it may."""
        return self._quarantined(root) if self._node.strikes.quarantined(root) else None

    async def _load(self, keeper: Keeper, root: Address, aliases: Sequence[str]) -> None:
        former = [Address.root_of(alias, root.name) for alias in aliases]
        for old in former:  # a caller may have opened it by its old name
            await self._until_put_away(old)
            if (tree := self._node.trees.get(old)) is not None:
                if not tree.is_quiet or not tree.close():
                    raise Unavailable(f"{root} still runs as {old}.")
                self.put_away(tree)
                await self._until_put_away(old)
        await self._until_put_away(root)
        try:
            with refusals():
                await keeper.bring(root, tree_folder(self._node.folder, root), former)
        except StorageUnavailable as error:
            self._node.storage.refused(error)
            raise
        self._check_may_open(root, only_files=True)
        self._make_tree(root, self._folder_of(root, aliases))

    def _end_loading(self, root: Address, done: Task[None]) -> None:
        # Not in the task itself: it may be cancelled before its first step.
        if self._loading.get(root) is done:
            del self._loading[root]
        if not done.cancelled():
            done.exception()  # the caller may be gone

    def put_away(self, tree: Tree) -> ClosedTree | None:
        """Forget a closed tree, and record its files. `None` means that the files are its only copy."""
        self.forget(tree)
        if self._node.keeper is None:
            return None
        kept = asyncio.Event()

        def done(_: object) -> None:
            kept.set()
            del self._closed[tree.address]

        work = self._node.background.start(self._node.keeper.put_away(tree.address, tree.folder, kept.set))
        work.add_done_callback(done)
        closed = self._closed[tree.address] = ClosedTree(kept, work)
        return closed

    def closed_trees(self, is_meant: Callable[[Address], bool]) -> dict[Address, ClosedTree]:
        """Return which of these trees are closed, and how far they are put away."""
        return {root: closed for root, closed in self._closed.items() if is_meant(root)}

    def stop_loading(self, is_meant: Callable[[Address], bool]) -> list[Task[None]]:
        """Bring none of these trees any more; return what still unwinds."""
        tasks = [task for root, task in self._loading.items() if is_meant(root)]
        for task in tasks:
            task.cancel()
        return tasks

    async def _until_put_away(self, root: Address) -> None:
        if (closed := self._closed.get(root)) is not None:
            await asyncio.wait({closed.work})

    def _check_may_open(self, root: Address, *, only_files: bool) -> None:
        if self._node.stopped is not None:
            raise Unavailable(str(self._node.stopped))
        if not self._node.owns(root):
            raise Moved(root)
        if not only_files and self._node.strikes.quarantined(root):
            raise self._quarantined(root)

    def _make_tree(self, root: Address, folder: Path) -> Tree:
        has_marks = self._node.keeper is None
        tree = self._node.trees[root] = Tree(
            self._node,
            self._node.files,
            folder,
            root,
            self._databases.opened,
            self._databases.closed,
            has_marks=has_marks,
        )
        # A root is of one of the app's classes, whichever others have the same type id.
        own = [known for known in self._node.roots if known.type == root.segments[0].type]
        tree.kinds.update({**brought_by(own), **{known.type: known for known in own}})
        tree.is_held = self._node.strikes.quarantined(root)
        return tree

    def _folder_of(self, root: Address, aliases: Sequence[str]) -> Path:
        folder = tree_folder(self._node.folder, root)
        if (folder / DESTROYED).exists():
            self._folders.move_away(folder)
        if aliases and not folder.exists():
            for alias in aliases:
                known = Address.root_of(alias, root.name)
                old = tree_folder(self._node.folder, known)
                if old.exists():
                    if not self._node.owns(known):  # its class was renamed since those who share the folder began
                        raise Unavailable(f"{root} still runs as {known}, in another process. Restart the server.")
                    tree = self._node.trees.get(known)
                    if tree is not None and tree.is_quiet and tree.close():
                        del self._node.trees[known]  # a caller opened it by its old name
                    self._node.history.renamed(known, root)
                    self._node.files.rename(old, folder)
                    self._node.gate.moved(folder)
                    break
        return folder

    def _quarantined(self, root: Address) -> Quarantined:
        return Quarantined(
            f"{root} blocked its process {self._node.settings.strikes} times within an hour and is in quarantine. The "
            f"folder 'crashes' in the data folder has the stack traces; `sapwood release {root}` releases it."
        )

    def forget(self, tree: Tree) -> None:
        """Forget a tree that is not used any more."""
        self._node.trees.pop(tree.address, None)
        self._databases.forget(tree)
