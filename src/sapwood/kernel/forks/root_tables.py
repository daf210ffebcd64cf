"""The tables that only the root of a tree has, in a fork: rows of its agents under their new names, and no others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sapwood.address import Address
from sapwood.kernel.alarms.tree_index import TREE
from sapwood.kernel.forks.forked_tree import Due, ForkedAgent
from sapwood.kernel.trees.hourly_usage import HOURLY_SPENDING
from sapwood.kernel.trees.limit_extensions import EXTENSIONS
from sapwood.kernel.trees.pending_questions import QUESTIONS
from sapwood.kernel.trees.period_usage import PERIOD_SPENDING
from sapwood.kernel.trees.quota import LEDGER
from sapwood.kernel.trees.run_quota import BEGUN, GIVERS
from sapwood.kernel.trees.usage import ALL_BELOW, SPENDING, Spent
from sapwood.storage.migrations import Schema
from sapwood.storage.offline_edit import OfflineEdit

TREE_TABLES: Mapping[Schema, tuple[str, ...]] = {
    SPENDING: ("sapwood_spending",),
    PERIOD_SPENDING: ("sapwood_period_spending",),
    EXTENSIONS: ("sapwood_limit_extensions",),
    GIVERS: ("sapwood_givers",),
    QUESTIONS: ("sapwood_questions",),
}
"""The tables whose rows a fork takes from the root of the source. All others are made from its agents, or begin empty:
hours of spending would count twice in sums over all trees, and turns that wait for a limit do not wait in a fork."""
DERIVED: Mapping[Schema, tuple[str, ...]] = {
    HOURLY_SPENDING: ("sapwood_hourly_spending",),
    EXTENSIONS: ("sapwood_limit_waits",),
    BEGUN: ("sapwood_begun",),
    TREE: ("sapwood_alarms",),
}

Rows = dict[Schema, list[tuple[Any, ...]]]


def read_rows(edit: OfflineEdit) -> Rows:
    """Return the rows of the source's root that a fork may take."""
    return {
        schema: edit.execute(f"SELECT * FROM {name}")  # noqa: S608 - our names
        for schema, (name, *_) in TREE_TABLES.items()
        if edit.has(schema)
    }


def questions_in(rows: Rows, source: Address, target: Address) -> dict[str, str]:
    """Return the questions that agents of a fork may have, by their new address."""
    found: dict[str, str] = {}
    for owner, body in rows.get(QUESTIONS, ()):
        if (to := moved(owner, source, target)) is not None:
            found[to] = body
    return found


def spent_before(rows: Rows, source: Address, stem: str) -> dict[tuple[str, str], Spent]:
    """Return what the source of a fork and all below it had spent, by class and model. Deleted agents have no class."""
    found: dict[tuple[str, str], Spent] = {}
    for agent, run, model, path, *spent in rows.get(SPENDING, ()):
        if run == ALL_BELOW:
            if agent == stem:
                found["", model] = found.get(("", model), Spent()).plus(Spent(*spent))
        elif moved(path, source, source) is not None:
            key = (Address.parse(path).type, model)
            found[key] = found.get(key, Spent()).plus(Spent(*spent))
            found["", model] = found.get(("", model), Spent()).plus(Spent(*spent), -1)
    return {key: spent for key, spent in found.items() if any(spent)}


def write_rows(edit: OfflineEdit, rows: Rows, root: ForkedAgent) -> None:
    """Store, in the root of a fork, the rows that are about its agents."""
    stems = {agent.source_stem: agent.stem for agent in root.below()}
    for schemas in (TREE_TABLES, DERIVED):
        for schema, names in schemas.items():
            for name in names if edit.has(schema) else ():
                edit.execute(f"DELETE FROM {name}")  # noqa: S608 - our names
    for agent, run, model, path, *spent in rows.get(SPENDING, ()):
        if agent in stems and (to := moved(path, root.source, root.address)) is not None:
            _insert(edit, SPENDING, (stems[agent], run, model, to, *spent))
    for agent, *period in rows.get(PERIOD_SPENDING, ()):
        if agent in stems:
            _insert(edit, PERIOD_SPENDING, (stems[agent], *period))
    for question, agent, *allowed in rows.get(EXTENSIONS, ()):
        if agent in stems and allowed[-1] is not None:
            _insert(edit, EXTENSIONS, (question, stems[agent], *allowed))
    for agent, above in rows.get(GIVERS, ()):
        if agent in stems:
            kept = [stems[stem] for stem in json.loads(above) if stem in stems]
            _insert(edit, GIVERS, (stems[agent], json.dumps(kept)))
    _count_agents(edit, root)


def write_indexes(edit: OfflineEdit, due: Mapping[Address, Due], questions: Mapping[Address, str]) -> None:
    """Store, in the root of a fork, which of its agents have something to do, and which ask."""
    for owner, one in sorted(due.items(), key=lambda item: str(item[0])):
        if one.at is not None or one.has_dead_letters:
            edit.ensure(TREE)
            edit.execute("INSERT INTO sapwood_alarms VALUES (?, ?, ?)", str(owner), one.at, int(one.has_dead_letters))
    for owner, body in questions.items():
        edit.ensure(QUESTIONS)
        edit.execute("INSERT OR REPLACE INTO sapwood_questions VALUES (?, ?)", str(owner), body)


def _count_agents(edit: OfflineEdit, root: ForkedAgent) -> None:
    """Count the agents below the root, as the quota of the tree does."""
    if edit.has(LEDGER):
        edit.execute("DELETE FROM sapwood_ledger")
        edit.execute("INSERT INTO sapwood_ledger (holder) VALUES ('')")
    holders = [agent for agent in root.below() if agent is not root and agent.children]
    if not holders:
        return
    edit.ensure(LEDGER)
    for agent in holders:
        edit.execute("INSERT INTO sapwood_ledger (holder, children) VALUES (?, ?)", agent.stem, len(agent.children))
    total = sum(len(agent.children) for agent in holders)
    edit.execute("UPDATE sapwood_ledger SET children = ? WHERE holder = ''", total)


def _insert(edit: OfflineEdit, schema: Schema, row: tuple[Any, ...]) -> None:
    edit.ensure(schema)
    (name, *_), marks = TREE_TABLES[schema], ", ".join("?" * len(row))
    edit.execute(f"INSERT INTO {name} VALUES ({marks})", *row)  # noqa: S608 - our names


def moved(path: str, source: Address, target: Address) -> str | None:
    """Return the address that an agent has in a fork, or `None` if it is not part of it."""
    old = str(source)
    if path != old and not path.startswith(f"{old}/"):
        return None
    return f"{target}{path[len(old) :]}"
