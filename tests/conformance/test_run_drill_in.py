"""Opening a run: its agent has a URL of its own, as long as the run is known, and nobody makes one up."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

from starlette.responses import PlainTextResponse, Response
from tests.conformance.chats import done, say
from tests.conformance.served import served

from sapwood import Agent, App, ChatAgent, SubAgent, agent_tool
from sapwood.testing import ScriptedModel, call, text

RUN = quote("agent-tool:c1", safe="")
CHAT = "/agents/drill-chat/r"


class DrillHelper(ChatAgent[str]):
    """Helps."""

    model = ScriptedModel(text("I help"), text("more help"))

    async def seen(self) -> str:
        return str(self.messages())


class DrillOther(Agent):
    """Never does a run."""


class DrillChat(ChatAgent[str]):
    """Talks, and has helpers."""

    model = ScriptedModel(call("helper", id="c1", message="the question"), text("done"), each=True)
    tools = (agent_tool(DrillHelper, name="helper"),)
    closed = False

    async def children(self) -> list[SubAgent]:
        return self.list_sub_agents()

    async def shut(self) -> None:
        DrillChat.closed = True

    async def forget(self) -> int:
        return await self.clear_runs()

    async def on_before_sub_agent(self, request: Any, child: Any) -> Response | None:
        return PlainTextResponse("closed", 403) if DrillChat.closed else None


def fresh() -> Any:
    DrillHelper.model = ScriptedModel(text("I help"), text("more help"))
    DrillChat.closed = False
    return App(agents=[DrillChat])


async def test_a_run_can_be_opened_under_its_own_class_and_id_and_nothing_else() -> None:
    async with served(fresh()) as one:
        chat = await one.world.get_agent(DrillChat, "r")
        await chat.send("go")

        assert (await one.site.http(f"{CHAT}/sub/drill-helper/{RUN}/get-messages")).status == 200
        for path in (f"drill-other/{RUN}", "drill-helper/agent-tool%3Ac2", "drill-helper/c1"):
            assert (await one.site.http(f"{CHAT}/sub/{path}/get-messages")).status == 404, path
            assert await one.site.refused(f"{CHAT}/sub/{path}") == 4404, path
        assert await one.site.refused(f"{CHAT}/sub/nobody/{RUN}") == 4404
        assert len(await chat.children()) == 1


async def test_opening_a_run_is_asked_for_like_any_child() -> None:
    async with served(fresh()) as one:
        chat = await one.world.get_agent(DrillChat, "r")
        await chat.send("go")
        await chat.shut()

        assert (await one.site.http(f"{CHAT}/sub/drill-helper/{RUN}/get-messages")).text == "closed"
        assert await one.site.refused(f"{CHAT}/sub/drill-helper/{RUN}") == 4403


async def test_a_run_that_was_cleared_away_cannot_be_opened_and_is_not_made_anew() -> None:
    async with served(fresh()) as one:
        chat = await one.world.get_agent(DrillChat, "r")
        await chat.send("go")
        inside = await one.join(f"{CHAT}/sub/drill-helper/{RUN}")
        await chat.forget()

        assert (await inside.ended())[0] == 1001
        assert (await one.site.http(f"{CHAT}/sub/drill-helper/{RUN}/get-messages")).status == 404
        assert not await chat.children()


async def test_who_opens_a_run_talks_on_with_its_agent_and_the_run_stays_what_it_was() -> None:
    async with served(fresh()) as one:
        chat = await one.world.get_agent(DrillChat, "r")
        before = await one.join(CHAT)
        await chat.send("go")
        inside = await one.join(f"{CHAT}/sub/drill-helper/{RUN}")
        messages = json.loads((await one.site.http(f"{CHAT}/sub/drill-helper/{RUN}/get-messages")).body)
        assert [part["text"] for part in messages[0]["parts"]] == ["the question"]
        await say(inside, "q2", *messages, "and now?")
        await done(inside, "q2")

        helper = await one.world.get_agent(DrillChat, "r", sub=((DrillHelper, "agent-tool:c1"),))
        seen = await helper.seen()
        assert "the question" in seen
        assert "and now?" in seen
        after = await one.join(CHAT)
        await after.until(lambda frame: _kind(frame) == "finished")
        assert [_plain(frame) for frame in after.of_type("agent-tool-event")] == [
            _plain(frame) for frame in before.of_type("agent-tool-event")
        ]


async def test_a_turn_in_an_opened_run_is_seen_by_those_who_watch_the_tree_as_its_own() -> None:
    async with served(fresh()) as one:
        chat = await one.world.get_agent(DrillChat, "r")
        await chat.send("go")
        events: list[Any] = []

        async def watch() -> None:
            async for event in chat.subscribe():
                events.append(event)
                if event.run_id is None and event.kind == "finished":
                    return

        watching = asyncio.create_task(watch())
        helper = await one.world.get_agent(DrillChat, "r", sub=((DrillHelper, "agent-tool:c1"),))
        await helper.send("and now?")
        await asyncio.wait_for(watching, 10)

        own = [event for event in events if event.run_id is None]
        assert {event.path[-1].name for event in own} == {"agent-tool:c1"}
        assert own[-1].body["output"] == "more help"
        assert events[0].run_id == "agent-tool:c1"


def _kind(frame: Any) -> str | None:
    return frame["event"]["kind"] if isinstance(frame, dict) and frame.get("type") == "agent-tool-event" else None


def _plain(frame: Any) -> Any:
    return {key: value for key, value in frame.items() if key != "replay"}
