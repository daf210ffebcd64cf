"""What one node knows of every shard: who owns it, and what is being done with it here.

A shard is away, owned, or open. It is owned once this process has written itself as the owner, and open while calls may
come to it. Only an owned shard is opened, and a shard that is released or dropped is away at once. An act that takes or
hands over a shard reserves it, so that no other act begins with it. Nothing here waits or writes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from sapwood.kernel.ports.log import Epoch
from sapwood.kernel.ports.shards import SHARDS
from sapwood.runtimes.cluster.base.ground import NOBODY, Held
from sapwood.runtimes.cluster.base.leases import Life
from sapwood.runtimes.cluster.base.placement import ShardOwner, turn_of, wished


class ShardTable:
    """The shards of a cluster, seen from one life of one node."""

    def __init__(self, node: str, life: str) -> None:
        self._node = node
        self._life = life
        self._known: dict[int, Held] = {}
        """Who owns what, as far as this node was told."""
        self._owned: dict[int, Epoch] = {}
        """What this process owns."""
        self._open = bytearray(SHARDS)
        """Which of those calls may come to."""
        self._reserved: set[int] = set()
        """Those that are being taken or handed over."""
        self._doubted: set[int] = set()
        """Those whose owner has to be read before anything is made of them."""
        self._unsettled = set(range(SHARDS))
        """Those that may be without an owner."""
        self._free_since: dict[int, float] = {}
        self._promised: dict[int, str] = {}
        """What is to be handed over to whom, as soon as the pace allows."""
        self._passed_on: set[int] = set()
        """What this node must not run, because a newer program has written it."""

    # What is known of owners.

    def held(self, shard: int) -> Held:
        """Return the last owner message of a shard that this node was told of."""
        return self._known.get(shard, NOBODY)

    def owner(self, shard: int) -> ShardOwner:
        """Return the known owner of a shard."""
        return self.held(shard).owner

    def lives(self) -> set[Life]:
        """Return all owners."""
        return {_life(held.owner) for held in self._known.values()}

    def runs(self, shard: int, is_dead: Callable[[Life], bool]) -> str:
        """Return the node that runs a shard, or "" if none does, or it is not known."""
        if self._open[shard]:
            return self._node
        if shard in self._doubted or shard in self._owned:
            return ""
        owner = self.owner(shard)
        return "" if owner.life == self._life or is_dead(_life(owner)) else owner.node

    def learn(self, owners: Mapping[int, Held]) -> tuple[list[int], set[Life]]:
        """Note owner messages. Return the shards that another node took from this one, and the owners that are new."""
        lost: list[int] = []
        lives: set[Life] = set()
        for shard, held in owners.items():
            if held.sequence <= self.held(shard).sequence:
                continue
            self._known[shard] = held
            self._unsettled.add(shard)
            self._free_since.pop(shard, None)
            if held.owner.life != self._life:
                if held.owner.node:
                    lives.add(_life(held.owner))
                if shard in self._owned:
                    lost.append(shard)
        return lost, lives

    def is_current(self, shard: int, held: Held) -> bool:
        """Return whether this is the last owner message of a shard, and not in doubt."""
        return self._known[shard] == held and shard not in self._doubted

    def doubt(self, shards: Iterable[int]) -> None:
        """Make nothing of these shards before their owners were read."""
        self._doubted.update(shards)

    def doubt_other(self, shard: int) -> bool:
        """Doubt the owner of a shard that is another node's. Returns `False` if it is ours, or reserved."""
        if shard in self._owned or shard in self._reserved:
            return False
        self._doubted.add(shard)
        return True

    def doubted(self) -> set[int]:
        """Return the shards whose owners have to be read."""
        return set(self._doubted)

    def trust(self, shards: Collection[int]) -> None:
        """The owners of these shards were read."""
        self._doubted -= set(shards)

    def unsettle(self) -> None:
        """Any shard may be without an owner now."""
        self._unsettled.update(range(SHARDS))

    # What this process owns.

    def owned(self) -> list[int]:
        """Return the shards that this process owns."""
        return sorted(self._owned)

    def owns(self, shard: int) -> bool:
        """Return whether this process owns a shard."""
        return shard in self._owned

    def is_open(self, shard: int) -> bool:
        """Return whether calls may come to a shard here."""
        return bool(self._open[shard])

    def epoch_of(self, shard: int) -> Epoch | None:
        """Return our ownership of a shard, or `None` if it is not ours."""
        return self._owned.get(shard)

    def count_written(self) -> int:
        """Return the number of shards whose last owner message names this process."""
        return sum(1 for held in self._known.values() if held.owner.node and held.owner.life == self._life)

    def own(self, epochs: Mapping[int, Epoch]) -> None:
        """These shards are owned from now on."""
        self._owned.update(epochs)

    def open(self, shards: Iterable[int]) -> None:
        """Calls may come to these shards, which are owned."""
        for shard in shards:
            assert shard in self._owned, shard
            self._open[shard] = 1

    def shut(self, shards: Iterable[int]) -> None:
        """No call may come to these shards any more. They are still owned."""
        for shard in shards:
            self._open[shard] = 0

    def release(self, shards: Iterable[int]) -> dict[int, Epoch]:
        """Own these shards no more. Return the ownership of each that was owned."""
        released = {shard: self._owned.pop(shard) for shard in shards if shard in self._owned}
        self.shut(released)
        return released

    def drop(self, shards: Iterable[int]) -> list[int]:
        """Own these shards no more, at once. Return those that were owned."""
        dropped = [shard for shard in shards if self._owned.pop(shard, None) is not None]
        for shard in dropped:
            self._open[shard] = 0
            self._promised.pop(shard, None)
        self._unsettled.update(dropped)
        return dropped

    # What is being done.

    def reserve(self, shards: Iterable[int]) -> None:
        """An act begins with these shards."""
        self._reserved.update(shards)

    def free(self, shards: Collection[int]) -> None:
        """An act with these shards has ended."""
        self._reserved.difference_update(shards)
        self._unsettled.update(shards)

    def takeable(
        self, live: Sequence[str], at: float, is_dead: Callable[[Life], bool], wait: float
    ) -> tuple[list[int], float]:
        """Return what this node may take now, and when to look again at what others should take first."""
        take: list[int] = []
        for shard in list(self._unsettled):
            owner = self.owner(shard)
            if shard in self._reserved or shard in self._doubted:
                continue
            is_ours = bool(owner.node) and owner.life == self._life
            is_anothers = bool(owner.node) and not is_ours and not is_dead(_life(owner))
            if shard in self._owned or is_anothers:
                self._unsettled.discard(shard)
                continue
            turn = self._free_since.setdefault(shard, at) + turn_of(self._node, shard, owner, live) - at
            if turn <= 0 or is_ours:  # ours: it was written, and nothing heard of it
                take.append(shard)
            else:
                wait = min(wait, turn)
        return take, wait

    def wanted(self, live: tuple[str, ...]) -> dict[str, list[int]]:
        """Return what this node should own and others have, by owner."""
        wanted: dict[str, list[int]] = {}
        for shard, wish in enumerate(wished_owners(live)):
            is_taken = shard in self._owned or shard in self._reserved or shard in self._passed_on
            if wish == self._node and not is_taken:
                owner = self.owner(shard)
                if owner.node in live and owner.node != self._node:
                    wanted.setdefault(owner.node, []).append(shard)
        return wanted

    def promise(self, shard: int, node: str) -> None:
        """Hand a shard over to a node, as soon as the pace allows. Does nothing if it is not ours."""
        if shard in self._owned:
            self._promised[shard] = node

    def pass_on(self, shard: int, node: str) -> None:
        """Hand a shard over to a node, and do not want it back."""
        self._passed_on.add(shard)
        self.promise(shard, node)

    def forget_promises(self) -> None:
        """Hand nothing over that was only promised."""
        self._promised.clear()

    def next_group(self, live: Collection[str], stream_of: Callable[[int], int], most: int) -> dict[int, str]:
        """Reserve and return what to hand over next, all of one stream: so it is one write here, and one there."""
        group: dict[int, str] = {}
        stream = -1
        for shard, node in list(self._promised.items()):
            if node not in live or shard not in self._owned:
                del self._promised[shard]
            elif self._open[shard] and shard not in self._reserved and stream in (-1, stream_of(shard)):
                stream = stream_of(shard)
                group[shard] = self._promised.pop(shard)
                if len(group) == most:
                    break
        self.reserve(group)
        return group


@functools.lru_cache(maxsize=8)
def wished_owners(nodes: tuple[str, ...]) -> list[str]:
    """Return who should own each shard, if these nodes live."""
    return [wished(shard, nodes) for shard in range(SHARDS)]


def _life(owner: ShardOwner) -> Life:
    return Life(owner.node, owner.life)
