"""The questions of a task as its client was shown them last: it can only answer a question that it knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sapwood.runs.tables.question import Question

if TYPE_CHECKING:
    from sapwood.agent import Agent

SHOWN_QUESTIONS = """CREATE TABLE shown_questions (
    task     TEXT NOT NULL,
    question TEXT NOT NULL,                    -- its id from the desk
    digest   TEXT NOT NULL,                    -- of what was shown
    PRIMARY KEY (task, question)
) STRICT, WITHOUT ROWID"""


class ShownQuestions:
    """The questions of one task that its client was shown last."""

    def __init__(self, desk: Agent[Any], task: str) -> None:
        self._desk, self._task = desk, task

    def digests(self) -> dict[str, str]:
        """Return what was shown of each question, by its id."""
        rows = self._desk.sql("SELECT question, digest FROM shown_questions WHERE task = ?", self._task)
        return {str(row["question"]): str(row["digest"]) for row in rows}

    def replace(self, questions: Sequence[Question]) -> None:
        """Store the questions that are shown, in the commit of the response that shows them."""
        shown = {one.full_id: one.digest for one in questions}
        if shown == self.digests():
            return
        self._desk.sql("DELETE FROM shown_questions WHERE task = ?", self._task)
        for question, digest in shown.items():
            self._desk.sql("INSERT INTO shown_questions VALUES (?, ?, ?)", self._task, question, digest)
