"""The questions that the code of one agent asks a person: stored until the fiber that asks has ended.

The answer is stored beside the question. A fiber that is executed again after a crash finds the same question, and
the answer if there is one.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from sapwood.capabilities.due_work import Agenda
from sapwood.errors import InvalidArguments, NotCopyable, OverLimit
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.copier import json_to_copy
from sapwood.kernel.ports.work_id import WorkId
from sapwood.randomness import new_id
from sapwood.runs.tables.decisions import Decisions
from sapwood.runs.tables.question import Answer, Author, Question
from sapwood.storage.migrations import Schema

OWN_QUESTIONS = Schema("sapwood.runs", "own_questions")
ALL = "SELECT id, fiber, work, key, run, tool_call, body, answer FROM sapwood_own_questions "

_stored = msgspec.json.Decoder(Question)


class QuestionRow(NamedTuple):
    """One question, as it is stored."""

    id: str
    fiber: int
    work: str
    key: str
    run: str | None
    tool_call: str | None
    body: str
    answer: str | None

    def question(self) -> Question:
        return _stored.decode(self.body)


class QuestionTimes(NamedTuple):
    """When code asked a question, and when it was answered."""

    id: str
    asked_at: float
    answered_at: float | None
    outcome: str | None
    """`answered`, `denied` or `withdrawn`; `None` while it is open."""


QUESTION_TIMES = (
    "SELECT id, asked_at, answered_at, answer ->> '$[0]' FROM sapwood_own_questions WHERE work = ? ORDER BY number"
    " LIMIT ?"
)
"""Reads the times of the first questions of a fiber."""


class OwnQuestions:
    """The questions that the code of one agent asks. Every change belongs to the open slice."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._db = actor.database
        self._waiting: dict[str, Future[None]] = {}
        """The askers that wait in memory, by question."""

    @property
    def exist(self) -> bool:
        """Whether this agent ever asked one."""
        return self._db.exists and self._db.has(OWN_QUESTIONS)

    def add(
        self, asked: Question, work: WorkId, fiber: int, key: str, run: str | None, tool_call: str | None
    ) -> QuestionRow:
        """Store a new question."""
        self._db.ensure(OWN_QUESTIONS)
        id = f"ask-{new_id(self._actor.host.random)}"
        body = msgspec.json.encode(replace(asked, id=id)).decode()
        self._check_size("question", body)
        self._db.execute(
            "INSERT INTO sapwood_own_questions (id, fiber, work, key, run, tool_call, body, asked_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            id,
            fiber,
            str(work),
            key,
            run,
            tool_call,
            body,
            self._actor.host.clock.now(),
        )
        return QuestionRow(id, fiber, str(work), key, run, tool_call, body, None)

    def find(self, work: WorkId, key: str) -> QuestionRow | None:
        """Return the question that a fiber asked at this place."""
        rows = self._find("WHERE work = ? AND key = ?", str(work), key)
        return rows[0] if rows else None

    def open(self) -> list[Question]:
        """Return the open questions, oldest first."""
        return [row.question() for row in self._find("WHERE answer IS NULL ORDER BY number")]

    def get(self, id: str) -> Question | None:
        """Return an open question."""
        rows = self._find("WHERE id = ? AND answer IS NULL", id)
        return rows[0].question() if rows else None

    def waits(self, run: str, calls: Collection[str] = ()) -> bool:
        """Return whether code of this run, or of one of these tool calls, waits for an answer."""
        return any(row.run == run or row.tool_call in calls for row in self._find("WHERE answer IS NULL"))

    def wait_in(self, tool_calls: Collection[str]) -> bool:
        """Return whether the code of one of these tool calls waits for an answer."""
        rows = self._find("WHERE tool_call IS NOT NULL AND answer IS NULL") if tool_calls else []
        return any(row.tool_call in tool_calls for row in rows)

    def answer(self, id: str, answer: Answer, author: Author) -> bool:
        """Store the answer to a question, and resume the asker. Returns `False` if the question is not open."""
        rows = self._find("WHERE id = ? AND answer IS NULL", id)
        if not rows:
            return False
        row, question = rows[0], rows[0].question()
        if answer.kind == "approved":
            raise InvalidArguments("This question asks for a value. Answer it with questions.answer(), or `output`.")
        is_denied = answer.kind != "done"
        if not is_denied and (problem := question.problem_of(answer.value)) is not None:
            raise InvalidArguments(problem)
        try:
            value = json_to_copy(answer.value, "The answer")
        except NotCopyable as error:
            raise InvalidArguments(str(error)) from None
        text = msgspec.json.encode(["denied" if is_denied else "answered", msgspec.Raw(value)]).decode()
        self._check_size("answer", text)
        self._actor.of(Decisions).answered(question, answer, author)
        self._put_answer(id, text)
        self._resume(row)
        return True

    def with_key(self, key: str) -> QuestionRow | None:
        """Return the open question with a key of the framework's own."""
        rows = self._find("WHERE key = ? AND answer IS NULL", key)
        return rows[0] if rows else None

    def retract(self, row: QuestionRow) -> None:
        """Close a question of the framework's own that nothing waits for any more, and resume the asker."""
        self._put_answer(row.id, '["withdrawn",null]')
        self._resume(row)

    def _put_answer(self, id: str, text: str) -> None:
        now = self._actor.host.clock.now()
        self._db.execute("UPDATE sapwood_own_questions SET answer = ?, answered_at = ? WHERE id = ?", text, now, id)

    def _resume(self, row: QuestionRow) -> None:
        waiting = self._waiting.pop(row.id, None)
        if waiting is None or waiting.done():
            self._actor.of(Agenda).fibers.wake_number(row.fiber)
        else:
            waiting.set_result(None)

    def waiting(self, id: str) -> Future[None]:
        """Return a future that is done when a question is answered."""
        waiting = self._waiting[id] = self._actor.host.loop.create_future()
        return waiting

    def stop_waiting(self, id: str) -> None:
        """Its asker has left the memory, or does not wait any more."""
        self._waiting.pop(id, None)

    def close(self, work: WorkId) -> bool:
        """Delete the questions of a fiber that has ended. Returns `False` if none was open."""
        return self._close("work", str(work))

    def close_call(self, tool_call: str) -> bool:
        """Delete the questions of a tool call that has ended. Returns `False` if none was open."""
        return self._close("tool_call", tool_call)

    def withdraw(self, id: str) -> bool:
        """Delete a question that is not asked any more. Returns `False` if it was not open."""
        return self._close("id", id)

    def times(self, work: WorkId, most: int) -> list[QuestionTimes]:
        """Return the first questions of a fiber that are stored, in order."""
        rows = self._db.execute(QUESTION_TIMES, str(work), most) if self.exist else []
        return [QuestionTimes(*row) for row in rows]

    def _close(self, column: str, value: str) -> bool:
        if not self.exist:
            return False
        gone = self._db.execute(
            f"DELETE FROM sapwood_own_questions WHERE {column} = ? RETURNING id, answer IS NULL",  # noqa: S608 - ours
            value,
        )
        for id, _ in gone:
            self._waiting.pop(id, None)
        return any(is_open for _, is_open in gone)

    def _find(self, where: str, *arguments: Any) -> list[QuestionRow]:
        return [QuestionRow(*row) for row in self._db.execute(ALL + where, *arguments)] if self.exist else []

    def _check_size(self, what: str, text: str) -> None:
        limit, size = self._actor.limits.payload_bytes, len(text.encode())
        if size > limit:
            raise OverLimit(f"The {what} must have at most {limit} bytes, got {size}.", limit="payload_bytes")
