"""`erase`: erases an agent with all below it, and returns the signed receipt."""

from __future__ import annotations

import msgspec

from sapwood.address import Address
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.errors import InvalidArguments


class Erase(OneAgent):
    name: str
    id: str | None = None


async def _erase(call: AdminCall, params: Erase) -> Answer:
    address = Address.parse(params.address)
    if params.name != address.name:
        raise InvalidArguments("`name` must be the name of the agent, to confirm that it is erased.")
    assert call.node.erasures is not None
    receipt = await call.node.erasures.erase(address, by=call.access.name, id=params.id)
    return {"receipt": msgspec.to_builtins(receipt)}


ERASE = Endpoint("erase", "erase", Erase, _erase, is_of_any_node=True)
