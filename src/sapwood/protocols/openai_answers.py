"""Answers to tool calls and questions, as the questions expect them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sapwood.protocols.openai_errors import ApiError, invalid
from sapwood.runs.tables.question import Answer, Question
from sapwood.wire.frames import read_json


def check_answers(answers: Sequence[tuple[str, Answer, str]], questions: dict[str, Question]) -> None:
    """Refuse answers to what is not asked, before one of them is given."""
    seen: set[str] = set()
    for name, answer, where in answers:
        question = questions.get(name)
        if question is None or name in seen:
            raise not_open(name, where)
        seen.add(name)
        if (question.kind == "approval") != (answer.kind in ("approved", "denied")):
            kind = "mcp_approval_response" if question.kind == "approval" else "function_call_output"
            raise invalid(where, f"this call is answered by an item of the type {kind}.")
        fitted(answer, question, where)


def not_open(name: str, where: str) -> ApiError:
    """Return the refusal of an answer to what is not asked."""
    text = f"No tool call waits for `{name[:80]}`. It was answered before, or does not exist."
    return ApiError(text, param=where, code="no_tool_call_found")


def not_ended() -> ApiError:
    """Return the refusal of an answer to a part of what a response will ask."""
    text = "The response that asks has not ended. Wait for its end, and answer then."
    return ApiError(text, param="previous_response_id", code="response_not_ended", status=409)


def fitted(answer: Answer, question: Question, where: str) -> Answer:
    """Return an answer as the question expects it: that of a form is JSON."""
    if not question.is_from_code or answer.kind == "denied":
        return answer
    value = answer.value
    if question.kind == "form":
        try:
            value = read_json(value, object)
        except msgspec.DecodeError as error:
            raise invalid(f"{where}.output", f"expected JSON that fits the schema: {error}.") from None
    if (wrong := question.problem_of(value)) is not None:
        raise invalid(f"{where}.output", wrong)
    return Answer("done", value)
