"""What the log and the archive of a cluster have of a tree, and its erasure from them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.erasure.receipt import ErasedPlace
from sapwood.kernel.erasure.records import ErasureRecord
from sapwood.kernel.log.archive_files import FILES, REMOVALS, agent_prefix
from sapwood.kernel.log.archive_objects import ENDED, ENDS, HANDED, MARKS, SNAPSHOTS
from sapwood.kernel.log.records import tree_id
from sapwood.kernel.log.tree_cache import Keeper
from sapwood.kernel.node.node import Node

PLACES = (SNAPSHOTS, MARKS, HANDED, ENDED, FILES)
NOTES = (ENDS, REMOVALS)
LOG_NOTE = (
    "The log has no message with the data. The servers of NATS may keep bytes of deleted messages in their files, and "
    "in those of Raft, until they compact them."
)
COPY_NOTE = "Seconds of the log were not in the second copy yet. Erase again with another id, or wait for the history."


class ClusterErasure:
    """Erases trees and subtrees from the log and the archive, on the node that owns them."""

    def __init__(
        self,
        node: Node,
        keeper: Keeper,
        place: Callable[..., ErasedPlace],
        write: Callable[[ErasureRecord], Awaitable[None]],
    ) -> None:
        self._node = node
        self._keeper = keeper
        self._place = place
        self._write = write

    async def knows(self, root: Address) -> bool:
        """Return whether the log, its second copy or the archive has anything of a tree."""
        if await self._keeper.trees.tree(root) is not None or await self._keys(tree_id(root)):
            return True
        copy = self._keeper.second_copy
        return copy is not None and await copy.has(root)

    async def number_of_agents(self, root: Address) -> int:
        """Return how many agents of a tree have a database."""
        state = await self._keeper.trees.tree(root)
        return 0 if state is None else len(state.files)

    async def erase_tree(self, record: ErasureRecord) -> list[ErasedPlace]:
        """Erase a whole tree, whose end is in the log."""
        return [self._log_place(), *await self._erase_roots(record, _roots_of(record))]

    async def _erase_roots(self, record: ErasureRecord, roots: Sequence[Address]) -> list[ErasedPlace]:
        """Erase all that is stored of a tree under some of its addresses."""
        removed, segments = 0, list[ErasedPlace]()
        for root in roots:
            name = str(root)
            if name not in record.log_ends:
                record.log_ends[name] = await self._log_end(root, is_former=root != record.subject.root)
                await self._write(record)  # first: afterwards the log does not say where the tree ended
            await self._keeper.log_erasure.drop(root, record.log_ends[name])
            # A tree that was opened since its end would follow a message that is gone.
            await self._node.removal.remove_copies(root)
            keys = await self._keys(tree_id(root))
            await self._keeper.archive.remove(keys)
            removed += len(keys)
            segments += await self._segments(root, record.log_ends[name])
        return [self._place("archive", count=removed), *segments]

    async def _log_end(self, root: Address, *, is_former: bool) -> int:
        """Return up to where the stream of a destroyed tree may have messages of it."""
        end = await self._keeper.log_erasure.end_of(root, is_former=is_former)
        copy = self._keeper.second_copy
        if end or copy is None:
            return end
        return await copy.last_place(root)  # its messages have left the log

    async def erase_past(self, record: ErasureRecord) -> list[ErasedPlace]:
        """Erase a subtree: of its tree, nothing is kept that is older than now."""
        root = record.subject.root
        tree = await self._node.loader.load_files(root)
        if not tree.root.exists:  # it was destroyed since
            return await self.erase_tree(record)
        keeper, folder = self._keeper, tree.stored_object_folder()
        prefixes = [] if folder is None else [agent_prefix(folder, stem) for stem in record.stems]
        with tree.visited():
            tree.slices.commit()
            await keeper.snapshot(root)
            base, first = await keeper.log_erasure.forget_past(root)
        old = [key for key in await self._keys(tree_id(root), PLACES[:-1]) if key not in base]
        for prefix in prefixes:
            old += [key async for key in keeper.archive.keys(prefix)]
        await keeper.archive.remove(old)
        return [
            self._log_place(),
            self._place("archive", count=len(old)),
            *await self._segments(root, first - 1),
            *(await self._erase_roots(record, former) if (former := _roots_of(record)[1:]) else ()),
        ]

    def _log_place(self) -> ErasedPlace:
        return self._place("log", state="unknown", note=LOG_NOTE)

    async def _keys(self, tree: str, places: Sequence[str] = PLACES) -> list[str]:
        archive = self._keeper.archive
        keys = [key for place in places for key in [key async for key in archive.keys(f"{place}/{tree}/")]]
        if places == PLACES:
            for place in NOTES:
                keys += [key async for key in archive.keys(f"{place}/") if f"-{tree}-" in key]
        return keys

    async def _segments(self, root: Address, up_to: int) -> list[ErasedPlace]:
        """Write the second copy of the log again without what it has of a tree."""
        if self._keeper.second_copy is None:
            return []
        count, is_covered = await self._keeper.second_copy.erase(root, up_to)
        if is_covered:
            return [self._place("second copy of the log", count=count)]
        until = self._node.clock.now() + self._node.settings.history_seconds
        note = COPY_NOTE
        return [self._place("second copy of the log", count=count, state="still there", until=until, note=note)]

    async def check(self, record: ErasureRecord) -> None:
        """Raise `Unavailable` if the archive has anything left of a whole tree."""
        roots = _roots_of(record) if record.subject.parent is None else []
        if left := [key for root in roots for key in await self._keys(tree_id(root))]:
            raise Unavailable(f"The archive has {len(left)} objects left of the erased tree.")


def _roots_of(record: ErasureRecord) -> list[Address]:
    """Return the addresses that the tree of an erased agent has had, the present one first."""
    return list(dict.fromkeys(one.root for one in record.subjects))
