"""`self.questions`: what an agent, and those below it, ask a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

from sapwood.errors import UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.roles import Roles
from sapwood.runs.questions.asker import Asker
from sapwood.runs.questions.questions import Questions, approval
from sapwood.runs.tables.question import Answer, Question, author_of_code

T = TypeVar("T")


class AgentQuestions:
    """The open questions of this agent and of everything below it.

    A question is a tool call that requires approval, or what code asks with `ask`. An answer names a `Question`, or
    the id of a question of this agent itself. The first answer counts. A `Question` that has changed since it was
    listed is not open.
    """

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._questions = actor.of(Questions)

    @overload
    async def ask(
        self,
        prompt: str,
        *,
        options: Sequence[str] | None = None,
        key: str | None = None,
        approvers: Roles | None = None,
    ) -> str: ...
    @overload
    async def ask(
        self,
        prompt: str,
        *,
        schema: type[T],
        key: str | None = None,
        approvers: Roles | None = None,
    ) -> T: ...
    @overload
    async def ask(
        self,
        prompt: str,
        *,
        schema: Mapping[str, Any],
        key: str | None = None,
        approvers: Roles | None = None,
    ) -> Any: ...
    async def ask(
        self,
        prompt: str,
        *,
        options: Sequence[str] | None = None,
        schema: Any = None,
        key: str | None = None,
        approvers: Roles | None = None,
    ) -> Any:
        """Ask a person and return the answer: one of the `options`, a text, or data that fits the `schema`.

        Call it in a fiber, a run or a turn: the question survives a crash, and closes when the fiber ends. `schema` is
        a type or a JSON schema. `approvers` are the roles that may answer. `key` is the idempotency key; without one,
        the order of the questions in the fiber counts. Raises `Refused` if the question is denied.
        """
        return await self._actor.of(Asker).ask(prompt, options, schema, key, approvers)

    async def answer(self, question: Question | str, value: Any) -> bool:
        """Answer a question that code asks. Returns `False` if it is not open.

        Raises `InvalidArguments` if the value does not fit the question, which stays open.
        """
        if isinstance(question, Question) and not question.is_from_code:
            raise UsageError(f"The question {question.id!r} is about a tool call: use approve() or deny().")
        return await self._answer(question, Answer("done", value))

    async def approve(self, question: Question | str, arguments: dict[str, Any] | None = None) -> bool:
        """Allow the tool call, with other `arguments` if given. Returns `False` if the question is not open."""
        return await self._answer(question, approval(arguments, None, approved=True))

    async def deny(self, question: Question | str, reason: str | None = None) -> bool:
        """Refuse the tool call, or to answer what code asks. Returns `False` if the question is not open.

        The model receives the `reason`; in code, `ask` raises `Refused` with it.
        """
        return await self._answer(question, approval(None, reason, approved=False))

    async def list(self) -> list[Question]:
        """Return the open questions, without waking any agent."""
        return await self._questions.for_people()

    async def _answer(self, question: Question | str, answer: Answer) -> bool:
        author = author_of_code(self._actor.host.authentication)
        if isinstance(question, str):
            return await self._questions.take(question, answer, author)
        return await self._questions.answer(question.path, question.id, answer, author, question.digest or None)
