"""Tests of a chat agent, with a scripted model."""

from bakery import Bakery
from sapwood import App
from sapwood.testing import ScriptedModel, call, running, text


async def test_the_model_looks_before_it_answers() -> None:
    model = ScriptedModel(call("look", bread="rye"), text("There are twelve."))
    async with running(App(agents=[Bakery]), models={Bakery: model}) as world:
        shop = await world.get_agent(Bakery, "corner")

        turn = await shop.send("Do you have rye bread?")

    assert (turn.status, turn.text) == ("completed", "There are twelve.")
    returned = model.asked[-1][-1].parts[0]
    assert (returned.tool_name, returned.content) == ("look", 12)


async def test_selling_waits_for_the_approval_of_the_baker() -> None:
    selling = call("sell", id="c1", bread="rye", loaves=3)
    model = ScriptedModel(selling, text("Here you are."))
    async with running(App(agents=[Bakery]), models={Bakery: model}) as world:
        shop = await world.get_agent(Bakery, "corner")

        turn = await shop.send("I take three.")
        assert turn.status == "waiting"
        assert await shop.look("rye") == 12

        await world.crash()  # the question stays open
        shop = await world.get_agent(Bakery, "corner")
        await shop.questions.approve("c1")
        turn = await shop.turns.wait(turn.id)

        assert (turn.status, turn.text) == ("completed", "Here you are.")
        assert await shop.look("rye") == 9
