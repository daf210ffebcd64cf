"""The questions of remote runs: those of a run here, told to a calling server, and those of a run there, mirrored here.

The server whose agent asks is the truth. The caller keeps a copy in the index of its tree, so a question is shown
while the other server is away, and after a crash of the caller. An answer is sent to the other server, which decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec

from sapwood.address import PathSegment
from sapwood.errors import InvalidArguments, NotFound, Refused, RemoteRefused, Unavailable, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.json_schemas import check_schema
from sapwood.runs.execution.access_gates import Path, Shut
from sapwood.runs.questions.questions import Questions, approval
from sapwood.runs.remote.remote_run import RemoteRun
from sapwood.runs.remote.transport import RemoteAnswer, RemoteQuestion
from sapwood.runs.tables.decisions import Decisions
from sapwood.runs.tables.question import NOT_ALLOWED, Answer, Author, Question
from sapwood.wire import remote as wire


class Mirror:
    """The questions of the remote run that one agent stands for."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._open: list[Question] | None = None
        """`None` means that the other server has not told them since the agent was started."""

    def all(self) -> list[Question]:
        """Return the open questions, as far as the other server has told."""
        if self._open is None:
            return self._actor.of(Questions).indexed()
        return self._open

    def replace(self, told: Sequence[RemoteQuestion]) -> None:
        """The other server tells which questions are open. Both this agent and the root can be written."""
        found = [mirrored(one) for one in told[: wire.MAX_QUESTIONS] if _has_usable_schema(one)]
        self._set([one for one in found if len(msgspec.json.encode(one)) <= wire.MAX_QUESTION_BYTES])

    def withdraw(self) -> None:
        """The run is over, and so are its questions."""
        if self.all():
            self._set([])
        self._open = []

    def _set(self, questions: list[Question]) -> None:
        if questions != self.all():
            self._open = questions
            self._actor.of(Questions).mirrored()
        self._open = questions

    async def answer(self, remote: RemoteRun, question: Question, answer: Answer, author: Author) -> bool:
        """Send an answer to the other server. Raises `Refused` or `Unavailable`, and the question stays open."""
        behalf = (author.user or author.channel)[: wire.MAX_NAME]
        _check_fits(question, answer)
        sent = RemoteAnswer(
            question.id,
            question.digest,
            approved=answer.kind in ("approved", "done"),
            arguments=answer.value if answer.kind == "approved" else None,
            reason=answer.value if answer.kind in ("denied", "failed") else None,
            value=answer.value if answer.kind == "done" else None,
            on_behalf_of=behalf,
        )
        try:
            is_taken = await remote.answer(sent)
        except RemoteRefused as error:  # its text may name the other server
            raise Refused(NOT_ALLOWED) from error
        self._actor.check_live()
        if is_taken:
            self._actor.of(Decisions).answered(question, answer, author)
        self._set([one for one in self.all() if one != question])  # one with other arguments stays open
        return is_taken


def _check_fits(question: Question, answer: Answer) -> None:
    """Raise `InvalidArguments` if an answer is none to this question."""
    if not question.is_from_code:
        if answer.kind == "done":
            raise InvalidArguments("This question is about a tool call. Answer it with `approved`.")
    elif answer.kind == "approved":
        raise InvalidArguments("This question asks for a value. Answer it with questions.answer(), or `output`.")
    elif answer.kind == "done" and (problem := question.problem_of(answer.value)) is not None:
        raise InvalidArguments(problem)


def _has_usable_schema(told: RemoteQuestion) -> bool:
    """Return whether answers can be checked."""
    try:
        check_schema(told.schema or {})
    except UsageError:
        return False
    return True


def mirrored(told: RemoteQuestion) -> Question:
    """Return a question of another server. Its digest is computed here, of what is shown here."""
    if told.prompt is None:
        question = Question.about(told.id, told.tool, told.arguments, "approval")
    else:
        schema = _without_patterns(told.schema)
        question = replace(Question.from_code(told.prompt, told.options, schema, None), id=told.id)
    return replace(question, remote=tuple(told.path))


def _without_patterns(schema: Any) -> Any:
    """Return a schema of another server without its patterns, which might take for ever to match: it checks them."""
    if isinstance(schema, list):
        return [_without_patterns(one) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, Any]", schema)
    return {name: _without_patterns(one) for name, one in fields.items() if name != "pattern" or isinstance(one, dict)}


async def questions_for(actor: Actor, request: Any) -> list[wire.AskedQuestion]:
    """Return the questions of the run of a root, and below it, that the calling server may answer."""
    shown = [(path, one) for path, one in await actor.of(Questions).shown_to(request) if one.kind == "approval"]
    return list(
        _bounded(
            wire.AskedQuestion(_id(path, one.id), one.tool, one.arguments, _path(path, one)) for path, one in shown
        )
    )


def _bounded(asked: Iterable[wire.AskedQuestion]) -> Iterable[wire.AskedQuestion]:
    small = (one for one in asked if len(wire.encoded(one)) <= wire.MAX_QUESTION_BYTES)
    return (one for _, one in zip(range(wire.MAX_QUESTIONS), small, strict=False))


async def take_answer(actor: Actor, request: Any, given: wire.AnswerRequest) -> wire.AnswerReceipt:
    """Take the answer of a calling server, past all gates, as the user that it authenticated as."""
    try:
        path, id = _parsed(given.id)
        answer = approval(given.arguments, given.reason, approved=given.approved)
        taken = await actor.of(Questions).answer_of_client(
            request, "http", path, id, answer, given.digest, on_behalf_of=given.on_behalf_of
        )
    except (Shut, NotFound):
        return wire.AnswerReceipt(answered=False, refused=NOT_ALLOWED)
    except Unavailable:
        raise
    except Refused as refused:
        return wire.AnswerReceipt(answered=False, refused=str(refused))
    return wire.AnswerReceipt(answered=taken)


def _id(path: Path, id: str) -> str:
    """Return the id of a question among all of a run: different agents may use the same one."""
    if not path and not id.startswith("["):
        return id
    return msgspec.json.encode([[step.type, step.name] for step in path] + [id]).decode()


def _parsed(id: str) -> tuple[Path, str]:
    """Return the path and the id that `_id` made one of."""
    if not id.startswith("["):
        return (), id
    try:
        *path, own = msgspec.json.decode(id, type=list[str | tuple[str, str]])
        return tuple(PathSegment(*step) for step in path if not isinstance(step, str)), str(own)
    except (msgspec.MsgspecError, ValueError):
        raise Refused(NOT_ALLOWED) from None


def _path(path: Path, question: Question) -> list[wire.PathStep]:
    return [wire.PathStep(step.type, step.name) for step in (*path, *(question.remote or ()))]
