"""Whoever drives them, agents do the same.

Two promises by name; all the others are those of the conformance tests, with ``--driver temporal``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from tests.conformance.chats import RESPONSE, cancel, done, say, streamed, user
from tests.conformance.drivers import driven_by
from tests.conformance.errands import caller, working
from tests.conformance.served import served
from tests.conformance.test_teams_companions import Keeping, Scribe, child_of, helper, message, returns, spawn
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Turn, persistent_agent, tool
from sapwood.drivers.temporal import TemporalDriver
from sapwood.drivers.temporal.driver import workflow_id
from sapwood.testing import ScriptedModel, World, call, text
from sapwood.types import Address


@pytest.fixture(scope="module", params=["fiber", "temporal"], autouse=True)
def driver(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    with driven_by(request.param):
        yield


class AlikeTalker(ChatAgent):
    """Talks, and notes which of its hooks are called."""

    deps: list[str]
    model = ScriptedModel()

    @tool
    async def look(self) -> str:
        """Look around."""
        return "a tree"

    async def before_turn(self, turn: Turn) -> None:
        self.deps.append(f"turn {turn.id}")

    async def before_step(self, turn: Turn, step: int) -> None:
        self.deps.append(f"step {step}")

    async def before_tool_call(self, tool: str, arguments: dict[str, Any]) -> None:
        self.deps.append(f"before {tool}")

    async def after_tool_call(self, tool: str, arguments: dict[str, Any], result: Any) -> None:
        self.deps.append(f"after {tool} {result}")

    async def after_turn(self, turn: Turn) -> None:
        self.deps.append(f"end {turn.status} {turn.text}")


class AlikeRoot(Agent):
    async def on_start(self) -> None:
        await self.sub_agent(AlikeTalker, "t")


@pytest.mark.nightly
@pytest.mark.promise("A-186")
async def test_hooks_routing_and_interrupts_are_alike_whoever_drives(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel(call("look", id="c1"), text("seen"), text("once upon a time", gate=asyncio.Event()))
    monkeypatch.setattr(AlikeTalker, "model", model)
    log: list[str] = []
    async with asyncio.timeout(patience()), served(App(agents=[AlikeRoot], deps=log)) as one:
        root = await one.join("/agents/alike-root/r")
        client = await one.join("/agents/alike-root/r/sub/alike-talker/t")
        await say(client, "r1", user("look", "u1"))
        assert (await done(client, "r1"))["outcome"] == "completed"
        await say(client, "r2", user("tell", "u2"))
        await streamed(client, "r2", "once")

        await cancel(client, "r2")

        assert (await done(client, "r2"))["outcome"] == "aborted"
        assert model.cancelled == 1
        assert not root.of_type(RESPONSE)
        assert log == [
            *("turn r1", "step 1", "before look", "after look a tree", "step 2", "end completed seen"),
            *("turn r2", "step 1", "end cancelled once"),
        ]
        await in_temporal(one.world, "AlikeRoot:r/AlikeTalker:t", r1="completed", r2="cancelled")


@pytest.mark.promise("A-223")
async def test_companion_tools_work_alike_whoever_drives() -> None:
    child = helper(ScriptedModel(text("One."), text("Two."), each=True), "Scribe", base=Scribe)
    ours = ScriptedModel(
        spawn(),
        message("And now?"),
        call("wait_for_result", id="w1", name="ann"),
        call("get_child_status", id="s1", name="ann"),
        call("terminate_child", id="t1", name="ann"),
        call("list_children", id="l1"),
        text("Thank you."),
    )
    async with working(cls := caller(ours, persistent_agent(child), base=Keeping, worker_class=child)) as (
        one,
        agent,
        _,
    ):
        turn = await agent.send("go")

        assert turn.text == "Thank you."
        told = await returns(agent)
        assert told["c1"] == {"name": "ann", "status": "completed", "result": "One."}
        assert told["m1"] == {"name": "ann", "agent": "scribe", "status": "running", "delivered": "task"}
        assert told["w1"] == {"name": "ann", "status": "completed", "result": "Two."}
        assert (told["s1"]["status"], told["s1"]["tasks"]) == ("completed", 2)
        assert told["t1"] == {"name": "ann", "status": "terminated", "was_running": False}
        assert [child["status"] for child in told["l1"]] == ["terminated"]
        assert await (await child_of(one, cls, child)).seen() == ["Write.", "One.", "And now?", "Two."]
        runs = {"agent-tool:c1": "completed", "agent-tool:m1": "completed"}
        await in_temporal(one.world, "Caller:c", **{turn.id: "completed"})
        await in_temporal(
            one.world, "Caller:c/Scribe:ann", above=workflow_id(Address.parse("Caller:c"), turn.id), **runs
        )


async def in_temporal(world: World, address: str, above: str | None = None, **ended: str) -> None:
    """Check that turns or runs were driven by workflows, if anybody but the agent drives."""
    if not isinstance(world.app.driver, TemporalDriver):
        return
    client = await world.app.driver.connect()
    for id, how in ended.items():
        workflow = client.get_workflow_handle(workflow_id(Address.parse(address), id))
        assert await workflow.result() == how
        assert (await workflow.describe()).parent_id == above
