"""Tests of turns that crash, are cancelled, or whose model fails."""

import asyncio
import contextlib

import pytest

from bakery import Bakery, text_of
from sapwood import App, Unavailable
from sapwood.testing import ScriptedModel, call, calls, fails, running, text


# --8<-- [start:crash]
@pytest.mark.parametrize("nth", range(1, 15))
async def test_a_message_is_answered_once_after_a_crash_at_any_commit(
    nth: int,
) -> None:
    looking = call("look", bread="rye")
    model = ScriptedModel(looking, text("There are twelve."), each=True)
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Rye?"}]}
    async with running(App(agents=[Bakery]), models={Bakery: model}) as world:
        shop = await world.get_agent(Bakery, "corner")
        world.crash_at("committed", nth)
        with contextlib.suppress(Unavailable):
            await shop.send([message])
        await world.crash()

        shop = await world.get_agent(Bakery, "corner")
        await shop.send("And wheat?")  # answered after it, if it was received

        messages = await shop.conversation.messages()
        texts = [text_of(one) for one in messages]
        first_turn = ["Rye?", "There are twelve."] if len(texts) == 4 else []
        assert texts == [*first_turn, "And wheat?", "There are twelve."]
        assert [part["type"] for part in messages[1]["parts"]].count("tool-look") == 1


# --8<-- [end:crash]
# --8<-- [start:cancel]
async def test_cancelling_a_turn_interrupts_the_model() -> None:
    never = asyncio.Event()
    model = ScriptedModel(text("Well, let me think about it", gate=never))
    async with running(App(agents=[Bakery]), models={Bakery: model}) as world:
        shop = await world.get_agent(Bakery, "corner")
        asking = asyncio.create_task(shop.send("What is bread?"))
        await world.until(lambda: bool(model.asked))

        assert await shop.turns.cancel()

        turn = await asking
        assert (turn.status, model.cancelled) == ("cancelled", 1)


# --8<-- [end:cancel]
# --8<-- [start:fails]
async def test_a_model_that_fails_ends_the_turn() -> None:
    both = calls(call("look", bread="rye"), call("look", bread="wheat"))
    model = ScriptedModel(both, fails(RuntimeError("The model is out of order.")))
    async with running(App(agents=[Bakery]), models={Bakery: model}) as world:
        shop = await world.get_agent(Bakery, "corner")

        turn = await shop.send("What is there?")

    assert turn.status == "failed"
    assert "The model is out of order." in str(turn.error)


# --8<-- [end:fails]
