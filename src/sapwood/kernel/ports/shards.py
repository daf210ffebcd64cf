"""The fixed slices of all roots: what is placed together, whatever runs it.

A root's slice follows from its name alone. So it is the same at all times and everywhere, also
after its class got another type id; and roots of one name, such as all that belong to
one user, are neighbours.
"""

from __future__ import annotations

import functools
import hashlib

from sapwood.address import Address

SHARDS = 4096
"""Never to be changed: what is stored by shard is found by it."""


def shard_of(root: Address) -> int:
    """Return the slice that a tree belongs to."""
    return _shard(root.segments[0].name)


@functools.lru_cache(maxsize=16384)
def _shard(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % SHARDS
