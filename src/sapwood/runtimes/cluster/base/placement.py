"""Who should own a shard, and who may take it when."""

from __future__ import annotations

import functools
import hashlib
from array import array
from collections.abc import Iterable, Sequence

import msgspec

from sapwood.kernel.ports.shards import SHARDS

STAGGER = 3.0
"""Seconds that the next node waits for the one before to take a shard that is free."""


class ShardOwner(msgspec.Struct, array_like=True, frozen=True):
    """What stands on the owner subject of a shard: its last one counts, and its place is the fence of all writes."""

    epoch: int
    """Grows with every message."""
    node: str
    """Who owns it; empty: it was released."""
    life: str = ""
    """Which process of that node."""
    to: str = ""
    """Who is to have it, if it was released."""
    ended_well: bool = True
    """Released: whether all is written and closed. Owned: whether the owner before had ended so."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ShardOwner).decode


def encode(owner: ShardOwner) -> bytes:
    """Return what is stored."""
    return _encode(owner)


def decode(data: bytes) -> ShardOwner:
    """Return what was stored."""
    return _decode(data)


@functools.lru_cache(maxsize=256)
def _weights(node: str) -> array[int]:
    """Return how much a node wants each shard."""
    weights = array("Q")
    for shard in range(SHARDS):
        weights.frombytes(hashlib.blake2b(f"{shard} {node}".encode(), digest_size=8).digest())
    return weights


def ranking(shard: int, nodes: Iterable[str]) -> list[str]:
    """Return these nodes, the preferred owner of the shard first. Only shards of one that comes or goes move."""
    return sorted(nodes, key=lambda node: (_weights(node)[shard], node), reverse=True)


def wished(shard: int, nodes: Iterable[str]) -> str:
    """Return which of these should own a shard, or "" if there are none."""
    return max(nodes, key=lambda node: (_weights(node)[shard], node), default="")


def turn_of(node: str, shard: int, owner: ShardOwner, live: Sequence[str]) -> float:
    """Return how many seconds after a shard became free a node may take it: the preferred owner, at once."""
    order = ranking(shard, live)
    if not owner.node and owner.to in order:
        order.remove(owner.to)
        order.insert(0, owner.to)
    return order.index(node) * STAGGER if node in order else len(order) * STAGGER
