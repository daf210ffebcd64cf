"""A test with a scripted model, a crash and a clock, as a user writes it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from desk import Deps, Desk, Orders, approve_all
from sapwood import App
from sapwood.testing import ScriptedModel, call, running, text


async def test_a_refund_waits_for_approval_across_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel(call("refund", order="o-1"), text("Refunded."), text("Did it arrive?"))
    monkeypatch.setattr(Desk, "model", model)
    app = App(agents=[Desk], deps=Deps(orders=Orders()))

    async with running(app) as world:
        desk = await world.get_agent(Desk, "alice")
        turn = await desk.send("Refund o-1, please.")
        assert turn.status == "waiting"

        await world.crash()

        desk = await world.get_agent(Desk, "alice")
        turn = await approve_all(desk, turn)
        assert turn.text == "Refunded."

        await desk.follow_up("o-1", days=2)
        await world.clock.advance(timedelta(days=2))
        while not (found := await desk.conversation.search("arrive?")):  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.01)
        assert found[0]["role"] == "assistant"
