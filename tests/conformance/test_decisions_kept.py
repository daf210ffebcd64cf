"""A decision of a person outlives the conversation, the runs above it and the retention of runs."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from sapwood import App, ChatAgent, NotFound, Retention, Unavailable, agent_tool, tool
from sapwood.testing import ScriptedModel, World, call, running, text


class KeptPayer(ChatAgent):
    """Pays."""

    model = ScriptedModel(call("pay", id="k", euros=3), text("paid"), each=True)

    @tool(requires_approval=True)
    async def pay(self, euros: int) -> str:
        """Pay."""
        return f"{euros} euros"

    async def decisions(self) -> list[str]:
        return [one["kind"] for one in (await self.conversation.export())["decisions"]]


class KeptMiddle(ChatAgent):
    """Passes it on."""

    model = ScriptedModel(call("kept_payer", id="c2", message="pay"), text("passed on"), each=True)
    tools = (agent_tool(KeptPayer),)


class KeptTop(ChatAgent):
    """Asks for it."""

    model = ScriptedModel(call("kept_middle", id="c1", message="pay"), text("done"), each=True)
    tools = (agent_tool(KeptMiddle),)

    async def unpin(self) -> None:
        for run in self.runs.list():
            self.runs.unpin(run.id)

    async def forget_runs(self) -> int:
        return await self.runs.clear()


class KeptBriefly(KeptTop):
    """Keeps no finished run."""

    run_retention = Retention(count=0)


PATH: Any = ((KeptMiddle, "agent-tool:c1"), (KeptPayer, "agent-tool:c2"))


async def paid(world: World, cls: type[KeptTop]) -> KeptTop:
    """Return the agent at the top, after the payment two levels below was approved and made."""
    top = await world.get_agent(cls, "t")
    turn = await top.turns.start("pay")
    await world.settled()
    (question,) = await top.questions.list()
    assert await top.questions.approve(question)
    assert (await top.turns.wait(turn.id)).status == "completed"
    return top


async def decisions(world: World, cls: type[KeptTop]) -> list[str]:
    return await (await world.get_agent(cls, "t", sub=PATH)).decisions()


async def test_a_conversation_that_is_cleared_keeps_the_decisions_below() -> None:
    async with running(App(agents=[KeptTop])) as world:
        top = await paid(world, KeptTop)

        await top.conversation.clear()
        assert await top.forget_runs() == 0
        await world.settled()
        await world.restart()

        assert await decisions(world, KeptTop) == ["approved", "outcome"]


async def test_retention_keeps_decisions_until_the_run_is_unpinned() -> None:
    async with running(App(agents=[KeptBriefly])) as world:
        top = await paid(world, KeptBriefly)
        await world.clock.advance(90_000)
        await world.settled()
        assert await decisions(world, KeptBriefly) == ["approved", "outcome"]

        await top.unpin()
        await world.clock.advance(90_000)
        await world.settled()

        with pytest.raises(NotFound):
            await decisions(world, KeptBriefly)


@pytest.mark.slow
@pytest.mark.parametrize("nth", range(1, 12))
async def test_killed_at_any_commit_of_an_answer_no_decision_can_be_cleared(nth: int) -> None:
    async with running(App(agents=[KeptTop])) as world:
        top = await world.get_agent(KeptTop, "t")
        await top.turns.start("pay")
        await world.settled()
        (question,) = await top.questions.list()
        world.crash_at("committed", nth)
        with contextlib.suppress(Unavailable):
            await top.questions.approve(question)
            await world.settled()
        await world.crash()
        await world.settled()
        try:
            before = await decisions(world, KeptTop)
        except NotFound:
            before = []

        await (await world.get_agent(KeptTop, "t")).conversation.clear()
        await world.settled()

        if before:
            assert await decisions(world, KeptTop) == before
