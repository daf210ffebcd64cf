"""`find`: search agents by name, in all trees or below one agent. Matches are sent as they are found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from sapwood.address import Address
from sapwood.admin.agent_lookup import is_there
from sapwood.admin.agent_rows import AgentRows
from sapwood.admin.agents import owned
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, Event, MaybeAgent
from sapwood.admin.event_stream import END
from sapwood.admin.root_names import RootNames
from sapwood.admin.walk import Visited, walk
from sapwood.errors import SapwoodError

AT_ONCE = 20
"""Matches in one event."""
SEARCHED_AT_ONCE = 500
"""Agents that are searched before matches are sent, though they are few."""


class Find(MaybeAgent, kw_only=True):
    text: str
    type: str | None = None
    status: str | None = None
    limit: int = 100


async def _find(call: AdminCall, params: Find) -> AsyncIterator[Event]:
    rows, is_match = AgentRows(call.node, call.content), _matcher(params)
    found, told, searched, has_more = list[dict[str, Any]](), 0, 0, False
    async for row in _candidates(rows, params):
        searched += 1
        if is_match(row):
            if has_more := told == params.limit:
                break
            found.append(row)
            told += 1
        if len(found) == AT_ONCE or (found and searched % SEARCHED_AT_ONCE == 0):
            yield "rows", {"rows": found}
            found = []
    if found:
        yield "rows", {"rows": found}
    yield END, {"searched": searched, "more": has_more, "unanswered": []}


def _matcher(params: Find) -> Callable[[dict[str, Any]], bool]:
    text = params.text.lower()

    def is_match(row: dict[str, Any]) -> bool:
        where = row["address"] if "/" in text else f"{row['type']}:{row['name']}"
        return (
            text in where.lower()
            and params.type in (None, row["type"])
            and (params.status is None or params.status == row["status"])
        )

    return is_match


async def _candidates(rows: AgentRows, params: Find) -> AsyncIterator[dict[str, Any]]:
    """Yield the row of each agent; roots first, because their databases need not be read."""
    if params.address is not None:
        starts = [Address.parse(params.address)]
    else:
        names, _ = await rows.node.shared(RootNames).sorted_after(rows.node, None)
        starts = [root async for root in owned(rows.node, names.copy()) if is_there(rows.node, root)]
        for root in starts:
            yield rows.root(root)
            await asyncio.sleep(0)
    for start in starts:
        try:
            async with aclosing(walk(rows.lookup, start)) as visited:
                async for one in visited:
                    if one.child is not None:
                        yield _row(rows, one)
                    elif params.address is not None and one.address.parent is None:
                        yield rows.root(one.address)
        except SapwoodError:
            if params.address is not None:
                raise  # otherwise it was destroyed or is damaged, and the others are searched


def _row(rows: AgentRows, one: Visited) -> dict[str, Any]:
    assert one.child is not None
    return rows.row(one.tree, one.address, one.child.created_at, 0, 0)


def _joined_ends(params: Find, ends: Sequence[Answer]) -> Answer:
    return {
        "searched": sum(end["searched"] for end in ends),
        "more": any(end["more"] for end in ends),
        "unanswered": [],
    }


FIND = Endpoint("find", "look", Find, stream=_find, merge=_joined_ends)
