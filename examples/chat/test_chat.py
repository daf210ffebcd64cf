import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from sapwood import App
from sapwood.testing import World, running

from assistant import Assistant
from offline import OfflineModel


@pytest.fixture
async def world() -> AsyncGenerator[World, None]:
    models = {Assistant: OfflineModel(pause=0)}
    async with running(App(agents=[Assistant]), models=models) as world:
        yield world


async def test_a_reminder_rings_once_even_after_a_crash(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    turn = await me.send("Remind me to stretch in 20 seconds")
    assert turn.text.startswith("Done.")

    await world.crash()
    await world.clock.advance(timedelta(seconds=21))

    me = await world.get_agent(Assistant, "me")
    assert (await wait_for(me, "It is time"))[-2:] == [
        "Due now: stretch",
        "It is time: **stretch**.",
    ]
    assert (await me.reminders()) == []


async def test_a_reminder_with_the_same_text_is_replaced(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    for when in ("20 seconds", "2 minutes"):
        await me.send(f"Remind me to stretch in {when}")

    await world.clock.advance(timedelta(seconds=30))

    assert await me.reminders() == ["stretch"]
    assert len(await me.conversation.messages()) == 4


async def test_reminders_are_deleted_only_after_an_approval(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("Remind me to water the plants in 2 hours")
    await me.send("Remind me in an hour to call Ada.")
    assert await me.reminders() == ["call Ada", "water the plants"]

    for answer in (me.questions.deny, me.questions.approve):
        turn = await me.send("Forget the plants")
        (question,) = await me.questions.list()
        assert (turn.status, question.tool) == ("waiting", "forget")
        assert question.arguments == {"what": "plants"}
        await answer(question)
        await wait_for(me, "leave it" if answer is me.questions.deny else "1 deleted")

    assert await me.reminders() == ["call Ada"]


@pytest.mark.parametrize(
    ("prompts", "answer"),
    [
        (["Hello"], "?"),
        (["My name is Ada", "What is my name?"], "You are Ada."),
        (["What is my name?"], "not told me"),
        (["help"], "Forget everything"),
        (["What time is it?"], "No browser is connected"),
        (["What do I have to do?"], "Your list is empty"),
        (["Remind me to sleep"], "When?"),
        (["Remind me to sleep", "in 5 minutes"], "Done."),
        (["Remind me in 10 min"], "What shall I"),
        (["Quantum gravity"], "I do not understand “Quantum gravity”"),
        (["Tell me a story"], "\n\n"),
    ],
)
async def test_the_script_answers_prompts(
    world: World, prompts: list[str], answer: str
) -> None:
    me = await world.get_agent(Assistant, "me")

    turns = [await me.send(text) for text in prompts]

    assert answer in turns[-1].text


async def test_a_failure_is_reported(world: World) -> None:
    me = await world.get_agent(Assistant, "me")

    turn = await me.send("Fail, please")

    assert turn.status == "failed"
    assert "fails on request" in str(turn.error)


async def wait_for(agent: Assistant, text: str) -> list[str]:
    """Wait for a message with this text. Return the texts of all messages."""
    async with asyncio.timeout(60):
        while True:
            texts = [
                text_of(message) for message in await agent.conversation.messages()
            ]
            if text in texts[-1]:
                return texts
            await asyncio.sleep(0.01)


def text_of(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")
