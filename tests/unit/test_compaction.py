"""What is cleared and what is summarised of a history, for every length of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.messages import UserPromptPart as Prompt

from sapwood.chat.store.compaction import BEFORE, CompactionPlan, plan_of, size_of

History = list[tuple[str, ModelMessage]]


def said(id: str, text: str) -> tuple[str, ModelMessage]:
    return (id, ModelRequest(parts=[Prompt(text)]))


def answered(id: str, text: str) -> tuple[str, ModelMessage]:
    return (id, ModelResponse(parts=[TextPart(text)]))


def called(id: str, call: str, result: str) -> History:
    return [
        (id, ModelResponse(parts=[ToolCallPart("look", {}, call)])),
        (id, ModelRequest(parts=[ToolReturnPart("look", result, call)])),
    ]


def after(history: History, plan: CompactionPlan) -> History:
    """Return what a plan makes of a history."""
    kept = [(id, plan.cleared.get(at, one)) for at, (id, one) in enumerate(history)]
    if not plan.summarised:
        return kept
    first = plan.summarised[0]
    summary = said("summary", BEFORE.format(count=2) + "in short")
    return [*kept[:first], summary, *(one for at, one in enumerate(kept) if at > first and at not in plan.summarised)]


def test_what_fits_stays_as_it_is() -> None:
    assert not plan_of([said("u", "hi"), answered("a", "hello")], 100)


def test_tool_results_are_cleared_first_and_that_may_be_enough() -> None:
    history = [said("u1", "look"), *called("a1", "c1", "x" * 8000), answered("a1", "done")]
    history += [said("u2", "and?"), *called("a2", "c2", "y" * 800), answered("a2", "done")]

    plan = plan_of(history, 1000)

    assert (list(plan.cleared), plan.summarised) == ([2], ())
    (part,) = plan.cleared[2].parts
    assert part.content == (  # type: ignore[union-attr]
        "[Cleared: the result of look had 8,000 characters. It is stored with the message a1 as the tool call c1.]"
    )


def test_a_summary_is_made_if_that_is_not_enough_and_the_last_turn_stays() -> None:
    history = [said("u1", "a" * 4000), answered("a1", "b" * 4000), said("u2", "c" * 400), answered("a2", "d" * 400)]
    assert plan_of(history, 1000).summarised == [0, 1]


def test_within_a_turn_that_is_too_long_alone_its_question_and_its_last_calls_stay() -> None:
    history = [said("u1", "old"), answered("a1", "old"), said("u2", "count to a hundred")]
    for number in range(100):
        history += called("a2", f"c{number}", f"{number} " + "z" * 80)

    plan = plan_of(history, 1000)

    left = after(history, plan)
    assert 2 not in plan.summarised
    assert list(plan.summarised)[:4] == [0, 1, 3, 4]
    assert left[1] == history[2]
    assert left[-1] == history[-1]
    assert sum(size_of(one) for _, one in left) <= 1000

    for number in range(100, 200):
        left += called("a2", f"c{number}", f"{number} " + "z" * 80)
    again = after(left, plan_of(left, 1000))
    assert again[1] == history[2]
    assert again.count(history[2]) == 1


def test_pinned_messages_stay_with_their_question() -> None:
    history = [said("u0", "first " * 100), answered("a0", "first " * 100)]
    history += [said("u1", "rule?"), *called("a1", "c1", "r" * 800), answered("a1", "the rule")]
    history += [said("u2", "more " * 400), answered("a2", "more " * 400), said("u3", "last"), answered("a3", "last")]

    plan = plan_of(history, 1000, {"a1"})

    assert list(plan.summarised) == [0, 1, 6, 7]
    assert not plan.cleared


@pytest.mark.parametrize("allowed", [1, 20])
def test_a_summary_alone_is_not_summarised_again(allowed: int) -> None:
    history = [said("a1", BEFORE + "summary " * 100), said("u2", "question"), answered("a2", "answer " * 100)]
    assert not plan_of(history, allowed).summarised


TEXTS = st.integers(0, 3000).map(lambda length: "w" * length)
TURNS = st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=6), TEXTS), min_size=1, max_size=8)


@pytest.mark.slow
@given(TURNS, st.integers(1, 2000), st.sets(st.integers(0, 7)), st.booleans())
def test_whatever_is_said_no_call_loses_its_result_and_what_is_pinned_stays(
    turns: Sequence[tuple[str, list[str], str]], allowed: int, pins: set[int], is_running: bool
) -> None:
    history: History = []
    for at, (question, results, answer) in enumerate(turns):
        history.append(said(f"u{at}", question))
        for number, result in enumerate(results):
            history += called(f"a{at}", f"c{at}-{number}", result)
        if not (is_running and at == len(turns) - 1):
            history.append(answered(f"a{at}", answer))
    pinned = {f"{kind}{at}" for at in pins for kind in "ua"}

    plan = plan_of(history, allowed, pinned)
    left = after(history, plan)

    open_calls: list[str] = []
    before: Any = None
    for _, message in left:
        calls = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
        returns = [part.tool_call_id for part in message.parts if isinstance(part, ToolReturnPart)]
        assert returns == open_calls
        assert not (before == message.kind == "response")
        open_calls, before = calls, message.kind
    assert not open_calls
    assert left[-1] == history[-1]
    kept = [one for one in left if one[0] in pinned]
    assert kept == [one for one in history if one[0] in pinned]
    assert left[0][1].kind == "request"
    # Doing it again changes little: each turn would pay for it.
    assert not plan_of(left, allowed, pinned) or sum(size_of(one) for _, one in left) > allowed
