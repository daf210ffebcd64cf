"""Takes shards, and hands them over: each by writing its next owner message, which only one of several nodes can.

A shard is never taken from a node that may still answer: only after its owner wrote that it released it, or is dead
beyond doubt. First the message is written, then the holder of the trees is told, then calls are let in; and on the way
out calls are stopped first, and the message is last.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from sapwood.errors import Unavailable
from sapwood.kernel.ports.log import Epoch, Full
from sapwood.kernel.ports.placement import ShardHost
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.ground import Ground, Held
from sapwood.runtimes.cluster.base.leases import Life
from sapwood.runtimes.cluster.base.placement import ShardOwner
from sapwood.runtimes.cluster.ownership.membership import Membership
from sapwood.runtimes.cluster.ownership.shard_table import ShardTable

log = logging.getLogger(__name__)

FETCHING, LEAVING = 30.0, 2.0
"""Seconds that the next owner is given to fetch large trees while they still run here; and if this node has to stop."""


class ShardMoves:
    """Takes shards for one node, and hands them over."""

    def __init__(
        self,
        ground: Ground,
        table: ShardTable,
        membership: Membership,
        node: str,
        life: str,
        *,
        learn: Callable[[Mapping[int, Held]], None],
        opened: Callable[[], None],
    ) -> None:
        self._ground = ground
        self._table = table
        self._membership = membership
        self._node = node
        self._life = life
        self._learn = learn
        """Told of owner messages that were written."""
        self._opened = opened
        """Told when calls may come to more shards."""
        self.holder: ShardHost | None = None
        self.former: list[Life] = []
        """Those from whom something is being taken."""
        self._writing: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By stream: what was just written is known when more is."""

    async def take(self, shards: Sequence[int]) -> None:
        """Become the owner of shards of one stream that are free, as far as no other node is faster."""
        former: dict[Life, list[int]] = {}
        try:
            wishes: dict[int, Held] = {}
            for shard in shards:
                held = self._table.held(shard)
                owner = held.owner
                ended_well = not owner.node and owner.ended_well
                wishes[shard] = Held(held.sequence, ShardOwner(owner.epoch + 1, self._node, self._life, "", ended_well))
                if owner.node and owner.life != self._life:
                    former.setdefault(Life(owner.node, owner.life), []).append(shard)
            self.former += former  # they must not be forgotten, although they will own nothing
            async with self._writing[self._ground.stream_of(shards[0])]:
                stored = await self._ground.write(wishes)
            self._table.doubt(shard for shard in shards if shard not in stored)
            self._learn(stored)
            await self._make_sure(former)
            gained: dict[int, bool] = {}
            for shard, held in stored.items():
                if self._table.is_current(shard, held):
                    self._table.own({shard: Epoch(held.owner.epoch, held.sequence)})
                    gained[shard] = held.owner.ended_well
            if gained:
                await self._gain(gained)
        except Unavailable:
            self._table.doubt(shards)
            raise
        finally:
            for life in former:
                self.former.remove(life)
            self._table.free(shards)

    async def _make_sure(self, former: Mapping[Life, list[int]]) -> None:
        """Return when those we took from are still dead, or know.

        Between our look at the leases and the write it may have come back and have checked that all is still its own.
        """
        left = dict(former)
        while left:
            await self._membership.look()
            for life, shards in list(left.items()):
                is_other = life.node != self._node
                if self._membership.nodes.is_dead(life) or (
                    is_other and await self._ground.ask(life.node, shards, "taken")
                ):
                    del left[life]
            if left:
                await asyncio.sleep(0.5)

    async def _gain(self, shards: dict[int, bool]) -> None:
        """Have the trees of shards run here."""
        assert self.holder is not None
        epochs = {shard: self._table.epoch_of(shard) for shard in shards}
        while True:
            try:
                await self.holder.gained(shards)
                break
            except Unavailable as error:
                log.warning("starting %d shards failed, retrying: %s", len(shards), error)
            except Exception:
                log.exception("starting %d shards failed, retrying", len(shards))
            await asyncio.sleep(1)
            shards = {shard: well for shard, well in shards.items() if self._table.epoch_of(shard) == epochs[shard]}
        lost = [shard for shard in shards if self._table.epoch_of(shard) != epochs[shard]]
        if lost:  # while it was asked what they have to do
            self.holder.lost(lost)
        self._table.open(shards.keys() - lost)
        self._opened()

    async def _have_fetched(self, shards: Mapping[int, str]) -> None:
        """Ask the next owners of these shards to fetch their large trees, which keep running here."""
        assert self.holder is not None
        trees: dict[str, list[str]] = {}
        for root in self.holder.large_trees(shards):
            trees.setdefault(shards[shard_of(root)], []).append(str(root))
        patience = FETCHING if self._membership.state == "here" else LEAVING  # the rest is read when it is there
        await asyncio.gather(*(self._ground.have_fetched(node, some, patience) for node, some in trees.items() if node))

    async def hand_over(self, shards: Mapping[int, str]) -> None:
        """Let go of shards, each for whom it is named with."""
        self._table.reserve(shards)
        try:
            await self._have_fetched(shards)
            # A stream that nothing can be written to keeps no other waiting.
            groups = ({shard: shards[shard] for shard in group} for group in self.by_stream(shards))
            for error in await asyncio.gather(*map(self._release, groups), return_exceptions=True):
                if error is not None:
                    raise error
        finally:
            self._table.free(shards)

    async def _release(self, shards: Mapping[int, str]) -> None:
        """Let go of shards of one stream, each for whom it is named with."""
        assert self.holder is not None
        self._table.shut(shards)
        ended_well = True
        try:
            await self.holder.let_go(list(shards))
        except Exception:
            log.exception("releasing %d shards failed", len(shards))
            ended_well = False
        # Nothing is written under it any more. The next owner may be faster than the answer we wait for.
        let_go = self._table.release(shards)
        releases = {
            shard: Held(epoch.sequence, ShardOwner(epoch.number + 1, "", self._life, shards[shard], ended_well))
            for shard, epoch in let_go.items()
        }
        while releases:
            try:
                async with self._writing[self._ground.stream_of(next(iter(releases)))]:
                    stored = await self._ground.write(releases)
            except Full as error:
                if self._membership.state == "here":
                    log.warning("keeping %d shards: %s", len(releases), error)
                    self._table.own(let_go)
                    await self._gain(dict.fromkeys(let_go, ended_well))
                    return
                await asyncio.sleep(1)
            except Unavailable as error:  # if it was stored nevertheless, it is refused the next time
                log.warning("releasing %d shards failed, retrying: %s", len(releases), error)
                await asyncio.sleep(1)
            else:
                self._learn(stored)
                self._table.doubt(shard for shard in releases if shard not in stored)
                return

    def by_stream(self, shards: Iterable[int]) -> Iterable[list[int]]:
        """Return shards in groups, one for each stream."""
        groups: dict[int, list[int]] = {}
        for shard in shards:
            groups.setdefault(self._ground.stream_of(shard), []).append(shard)
        return groups.values()
