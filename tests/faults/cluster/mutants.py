"""Ways to break what a cluster promises on purpose, so that the tests can show that they would notice."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from typing import Any

from sapwood.storage.database import Database

FENCE = "Nats-Expected-Last-Subject-Sequence"


def no_fence() -> None:
    """Whoever writes to the log does not say which ownership it writes under."""
    from sapwood.runtimes.cluster.nats.nats_log import NatsLog

    messages = NatsLog._messages  # pyright: ignore[reportPrivateUsage]

    def unfenced(self: NatsLog, entries: Any, epochs: Any) -> list[tuple[str, bytes, dict[str, str]]]:
        made = messages(self, entries, epochs)
        for _, _, headers in made:
            for name in [name for name in headers if name.startswith(FENCE)]:
                del headers[name]
        return made

    NatsLog._messages = unfenced  # pyright: ignore[reportPrivateUsage]


def replied_first() -> None:
    """A reply leaves before what it tells of is in the log."""
    from sapwood.kernel.log.replicated_gate import ReplicatedGate
    from sapwood.kernel.ports.durability import settle

    def wait(self: ReplicatedGate, database: Database) -> None:
        return None

    def let_go(self: ReplicatedGate, database: Database, leaving: list[Future[None]]) -> None:
        settle(leaving, None)

    ReplicatedGate.wait = wait
    ReplicatedGate.let_go = let_go


def lease_for_ever() -> None:
    """A node answers whatever became of its lease."""
    from sapwood.runtimes.cluster.base.leases import Lease

    def is_valid(self: Lease) -> bool:
        return True

    Lease.is_valid = is_valid


MUTANTS: dict[str, Callable[[], None]] = {
    "no-fence": no_fence,
    "replied-first": replied_first,
    "lease-for-ever": lease_for_ever,
}


def apply(name: str | None) -> None:
    if name:
        MUTANTS[name]()
