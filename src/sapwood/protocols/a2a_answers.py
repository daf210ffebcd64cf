"""The answers in messages to tasks: a message that is sent again answers what it answered before, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sapwood.errors import SapwoodError
from sapwood.protocols.a2a_tasks import answers_in
from sapwood.protocols.a2a_wire import A2aMessage
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
        """Return the answers, if a crash may have kept some of them from their questions; `None` if they are new."""
        rows = self._desk.sql("SELECT body FROM answers WHERE task = ? AND message_id = ?", *self._key)
        return None if not rows else msgspec.json.decode(str(rows[0]["body"]), type=list[StoredAnswer])

    async def store(self, questions: Sequence[Question]) -> list[StoredAnswer]:
        """Read the answers, and store them before a question gets one: the next question may look the same."""
        digests = {one.full_id: one.digest or None for one in questions}
        given = [StoredAnswer(id, digests[id], answer) for id, answer in answers_in(self._message, questions)]
        body = msgspec.json.encode(given).decode()
        self._desk.sql("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", *self._key, body)
        await self._desk.flush()
        return given

    async def give(self, given: Sequence[StoredAnswer], exchange: Exchange) -> bool:
        """Give the answers to their questions. Returns `False` if none of these is open."""
        try:
            taken = [await exchange.answer(one.question, one.answer, one.digest) for one in given]
        except SapwoodError:
            self.forget()
            raise
        return any(taken)

    def forget(self) -> None:
        """Delete the answers: their questions have them, or will not get them."""
        self._desk.sql("DELETE FROM answers WHERE task = ? AND message_id = ?", *self._key)
