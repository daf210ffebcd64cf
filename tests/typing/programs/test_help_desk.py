"""A test of the support desk: with a scripted model, a crash and a clock."""

from __future__ import annotations

from datetime import timedelta

from help_desk import Deps, Desk, Shop, approve_refunds
from sapwood import App
from sapwood.testing import ScriptedModel, call, running, text


async def test_a_refund_waits_for_approval_across_a_crash() -> None:
    model = ScriptedModel(call("refund", number="o-1"), text("Refunded."), text("Did it arrive?"))
    app = App(agents=[Desk], deps=Deps(Shop()))

    async with running(app, models={Desk: model}) as world:
        desk = await world.get_agent(Desk, "alice")
        turn = await desk.send("Refund o-1, please.")
        assert turn.status == "waiting"

        await world.crash()

        desk = await world.get_agent(Desk, "alice")
        assert await approve_refunds(desk) == []
        turn = await desk.turns.wait(turn.id)
        assert turn.output == "Refunded."

        await world.clock.advance(timedelta(days=3))
        while not (found := await desk.conversation.search("arrive?")):
            await world.clock.advance(1)
        assert found[0]["role"] == "assistant"
