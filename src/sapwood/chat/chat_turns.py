"""`chat.turns`: the turns of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic
from uuid import uuid4

from sapwood.chat.accepting import Accepting
from sapwood.chat.answers import Answers
from sapwood.chat.conversation import Conversation
from sapwood.chat.record import Record
from sapwood.chat.transcript import UIMessage
from sapwood.chat.turns import Turn
from sapwood.errors import Refused
from sapwood.kernel.actor import Actor
from sapwood.runs.contract import CANCELLED
from sapwood.runs.runnable import O_co


class ChatTurns(Generic[O_co]):
    """The turns of this conversation. `send(…)` starts one and waits for it."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._conversation = actor.of(Conversation)

    async def start(self, message: str | Sequence[UIMessage], *, id: str | None = None) -> Turn[O_co]:
        """Start a turn and return it at once. If a turn with this `id` exists, return that one.

        `message` is a text, or messages in the format of the AI SDK.
        """
        row = self._actor.of(Accepting).ask(messages_of(message), id=id)
        return self._actor.of(Record).turn(row)

    async def wait(self, id: str) -> Turn[O_co]:
        """Return a turn once it has ended or waits for an answer. Cancelling the caller does not cancel the turn."""
        row = self._actor.of(Record).turns.get(id)
        if row is None:
            raise Refused(f"There is no turn {id!r}.")
        if row.status in ("queued", "running"):
            self._conversation.check_may_wait()
        return await self._conversation.over(row.number, cancels=False)

    async def cancel(self, id: str | None = None, *, reason: str = CANCELLED) -> bool:
        """Cancel the running turn, or the one with this id, and all runs below it. Returns `False` if there is none.

        `Turn.reason` and the `Run.reason` of each run below are the `reason`.
        """
        return self._conversation.cancel(id, reason)

    async def continue_last(self) -> Turn[O_co]:
        """Let the model continue its last answer, and wait for it."""
        self._conversation.check_may_wait()
        return await self._conversation.over(self._actor.of(Answers).continue_last().number)


def messages_of(message: str | Sequence[UIMessage]) -> Sequence[UIMessage]:
    """Return a text as a message of the user."""
    if not isinstance(message, str):
        return message
    return [{"id": f"msg-{uuid4().hex}", "role": "user", "parts": [{"type": "text", "text": message}]}]
