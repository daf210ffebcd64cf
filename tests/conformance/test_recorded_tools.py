"""`running(app, tools=…)` replaces all tools of a chat agent by recorded results."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelRetry

from sapwood import Agent, App, ChatAgent, agent_tool, persistent_agent, tool
from sapwood.errors import InvalidArguments, UsageError
from sapwood.testing import RecordedTools, ScriptedModel, ToolResult, call, calls, running, text


class RiverScout(Agent):
    """Scouts rivers."""

    async def on_run(self, river: str) -> str:
        raise AssertionError("A recorded agent does not run.")


class RecordedDesk(ChatAgent):
    tools = (agent_tool(RiverScout), persistent_agent(RiverScout, name="pet"))

    @tool
    async def look(self, about: str) -> str:
        """Look something up."""
        raise AssertionError("A recorded tool does not run.")

    @tool(requires_approval=True)
    async def pay(self, amount: int) -> str:
        """Pay."""
        raise AssertionError("A recorded tool does not run.")


async def answer(*lines: Any, tools: RecordedTools, cls: type[ChatAgent[Any]] = RecordedDesk) -> Any:
    model = ScriptedModel(*lines)
    async with running(App(agents=[cls]), models={cls: model}, tools={cls: tools}) as world:
        return await (await world.get_agent(cls, "a")).send("How long is the Nile?"), model


async def test_no_tool_runs_and_every_call_has_its_result() -> None:
    made = [
        call("look", {"about": "rivers"}, id="c1"),
        call("pay", amount=3, id="c2"),
        call("river_scout", {"message": "Nile"}, id="c3"),
        call("spawn_pet", name="rex", task="bark", id="c4"),
        call("of_the_client", id="c5"),
        call("of_a_server", '{"as": "text"}', id="c6"),
    ]
    results = {
        "c1": {"km": 6650},
        "c2": ToolResult.failed("Not now."),
        "c3": [1, None],
        "c4": "ok",
        "c5": True,
        "c6": 1,
    }
    tools = RecordedTools(results)

    turn, model = await answer(calls(text("Let me look. "), *made), text("6650 km"), tools=tools)

    assert (turn.status, turn.text) == ("completed", "Let me look. 6650 km")
    returned = {part.tool_call_id: (part.content, part.outcome) for part in model.asked[1][-1].parts}
    assert returned.pop("c2") == ("Not now.", "failed")
    assert returned == {id: (value, "success") for id, value in results.items() if id != "c2"}
    assert tools.calls == [*made[:-1], call("of_a_server", {"as": "text"}, id="c6")]


async def test_arguments_that_are_no_json_are_corrected() -> None:
    tools = RecordedTools({"c1": ToolResult.retry("Invalid JSON"), "c2": 1})

    turn, model = await answer(call("look", '{"broken": ', id="c1"), call("look", id="c2"), text("1"), tools=tools)

    assert turn.status == "completed"
    assert model.asked[1][-1].parts[0].outcome == "retried"
    assert tools.calls[0] == call("look", '{"broken": ', id="c1")


async def test_a_call_may_have_to_be_corrected() -> None:
    tools = RecordedTools({"c1": ToolResult.retry("Which river?"), "c2": "6650 km"})

    turn, model = await answer(call("look", id="c1"), call("look", id="c2"), text("6650 km"), tools=tools)

    assert turn.status == "completed"
    assert "Which river?" in model.asked[1][-1].parts[0].content


async def test_a_call_that_stalls_can_be_cancelled() -> None:
    tools = RecordedTools({"c1": ToolResult.stalled()})
    model = ScriptedModel(call("look", id="c1"))
    async with running(App(agents=[RecordedDesk]), models={RecordedDesk: model}, tools={RecordedDesk: tools}) as world:
        desk = await world.get_agent(RecordedDesk, "a")
        sending = asyncio.create_task(desk.send("How long is the Nile?"))
        await world.until(lambda: tools.is_stalled)
        await desk.turns.cancel()
        assert (await sending).status == "cancelled"


async def test_a_model_that_stalls_can_be_cancelled() -> None:
    model = ScriptedModel(text("The Nile is", stalls=True))
    async with running(App(agents=[RecordedDesk]), models={RecordedDesk: model}) as world:
        desk = await world.get_agent(RecordedDesk, "a")
        sending = asyncio.create_task(desk.send("How long is the Nile?"))
        await world.until(lambda: model.is_stalled)
        await desk.turns.cancel()
        turn = await sending
    assert (turn.status, turn.text, model.cancelled) == ("cancelled", "The Nile is", 1)


class Lengths(ChatAgent[int]):
    def _measure(self, km: int) -> int:
        raise AssertionError("A recorded output function does not run.")

    output_type = _measure


async def test_an_output_function_does_not_run() -> None:
    tools = RecordedTools({"c1": ToolResult.output_retry("Too short."), "c2": ToolResult.output(6650)})

    made = [call("final_result", km=1, id="c1"), call("final_result", km=2, id="c2")]

    turn, model = await answer(*made, tools=tools, cls=Lengths)

    assert (turn.status, turn.output) == ("completed", 6650)
    assert "Too short." in model.asked[1][-1].parts[0].content
    assert tools.calls == made


def explore(about: str) -> str:
    raise ModelRetry("A recorded tool does not run.")


class OwnLoop(ChatAgent):
    loop = PydanticAgent(tools=[explore])


async def test_the_tools_of_an_own_pydantic_agent_do_not_run() -> None:
    tools = RecordedTools({"c1": "found"})

    turn, model = await answer(call("explore", about="x", id="c1"), text("done"), tools=tools, cls=OwnLoop)

    assert turn.text == "done"
    assert model.asked[1][-1].parts[0].content == "found"


async def test_a_call_without_a_result_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="called look with the id 'c9', which has no recorded result"):
        await answer(call("look", about="rivers", id="c9"), text("done"), tools=RecordedTools())


async def test_a_result_that_is_not_used_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="did not make these calls, which have recorded results: 'c1', 'c2'"):
        await answer(text("done"), tools=RecordedTools({"c1": 1, "c2": 2}))


async def test_a_test_that_fails_says_why_itself() -> None:
    with pytest.raises(KeyError):
        async with running(App(agents=[RecordedDesk]), tools={RecordedDesk: RecordedTools({"c1": 1})}):
            raise KeyError("x")


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ({RiverScout: RecordedTools()}, "expected chat agent classes"),
        ({RecordedDesk: {"c1": 1}}, r"RecordedTools\(…\)"),
    ],
)
async def test_only_recorded_tools_of_chat_agents_are_accepted(tools: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        async with running(App(agents=[RecordedDesk]), tools=tools):
            raise AssertionError


def message(id: str, role: str, *parts: Any) -> dict[str, Any]:
    return {"id": id, "role": role, "parts": [{"type": "text", "text": one} for one in parts]}


async def test_a_conversation_begins_with_the_messages_of_the_test() -> None:
    model = ScriptedModel(text("Nile"))
    picture = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,aGVsbG8="}
    before = [
        message("m1", "user", "Hi"),
        message("m2", "assistant", "Hello", "!"),
        {"id": "m3", "role": "user", "parts": [picture]},
        {"id": "m4", "role": "assistant", "parts": [{"type": "step-start"}]},
    ]
    async with running(App(agents=[RecordedDesk]), models={RecordedDesk: model}) as world:
        desk = await world.get_agent(RecordedDesk, "a")
        await world.put_messages(desk, before)
        await world.crash()
        desk = await world.get_agent(RecordedDesk, "a")
        await desk.send("The longest?")
        stored = await desk.conversation.messages()

    assert [(one["id"], one["role"]) for one in stored[:4]] == [(one["id"], one["role"]) for one in before]
    (sent,) = model.asked
    assert [part.content for one in sent for part in one.parts if isinstance(part.content, str)] == [
        *("Hi", "Hello!"),
        "The longest?",
    ]
    assert [part.content[0].data for one in sent for part in one.parts if isinstance(part.content, list)] == [b"hello"]


async def test_messages_are_checked_before_one_is_stored() -> None:
    async with running(App(agents=[RecordedDesk, RiverScout])) as world:
        desk = await world.get_agent(RecordedDesk, "a")
        with pytest.raises(InvalidArguments, match="role"):
            await world.put_messages(desk, [message("m1", "user", "Hi"), message("m2", "system", "Obey")])
        with pytest.raises(InvalidArguments, match="id"):
            await world.put_messages(desk, [message("", "user", "Hi")])
        assert await desk.conversation.messages() == []
        with pytest.raises(UsageError, match="not a chat agent"):
            await world.put_messages(await world.get_agent(RiverScout, "a"), [])
