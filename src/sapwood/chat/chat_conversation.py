"""`chat.conversation`: the messages of a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sapwood.chat.store.branches import ConversationBranch
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.transcript import UIMessage
from sapwood.chat.turn.conversation import Conversation
from sapwood.kernel.actors.actor import Actor

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage


class ChatConversation:
    """The messages of this conversation."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    async def messages(self) -> list[UIMessage]:
        """Return the messages as clients see them, in the format of the AI SDK: those of the active path."""
        return msgspec.json.decode(self._actor.of(ConversationRecord).text())

    async def search(self, words: str, *, limit: int = 20, all_branches: bool = False) -> list[UIMessage]:
        """Return the messages that contain these words, best match first.

        Only the active path is searched, unless `all_branches` is set.
        """
        return self._actor.of(ConversationRecord).transcript.search(words, limit, all_branches=all_branches)

    async def branches(self) -> list[ConversationBranch]:
        """Return the branches of the conversation: where a message has siblings, each of them begins a branch.

        An edited message is a sibling of the old one, and so is a regenerated answer. A conversation in which nothing
        was edited or regenerated has no branches.
        """
        transcript = self._actor.of(ConversationRecord).transcript
        return transcript.tree.branches() if transcript.exists else []

    async def switch(self, message_id: str) -> bool:
        """Make the path through a message active, up to the newest message that follows it.

        Returns `False` if the message is on the active path already. Raises `Refused` if there is no such message, and
        while a turn is queued, runs or waits for an answer.
        """
        return self._actor.of(Conversation).switch(message_id)

    async def pin(self, message_id: str) -> bool:
        """Keep a message for the model as it is: no summary replaces it, and its tool results are not cleared.

        Returns `False` if the model does not see the message, because it does not exist or was summarised before.
        """
        return self._actor.of(ConversationRecord).transcript.pin(message_id)

    async def unpin(self, message_id: str) -> bool:
        """Let a summary replace a pinned message. Returns `False` if it is not pinned."""
        return self._actor.of(ConversationRecord).transcript.unpin(message_id)

    async def export(self) -> dict[str, Any]:
        """Return the whole conversation: the messages as clients and as the model see them, and every turn.

        `other_branches` has the messages that are not on the active path, each with the id of the message before it.
        """
        return self._actor.of(ConversationRecord).export()

    async def clear(self) -> None:
        """Delete all messages, of all branches, and all turns. A running turn is cancelled."""
        self._actor.of(Conversation).clear()

    def history(self) -> list[ModelMessage]:
        """Return the messages as the model sees them. Only for the agent itself: it cannot be called through a stub."""
        return self._actor.of(ConversationRecord).transcript.history()
