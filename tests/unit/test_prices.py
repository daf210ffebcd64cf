"""What a request may cost: by our prices, by those that everybody knows, or nobody knows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.usage import RequestUsage

from sapwood.chat.models import token_estimates
from sapwood.chat.models.loop import LoopTurn
from sapwood.chat.models.prices import cost_of, most
from sapwood.testing import ScriptedModel, text

OURS = {"scripted": (2.0, 8.0)}


def test_a_price_of_ours_is_for_a_million_tokens_read_and_written() -> None:
    assert most(ScriptedModel(text("a")), 1_000_000, 500_000, OURS) == 6.0
    assert most("any:scripted", 1_000_000, 0, OURS) == 2.0


@pytest.mark.parametrize("model", ["openai:gpt-5", "anthropic:claude-sonnet-4-5", "google-gla:gemini-2.5-flash"])
def test_a_price_that_everybody_knows_is_looked_up(model: str) -> None:
    known = most(model, 1_000_000, 1_000_000, {})

    assert known is not None
    assert known > 1


def test_a_price_that_nobody_knows_is_none_and_never_nothing() -> None:
    assert most(ScriptedModel(text("a")), 1000, 1000, {}) is None
    assert most("my:own-model", 1000, 1000, {}) is None
    assert most(None, 1000, 1000, OURS) is None


def test_of_models_that_stand_in_for_each_other_the_dearest_counts_and_all_have_to_be_known() -> None:
    cheap, dear = ScriptedModel(text("a")), ScriptedModel(text("b"))
    dear._model_name = "dear"
    both = FallbackModel(cheap, dear)

    assert most(both, 1_000_000, 0, {**OURS, "dear": (9.0, 9.0)}) == 9.0
    assert most(both, 1_000_000, 0, OURS) is None


def answer(**usage: Any) -> ModelResponse:
    return ModelResponse(parts=[TextPart("a")], model_name="scripted-2026", usage=RequestUsage(**usage))


def test_what_an_answer_cost_goes_by_its_own_name_or_that_of_the_model_that_was_asked() -> None:
    model = ScriptedModel(text("a"))

    assert cost_of(answer(input_tokens=1_000_000, output_tokens=1_000_000), model, OURS) == 10.0
    assert cost_of(answer(input_tokens=1_000_000, output_tokens=0), model, {"scripted-2026": (1.0, 1.0)}) == 1.0
    assert cost_of(answer(input_tokens=5, output_tokens=5), model, {}) is None
    assert cost_of(answer(), model, OURS) is None  # it was cut off before it said


def turn(**more: Any) -> LoopTurn:
    given = {field.name: None for field in fields(LoopTurn) if field.name != "prices"}
    return LoopTurn(**{**given, **more})


def test_what_has_to_be_read_is_what_the_model_last_said_it_was_and_what_came_since() -> None:
    asked = ModelRequest(parts=[UserPromptPart("x" * 400)])

    assert token_estimates.read(turn(), [asked]) == token_estimates.OVERHEAD + 104
    assert token_estimates.read(turn(instructions="y" * 40), [asked]) == token_estimates.OVERHEAD + 114
    assert token_estimates.read(turn(), [asked, answer(input_tokens=900, output_tokens=7), asked]) == 907 + 104


def test_what_may_be_written_is_what_the_settings_say() -> None:
    assert token_estimates.written(turn()) == 4096
    assert token_estimates.written(turn(settings={"max_tokens": 10})) == 10
    assert token_estimates.written(turn(settings={"temperature": 0.5}, model=ScriptedModel(text("a")))) == 4096
