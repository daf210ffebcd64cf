"""Every word of a model's is told once and in its place, whichever way it comes in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.result import AgentStream
from tests.conformance.chats import TALKER, Talking, built, chunks, done, said, say, talker, talking, text_of, user

from sapwood import tool
from sapwood.testing import ScriptedModel, fails, text

WORDS = "and every word of it comes once"


class Adding(Talking):
    @tool
    async def add(self, a: int, b: int) -> int:
        """Add."""
        return a + b


class Pausing(FunctionModel):
    """A model whose provider pauses in the middle of an answer, and goes on when it is asked again."""

    @asynccontextmanager
    async def request_stream(self, *given: Any) -> AsyncGenerator[Any]:
        async with super().request_stream(*given) as response:
            if not isinstance(given[0][-1], ModelResponse):
                response.state = "suspended"
            yield response


async def pause(messages: Any, info: Any) -> AsyncIterator[str]:
    again = isinstance(messages[-1], ModelResponse)
    for word in ("and then", " goes", " on") if again else ("it", " stops", " here "):
        yield word


async def call_in_pieces(messages: Any, info: Any) -> AsyncIterator[Any]:
    if len(messages) > 1:
        yield "three"
        return
    yield {0: DeltaToolCall(name="add", json_args='{"a":', tool_call_id="c1")}
    yield {0: DeltaToolCall(json_args=" 1, ")}
    yield {0: DeltaToolCall(json_args='"b": 2}')}


async def think_aloud(messages: Any, info: Any) -> AsyncIterator[Any]:
    yield {0: DeltaThinkingPart(content="hm")}
    yield {0: DeltaThinkingPart(content=", well")}
    yield "so"
    yield " be it"


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (ScriptedModel(text(WORDS)), {}),
        (ScriptedModel(text(WORDS)), {"model_settings": {"request_timeout": 60.0}}),
        (FallbackModel(ScriptedModel(text(WORDS)), ScriptedModel(text("other"))), {}),
        (ScriptedModel(text(WORDS)), {"loop": PydanticAgent()}),
    ],
    ids=["a model", "with a deadline", "the first of several", "of a loop of one's own"],
)
async def test_each_word_is_told_once(model: Any, settings: dict[str, Any]) -> None:
    cls = talker(model, **settings)
    async with talking(cls) as one:
        client = await one.join(TALKER)

        await say(client, "r1", user("go", "u1"))
        await done(client, "r1")

        agent = await one.world.get_agent(cls, "t")
        assert said(chunks(client, "r1")) == WORDS
        assert text_of((await agent.conversation.messages())[-1]) == WORDS
        assert agent_said(await agent.conversation.export()) == WORDS


def agent_said(export: dict[str, Any]) -> str:
    """Return what the model is known to have said last."""
    return "".join(part["content"] for part in export["model_messages"][-1]["parts"] if part["part_kind"] == "text")


async def test_words_are_not_handed_up_through_the_whole_loop_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[str] = []
    through = AgentStream.__aiter__

    async def counted(stream: AgentStream[Any, Any]) -> AsyncIterator[Any]:
        async for event in through(stream):
            handed.append(event.event_kind)
            yield event

    monkeypatch.setattr(AgentStream, "__aiter__", counted)
    async with talking(talker(ScriptedModel(text(WORDS)))) as one:
        client = await one.join(TALKER)

        await say(client, "r1", user("go", "u1"))
        await done(client, "r1")

    assert handed == ["part_start", "final_result", "part_end"]


async def test_an_answer_that_its_provider_paused_goes_on_behind_what_was_said() -> None:
    cls = talker(Pausing(stream_function=pause))
    async with talking(cls) as one:
        client = await one.join(TALKER)

        await say(client, "r1", user("go", "u1"))
        await done(client, "r1")

        agent = await one.world.get_agent(cls, "t")
        (stored,) = (await agent.conversation.messages())[1:]
        assert built(chunks(client, "r1"))["parts"] == stored["parts"]
        assert [part["text"] for part in stored["parts"] if part["type"] == "text"] == [
            "it stops here ",
            "and then goes on",
        ]


async def test_a_tool_call_that_is_typed_piece_by_piece_is_made_whole() -> None:
    cls = talker(FunctionModel(stream_function=call_in_pieces), base=Adding)
    async with talking(cls) as one:
        client = await one.join(TALKER)

        await say(client, "r1", user("add", "u1"))
        await done(client, "r1")

        typed = [chunk["inputTextDelta"] for chunk in chunks(client, "r1") if chunk["type"] == "tool-input-delta"]
        (available,) = [chunk for chunk in chunks(client, "r1") if chunk["type"] == "tool-input-available"]
        (output,) = [chunk for chunk in chunks(client, "r1") if chunk["type"] == "tool-output-available"]
        assert "".join(typed) == '{"a": 1, "b": 2}'
        assert (available["input"], output["output"]) == ({"a": 1, "b": 2}, 3)


async def test_what_a_model_thinks_is_shown_and_is_not_what_it_puts_out() -> None:
    cls = talker(FunctionModel(stream_function=think_aloud))
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")

        turn = await agent.send("why?")

        parts = (await agent.conversation.messages())[-1]["parts"]
        assert (turn.text, turn.output) == ("so be it", "so be it")
        assert [part["text"] for part in parts if part["type"] == "reasoning"] == ["hm, well"]


async def test_a_model_that_only_thinks_is_asked_again() -> None:
    asked = 0

    async def think_first(messages: Any, info: Any) -> AsyncIterator[Any]:
        nonlocal asked
        asked += 1
        yield {0: DeltaThinkingPart(content="hm")} if asked == 1 else "well"

    cls = talker(FunctionModel(stream_function=think_first))
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")

        turn = await agent.send("why?")

    assert (turn.output, asked) == ("well", 2)


async def test_of_several_models_only_the_one_that_answers_is_heard() -> None:
    model = FallbackModel(
        ScriptedModel(fails(RuntimeError("down"))), ScriptedModel(text(WORDS)), fallback_on=RuntimeError
    )
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)

        await say(client, "r1", user("go", "u1"))
        await done(client, "r1")

        assert said(chunks(client, "r1")) == WORDS
