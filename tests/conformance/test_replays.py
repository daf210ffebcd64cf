"""Stored model requests are asked again: by other models, with other instructions, and without any effect."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import msgspec
import pytest
from pydantic_ai import Agent as Loop
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.native_tools import MCPServerTool
from tests.conformance.runtimes import operator, running
from tests.conformance.worlds import until
from tests.unit.admin_requests import LOOK, ask

from sapwood import Agent, App, ChatAgent, Limits, tool
from sapwood.admin.access import Access, Scope
from sapwood.errors import InvalidArguments, NotFound, Refused, StoredDataError, UsageError
from sapwood.testing import ScriptedModel, World, call, calls, fails, text
from sapwood.testing import running as running_here

SPENDER = Access("ann", frozenset[Scope](["look", "content", "replay"]))
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(100)).decode()
LOOKING = call("look", about="rivers", id="c1")


class Desk(ChatAgent):
    """Answers questions about rivers."""

    instructions = "Be short."
    model = ScriptedModel(LOOKING, text("The Nile is 6650 km long."), each=True)
    ran: ClassVar[list[str]] = []

    @tool
    async def look(self, about: str, deep: bool = False) -> str:
        """Look something up."""
        self.ran.append(about)
        return "6650 km"


def desk(*lines: Any, **settings: Any) -> Any:
    return type("Desk", (Desk,), {"model": ScriptedModel(*lines, each=True) if lines else Desk.model, **settings})


def other(*lines: Any) -> ScriptedModel:
    return ScriptedModel(*lines, each=True)


def steps(found: dict[str, Any]) -> list[tuple[str, list[Any], bool]]:
    """Return the text and the calls of each replayed step, and whether they are those of the original."""
    return [(one["text"], one["calls"], one["same"]) for one in found["replay"]["steps"]]


async def replayed(world: World, turn: str, access: Access = SPENDER, **more: Any) -> dict[str, Any]:
    return await ask(world, "replay", access, address="Desk:main", turn=turn, **more)


async def dump(world: World) -> dict[str, Any]:
    """Return all rows of the agent."""
    admin = operator(world, "Desk:main")
    tables = (await admin.sql("Desk:main", "SELECT name FROM sqlite_schema WHERE type = 'table'", []))["rows"]
    return {
        name: (await admin.sql("Desk:main", f'SELECT * FROM "{name}"', []))["rows"]
        for (name,) in tables
        if "fts" not in name
    }


async def test_a_turn_is_asked_again_and_no_tool_runs() -> None:
    cls = desk(ran=[])
    async with running(App(agents=[cls], settings=None)) as world:
        turn = await (await world.get_agent(cls, "main")).send("How long is the Nile?")
        before = await dump(world)
        found = await replayed(world, turn.id)
        assert await dump(world) == before

    assert cls.ran == ["rivers"]
    assert found["replay"]["ended"] == "completed"
    look = {"tool": "look", "arguments": {"about": "rivers"}}
    assert steps(found) == [("", [look], True), ("The Nile is 6650 km long.", [], True)]
    assert [one["text"] for one in found["original"]["steps"]] == ["", "The Nile is 6650 km long."]
    for one in (*found["original"]["steps"], *found["replay"]["steps"]):
        assert one["input_tokens"] > 0
        assert one["output_tokens"] > 0
        assert one["seconds"] >= 0
    assert found["original"]["steps"][0]["model"] == "scripted"


async def test_two_models_are_compared() -> None:
    models = {
        "careful": other(LOOKING, text("It is 6650 km.")),
        "hasty": other(text("No idea.")),
    }
    cls = desk()
    async with running(App(agents=[cls], models=models)) as world:
        turn = await (await world.get_agent(cls, "main")).send("How long is the Nile?")
        careful = await replayed(world, turn.id, model="careful")
        hasty = await replayed(world, turn.id, model="hasty")

    assert [same for _, _, same in steps(careful)] == [True, False]
    assert steps(careful)[1][0] == "It is 6650 km."
    (returned,) = models["careful"].asked[1][-1].parts
    assert (returned.part_kind, returned.content) == ("tool-return", "6650 km")
    assert steps(hasty) == [("No idea.", [], False)]
    assert (careful["replay"]["model"], hasty["replay"]["model"]) == ("careful", "hasty")


class StarTeller(ChatAgent):
    @tool
    async def balance(self, account: str) -> str:
        """Return the balance of an account."""
        return self.balances.pop(0)

    balances: ClassVar[list[str]] = []


def balance(id: str) -> Any:
    return call("balance", account="a", id=id)


@pytest.mark.parametrize("id", ["c1", "c2"])  # some models use the same ids in each turn
async def test_a_replay_answers_tools_from_its_own_turn(id: str) -> None:
    model = ScriptedModel(balance("c1"), text("10"), balance(id), text("99"), text("no tool"), each=True)
    again = other(text(""), text(""), balance("z"), text("99"))
    guess = other(*[text("")] * 4, balance("x"))
    cls: Any = type("Desk", (StarTeller,), {"model": model, "balances": ["10 EUR", "99 EUR"]})
    async with running(App(agents=[cls], models={"again": again, "guess": guess})) as world:
        agent = await world.get_agent(cls, "main")
        await agent.send("balance?")
        second, third = await agent.send("and now?"), await agent.send("thanks")
        found = await replayed(world, second.id, model="again")
        guessed = await replayed(world, third.id, model="guess")

    (returned,) = again.asked[-1][-1].parts
    assert (returned.content, found["replay"]["ended"]) == ("99 EUR", "completed")
    assert guessed["replay"]["ended"] == "unknown_call"
    assert "called a tool that the original did not" in guessed["replay"]["problem"]


async def test_a_replay_that_takes_too_long_returns_the_steps_that_were_paid_for() -> None:
    cls = desk()
    slow = other(LOOKING, text("", stalls=True))
    async with running(App(agents=[cls], models={"slow": slow})) as world:
        turn = await (await world.get_agent(cls, "main")).send("How long is the Nile?")
        found = await replayed(world, turn.id, model="slow")

    assert (found["replay"]["ended"], found["replay"]["problem"]) == ("failed", "took longer than 540 seconds")
    assert [same for _, _, same in steps(found)] == [True]


async def test_a_replay_that_is_interrupted_says_what_it_has_used(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "sapwood.admin.replays")
    cls = desk()
    slow = other(LOOKING, text("", stalls=True))
    async with running(App(agents=[cls], models={"slow": slow})) as world:
        turn = await (await world.get_agent(cls, "main")).send("How long is the Nile?")
        asking = asyncio.ensure_future(replayed(world, turn.id, model="slow"))
        await until(lambda: slow.is_stalled)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    (line,) = [one for one in caplog.messages if "turn replayed" in one]
    assert "model=slow" in line
    assert "requests=1 input_tokens=50" in line


async def test_one_step_is_asked_exactly() -> None:
    cls = desk()
    again = other(text("?"), text("About 6650 km."))
    async with running(App(agents=[cls], models={"again": again})) as world:
        turn = await (await world.get_agent(cls, "main")).send("How long is the Nile?")
        (body,) = [
            one["body"] for one in (await operator(world, "Desk:main").explain("Desk:main", turn.id, 2))["requests"]
        ]
        found = await replayed(world, turn.id, step=2, model="again")

    assert steps(found) == [("About 6650 km.", [], False)]
    assert [one["step"] for one in found["original"]["steps"]] == [2]
    from sapwood.chat.models.sent_form import SentForm

    form = SentForm("function:scripted", again.asked[0], None, None)
    assert msgspec.json.decode(form.body())["messages"] == msgspec.json.decode(body)["messages"]


async def test_a_call_that_the_original_did_not_make_ends_the_replay() -> None:
    eager = other(calls(LOOKING, call("look", about="lakes", deep=True)), text("never"))
    cls = desk(ran=[])
    async with running(App(agents=[cls], models={"eager": eager})) as world:
        turn = await (await world.get_agent(cls, "main")).send("How long is the Nile?")
        found = await replayed(world, turn.id, model="eager")

    assert found["replay"]["ended"] == "unknown_call"
    assert found["replay"]["problem"] == 'called a tool that the original did not: look(about="lakes", deep=true)'
    assert len(eager.asked) == 1
    assert cls.ran == ["rivers"]


async def test_the_same_call_in_another_order_of_its_arguments_is_known() -> None:
    cls = desk(call("look", about="a", deep=True, id="c1"), text("Done."))
    swapped = other(call("look", '{"deep": true, "about": "a"}'), text("Done too."))
    async with running(App(agents=[cls], models={"swapped": swapped})) as world:
        turn = await (await world.get_agent(cls, "main")).send("Look.")
        found = await replayed(world, turn.id, model="swapped")
    assert [same for _, _, same in steps(found)] == [True, False]


async def test_a_model_that_never_ends_is_stopped() -> None:
    cls = desk(LOOKING, text("Done."))
    async with running(App(agents=[cls], models={"endless": other(LOOKING)})) as world:
        turn = await (await world.get_agent(cls, "main")).send("Look.")
        found = await replayed(world, turn.id, model="endless")
    assert found["replay"]["ended"] == "too_many_steps"
    assert len(found["replay"]["steps"]) == 50


async def test_other_instructions_reach_the_model() -> None:
    heard: list[str | None] = []

    def answer(messages: list[ModelMessage], info: Any) -> ModelResponse:
        heard.append(info.instructions)
        return ModelResponse(parts=[TextPart("Arr.")])

    async def stream(messages: list[ModelMessage], info: Any) -> AsyncIterator[str]:
        heard.append(info.instructions)
        yield "Arr."

    cls = desk()
    models = {"pirate": FunctionModel(answer, stream_function=stream)}
    async with running(App(agents=[cls], models=models)) as world:
        turn = await (await world.get_agent(cls, "main")).send("Hello!")
        await replayed(world, turn.id, step=1, model="pirate")
        await replayed(world, turn.id, step=1, model="pirate", instructions="Talk like a pirate.")
    assert heard == ["Be short.", "Talk like a pirate."]


async def test_a_replay_is_not_counted_in_budgets() -> None:
    cls = desk(limits=Limits(tokens=1_000_000))
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "main")
        turn = await agent.send("How long is the Nile?")
        before = await agent.spending.total()
        await replayed(world, turn.id)
        assert await agent.spending.total() == before


async def test_an_agent_that_sleeps_is_not_woken() -> None:
    cls = desk()
    async with running_here(App(agents=[cls])) as world:
        turn = await (await world.get_agent(cls, "main")).send("How long is the Nile?")
        world.sleep()
        await world.settled()
        assert (await replayed(world, turn.id))["replay"]["ended"] == "completed"
        assert not [actor for tree in world.node.trees.values() for actor in tree.actors.values()]


async def test_a_model_that_fails_is_a_result() -> None:
    cls = desk()
    async with running(App(agents=[cls], models={"broken": other(fails(RuntimeError("no more")))})) as world:
        turn = await (await world.get_agent(cls, "main")).send("How long is the Nile?")
        found = (await replayed(world, turn.id, model="broken"))["replay"]
    assert (found["ended"], found["problem"], found["steps"]) == ("failed", "RuntimeError: no more", [])


async def test_what_cannot_be_repeated_is_refused() -> None:
    cls = desk(text("Hello."))
    async with running(App(agents=[cls])) as world:
        turn = await (await world.get_agent(cls, "main")).send("Hello!")
        with pytest.raises(NotFound, match=r"no record of a model request of a turn 'x'.*record_retention"):
            await replayed(world, "x")
        with pytest.raises(NotFound, match=r"no record of step 7 of turn .* Recorded steps: 1"):
            await replayed(world, turn.id, step=7)
        with pytest.raises(InvalidArguments, match=r"The model 'nothing' cannot be used: Unknown model: nothing"):
            await replayed(world, turn.id, model="nothing")
        with pytest.raises(Refused, match="'replay' needs a token with the scope 'replay'"):
            await replayed(world, turn.id, LOOK)
        with pytest.raises(Refused, match="scope 'content'"):
            await replayed(world, turn.id, Access("bob", frozenset[Scope](["look", "replay"])))


async def test_a_redacted_request_is_refused() -> None:
    cls = desk(text("Hello."))
    redact = lambda kind, text: text.replace("12345", "*")  # noqa: E731
    async with running(App(agents=[cls], redact=redact)) as world:
        agent = await world.get_agent(cls, "main")
        open_turn = await agent.send("Hello!")
        secret_turn = await agent.send("My code is 12345.")
        assert (await replayed(world, open_turn.id))["replay"]["ended"] == "completed"
        with pytest.raises(InvalidArguments, match=r"changed by App\(redact=…\) before it was recorded"):
            await replayed(world, secret_turn.id)


async def test_a_request_with_a_text_too_long_for_a_record_is_refused() -> None:
    cls = desk(text("Hello."))
    async with running(App(agents=[cls])) as world:
        turn = await (await world.get_agent(cls, "main")).send("x" * 1_100_000)
        with pytest.raises(StoredDataError, match="a text of more than 1 MiB is not recorded"):
            await replayed(world, turn.id)


async def test_a_request_with_files_is_refused() -> None:
    cls = desk(text("A picture."))
    picture = {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{PNG}"}
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "main")
        turn = await agent.send([{"id": "m1", "role": "user", "parts": [picture]}])
        with pytest.raises(InvalidArguments, match="a record names files without their bytes"):
            await replayed(world, turn.id)


async def test_a_named_model_that_cannot_be_used_does_not_hide_the_others() -> None:
    model = ScriptedModel(text("Hello."), each=True)
    cls = desk(get_model=lambda agent: model, model=None)
    async with running(App(agents=[cls], models={"unusable": "nobody:nothing", "usable": model})) as world:
        turn = await (await world.get_agent(cls, "main")).send("Hello!")
        assert (await replayed(world, turn.id))["replay"]["ended"] == "completed"


async def test_headers_of_settings_are_not_recorded() -> None:
    cls = desk(text("Hello."), model_settings={"extra_headers": {"x-key": "a secret"}, "temperature": 0.5})
    async with running(App(agents=[cls])) as world:
        turn = await (await world.get_agent(cls, "main")).send("Hello!")
        assert "a secret" not in str(await dump(world))
        assert (await replayed(world, turn.id))["replay"]["ended"] == "completed"


async def test_keys_of_tools_that_the_provider_runs_are_not_recorded_and_such_a_request_is_refused() -> None:
    async def answers(messages: list[ModelMessage], info: Any) -> AsyncIterator[str]:
        yield "Hello."

    profile: Any = {"supported_native_tools": frozenset({MCPServerTool})}
    model = FunctionModel(stream_function=answers, model_name="x", profile=profile)
    server = MCPServerTool(
        id="maps", url="https://example.com/mcp", authorization_token="secret one", headers={"x-key": "secret two"}
    )
    cls = desk(model=model, loop=Loop(model, capabilities=[NativeTool(server)]))
    async with running(App(agents=[cls])) as world:
        turn = await (await world.get_agent(cls, "main")).send("Hello!")
        stored = str(await dump(world))
        assert "https://example.com/mcp" in stored
        assert "secret" not in stored
        with pytest.raises(InvalidArguments, match="because their keys are not recorded: maps"):
            await replayed(world, turn.id)


async def test_a_sub_agent_s_turn_is_replayed() -> None:
    cls = desk(text("6650 km."))

    class Parent(Agent):
        async def ask(self) -> str:
            turn = await (await self.sub_agent(cls, "main")).send("How long is the Nile?")
            return turn.id

    async with running(App(agents=[Parent])) as world:
        turn = await (await world.get_agent(Parent, "p")).ask()
        found = await ask(world, "replay", SPENDER, address="Parent:p/Desk:main", turn=turn)
    assert steps(found) == [("6650 km.", [], True)]


async def test_an_agent_of_pydantic_ai_is_replayed() -> None:
    import pydantic_ai

    own = pydantic_ai.Agent(other(text("6650 km.")), instructions="Be exact.")
    cls = type("Desk", (ChatAgent,), {"loop": own})
    async with running(App(agents=[cls])) as world:
        turn = await (await world.get_agent(cls, "main")).send("How long is the Nile?")
        found = await replayed(world, turn.id)
    assert steps(found) == [("6650 km.", [], True)]


def test_app_models_are_checked() -> None:
    with pytest.raises(UsageError, match=r"App\(models="):
        App(agents=[Desk], models={"a": 3})
