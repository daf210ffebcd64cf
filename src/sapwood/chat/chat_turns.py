"""`chat.turns`: the turns of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.transcript import UIMessage
from sapwood.chat.store.turns import Turn
from sapwood.chat.turn.conversation import Conversation
from sapwood.chat.turn.intake import Intake
from sapwood.chat.turn.tool_answers import Answers
from sapwood.errors import Refused
from sapwood.kernel.actors.actor import Actor
from sapwood.runs.execution.contract import CANCELLED
from sapwood.runs.tables.runnable import O_co


class ChatTurns(Generic[O_co]):
    """The turns of this conversation. `send(…)` starts one and waits for it."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._conversation = actor.of(Conversation)

    async def start(self, message: str | Sequence[UIMessage], *, id: str | None = None) -> Turn[O_co]:
        """Start a turn and return it at once. If a turn with this `id` exists, return that one.

        `message` is a text, or messages in the format of the AI SDK.
        """
        row = await self._actor.of(Intake).receive(message, id=id)
        return self._actor.of(ConversationRecord).turn(row)

    def current(self) -> Turn[O_co] | None:
        """Return the turn that is running, such as the one that a tool works for; `None` if none is.

        Only for the agent itself: it cannot be called through a stub.
        """
        self._actor.check_use()
        row = self._actor.of(ConversationRecord).turns.running()
        return None if row is None else self._actor.of(ConversationRecord).turn(row)

    async def wait(self, id: str) -> Turn[O_co]:
        """Return a turn once it has ended or waits for an answer. Cancelling the caller does not cancel the turn."""
        row = self._actor.of(ConversationRecord).turns.get(id)
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
