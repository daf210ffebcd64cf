"""`agents`: the roots, or the children of an agent, by pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

from sapwood.address import Address
from sapwood.admin.agent_lookup import is_there
from sapwood.admin.agent_rows import AgentRows
from sapwood.admin.cursors import cut_page, number_in
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, Page
from sapwood.admin.merged import by_address, by_page
from sapwood.admin.root_names import RootNames
from sapwood.kernel.node.node import Node

AT_ONCE = 50
"""Agents that are looked at before other tasks have a turn."""


class Agents(Page):
    type: str | None = None


async def _agents(call: AdminCall, params: Agents) -> Answer:
    rows = AgentRows(call.node, call.content)
    if params.address is None:
        return await _roots(rows, params)
    return await _children(rows, Address.parse(params.address), params)


async def _roots(rows: AgentRows, params: Agents) -> Answer:
    names, at = await rows.node.shared(RootNames).sorted_after(rows.node, params.after)
    names = names.copy()
    # Of these, the folders are not removed yet.
    destroyed = sum(tree.destroyed is not None and not tree.is_replaced for tree in rows.node.trees.values())
    found: list[dict[str, Any]] = []
    last: str | None = None
    async for root in owned(rows.node, names[at:]):
        if params.type in (None, root.type) and is_there(rows.node, root):
            if len(found) == params.limit:
                last = found[-1]["address"]
                break
            found.append(rows.root(root))
    total = len(names) if rows.node.far is None else len([root async for root in owned(rows.node, names)])
    return {"rows": found, "next": last, "total": total - destroyed, "unanswered": []}


async def owned(node: Node, names: Iterable[str]) -> AsyncGenerator[Address, None]:
    """Yield those roots that this node runs. Other tasks have their turn."""
    for count, name in enumerate(names, 1):
        root = Address.parse(name)
        if node.owns(root):
            yield root
        if count % AT_ONCE == 0:
            await asyncio.sleep(0)


async def _children(rows: AgentRows, address: Address, params: Agents) -> Answer:
    after = number_in(params.after) or 0
    tree, found, stem = await rows.lookup.find(address)
    tree.slices.commit()
    table = rows.lookup.children(tree, stem)
    children = table.page(params.type, after, params.limit + 1)
    page, last = cut_page(children, params.limit, lambda child: child.generation)
    return {"rows": rows.children(tree, found, page), "next": last, "total": table.count(), "unanswered": []}


def _merged(params: Agents, answers: Sequence[Answer]) -> Answer:
    return by_page(by_address)(params, answers)


AGENTS = Endpoint("agents", "look", Agents, _agents, merge=_merged)
