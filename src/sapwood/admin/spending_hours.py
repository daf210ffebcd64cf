"""What trees have used of models over time, by hour, class, model and user. No agent is woken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from sapwood.address import Address
from sapwood.admin.agent_lookup import MOST_ROWS, AgentLookup
from sapwood.admin.content import Content
from sapwood.admin.spending import most_expensive, roots_of
from sapwood.admin.unread import Unread
from sapwood.errors import InvalidArguments, NotFound, SapwoodError
from sapwood.kernel.node.node import Node
from sapwood.kernel.trees.hourly_usage import DIMENSIONS, Dimension
from sapwood.kernel.trees.usage import Spent


class Hours(NamedTuple):
    """Which hours are added up, and by what."""

    begins_at: float | None
    ends_at: float | None
    by: Sequence[Dimension]


async def spending_by_hour(
    node: Node, content: Content, address: str | None, hours: Hours, limit: int
) -> dict[str, Any]:
    """Return what one tree or all trees of a node have used in these hours."""
    if address is not None and Address.parse(address).parent is not None:
        raise InvalidArguments("Hours are counted for whole trees: `address` must be a root.")
    lookup = AgentLookup(node)
    trees: list[dict[str, Any]] = []
    sums: dict[tuple[Any, ...], Spent] = {}
    unread: list[dict[str, Any]] = []
    for root in [Address.parse(address)] if address is not None else roots_of(node):
        await asyncio.sleep(0)  # other agents have their turn
        try:
            tree, found, _ = await lookup.find(root)
            tree.slices.commit()
            used = tree.spending.hours.sums(*hours)
        except SapwoodError as error:
            if address is not None:
                raise
            if not isinstance(error, NotFound):  # damaged: the others are shown
                unread.append(Unread(root, error).shown(content))
            continue
        total = Spent()
        for key, units in used:
            spent = Spent(*units)
            sums[key] = sums.get(key, Spent()).plus(spent)
            total = total.plus(spent)
        if used:
            trees.append({"address": str(found), **total._asdict()})
    names = [one for one in DIMENSIONS if one in hours.by]
    rows = [dict(zip(names, key, strict=True)) | spent._asdict() for key, spent in sorted(sums.items())]
    return {
        "trees": most_expensive(trees, limit),
        "count": len(trees),
        "rows": [_shown(content, row) for row in rows[:MOST_ROWS]],
        "more": len(rows) > MOST_ROWS,
        "unread": unread,
    }


def _shown(content: Content, row: dict[str, Any]) -> dict[str, Any]:
    return row | {"user": content.text("user", row["user"] or None)} if "user" in row else row


def added_up(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of several nodes with those added up that are of the same hour, class, model and user."""
    sums: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = str([row.get(name) for name in DIMENSIONS])
        if (known := sums.get(key)) is None:
            sums[key] = dict(row)
        else:
            known |= {unit: known[unit] + row[unit] for unit in Spent._fields}
    return sorted(sums.values(), key=lambda row: [str(row.get(name)) for name in DIMENSIONS])
