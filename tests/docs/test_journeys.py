"""The page "Three journeys" lists the modules that a call really passes, in order."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.docs.journeys import Journey, JourneyRecorder
from tests.faults.line import Line

from sapwood import After, Agent, App, ChatAgent, agent_tool, expose
from sapwood.testing import ScriptedModel, World, call, running, text

PAGE = Path(__file__).parents[2] / "docs/explanation/three-journeys.md"
SCOPE = {
    "type": "websocket",
    "path": "/agents/journey-bell/a",
    "raw_path": b"/agents/journey-bell/a",
    "query_string": b"",
    "headers": [],
    "root_path": "",
    "scheme": "ws",
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 80),
}
MOST_MODULES = 20
MOST_RETURNS = 6

recorder = JourneyRecorder()


class JourneyBell(Agent):
    @expose
    async def ring(self) -> None:
        recorder.arrived()

    async def ring_later(self) -> None:
        self.schedule(After(timedelta(minutes=1)), self.ring)


class JourneyHelper(Agent):
    """Helps."""

    async def on_run(self, input: str) -> str:
        recorder.arrived()
        return "done"


class JourneyBoss(ChatAgent):
    tools = (agent_tool(JourneyHelper),)


@pytest.fixture
async def world() -> AsyncGenerator[World, None]:
    model = ScriptedModel(call("journey_helper", id="c1", message="help"), text("It is done."))
    recorder.journey = None
    async with running(App(agents=[JourneyBell, JourneyBoss]), models={JourneyBoss: model}) as world:
        yield world


async def arrival(world: World) -> Journey:
    await world.until(lambda: recorder.journey is not None)
    assert recorder.journey is not None
    return recorder.journey


async def test_a_socket_call(world: World) -> None:
    line = Line("a client")
    with recorder.recording():
        socket = asyncio.create_task(world.app(SCOPE, line.inbox.get, line.send))
        line.say(json.dumps({"type": "rpc", "id": "1", "method": "ring", "args": []}))
        journey = await arrival(world)
        line.leave()
        await socket

    check("A socket call", journey)


async def test_a_schedule(world: World) -> None:
    await (await world.get_agent(JourneyBell, "a")).ring_later()
    world.sleep()
    with recorder.recording():
        await world.clock.advance(timedelta(minutes=1))
        journey = await arrival(world)

    check("A schedule", journey)


async def test_an_agent_tool_call(world: World) -> None:
    boss = await world.get_agent(JourneyBoss, "b")
    with recorder.recording():
        await boss.send("Please help.")
        journey = (await arrival(world)).since("chat/turn/active_turn.py")

    check("An agent tool call", journey)
    assert len(journey.modules) <= MOST_MODULES
    assert journey.returns <= MOST_RETURNS


def check(heading: str, journey: Journey) -> None:
    """Check that the page has this journey, and its figures."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    rows = re.findall(r"^\| (\d+) \| `([\w/.]+)` \|", section[1], re.MULTILINE)
    assert rows == [(str(number), module) for number, task in enumerate(journey.tasks, 1) for module in task]
    figures = re.search(r"(\d+) modules and returns to a package that it has left (\d+) times?", section[1])
    assert figures is not None
    assert (int(figures[1]), int(figures[2])) == (len(journey.modules), journey.returns)
