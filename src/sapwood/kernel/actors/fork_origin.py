"""Where an agent of a fork comes from: one row in its own database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from sapwood.address import Address
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema

FORKS = Schema("sapwood.kernel", "forks")
SOURCES = "SELECT source, sources FROM sapwood_fork"
WorkRule = Literal["hold", "drop", "run"]
"""What happens to unfinished work in a fork: it is held until a person releases it, deleted, or continued."""


@dataclass(frozen=True, slots=True)
class ForkOrigin:
    """The agent that an agent of a fork is a copy of."""

    address: Address
    """The address of the agent that was copied. It may have changed or been deleted since."""
    at: datetime
    """The moment that the copy shows."""
    forked_at: datetime
    """When the fork was made."""
    work: WorkRule
    """What happened to unfinished work: `hold`, `drop` or `run`."""


def origin_of(database: Database) -> ForkOrigin | None:
    """Return where an agent comes from, or `None` if it is not part of a fork."""
    if not database.exists or not database.has(FORKS):
        return None
    rows = database.execute("SELECT source, at, forked_at, work FROM sapwood_fork")
    for source, at, forked_at, work in rows:
        return ForkOrigin(
            Address.parse(source), datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(forked_at, UTC), work
        )
    return None


def sources_in(row: tuple[Any, ...]) -> list[str]:
    """Return the addresses that a row of `SOURCES` has, of the first copied agent first."""
    source, sources = row
    return [*msgspec.json.decode(sources, type=list[str]), source]


def waits_for_hook(database: Database) -> bool:
    """Return whether `on_fork` was not called yet in an agent of a fork."""
    if not database.exists or not database.has(FORKS):
        return False
    return bool(database.execute("SELECT 1 FROM sapwood_fork WHERE NOT hook_called"))


def note_hook(database: Database) -> None:
    """Store, in this slice, that `on_fork` was called."""
    database.execute("UPDATE sapwood_fork SET hook_called = 1")
