"""`send`: a message to a chat agent, as the operator."""

from __future__ import annotations

import re
from typing import Any

from sapwood.address import Address
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent
from sapwood.chat.agent import ChatAgent
from sapwood.chat.models.turn_overrides import TurnOverrides
from sapwood.chat.turn.intake import Intake
from sapwood.errors import InvalidArguments
from sapwood.randomness import new_id

NAME = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
"""What a client may call a request that it repeats."""
USER = "operator"
"""The user of the turn."""


class Send(OneAgent):
    message: str
    id: str | None = None
    model: str | None = None
    preview: bool = False


async def _send(call: AdminCall, params: Send) -> Answer:
    tree, found, stem = await call.admin.lookup.find(Address.parse(params.address))
    cls: Any = call.admin.lookup.kind(tree, found).cls
    if not issubclass(cls, ChatAgent):
        raise InvalidArguments(f"{found.type} is not a chat agent: it has no conversation.")
    models = list(cls.alternative_models)
    if params.model is not None and params.model not in models:
        known = (
            f"`alternative_models` of {found.type} has: {', '.join(models)}"
            if models
            else (f"{found.type} has no `alternative_models`")
        )
        raise InvalidArguments(f"The model {params.model!r} cannot be chosen: {known}.")
    tree.slices.commit()
    if params.preview:
        open_turns = call.node.read_models.open_turns(call.admin.lookup.database(tree, stem), 1)
        by = "" if params.model is None else f" The model {params.model!r} answers."
        effect = f"Sends a message to {found}, as the user {USER!r}.{by}"
        if open_turns:
            effect += f" A turn is unfinished, and the concurrency of {found.type} is {cls.concurrency!r}."
        return {"done": 0, "effect": effect, "turn": None, "models": models}
    if not params.message.strip():
        raise InvalidArguments("`message` must not be empty.")
    if params.id is not None and (NAME.fullmatch(params.id) is None or params.id.startswith("notify-")):
        raise InvalidArguments("`id` must be 1 to 100 letters, digits, `-` and `_`, and not begin with `notify-`.")
    with call.content.of_failures():
        actor = await call.admin.lookup.wake(found)
        message = {
            "id": f"msg-{new_id(call.node.random)}",  # never that of a message which exists: it would be edited
            "role": "user",
            "parts": [{"type": "text", "text": params.message}],
        }
        overrides = None if params.model is None else TurnOverrides(model=params.model)
        row = actor.of(Intake).ask([message], id=params.id, user=USER, overrides=overrides)
        await actor.leave()
    done = {"skipped": "Dropped the message: another turn is unfinished", "running": f"Began the turn {row.id!r}"}
    effect = done.get(row.status, f"Queued the turn {row.id!r}")
    return {"done": int(row.status != "skipped"), "effect": f"{effect}.", "turn": row.id, "models": models}


SEND = Endpoint("send", "act", Send, _send)
