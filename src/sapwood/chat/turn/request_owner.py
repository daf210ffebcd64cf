"""For whom a model request is made: who waits fairly beside others for a provider."""

from __future__ import annotations

from typing import NamedTuple

from sapwood.chat.store.turn_rows import TurnRow
from sapwood.kernel.actors.actor import Actor
from sapwood.runs.execution.run_hooks import TurnCause
from sapwood.runs.execution.run_user import user_of


class RequestOwner(NamedTuple):
    """An authenticated user, or a tree."""

    kind: str
    id: str


def owner_of(actor: Actor, row: TurnRow) -> RequestOwner:
    """Return the user of a turn, or of the turn above that it works for. Without a user, it is the tree."""
    user = user_of(actor, TurnCause(row.user, row.run))
    return RequestOwner("tree", str(actor.address.root)) if user is None else RequestOwner("user", user)
