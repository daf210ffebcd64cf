"""`self.questions`: the tool calls of an agent, and of those below it, that wait for a person."""

from __future__ import annotations

from typing import Any

from sapwood.kernel.actor import Actor
from sapwood.runs.question import Answer, Question, author_of_code
from sapwood.runs.questions import Questions, approval


class AgentQuestions:
    """The open questions of this agent and of everything below it: tool calls that require approval.

    An answer names a `Question`, or the id of a question of this agent itself. The first answer counts.
    """

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._questions = actor.of(Questions)

    async def approve(self, question: Question | str, arguments: dict[str, Any] | None = None) -> bool:
        """Allow the tool call, with other `arguments` if given. Returns `False` if the question is not open."""
        return await self._answer(question, approval(arguments, None, approved=True))

    async def deny(self, question: Question | str, reason: str | None = None) -> bool:
        """Refuse the tool call; the model receives the `reason`. Returns `False` if the question is not open."""
        return await self._answer(question, approval(None, reason, approved=False))

    async def list(self) -> list[Question]:
        """Return the open questions, without waking any agent."""
        return await self._questions.approvals()

    async def _answer(self, question: Question | str, answer: Answer) -> bool:
        author = author_of_code(self._actor.host.authentication)
        if isinstance(question, str):
            return await self._questions.take(question, answer, author)
        return await self._questions.answer(question.path, question.id, answer, author, question.digest or None)
