"""For whom a model request is made: who waits fairly beside others for a provider."""

from __future__ import annotations

from typing import NamedTuple

from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.turns import TurnRow
from sapwood.kernel.actors.actor import Actor


class RequestOwner(NamedTuple):
    """An authenticated user, or a tree."""

    kind: str
    id: str


def owner_of(actor: Actor, row: TurnRow) -> RequestOwner:
    """Return the user of a turn, or of the turn above that waits for it. Without a user, it is the tree."""
    if row.user is not None:
        return RequestOwner("user", row.user)
    for one in actor.lineage():
        record = one.found(ConversationRecord)
        running = None if record is None else record.turns.running()
        if running is not None and running.user is not None:
            return RequestOwner("user", running.user)
    return RequestOwner("tree", str(actor.address.root))
