"""`running(app, models=…)` replaces the models of chat agents for one test."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from sapwood import Agent, App, ChatAgent, testing
from sapwood.errors import Unavailable, UsageError
from sapwood.testing import ScriptedModel, running, text


class Plain(ChatAgent):
    model = ScriptedModel(text("the class"))


class Choosy(ChatAgent):
    def get_model(self) -> Any:
        return ScriptedModel(text("chosen"))


class Heir(Plain):
    pass


class Silent(Agent):
    pass


@pytest.mark.parametrize("cls", [Plain, Choosy, Heir])
async def test_a_model_is_replaced_for_one_test(cls: type[ChatAgent]) -> None:
    async def said(**options: Any) -> str:
        async with running(App(agents=[cls]), **options) as world:
            return (await (await world.get_agent(cls, "a")).send("Hello")).text

    before = await said()

    assert await said(models={cls: ScriptedModel(text("replaced"))}) == "replaced"
    assert await said() == before != "replaced"


async def test_a_model_is_replaced_also_after_a_crash() -> None:
    model = ScriptedModel(text("one"), text("two"))
    async with running(App(agents=[Plain]), models={Plain: model}) as world:
        assert (await (await world.get_agent(Plain, "a")).send("Hello")).text == "one"
        await world.crash()
        assert (await (await world.get_agent(Plain, "a")).send("Hello")).text == "two"


async def test_each_class_has_a_model_of_its_own() -> None:
    models = {Plain: ScriptedModel(text("plain")), Heir: ScriptedModel(text("heir"))}
    async with running(App(agents=[Plain, Heir]), models=models) as world:
        assert (await (await world.get_agent(Plain, "a")).send("Hello")).text == "plain"
        assert (await (await world.get_agent(Heir, "a")).send("Hello")).text == "heir"


async def test_only_a_chat_agent_has_a_model() -> None:
    with pytest.raises(UsageError, match=r"models: Silent is not a chat agent, so it has no model\."):
        async with running(App(agents=[Silent]), models={Silent: ScriptedModel(text("?"))}):
            pass


@pytest.mark.parametrize(("each", "answer"), [(True, "Well, one"), (False, "two")])
async def test_with_each_a_request_repeated_after_a_crash_gets_its_answer_again(each: bool, answer: str) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("Well, one", gate=gate), text("two"), each=each)
    async with running(App(agents=[Plain]), models={Plain: model}) as world:
        plain = await world.get_agent(Plain, "a")
        turn = await plain.turns.start("Hello")
        await world.until(lambda: bool(model.asked))
        await world.crash()
        gate.set()
        turn = await (await world.get_agent(Plain, "a")).turns.wait(turn.id)

    assert (turn.text, len(model.asked)) == (answer, 2)


async def test_a_name_is_not_a_class_of_agents() -> None:
    with pytest.raises(UsageError, match=r"models: expected agent classes as keys, got 'Silent'\. Write models="):
        async with running(App(agents=[Silent]), models={"Silent": ScriptedModel()}):  # pyright: ignore[reportArgumentType]
            pass


async def test_a_stub_from_before_a_crash_says_what_to_do() -> None:
    async with running(App(agents=[Plain])) as world:
        agent = await world.get_agent(Plain, "a")
        await agent.conversation.messages()
        await world.crash()

        with pytest.raises(Unavailable, match=r"The process crashed\. Get the agent again\."):
            await agent.conversation.messages()


def test_a_scripted_model_without_its_extra_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sapwood.testing.scripted_model")
    monkeypatch.setitem(sys.modules, "pydantic_ai.messages", None)

    with pytest.raises(UsageError, match=r"ScriptedModel requires Pydantic AI\. Run: pip install 'sapwood\[chat\]'\."):
        _ = testing.ScriptedModel
