"""The answers in messages to tasks: a message that is sent again answers what it answered before, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sapwood.errors import SapwoodError
from sapwood.protocols.a2a_tasks import answers_in, named_in
from sapwood.protocols.a2a_wire import UNSUPPORTED, A2aError, A2aMessage
from sapwood.runs.tables.question import Answer, Question

if TYPE_CHECKING:
    from sapwood.agent import Agent
    from sapwood.protocols.exchange import Exchange

ANSWERS = """CREATE TABLE answers (                -- of messages that are not in the history of their task yet
    task       TEXT NOT NULL,
    message_id TEXT NOT NULL,
    body       TEXT NOT NULL,                  -- JSON
    PRIMARY KEY (task, message_id)
) STRICT, WITHOUT ROWID"""


class StoredAnswer(msgspec.Struct):
    """An answer in a message, to the question as the client has seen it."""

    question: str
    digest: str | None
    answer: Answer


class MessageAnswers:
    """The answers of one message to a task of a desk."""

    def __init__(self, desk: Agent[Any], message: A2aMessage) -> None:
        self._desk = desk
        self._key = (message.task_id, message.message_id)
        self._message = message

    def stored(self) -> list[StoredAnswer] | None:
        """Return the answers, if a crash may have kept some of them from their questions; `None` if they are new.

        A message that answered nothing has none, and answers nothing when it is sent again.
        """
        rows = self._desk.sql("SELECT body FROM answers WHERE task = ? AND message_id = ?", *self._key)
        return None if not rows else msgspec.json.decode(str(rows[0]["body"]), type=list[StoredAnswer])

    def read(self, questions: Sequence[Question], shown: Mapping[str, str]) -> list[StoredAnswer]:
        """Return the answers in the message. None, if it was written for questions other than the open ones.

        `shown` has the questions that the client was shown last, by id, with what was shown of each.
        """
        seen = [one for one in questions if shown.get(one.full_id) == one.digest]
        ids = named_in(self._message)
        if not ids and len(seen) < 2 and not len(seen) == len(shown) == 1:
            return []  # a text is for the only question that was shown
        given = answers_in(self._message, questions if ids else seen)
        digests = {one.full_id: one.digest for one in seen}
        if any(id not in digests for id, _ in given):
            return []
        return [StoredAnswer(id, digests[id] or None, answer) for id, answer in given]

    async def store(self, given: Sequence[StoredAnswer]) -> None:
        """Store the answers before a question gets one: the next question may look the same."""
        body = msgspec.json.encode(given).decode()
        self._desk.sql("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", *self._key, body)
        await self._desk.flush()

    async def give(self, given: Sequence[StoredAnswer], exchange: Exchange) -> bool:
        """Give the answers to their questions. Returns `False` if none of these is open."""
        try:
            taken = [await exchange.answer(one.question, one.answer, one.digest) for one in given]
        except SapwoodError:
            self.forget()
            raise
        return any(taken)

    async def refuse(self, given: Sequence[StoredAnswer]) -> None:
        """Answer nothing, now and when the message comes again: another client or the agent was faster.

        Raises `A2aError` if the message names the questions. To a text, the response shows the open questions.
        """
        if named_in(self._message):
            self.forget()
            ids = ", ".join(one.question for one in given)
            raise A2aError(UNSUPPORTED, f"No longer open or no longer the same: {ids}. Get the task again.")
        await self.store([])

    def forget(self) -> None:
        """Delete the answers: their questions have them, or will not get them."""
        self._desk.sql("DELETE FROM answers WHERE task = ? AND message_id = ?", *self._key)
