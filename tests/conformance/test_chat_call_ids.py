"""Tool calls whose ids a model uses twice in a turn are two calls: each has a result of its own, also after a crash."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases import slow
from tests.conformance.runtimes import running
from tests.conformance.worlds import until

from sapwood import Agent, App, ChatAgent, agent_tool, tool
from sapwood.testing import ScriptedModel, call, calls, text

WENT: list[str] = []


class IdTraveller(Agent):
    """Goes somewhere."""

    async def on_run(self, message: str) -> str:
        WENT.append(message)
        return f"in {message}"


class IdDesk(ChatAgent):
    """Its model numbers the calls of each response from 0."""

    model = ScriptedModel(
        calls(call("go", message="Bonn", id="call_0"), call("fetch", city="Rome", id="call_1")),
        calls(call("go", message="Oslo", id="call_0"), call("fetch", city="Paris", id="call_1")),
        text("done"),
        each=True,
    )
    tools = (agent_tool(IdTraveller, name="go"),)

    @tool
    async def fetch(self, city: str) -> str:
        """Fetch something from a city."""
        return (await self.run_agent(IdTraveller, city)).output


class IdTwins(ChatAgent):
    """Its model uses one id for all calls of a response."""

    model = ScriptedModel(calls(call("say", word="a", id="x"), call("say", word="b", id="x")), text("done"), each=True)

    @tool
    async def say(self, word: str) -> str:
        """Say a word."""
        return word


def outputs(messages: list[Any]) -> list[tuple[str, Any, Any]]:
    parts = [part for message in messages for part in message["parts"] if "toolCallId" in part]
    return [(part["toolCallId"], next(iter(part["input"].values())), part.get("output")) for part in parts]


@pytest.mark.parametrize("crashes", [True, *slow([False])])
async def test_a_call_with_the_id_of_an_earlier_one_has_a_result_of_its_own(crashes: bool) -> None:
    WENT.clear()
    async with running(App(agents=[IdDesk])) as world:
        desk = await world.get_agent(IdDesk, "d")
        await desk.turns.start("go", id="m1")
        if crashes:
            await until(lambda: len(WENT) >= 3)
            await world.crash()
            desk = await world.get_agent(IdDesk, "d")
        assert (await desk.turns.wait("m1")).status == "completed"
        assert outputs(await desk.conversation.messages()) == [
            ("call_0", "Bonn", "in Bonn"),
            ("call_1", "Rome", "in Rome"),
            ("call_0~2", "Oslo", "in Oslo"),
            ("call_1~2", "Paris", "in Paris"),
        ]
        assert set(WENT) == {"Bonn", "Rome", "Oslo", "Paris"}


async def test_calls_of_one_response_with_one_id_are_all_made() -> None:
    async with running(App(agents=[IdTwins])) as world:
        desk = await world.get_agent(IdTwins, "d")
        assert (await desk.send("go")).status == "completed"
        assert outputs(await desk.conversation.messages()) == [("x", "a", "a"), ("x~1", "b", "b")]
