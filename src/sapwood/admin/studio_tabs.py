"""`tab-call`: calls of methods by the tabs that classes add to the studio; and which tabs there are."""

from __future__ import annotations

from typing import Any

import msgspec

from sapwood.address import Address
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.capabilities.studio_tabs import StudioTab, TabScope, tabs_of
from sapwood.errors import NotFound, Refused, UnknownAgent, UsageError
from sapwood.kernel.marshal.agent_class import AgentClass, all_classes, resolve
from sapwood.kernel.node.node import Node


class TabCallParams(OneAgent):
    tab: str
    method: str
    arguments: list[Any] | None = None


def class_with_tabs(node: Node, type_id: str) -> AgentClass | None:
    """Return the class of a type, or `None` if there is none, or two, or it adds no tabs."""
    try:
        kind = resolve(type_id, node.roots)
    except (UnknownAgent, UsageError):
        return None
    return kind if tabs_of(kind.cls) else None


def listed_tabs(node: Node) -> dict[str, list[dict[str, Any]]]:
    """Return the tabs of all classes by type id, in their order."""
    types = {type_id for kind in all_classes() if tabs_of(kind.cls) for type_id in kind.type_ids}
    found = {type_id: class_with_tabs(node, type_id) for type_id in sorted(types)}
    return {
        type_id: [{"title": tab.title, "methods": tab.methods, "scope": tab.scope} for tab in tabs_of(kind.cls)]
        for type_id, kind in found.items()
        if kind is not None
    }


def _tab(node: Node, params: TabCallParams) -> StudioTab:
    address = Address.parse(params.address)
    kind = class_with_tabs(node, address.type)
    for tab in () if kind is None else tabs_of(kind.cls):
        if tab.title == params.tab:
            if params.method not in tab.methods:
                raise Refused(f"The tab {tab.title!r} of {address.type} does not list the method {params.method!r}.")
            return tab
    raise NotFound(f"{address.type} has no tab {params.tab!r}.", path=address.segments)


def _scope(node: Node, params: TabCallParams) -> TabScope | None:
    return _tab(node, params).scope


async def _tab_call(call: AdminCall, params: TabCallParams) -> Answer:
    TAB_CALL.check_class(call.node, params, call.access)
    _, found, _ = await call.admin.lookup.find(Address.parse(params.address))
    actor, kind = await call.admin.lookup.wake(found), class_with_tabs(call.node, found.type)
    if kind is None or actor.kind.cls is not kind.cls:  # another class of the same name
        raise NotFound(f"{found} has no tab {params.tab!r}.", path=found.segments)
    result: Any = None
    with call.content.of_failures():
        async for item in call.admin.call(params.address, params.method, params.arguments or []):
            result = msgspec.json.decode(item)
    return {"result": call.content.value("result", result)}


TAB_CALL = Endpoint("tab-call", "act", TabCallParams, _tab_call, of_class=_scope)
