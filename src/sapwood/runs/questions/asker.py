"""Asks a person from code, and waits for the answer, also through restarts.

The question belongs to the fiber that asks: it is stored before it is shown, found again when the fiber is
executed again, and closed when the fiber ends. A fiber of the user's that waits long leaves the memory.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from sapwood.capabilities.fiber_executor import PARKED_AFTER
from sapwood.capabilities.fiber_rows import UNTIL_WOKEN
from sapwood.capabilities.steps import Steps, Work
from sapwood.errors import InvalidArguments, Refused, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.copier import unjson_hook
from sapwood.kernel.marshal.json_schemas import check_schema
from sapwood.kernel.marshal.method_schemas import schema_of
from sapwood.roles import Roles, stored_roles
from sapwood.runs.dispatch.run_request import tool_call
from sapwood.runs.dispatch.timed_run import until
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.questions.questions import Questions
from sapwood.runs.tables.own_questions import OwnQuestions, QuestionRow
from sapwood.runs.tables.question import Question

DENIED = "The question was denied."


class Asker:
    """Asks people what the code of one agent wants to know."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._own = actor.of(OwnQuestions)

    async def ask(
        self,
        prompt: str,
        options: Sequence[str] | None,
        schema: Any,
        key: str | None,
        approvers: Roles | None,
    ) -> Any:
        """Ask a question, or find the one that was asked at this place before; return the answer."""
        actor = self._actor
        actor.check_use()
        work = actor.of(Steps).in_fiber("questions.ask()")
        question = Question.from_code(
            _prompt(prompt), _options(options, schema), _json_schema(schema), self._roles(approvers)
        )
        name = self._name(work, key)
        row = self._own.find(work.id, name) or self._add(question, work, name)
        if row.answer is None:
            actor.of(Steps).note_waiting(work)
        if row.answer is None:
            work.progressed()  # each time that it gets here: it may wait through many restarts
        try:
            kind, value = await self.answer_to(row, work, parks=work.owner is not None)
        except CancelledError:
            if key is not None:  # without a key, the next question is another one
                work.names.discard(name)
            raise
        if kind == "denied":
            raise Refused(value or DENIED)
        return value if schema is None or isinstance(schema, Mapping) else _converted(value, schema)

    def _add(self, question: Question, work: Work, name: str) -> QuestionRow:
        assert work.fiber is not None
        run = self._actor.of(RunExecutor).worker.current() if work.owner is None else None
        row = self._own.add(question, work.id, work.fiber, name, run, self._tool_call())
        self._actor.of(Questions).asked()
        return row

    def _name(self, work: Work, key: str | None) -> str:
        """Return the place of a question in its fiber: the same whenever the fiber gets here again."""
        prefix = "questions.ask" if (call := self._tool_call()) is None else f"{call} questions.ask"
        if key is not None:
            name = f"{prefix} {key!r}"
            if not key or name in work.names:
                raise UsageError(f"The key of a question must be non-empty and unique in its fiber, got {key!r}.")
        else:
            name = next(name for n in range(1, len(work.names) + 2) if (name := f"{prefix} {n}") not in work.names)
        work.names.add(name)
        return name

    def _tool_call(self) -> str | None:
        """Return the tool call of this agent that the code belongs to."""
        call = tool_call.get()
        return call.id if call is not None and call.actor is self._actor else None

    def _roles(self, approvers: Roles | None) -> tuple[str, ...] | None:
        """Return who may answer, as it is stored."""
        if approvers is None:
            if self._actor.host.authentication is not None and not self._actor.kind.overrides("may_answer"):
                raise UsageError(
                    "The app authenticates its users, so the question has to say who may answer it: "
                    'approvers="manager" for users with this role in claims["roles"], or approvers=ANY_CLIENT for '
                    f"every client. Or write {self._actor.kind.cls.__name__}.may_answer()."
                )
            return None
        return stored_roles(approvers)

    def put(self, question: Question, work: Work, name: str) -> QuestionRow:
        """Ask a question of the framework's own, in this slice."""
        assert work.fiber is not None
        row = self._own.add(question, work.id, work.fiber, name, None, None)
        self._actor.of(Questions).asked()
        return row

    async def answer_to(
        self, row: QuestionRow, work: Work, *, parks: bool, ends_at: float = UNTIL_WOKEN
    ) -> tuple[str, Any]:
        """Return how a question was answered, once it is; `expired` if it is not by `ends_at`.

        If it `parks`, the fiber that asks leaves the memory after a minute.
        """
        actor = self._actor
        try:
            await actor.leave()
            while True:
                actor.check_live()
                found = self._own.find(work.id, row.key)
                if found is None:
                    raise Refused("The question was closed before it was answered.")
                if found.answer is not None:
                    kind, value = msgspec.json.decode(found.answer)
                    return kind, value
                now = actor.host.clock.now()
                if now >= ends_at:
                    return "expired", None
                answered = self._own.waiting(row.id)
                if not parks:
                    await answered
                    continue
                await until(actor, min(now + PARKED_AFTER, ends_at), answered)
                actor.check_live()
                if not answered.done() and (suspended := work.park(ends_at)) is not None:
                    raise suspended
                if not answered.done():
                    await until(actor, ends_at, answered)
        except CancelledError:
            # The code waits no longer: its own timeout, or the end of its fiber.
            if actor.dropped is None and self._own.withdraw(row.id):
                actor.of(Questions).answered()
            raise
        finally:
            self._own.stop_waiting(row.id)


def _prompt(prompt: object) -> str:
    if not isinstance(prompt, str) or not prompt.strip():
        raise UsageError(f"The prompt of a question must be a non-empty string, got {prompt!r}.")
    return prompt


def _options(options: Any, schema: Any) -> tuple[str, ...] | None:
    if options is None:
        return None
    if schema is not None:
        raise UsageError("A question has either options or a schema, not both.")
    chosen = () if isinstance(options, str) else tuple(options)
    if len(chosen) != len(set(chosen)) or not chosen or not all(isinstance(one, str) for one in chosen):
        raise UsageError(f"The options of a question must be different strings, at least one, got {options!r}.")
    return chosen


def _json_schema(schema: Any) -> dict[str, Any] | None:
    if schema is None:
        return None
    if isinstance(schema, Mapping):
        found = dict(cast("Mapping[str, Any]", schema))
    else:
        found = schema_of(schema)
        if not found.keys() & {"type", "$ref", "anyOf", "enum"}:
            raise UsageError(
                f"schema={schema!r}: expected a model, a dataclass or another type that has a JSON schema, or a JSON "
                "schema as a dict."
            )
    check_schema(found)
    return found


def _converted(value: Any, schema: Any) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=schema, dec_hook=unjson_hook)
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidArguments(f"The answer does not fit {getattr(schema, '__name__', schema)}: {error}") from None
