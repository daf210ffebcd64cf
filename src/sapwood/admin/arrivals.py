"""`receive` and `arrival`: a tree that another server moves here.

`receive` needs a token with the scope `admin`, and returns a key. The key allows nothing but the requests of that move.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from sapwood.address import Address
from sapwood.admin.access import Access, Scope
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.errors import Refused, SapwoodError, UsageError
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.tree_upload import check, commit, discard, seal, take_offer, write_parts
from sapwood.kernel.ports.destination import FileState, Part
from sapwood.wire.routing import path_to

PREFIX = "arrival-"
"""With it begin the keys, and the names of what they allow."""


class ArrivalParams(OneAgent):
    id: str


class Step(ArrivalParams):
    do: Literal["check", "seal", "commit", "discard"]
    files: dict[str, FileState] = msgspec.field(default_factory=dict[str, FileState])


class Parts(ArrivalParams):
    parts: list[Part]


def access_of(node: Node, given: str, endpoint: str) -> Access | None:
    """Return what a key of a move allows at an endpoint; `None` if it is none, or this endpoint is another one."""
    if not given.startswith(PREFIX) or endpoint not in (ARRIVAL.name, ARRIVAL_PARTS.name):
        return None
    id, _, key = given.removeprefix(PREFIX).partition("-")
    try:
        arrival = node.arrivals.allowed(id, key)
    except SapwoodError:
        return None
    return None if arrival is None else Access(f"{PREFIX}{id}", frozenset[Scope]({"admin"}), arrival.address)


async def _receive(call: AdminCall, params: OneAgent) -> Answer:
    root = Address.parse(params.address)
    id, key = await take_offer(call.node, root)
    try:
        path = path_to(root, prefix=call.node.settings.prefix)
    except UsageError:  # its name cannot be part of a URL, so it has none
        path = ""
    return {"id": id, "key": f"{PREFIX}{id}-{key}", "path": path}


async def _step(call: AdminCall, params: Step) -> Answer:
    root, node = _checked(call, params), call.node
    match params.do:
        case "check":
            await check(node, root, params.id, params.files)
        case "seal":
            await seal(node, root, params.id, params.files)
        case "commit":
            await commit(node, root, params.id)
        case "discard":
            await discard(node, root, params.id)
    return {}


async def _write(call: AdminCall, params: Parts) -> Answer:
    root = _checked(call, params)
    await write_parts(call.node.arrivals, root, params.id, params.parts)
    return {}


def _checked(call: AdminCall, params: ArrivalParams) -> Address:
    if call.access.name.startswith(PREFIX) and call.access.name != f"{PREFIX}{params.id}":
        raise Refused("This is the key of another move.")
    return Address.parse(params.address)


RECEIVE = Endpoint("receive", "admin", OneAgent, _receive)
ARRIVAL = Endpoint("arrival", "admin", Step, _step)
ARRIVAL_PARTS = Endpoint("arrival-parts", "admin", Parts, _write, is_of_any_node=True, is_audited=False)
