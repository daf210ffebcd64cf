"""Stop, proven at the provider: all its connections below an agent are closed, and nobody else's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.conformance.chats import Talking, cancel, done, say, user
from tests.conformance.served import served
from tests.e2e.provider import OpenAIChat, Provider, Reply, providing
from tests.machine import patience

from sapwood import App, ChatAgent, agent_tool, tool
from sapwood.testing import ScriptedModel, call, calls, text

WIDE = 3
WORDS = OpenAIChat().events(["word "] * 5)
HELD = Reply(WORDS, holds_after=3)


async def asked(provider: Provider, n: int) -> None:
    """Wait until so many requests have come, and something was said in each."""
    async with asyncio.timeout(patience()):
        while len(provider.requests) < n:  # noqa: ASYNC110 - it tells of one at a time
            await asyncio.sleep(0.01)
        for request in provider.requests:
            await request.sent.wait()


def tree(port: int) -> Any:
    """Return a class of agents with three levels below them, of which the last asks a provider."""
    http = OpenAIChat().model(port)
    use = [("go", f"c{at}", {"message": "go on"}) for at in range(WIDE)]

    def used(name: str) -> ScriptedModel:
        return ScriptedModel(calls(*(call(name, id=id, **input) for _, id, input in use)), each=True)

    class StopLeaf(ChatAgent):
        """Asks a provider."""

        model = http

    class StopTwig(ChatAgent):
        """Uses leaves."""

        model = used("stop_leaf")
        tools = (agent_tool(StopLeaf),)

    class StopBranch(ChatAgent):
        """Uses twigs."""

        model = used("stop_twig")
        tools = (agent_tool(StopTwig),)

    class StopTrunk(Talking):
        model = used("stop_branch")
        tools = (agent_tool(StopBranch),)

    return StopTrunk


@pytest.mark.promise("B-32")
async def test_a_stop_closes_every_connection_three_levels_below_and_is_timed() -> None:
    async with providing(HELD) as provider, served(App(agents=[cls := tree(provider.port)])) as one:
        client = await one.join("/agents/stop-trunk/t")
        await say(client, "r1", user("hi"))
        await asked(provider, WIDE**3)

        await cancel(client, "r1")
        async with asyncio.timeout(patience()):
            for request in provider.requests:
                await request.left.wait()

        assert (await done(client, "r1"))["outcome"] == "aborted"
        trunk = await one.world.get_agent(cls, "t")
        assert [status for _, status in await trunk.ends()] == ["cancelled"]
        figures = (await one.site.http("/metrics")).text
        assert "sapwood_interrupt_seconds_count 1.0" in figures
        await one.world.settled()


async def test_who_took_over_a_connection_is_not_stopped_with_whom_had_it_before() -> None:
    use = OpenAIChat().events([], [("hold", {}, "c1")])
    async with providing(Reply(use, stays=True), Reply(WORDS, delay=0.02)) as provider:
        shared = OpenAIChat().model(provider.port)
        at_work, gate = asyncio.Event(), asyncio.Event()

        class StopHolder(Talking):
            model = shared

            @tool
            async def hold(self) -> str:
                """Hold."""
                at_work.set()
                await gate.wait()
                return "held"

        async with shared, served(App(agents=[StopHolder])) as one:
            first = await one.join("/agents/stop-holder/a")
            second = await one.join("/agents/stop-holder/b")
            await say(first, "r1", user("hi"))
            await asyncio.wait_for(at_work.wait(), patience())
            await say(second, "r2", user("hi"))
            await provider.asked(2)

            await cancel(first, "r1")

            assert (await done(first, "r1"))["outcome"] == "aborted"
            assert (await done(second, "r2"))["outcome"] == "completed"
            assert provider.connections == 1
            gate.set()


async def test_a_stop_five_levels_up_reaches_the_provider() -> None:
    async with providing(HELD) as provider:

        class StopDeep(ChatAgent):
            """Asks a provider."""

            model = OpenAIChat().model(provider.port)

        cls: Any = StopDeep
        for level in range(5):
            lines = ScriptedModel(call("below", id="c1", message="go on"), text("done"), each=True)
            tools = (agent_tool(cls, name="below", description="Goes on."),)
            base = Talking if level == 4 else ChatAgent
            cls = type(f"StopLevel{level}", (base,), {"model": lines, "tools": tools})
        async with served(App(agents=[cls])) as one:
            client = await one.join("/agents/stop-level4/t")
            await say(client, "r1", user("hi"))
            await asked(provider, 1)

            await cancel(client, "r1")

            await asyncio.wait_for(provider.requests[0].left.wait(), patience())
            assert (await done(client, "r1"))["outcome"] == "aborted"
            await one.world.settled()
