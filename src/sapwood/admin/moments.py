"""`moments`: the moments in the history of a tree. No agent is woken."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TypeAlias

from sapwood.address import Address
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.errors import InvalidArguments
from sapwood.kernel.history.moments import At, BeforeTurn, Moment
from sapwood.kernel.node import past

MOST_READ = 100_000
Given: TypeAlias = float | str | dict[str, str] | None
"""A moment in a request: a time, the name of a mark, `{"turn": id}`, or the `{"place": …}` of one. `None` is now."""


class Moments(OneAgent):
    since: float | None = None
    limit: int = 100


def moment_of(given: Given, source: Address) -> At | None:
    """Return the moment that a request means, in the history of the tree of this agent."""
    if isinstance(given, float | int):
        try:
            return datetime.fromtimestamp(given, UTC)
        except (ValueError, OverflowError, OSError):
            raise InvalidArguments(f"`at` must be a time, in seconds since the epoch, got {given!r}.") from None
    if not isinstance(given, dict):
        return given
    if given.keys() == {"turn"}:
        return BeforeTurn(given["turn"])
    if given.keys() == {"place"}:
        return Moment(source.root, datetime.fromtimestamp(0, UTC), "", given["place"], given["place"])
    raise InvalidArguments(f'`at` must be a time, the name of a mark, {{"turn": …}} or {{"place": …}}, got {given!r}.')


async def _moments(call: AdminCall, params: Moments) -> Answer:
    address = Address.parse(params.address)
    since = None if params.since is None else datetime.fromtimestamp(params.since, UTC)
    if address.parent is None:
        found = await past.moments(call.node, address, since, params.limit)
    else:
        found = [
            one
            for one in await past.moments(call.node, address.root, since, MOST_READ)
            if one.address == address or one.address.is_below(address)
        ][-params.limit :]
    return {"moments": [_shown(call, one) for one in found]}


def _shown(call: AdminCall, moment: Moment) -> Answer:
    return {
        "address": str(moment.address),
        "at": moment.at.timestamp(),
        "kind": moment.kind,
        "label": call.content.text("label", moment.label) if moment.kind == "mark" else moment.label,
        "place": moment.place,
    }


MOMENTS = Endpoint("moments", "look", Moments, _moments)
