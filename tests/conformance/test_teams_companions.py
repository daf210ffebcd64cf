"""Persistent children: a model spawns them, tells them more while they work, hears of their end, and terminates them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.conformance.chats import check_history, check_transcript, text_of
from tests.conformance.errands import Bench, again, caller, helper, over, running, working

from sapwood import ChatAgent, Run, persistent_agent
from sapwood.testing import ScriptedModel, call, calls, text

FIVE = ["get_child_status", "list_children", "send_message", "spawn_agent", "terminate_child"]


def writer(*lines: Any, **settings: Any) -> Any:
    """Make a class of children that say these lines."""
    return helper(ScriptedModel(*lines, each=True), "CompanionWriter", **settings)


def spawn(name: str = "ann", message: str = "Write.", id: str = "c1", agent: str = "companion_writer") -> Any:
    return call("spawn_agent", id=id, agent=agent, name=name, message=message)


def returns(transcript: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what each tool call returned, or the error it ended with."""
    return {
        part["toolCallId"]: part.get("output", part.get("errorText"))
        for message in transcript
        for part in message["parts"]
        if "toolCallId" in part
    }


def refusal(transcript: list[dict[str, Any]], id: str) -> str:
    """Return the code with which a call was refused."""
    told = json.loads(returns(transcript)[id])
    assert (told["ok"], told["retryable"]) == (False, False)
    assert told["error"]
    return told["code"]


async def test_a_blocking_spawn_returns_the_result_and_the_child_stays(level: str) -> None:
    cls = caller(ScriptedModel(spawn(), text("Thank you.")), persistent_agent(writer(text("A poem."))))
    async with working(cls, durability=level) as (_, agent, _):
        turn = await agent.send("go")

        assert turn.text == "Thank you."
        assert returns(await agent.transcript())["c1"] == {"name": "ann", "status": "completed", "result": "A poem."}
        (run,) = await agent.runs()
        assert (run.id, run.mode, run.agent.name, run.status) == ("agent-tool:c1", "persistent", "ann", "completed")
        assert await agent.children() == ["ann"]
        check_history(json.loads(await agent.seen_by_model()))
        check_transcript(await agent.transcript())
