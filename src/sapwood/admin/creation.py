"""`create`: create a root agent, as the first page, socket or call would."""

from __future__ import annotations

from sapwood.address import Address
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.errors import InvalidArguments


class Create(OneAgent):
    preview: bool = False


async def _create(call: AdminCall, params: Create) -> Answer:
    address = Address.parse(params.address)
    if address.parent is not None:
        raise InvalidArguments(f"Expected a root, got {address}. Sub-agents are created by their parents.")
    roots = call.node.roots
    if all(address.type not in root.type_ids for root in roots):
        known = ", ".join(root.type for root in roots)
        raise InvalidArguments(f"{address.type} is not a root of this app. Roots: {known}.")
    exists = await call.node.loader.exists(address)
    effect = "Changes nothing: it exists." if exists else f"Creates {address} and starts it."
    if params.preview or exists:
        return {"done": 0, "effect": effect}
    with call.content.of_failures():
        actor = await call.admin.lookup.wake(address)
        await actor.leave()
    return {"done": 1, "effect": effect}


CREATE = Endpoint("create", "act", Create, _create)
