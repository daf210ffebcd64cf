"""The timelines of agents that wait for one another tell the wait for a person, and the crash in it, on every level."""

from __future__ import annotations

from typing import Any

from tests.conformance.chats import Talking
from tests.conformance.runtimes import open_questions, operator, running

from sapwood import App, agent_tool, tool
from sapwood.testing import ScriptedModel, World, call, text


class LevelPayer(Talking):
    """Pays."""

    model = ScriptedModel(call("pay", amount=3, id="p1"), text("paid"), each=True)

    @tool(requires_approval=True)
    async def pay(self, amount: int) -> str:
        """Pay."""
        return f"paid {amount}"


class LevelBroker(Talking):
    """Has something paid."""

    tools = (agent_tool(LevelPayer),)
    model = ScriptedModel(call("level_payer", id="l1", message="go"), text("done"), each=True)


class LevelBuyer(Talking):
    tools = (agent_tool(LevelBroker),)
    model = ScriptedModel(call("level_broker", id="m1", message="go"), text("bought"), each=True)


async def levels(world: World) -> list[dict[str, Any]]:
    """Return what is told of each agent, from the root downwards."""
    found, address = list[dict[str, Any]](), "LevelBuyer:b"
    while True:
        admin = operator(world, address)
        (work,) = (await admin.explain(address))["spans"]
        found.append(await admin.explain(address, work["work"].removeprefix("run ")))
        run = next((one for one in found[-1]["spans"] if one["kind"] == "run"), None)
        if run is None:
            return found
        address = f"{address}/{run['name']}:{run['facts']['child']}"


def of_kind(told: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [one for one in told["spans"] if one["kind"] == kind]


async def test_a_wait_and_a_crash_in_it_are_told_on_every_level() -> None:
    async with running(App(agents=[LevelBuyer])) as world:
        buyer = await world.get_agent(LevelBuyer, "b")
        turn = (await buyer.turns.start("buy")).id
        await open_questions(buyer)
        await world.clock.advance(60)
        await world.crash()
        await world.clock.advance(60)
        buyer = await world.get_agent(LevelBuyer, "b")

        top, middle, bottom = await levels(world)
        assert [one["status"] for told in (top, middle) for one in of_kind(told, "run")] == ["waiting", "waiting"]
        assert [one["status"] for one in of_kind(bottom, "wait")] == ["running"]

        (question,) = await buyer.questions.list()
        await buyer.questions.approve(question)
        assert (await buyer.turns.wait(turn)).status == "completed"
        await world.settled()

        told = await levels(world)
        assert len(told) == 3
        for one in told:
            waited = (of_kind(one, "run") or of_kind(one, "wait"))[0]
            first, second = one["incarnations"]
            assert (waited["incarnation"], waited["status"]) == (first["number"], "completed")
            assert waited["ended_at"] - waited["began_at"] >= 60
            assert first["crashed_at"] is None
            assert waited["began_at"] < second["crashed_at"] <= second["began_at"] <= waited["ended_at"]
            assert one["spans"][-1]["incarnation"] == second["number"]
            assert {span["attempt"] for span in one["spans"]} == {1}


async def test_a_restart_is_no_crash() -> None:
    async with running(App(agents=[LevelBuyer])) as world:
        buyer = await world.get_agent(LevelBuyer, "b")
        turn = (await buyer.turns.start("buy")).id
        await open_questions(buyer)
        await world.restart()
        buyer = await world.get_agent(LevelBuyer, "b")
        (question,) = await buyer.questions.list()
        await buyer.questions.approve(question)
        await buyer.turns.wait(turn)
        await world.settled()

        assert {one["crashed_at"] for told in await levels(world) for one in told["incarnations"]} == {None}
