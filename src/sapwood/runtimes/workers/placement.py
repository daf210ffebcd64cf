"""Which worker runs which trees: by the class of the root its pool, and there a part of the shards each.

Nothing is stored with a tree. Its data stays in place whichever worker runs it, so another
number of workers, or a class in another pool, is another sharing of the same folder.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property

import msgspec

from sapwood.address import Address
from sapwood.errors import UsageError
from sapwood.kernel.marshal.agent_class import AgentClass, all_known
from sapwood.kernel.ports.shards import SHARDS, shard_of

PLAIN = ""
"""The pool of all classes that name none."""


@dataclass(frozen=True)
class ShardPlan:
    """How the trees of a folder are shared. All who share it are told the same one, and decide by nothing else.

    The plain workers have the first numbers, then those of each pool, by its name.
    """

    workers: int
    """How many run the trees of classes without a pool; 0: there are no workers, one process runs everything."""
    pools: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many there are besides for each pool."""
    types: Mapping[str, str] = field(default_factory=dict[str, str])
    """Which of these pools runs the roots of a class, by its type id and by those it had."""

    @property
    def count(self) -> int:
        return self.workers + sum(self.pools.values())

    @property
    def parts(self) -> list[WorkerPart]:
        return [WorkerPart(number, self) for number in range(self.count)]

    def pool(self, number: int) -> str:
        """Return the pool that a worker is for."""
        return next(pool for pool, numbers in self._numbers.items() if number in numbers)

    def worker(self, root: Address) -> int:
        """Return which worker runs a tree."""
        numbers = self._numbers[self.types.get(root.segments[0].type, PLAIN)]
        return numbers[shard_of(root) * len(numbers) // SHARDS]

    def suffix(self, number: int) -> str:
        """Return what a worker's own files in the folder are called by; no other sharing calls them the same."""
        return f"-{number}-of-{self.count}" + (f"-{self._digest()}" if self.pools else "")

    @cached_property
    def _numbers(self) -> dict[str, range]:
        found: dict[str, range] = {}
        first = 0
        for pool, size in [(PLAIN, self.workers), *sorted(self.pools.items())]:
            found[pool] = range(first, first + size)
            first += size
        return found

    def _digest(self) -> str:
        everything = [self.workers, sorted(self.pools.items()), sorted(self.types.items())]
        return hashlib.blake2b(msgspec.json.encode(everything), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class WorkerPart:
    """One worker's share: it is the `number`th of them, from 0."""

    number: int
    sharing: ShardPlan

    @property
    def suffix(self) -> str:
        """What this worker's own files in the data folder are called by, beside their name."""
        return self.sharing.suffix(self.number)

    @property
    def here(self) -> str:
        return str(self.number)

    @property
    def pool(self) -> str:
        return self.sharing.pool(self.number)

    def is_here(self, root: Address) -> bool:
        return self.sharing.worker(root) == self.number

    def fixed_owner(self, root: Address) -> str:
        return str(self.sharing.worker(root))

    async def owner(self, root: Address) -> str:
        return self.fixed_owner(root)

    def epoch_of(self, shard: int) -> None:
        return None

    def heard_wrong(self, shard: int) -> None:
        pass  # it never is

    async def until_moved(self, shard: int, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def everybody(self) -> Iterable[str]:
        return map(str, range(self.sharing.count))

    def pool_of(self, node: str) -> str:
        return self.sharing.pool(int(node))

    def lock_of(self, node: str) -> str:
        return f"lock-{node}"


def shared_by(roots: Sequence[AgentClass], workers: int, pools: Mapping[str, int]) -> ShardPlan:
    """Return how so many workers share the trees of these classes. A pool of 0: the plain workers run its classes."""
    wanted = {kind.pool: kind for kind in reversed(roots) if kind.pool is not None}
    for pool in pools:
        if pool not in wanted:
            raise UsageError(f"No root of the app uses the pool {pool!r}. {_instead_of(pool, wanted)}")
    for pool, kind in sorted(wanted.items()):
        if pool not in pools:
            raise UsageError(
                f"{kind.cls.__name__} uses the pool {pool!r}, which has no workers. Pass --pool {pool}=1 to start "
                f"one, or --pool {pool}=0 to run it on the other workers."
            )
    sizes = {pool: size for pool, size in sorted(pools.items()) if size}
    types: dict[str, str | None] = {kind.type: kind.pool for kind in roots}
    for kind in roots:
        for former in kind.aliases:
            types.setdefault(former, kind.pool)
    return ShardPlan(workers, sizes, {type_: pool for type_, pool in sorted(types.items()) if pool in sizes})


def _instead_of(pool: str, wanted: Mapping[str, AgentClass]) -> str:
    if near := get_close_matches(pool, wanted, 1):
        return f"Did you mean {near[0]!r}?"
    for kind in all_known():
        if kind.pool == pool:
            return (
                f"{kind.cls.__name__} does, but it is not a root in App(agents=[…]). A sub-agent runs where its "
                "root runs: set the pool on the class of the root."
            )
    return f"Pools: {', '.join(sorted(wanted))}." if wanted else "Set a pool with @agent(pool=…)."
