"""What a node does when shards come to it and go: it takes up their trees' time, ends their trees, or drops them."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from sapwood.address import Address
from sapwood.errors import InvalidName, SapwoodError, Unavailable
from sapwood.kernel.actors.outbox import Outbox
from sapwood.kernel.log.alarm_entry import alarm_line
from sapwood.kernel.log.tree_cache import size_of
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.tree_removal import MOVED
from sapwood.kernel.ports.log import FencedLog, Record
from sapwood.kernel.ports.shards import shard_of
from sapwood.kernel.trees.tree import Tree

if TYPE_CHECKING:
    from sapwood.kernel.ports.placement import ShardHost

log = logging.getLogger(__name__)

GRACE = 0.5
"""Seconds that a call gets to end before its tree moves."""
LAST_ANSWERS = 5.0
"""Seconds that those get which have ended, and whose answers wait for the log."""
LOG_FULL = 5.0
"""Seconds until a tree does again by the clock what the log had no room for."""
LOOK = 0.005
LARGE = 1024 * 1024
"""Bytes of a tree from which on its next owner fetches it before it is let go."""
MOST_LARGE = 64
"""How many of them at most, the largest ones."""
AT_ONCE = 4
"""How many are fetched at the same time."""


class ShardHandover:
    """Begins and ends the trees of one node, shard by shard."""

    def __init__(self, node: Node, log: FencedLog) -> None:
        self._node = node
        self._log = log

    async def gained(self, shards: Mapping[int, bool]) -> None:
        node = self._node
        lines = await self._alarms(shards)
        if node.erasures is not None:
            await node.erasures.gained(shards)
        node.held.update(shards)
        node.sockets.gained(shards)
        now = node.clock.now()
        for shard, ended_well in shards.items():
            if ended_well:
                node.crashes.pop(shard, None)
            else:
                node.crashes[shard] = now
        node.alarms.gained(lines)

    async def read_alarms(self) -> None:
        """Enter the alarms of all shards into the index of the node again, which has lost them."""
        self._node.alarms.refill(await self._alarms(self._node.held))

    async def _alarms(self, shards: Iterable[int]) -> list[tuple[Address, float | None, int]]:
        lines = [_line(record) for record in await self._log.alarms(list(shards))]
        return [line for line in lines if line is not None]

    def large_trees(self, shards: Collection[int]) -> list[Address]:
        sizes = {tree.address: size_of(tree.folder) for tree in self._trees_of(frozenset(shards))}
        large = [root for root, size in sizes.items() if size > LARGE]
        return heapq.nlargest(MOST_LARGE, large, key=sizes.__getitem__)

    async def fetch(self, trees: Iterable[Address]) -> None:
        node, slots = self._node, asyncio.Semaphore(AT_ONCE)

        async def fetch(root: Address) -> None:
            assert node.keeper is not None
            async with slots:
                try:
                    await node.keeper.fetch(root, tree_folder(node.folder, root))
                except (SapwoodError, OSError) as error:
                    log.info("prefetching %s failed: %s", root, error, extra={"root": str(root)})

        await asyncio.gather(*map(fetch, trees))

    async def let_go(self, shards: Collection[int]) -> None:
        node = self._node
        gone = frozenset(shards)
        node.held -= gone
        node.sockets.leave(gone)
        for bringing in node.loader.stop_loading(lambda root: shard_of(root) in gone):
            await asyncio.wait({bringing})
        ended = await asyncio.gather(*(self._end(tree) for tree in self._trees_of(gone)))
        # Trees that had gone to sleep just before may still have to record that they need no wake-up.
        for closed in node.loader.closed_trees(lambda root: shard_of(root) in gone).values():
            await closed.kept.wait()
        node.forget_alarms_of_others()
        if not all(ended):
            raise Unavailable(f"{ended.count(False)} trees were not closed cleanly.")

    async def _end(self, tree: Tree) -> bool:
        """Close a tree; return whether it was closed cleanly."""
        node = self._node
        for actor in tree.actors.values():
            actor.ready = False  # so that callers have to ask where it is
        await self._until_answered(tree)
        while tree.destroyed is not None:
            await asyncio.shield(tree.destroyed)
            if node.trees.get(tree.address) is not tree:
                return True
        try:
            await node.removal.close(tree, Unavailable(MOVED))
        except Exception:
            log.exception("tree was not closed cleanly: %s", tree.address, extra={"root": str(tree.address)})
            node.removal.lose(tree)
            return False
        return True

    async def _until_answered(self, tree: Tree) -> None:
        """Return when no call runs in a tree and no answer waits in it, or they were waited for long enough."""
        loop = self._node.loop
        began = loop.time()
        was_called = True
        # Twice: the loop tells the waiter of a call that it has ended, and only then the waiter adds the answer.
        while (is_called := _is_called(tree, loop.time() - began)) or was_called:
            was_called = is_called
            await asyncio.sleep(LOOK if is_called else 0)  # calls are many, and do not notify us

    def lost(self, shards: Collection[int]) -> None:
        node = self._node
        gone = frozenset(shards)
        node.held -= gone
        node.loader.stop_loading(lambda root: shard_of(root) in gone)
        node.sockets.lost(gone)
        for root in node.loader.closed_trees(lambda root: shard_of(root) in gone):
            node.gate.drop(root)  # what it has to say is refused anyway, however long that takes
        for tree in self._trees_of(gone):
            try:
                node.removal.lose(tree)
            except Exception:
                # Whatever it was: nothing of it may leave, and the others have to go, too.
                log.exception("dropping a tree failed: %s", tree.address, extra={"root": str(tree.address)})
                node.gate.drop(tree.address)
        node.forget_alarms_of_others()

    def refused(self, roots: Collection[Address], error: Unavailable) -> None:
        """The log did not take what these trees committed last: have them be read again, as they were before."""
        node = self._node
        later = node.clock.now() + LOG_FULL
        for root in roots:
            tree = node.trees.get(root)
            if tree is None:
                node.gate.drop(root)
            else:
                node.removal.lose(tree, error)
            # What the index says may be from what was not kept. Not at once: it would be refused again.
            node.alarms.earlier(root, later, 0)
            node.alarms.look_by(root, later)

    def _trees_of(self, shards: Collection[int]) -> Iterable[Tree]:
        return [tree for root, tree in self._node.trees.items() if shard_of(root) in shards]


def _line(record: Record) -> tuple[Address, float | None, int] | None:
    """Return what a line of the index of alarms says. `None` means nothing, or that it cannot be read."""
    try:
        line = alarm_line(record.data)
        return None if line is None else (Address.parse(line.root), line.due, line.dead)
    except (msgspec.DecodeError, InvalidName):
        log.exception("cannot decode the alarm of tree %s; it will not be woken until it sets a new one", record.tree)
        return None


def _is_called(tree: Tree, waited: float) -> bool:
    """Return whether to wait for a call in the tree. Scheduled work continues on another node."""
    calls = [call for actor in tree.actors.values() for call in actor.calls if call.work is None]
    if waited < GRACE and calls:
        return True
    return waited < LAST_ANSWERS and (any(call.is_done for call in calls) or _has_frames(tree))


def _has_frames(tree: Tree) -> bool:
    """Return whether something that was said to clients still waits for the log."""
    outboxes = [actor.found(Outbox) for actor in tree.actors.values()]
    return any(outbox is not None and outbox.until_empty() is not None for outbox in outboxes)


if TYPE_CHECKING:
    _: type[ShardHost] = ShardHandover
