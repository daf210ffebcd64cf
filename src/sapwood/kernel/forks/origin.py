"""Stores where the agents of a new fork come from, and what the source had spent."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sapwood.kernel.actors.fork_origin import FORKS, SOURCES, WorkRule, sources_in
from sapwood.kernel.forks.forked_tree import ForkedAgent
from sapwood.kernel.trees.usage import Spent
from sapwood.storage.database import Database
from sapwood.storage.offline_edit import OfflineEdit


def store_origin(
    edit: OfflineEdit,
    agent: ForkedAgent,
    at: float,
    now: float,
    work: WorkRule,
    spent: Mapping[tuple[str, str], Spent] | None,
) -> None:
    """Store where an agent of a new fork comes from.

    `spent`: at its root, what the source had spent, by class and model.
    """
    edit.ensure(FORKS)
    told = None if spent is None else msgspec.json.encode([[*key, *one] for key, one in spent.items()])
    sources = [source for before in edit.execute(SOURCES) for source in sources_in(before)]
    edit.execute(
        "INSERT OR REPLACE INTO sapwood_fork VALUES (1, ?, ?, ?, ?, ?, 0, ?)",
        str(agent.source),
        msgspec.json.encode(sources).decode(),
        at,
        now,
        work,
        None if told is None else told.decode(),
    )


def inherited(root: Database) -> dict[tuple[str, str], Spent]:
    """Return what the source of a fork had spent, by class and model: the sums of the fork's root include it."""
    if not root.exists or not root.has(FORKS):
        return {}
    rows = root.execute("SELECT spent FROM sapwood_fork WHERE spent IS NOT NULL")
    return {(kind, model): Spent(*spent) for (text,) in rows for kind, model, *spent in msgspec.json.decode(text)}
