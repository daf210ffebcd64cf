"""A test with a scripted model, a crash and a clock, as a user writes it."""

from __future__ import annotations

from datetime import timedelta

from desk import Deps, Desk, Orders
from sapwood import App
from sapwood.testing import ScriptedModel, call, running, text


async def test_a_refund_waits_for_approval_across_a_crash() -> None:
    model = ScriptedModel(call("refund", order="o-1"), text("Refunded."), text("Did it arrive?"))
    app = App(agents=[Desk], deps=Deps(orders=Orders()), model=model)

    async with running(app) as world:
        desk = await world.get_agent(Desk, "alice")
        turn = await desk.send("Refund o-1, please.")
        assert turn.status == "waiting"

        await world.crash()

        desk = await world.get_agent(Desk, "alice")
        (approval,) = await desk.approvals()
        await desk.approve(approval.id)
        assert (await desk.last_message()).text == "Refunded."

        await desk.follow_up("o-1", days=2)
        await world.clock.advance(timedelta(days=2))
        assert (await desk.last_message()).text == "Did it arrive?"
