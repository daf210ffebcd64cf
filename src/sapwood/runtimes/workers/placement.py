"""Which worker runs which trees: a part of the shards each, by their number alone.

Nothing is stored of it. The data of a tree lies where it lies whoever runs it, so
another number of workers is another sharing of the same folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sapwood.address import Address
from sapwood.kernel.shards import SHARDS, shard_of


@dataclass(frozen=True, slots=True)
class Part:
    """One worker's share: it is the `number`th of `count`, from 0."""

    number: int
    count: int

    @property
    def suffix(self) -> str:
        """What this worker's own files in the data folder are called by, beside their name."""
        return f"-{self.number}-of-{self.count}"

    @property
    def here(self) -> str:
        return str(self.number)

    def is_here(self, root: Address) -> bool:
        return self._worker(root) == self.number

    def fixed_owner(self, root: Address) -> str:
        return str(self._worker(root))

    async def owner(self, root: Address) -> str:
        return self.fixed_owner(root)

    async def everybody(self) -> Iterable[str]:
        return map(str, range(self.count))

    def _worker(self, root: Address) -> int:
        return shard_of(root) * self.count // SHARDS
