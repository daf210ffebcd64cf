"""A run as an A2A task: its state, what it asks, its artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, get_type_hints

import msgspec

from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.protocols import a2a_wire as wire
from sapwood.protocols.a2a_wire import A2aError, agent_message, timestamp
from sapwood.runs.tables.question import Answer, Question
from sapwood.runs.tables.runs_table import Run

ARTIFACT = "result"
YES = frozenset({"yes", "y", "ok", "approve", "approved", "allow", "allowed"})
NO = frozenset({"no", "n", "deny", "denied", "refuse", "refused", "reject", "rejected"})
ENDS: dict[str, wire.State] = {
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "cancelled": "TASK_STATE_CANCELED",
    "interrupted": "TASK_STATE_FAILED",
}


def state_of(run: Run, questions: Sequence[Question]) -> wire.State:
    """Return the state of a run as a task."""
    if run.is_over:
        return ENDS[run.status]
    if questions:
        return "TASK_STATE_INPUT_REQUIRED"
    return "TASK_STATE_SUBMITTED" if run.status == "queued" else "TASK_STATE_WORKING"


def questions_of(run: Run[Any], questions: Sequence[Question]) -> list[Question]:
    """Return those of the open questions that a run asks."""
    return [] if run.is_over else [one for one in questions if one.path[:1] == (run.agent,)]


def fits(run: Run[Any], questions: Sequence[Question], asked: wire.ListTasks) -> bool:
    """Return whether a task is one that a client asks for."""
    at = run.ended_at or run.started_at
    if asked.status_timestamp_after is not None and (at is None or at < asked.status_timestamp_after):
        return False
    return not asked.status or state_of(run, questions_of(run, questions)) == asked.status


def status_of(run: Run, context: str, questions: Sequence[Question], at: Any) -> dict[str, Any]:
    """Return the status of a task, with a message: what is asked, why it failed, or how far it is."""
    state = state_of(run, questions)
    parts = _parts(run, state, questions)
    told: dict[str, Any] = {"state": state, "timestamp": timestamp(at)}
    if parts:
        told["message"] = agent_message(f"{run.id}-{state[11:].lower()}", run.id, context, parts)
    return told


def _parts(run: Run, state: wire.State, questions: Sequence[Question]) -> list[dict[str, Any]]:
    if state == "TASK_STATE_INPUT_REQUIRED":
        lines = [f"{'/'.join(step.type for step in one.path)}: {_prompt(one)}" for one in questions]
        return [{"text": "\n".join(lines)}, {"data": {"questions": [_asked(one) for one in questions]}}]
    if run.is_over and not run.ok:
        return [{"text": for_clients(run.error or run.reason or f"The run was {run.status}.")}]
    progress: Any = run.progress or {}
    message = progress.get("message")
    return [{"text": str(message)}] if message and not run.is_over else []


def _prompt(question: Question) -> str:
    if not question.is_from_code:
        return f"May {question.tool} be called with {msgspec.json.encode(question.arguments).decode()}?"
    options = f" ({', '.join(question.options)})" if question.options else ""
    return f"{question.prompt}{options}"


def _asked(question: Question) -> dict[str, Any]:
    told: dict[str, Any] = {"id": question.full_id, "kind": question.kind}
    if question.is_from_code:
        return told | question.shown()
    return told | {"tool": question.tool, "arguments": question.arguments}


def artifacts_of(run: Run) -> list[dict[str, Any]]:
    """Return what a run has made: one artifact, if it completed."""
    if not run.ok:
        return []
    return [{"artifactId": ARTIFACT, "name": "result", "parts": parts_of(run.output, run.summary)}]


def message_of(run: Run, context: str) -> dict[str, Any] | None:
    """Return the message that a run has returned instead of a result; `None` if it is none."""
    if not (run.ok and isinstance(run.output, wire.A2aMessage)):
        return None
    told = msgspec.to_builtins(run.output)
    return {**told, "role": "ROLE_AGENT", "contextId": context}


def parts_of(output: Any, summary: str) -> list[dict[str, Any]]:
    """Return an output as parts: those that it consists of, or one."""
    if isinstance(output, list) and output and all(isinstance(one, wire.A2aPart) for one in cast("list[Any]", output)):
        return msgspec.to_builtins(output)
    return [part_of(output, summary)]


def part_of(output: Any, summary: str) -> dict[str, Any]:
    """Return an output as a part: a text, or data."""
    if isinstance(output, str):
        return {"text": output}
    return (
        {"text": summary} if output is None else {"data": msgspec.to_builtins(output), "mediaType": "application/json"}
    )


def input_of(message: wire.A2aMessage, cls: type) -> Any:
    """Return what an agent is given: the whole message, the data of a message that is one data part, or its text.

    Raises `A2aError` for parts that agents do not take.
    """
    if takes_message(cls):
        return msgspec.to_builtins(message)
    if len(message.parts) == 1 and message.parts[0].data is not msgspec.UNSET:
        return message.parts[0].data
    texts: list[str] = []
    for part in message.parts:
        if part.text is not None:
            texts.append(part.text)
        elif part.data is not msgspec.UNSET:
            texts.append(msgspec.json.encode(part.data).decode())
        else:
            kind = part.media_type or "a file"
            raise A2aError(
                wire.CONTENT_TYPE, f"This agent takes text and data, not {kind}. Upload files by its own URL."
            )
    return "\n".join(texts)


def takes_message(cls: type) -> bool:
    """Return whether `on_run` of a class declares that it takes whole messages."""
    try:
        hints = get_type_hints(getattr(cls, "on_run", None))
    except (NameError, TypeError):
        return False
    hints.pop("return", None)
    return next(iter(hints.values()), None) is wire.A2aMessage


def named_in(message: wire.A2aMessage) -> list[str]:
    """Return the ids of the questions that a message names."""
    return [id for part in message.parts for id in _fields(_fields(part.data).get("answers"))]


def answers_in(message: wire.A2aMessage, questions: Sequence[Question]) -> list[tuple[str, Answer]]:
    """Return the answers in a message to a task that waits; raise `A2aError` if it answers nothing."""
    named: list[tuple[str, Answer]] = []
    for part in message.parts:
        answers = _fields(_fields(part.data).get("answers"))
        if answers:
            named += [(id, _answer(id, value, questions)) for id, value in answers.items()]
    if named:
        return named
    if len(questions) != 1:
        ids = ", ".join(one.full_id for one in questions)
        raise A2aError(
            wire.INVALID_PARAMS,
            f'The task asks several questions. Send a data part {{"answers": {{"<id>": …}}}}. The ids: {ids}.',
        )
    (question,) = questions
    value: Any = "\n".join(part.text for part in message.parts if part.text is not None).strip()
    if len(message.parts) == 1 and message.parts[0].data is not msgspec.UNSET:
        value = message.parts[0].data
    return [(question.full_id, _answer(question.full_id, value, questions))]


def _answer(id: Any, value: Any, questions: Sequence[Question]) -> Answer:
    question = next((one for one in questions if one.full_id == id), None)
    if question is None:
        raise A2aError(wire.INVALID_PARAMS, f"The question {str(id)[: wire.LONGEST_ID]!r} is not open.")
    if question.kind == "approval":
        return _approval(value)
    if question.is_from_code and (problem := question.problem_of(value)) is not None:
        raise A2aError(wire.INVALID_PARAMS, problem)
    return Answer("done", value)


def _fields(value: Any) -> dict[str, Any]:
    """Return a JSON object; an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _approval(value: Any) -> Answer:
    if given := _fields(value):
        value = given.get("approved")
        if value is False and isinstance(reason := given.get("reason"), str):
            return Answer("denied", reason)
    if isinstance(value, bool):
        return Answer("approved") if value else Answer("denied")
    word = value.strip().rstrip(".!").lower() if isinstance(value, str) else ""
    if word in YES:
        return Answer("approved")
    if word in NO:
        return Answer("denied")
    raise A2aError(wire.INVALID_PARAMS, 'Answer "yes" or "no", or send {"approved": true} as data.')
