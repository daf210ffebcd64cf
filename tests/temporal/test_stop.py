"""Stop under Temporal, proven at the provider: all its connections close, however many workflows there are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.chats import Talking, cancel, done, say, user
from tests.e2e.provider import OpenAIChat, Provider, Reply, providing
from tests.machine import patience
from tests.temporal.cluster import Temporal, driven

from sapwood import ChatAgent, agent_tool
from sapwood.testing import ScriptedModel, call, calls

CREW = 50
HELD = Reply(OpenAIChat().events(["word "] * 5), holds_after=3)


def crew(port: int) -> Any:
    """Return a class of agents that use fifty others, each of which asks a provider."""

    class StoppedMate(ChatAgent):
        """Asks a provider."""

        model = OpenAIChat().model(port)

    class StoppedCrew(Talking):
        model = ScriptedModel(calls(*(call("stopped_mate", id=f"c{at}", message="go on") for at in range(CREW))))
        tools = (agent_tool(StoppedMate),)

    return StoppedCrew


async def all_speak(provider: Provider) -> None:
    async with asyncio.timeout(patience(120)):
        while len(provider.requests) < CREW:  # noqa: ASYNC110 - it tells of one at a time
            await asyncio.sleep(0.01)
        for request in provider.requests:
            await request.sent.wait()


@pytest.mark.nightly
async def test_a_stop_closes_every_connection_below_fifty_child_workflows(temporal: Temporal, tmp_path: Path) -> None:
    async with providing(HELD) as provider, driven(temporal, tmp_path, crew(provider.port), patience=10) as one:
        client = await one.one.join(f"/agents/stopped-crew/{one.name}")
        await say(client, "r1", user("hi"))
        await all_speak(provider)

        await cancel(client, "r1")
        async with asyncio.timeout(patience()):
            for request in provider.requests:
                await request.left.wait()

        assert (await done(client, "r1"))["outcome"] == "aborted"
        ends = await one.closed(CREW + 1)
        assert set(ends.values()) == {"COMPLETED"}
