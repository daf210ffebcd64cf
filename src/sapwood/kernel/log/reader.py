"""Reads trees from wherever a cluster has them: the log, its copies, and the archive.

Any node can read any tree so, whichever node runs it. Nothing is written, and nothing is believed that is not whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Protocol

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.log.archive_files import addresses_of, named_in
from sapwood.kernel.log.archive_objects import MARKS, last_mark
from sapwood.kernel.log.records import ChainBroken, tree_id
from sapwood.kernel.log.repair import Read, heal
from sapwood.kernel.log.restore import TreeContent, read_tree
from sapwood.kernel.ports.log import Archive, Differ, FencedLog, Record
from sapwood.kernel.ports.shards import SHARDS, shard_of
from sapwood.timings import DEFAULTS, Timings

AGAIN, PAUSE = 0.05, 0.2


class Replicas(Protocol):
    """The copies of the log, one by one."""

    async def newest(self, shard: int, tree: str) -> int:
        """Return the highest place that any copy has a message of the tree at."""
        ...

    def reads(self, shard: int, tree: str) -> Iterable[Read]:
        """Return a way to read a tree from each copy."""
        ...

    async def distrust(self, shard: int) -> None:
        """Have another server lead the stream of a shard: the one that does has lost something."""
        ...


class ClusterReader:
    """All trees of a cluster."""

    def __init__(
        self, log: FencedLog, archive: Archive, replicas: Replicas | None = None, timings: Timings = DEFAULTS
    ) -> None:
        self._log = log
        self._archive = archive
        self._replicas = replicas
        self._timings = timings

    async def read(self, shard: int, tree: str) -> TreeContent | None:
        """Return a tree as the leader of the log knows it, unless another copy knows more, or `None` if there is none.

        `ChainBroken` if it is not whole there.
        """
        return await read_tree(await self.records(shard, tree), self._archive, tree)

    async def records(self, shard: int, tree: str, after: int = 0) -> list[Record]:
        """Return what the log has of a tree, or of its end, as soon as its leader has what every replica has.

        `ChainBroken` if that does not come to be.
        """
        if self._replicas is None:
            return await self._log.read(shard, tree, after)
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timings.log_leader_timeout
        differ_since: float | None = None
        while True:
            try:
                # First, so that what is written during the read is not taken for something that the leader lacks.
                newest = await self._replicas.newest(shard, tree)
                records = await self._log.read(shard, tree, after)
                if newest <= (records[-1].sequence if records else 0):
                    return records
                await asyncio.sleep(AGAIN)
            except Differ:
                pass
            except Unavailable as error:  # no leader now, or the request gets lost
                if loop.time() > end:
                    raise Unavailable(f"The log of tree {tree} cannot be read: {error}") from None
                differ_since = None
                await asyncio.sleep(PAUSE)
                continue
            if differ_since is None:
                differ_since = loop.time()
            elif loop.time() > differ_since + self._timings.replica_lag_timeout:
                break
        raise ChainBroken(f"The replicas of the log of tree {tree} differ: one lacks messages that another has.")

    async def healed(self, shard: int, tree: str) -> TreeContent | None:
        """Return a tree, put together from all copies if no single one is whole."""
        try:
            return await self.read(shard, tree)
        except ChainBroken:
            if self._replicas is None:
                raise
            newest = await self._replicas.newest(shard, tree)
            healed = await heal(self._replicas.reads(shard, tree), self._archive, tree, newest)
            if healed is None or healed.seen < newest:
                raise
            return healed.state

    async def tree(self, root: Address) -> TreeContent | None:
        """Return a tree, or `None` if there is none."""
        state = await self.healed(shard_of(root), tree_id(root))
        return state if state is not None and state.files else None

    async def named(self, root: Address, keys: Sequence[str]) -> set[str]:
        """Return which of these objects of files a tree names, whatever its address is now; none if there is none."""
        named: set[str] = set()
        for one in addresses_of(root):
            if (state := await self.tree(one)) is not None:
                named |= await asyncio.to_thread(named_in, state.files, keys)
        return named

    async def every(self, lost: dict[str, str]) -> AsyncIterator[TreeContent]:
        """Return all trees that there are, also those that no node has open and those that were parked.

        `lost` gets those that are not whole, and why.
        """
        seen: set[str] = set()
        for shard, trees in (await self._log.trees(range(SHARDS))).items():
            for tree in trees:
                seen.add(tree)
                try:
                    state = await self.healed(shard, tree)
                except ChainBroken as error:
                    lost[tree] = str(error)
                    continue
                if state is not None and state.files:
                    yield state
        last = ""
        async for key in self._archive.keys(f"{MARKS}/"):
            if (tree := key.split("/")[-2]) in seen or tree == last:
                continue
            last, name = tree, tree
            try:
                marked = await last_mark(self._archive, tree)
                if marked is None:
                    continue  # destroyed since
                name = marked[1].root
                state = await self.tree(Address.parse(name))
            except ChainBroken as error:
                lost[name] = str(error)
                continue
            if state is not None:
                yield state
