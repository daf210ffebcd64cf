"""`tab-call`: calls of methods by the tabs that classes add to the studio; and which tabs there are."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from sapwood.address import Address
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.capabilities.studio_tabs import StudioTab, TabScope, tabs_of
from sapwood.errors import NotFound, Refused, UnknownAgent, UsageError
from sapwood.kernel.marshal.agent_class import all_classes, resolve
from sapwood.kernel.node.node import Node


class TabCallParams(OneAgent):
    tab: str
    method: str
    arguments: list[Any] | None = None


class ClassTab(NamedTuple):
    """A tab, and the class that has it."""

    cls: type
    tab: StudioTab


def tabs_of_type(node: Node, type_id: str) -> list[ClassTab]:
    """Return the tabs of the class of a type: none if there is no such class, or two."""
    try:
        cls = resolve(type_id, node.roots).cls
    except (UnknownAgent, UsageError):
        return []
    return [ClassTab(cls, tab) for tab in tabs_of(cls)]


def listed_tabs(node: Node) -> dict[str, list[dict[str, Any]]]:
    """Return the tabs of all classes by type id, in their order."""
    types = {type_id for kind in all_classes() if tabs_of(kind.cls) for type_id in kind.type_ids}
    found = {type_id: tabs_of_type(node, type_id) for type_id in sorted(types)}
    return {
        type_id: [{"title": tab.title, "methods": tab.methods, "scope": tab.scope} for _, tab in tabs]
        for type_id, tabs in found.items()
        if tabs
    }


def _tab(node: Node, params: TabCallParams) -> ClassTab:
    address = Address.parse(params.address)
    for one in tabs_of_type(node, address.type):
        if one.tab.title == params.tab:
            if params.method not in one.tab.methods:
                raise Refused(f"The tab {params.tab!r} of {address.type} does not list the method {params.method!r}.")
            return one
    raise NotFound(f"{address.type} has no tab {params.tab!r}.", path=address.segments)


def _scope(node: Node, params: TabCallParams) -> TabScope | None:
    return _tab(node, params).tab.scope


async def _tab_call(call: AdminCall, params: TabCallParams) -> Answer:
    TAB_CALL.check_class(call.node, params, call.access)
    _, found, _ = await call.admin.lookup.find(Address.parse(params.address))
    actor = await call.admin.lookup.wake(found)
    if actor.kind.cls is not _tab(call.node, params).cls:  # another class of the same name
        raise NotFound(f"{found} has no tab {params.tab!r}.", path=found.segments)
    result: Any = None
    with call.content.of_failures():
        async for item in call.admin.call(params.address, params.method, params.arguments or []):
            result = msgspec.json.decode(item)
    return {"result": call.content.value("result", result)}


TAB_CALL = Endpoint("tab-call", "act", TabCallParams, _tab_call, of_class=_scope)
