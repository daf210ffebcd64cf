"""Capabilities of `pydantic-ai-harness` work in turns: guardrails, memory and limits of tool outputs, by name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai_harness.guardrails import (
    GuardrailResult,
    InputGuardrail,
    OutputGuardrail,
    ToolCallInfo,
    ToolGuardrail,
)
from pydantic_ai_harness.memory import InMemoryStore, Memory
from pydantic_ai_harness.tool_output_limits import Band, Spill, ToolOutputLimits, Truncate
from tests.conformance.chats import TALKER, Talking, idle, say, talker, talking, user
from tests.conformance.worlds import Run, until

from sapwood import tool
from sapwood.testing import ScriptedModel, call, text


class Handy(Talking):
    ran: list[str]

    @tool
    async def read(self, name: str = "small") -> str:
        """Read a text."""
        self.ran.append(name)
        return f"start of {name} {'x' * (10_000 if name == 'large' else 3)} end"


def handy(model: Any, *capabilities: AbstractCapability[Any]) -> Any:
    return talker(model, base=Handy, capabilities=capabilities, ran=[])


async def test_an_input_guardrail_is_asked_once_for_a_turn(run: Run) -> None:
    prompts: list[str] = []

    def guard(prompt: str) -> GuardrailResult:
        prompts.append(prompt)
        return GuardrailResult.allow()

    cls = handy(ScriptedModel(call("read"), call("read"), text("done")), InputGuardrail(guard=guard))
    async with run(cls) as world:
        turn = await (await world.get_agent(cls, "t")).send("hi")
        assert (turn.status, turn.steps, prompts) == ("completed", 3, ["hi"])


async def test_an_input_guardrail_blocks_before_the_model_is_asked(run: Run) -> None:
    model = ScriptedModel(text("never"))
    guardrail = InputGuardrail[Any](guard=lambda _: GuardrailResult.block("Not here."))
    cls = handy(model, guardrail)
    async with run(cls) as world:
        turn = await (await world.get_agent(cls, "t")).send("hi")
        assert (turn.status, turn.output, model.asked) == ("completed", "Not here.", [])


@pytest.mark.parametrize("of", ["class", "loop"])
async def test_what_an_input_guardrail_redacts_no_step_and_no_later_turn_sends(run: Run, of: str) -> None:
    def redact(prompt: str) -> GuardrailResult:
        return GuardrailResult.replace(prompt.replace("swordfish", "****"))

    model = ScriptedModel(call("read"), text("done"), text("and done"))
    loop = PydanticAgent(model, capabilities=[InputGuardrail(guard=redact)])
    cls: Any = type("Talker", (Handy,), {"loop": loop, "ran": []})
    if of == "class":
        cls = handy(model, InputGuardrail(guard=redact))
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("my word is swordfish")
        await world.crash()
        await (await world.get_agent(cls, "t")).send("again")
        asked = [str(one) for one in model.asked]
        assert len(asked) == 3
        assert all("swordfish" not in one for one in asked)
        assert all("****" in one for one in asked)


async def test_a_killed_turn_does_not_ask_an_input_guardrail_again() -> None:
    asked: list[str] = []

    def guard(prompt: str) -> GuardrailResult:
        asked.append(prompt)
        return GuardrailResult.allow()

    gate = asyncio.Event()
    model = ScriptedModel(call("read"), text("at last it is done", gate=gate), each=True)
    cls = handy(model, InputGuardrail(guard=guard))
    async with talking(cls) as one:
        await say(await one.join(TALKER), "r1", user("hi", "u1"))
        await until(lambda: len(model.asked) == 2)
        await one.world.crash()
        gate.set()
        await idle(one)
        assert (asked, cls.ran) == (["hi"], ["small"])


async def test_an_output_guardrail_replaces_the_output_asks_again_or_fails_the_turn(run: Run) -> None:
    def guard(said: object) -> GuardrailResult:
        output = str(said)
        if "forbidden" in output:
            return GuardrailResult.block("No.")
        if "vague" in output:
            return GuardrailResult.retry("Be exact.")
        return GuardrailResult.replace(output.upper())

    cls = handy(ScriptedModel(text("vague"), text("exact"), text("forbidden")), OutputGuardrail(guard=guard))
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        turn = await agent.send("hi")
        assert (turn.status, turn.output, turn.steps) == ("completed", "EXACT", 2)
        assert (await agent.send("hi")).status == "failed"


async def test_a_tool_guardrail_blocks_a_call_and_screens_a_result(run: Run) -> None:
    def guard(call: ToolCallInfo) -> GuardrailResult:
        return GuardrailResult.block("Not that.") if call.args.get("name") == "secret" else GuardrailResult.allow()

    def screen(call: Any) -> GuardrailResult:
        return GuardrailResult.replace("screened")

    model = ScriptedModel(call("read", name="secret"), call("read"), text("done"))
    cls = handy(model, ToolGuardrail(guard=guard, result_guard=screen))
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        assert (await agent.send("hi")).status == "completed"
        seen = await agent.seen_by_model()
        assert ("Not that." in seen, "screened" in seen, "start of" in seen) == (True, True, False)
        assert cls.ran == ["small"]


async def test_a_memory_written_in_one_conversation_is_read_in_another(run: Run) -> None:
    store = InMemoryStore()
    line = "The cat is called Mimi."
    model = ScriptedModel(call("write_memory", content=line), text("noted"), text("Mimi"))
    cls = handy(model, Memory(store=store))
    async with run(cls) as world:
        first, second = await world.get_agent(cls, "t"), await world.get_agent(cls, "u")
        turn = await first.send("My cat is called Mimi.")
        assert turn.status == "completed"
        assert line in str(model.asked[-1])  # also the next step of the same turn has it, once
        assert str(model.asked[-1]).count("<memory>") == 1

        await second.send("What is the name of my cat?")

        assert line in str(model.asked[-1])
        # It belongs to the request, and is not stored with the conversation.
        assert line not in await second.seen_by_model()


@pytest.mark.parametrize("action", [Truncate(max_chars=200), Spill(preview_chars=50)])
async def test_a_limit_of_tool_outputs_holds_in_every_later_request(run: Run, action: Any, tmp_path: Any) -> None:
    from pydantic_ai_harness.tool_output_limits import LocalFileStore

    model = ScriptedModel(call("read", name="large"), text("done"), text("and done"))
    limits = ToolOutputLimits[Any](bands=[Band(over=1000, action=action)], store=LocalFileStore(tmp_path / "spilled"))
    cls = handy(model, limits)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("hi")
        await world.crash()
        agent = await world.get_agent(cls, "t")
        await agent.send("again")
        assert cls.ran == ["large"]
        assert len(await agent.seen_by_model()) < 5000
        assert all("x" * 1000 not in str(asked) for asked in model.asked)
        assert "start of large" in await agent.seen_by_model()


async def test_those_of_the_harness_hold_together(run: Run) -> None:
    contexts: list[int] = []

    class Steps(AbstractCapability[Any]):
        async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
            contexts.append(ctx.run_step)
            return request_context

    together: list[AbstractCapability[Any]] = [
        InputGuardrail(guard=lambda _: True),
        OutputGuardrail(guard=lambda _: True),
        ToolGuardrail(guard=lambda _: True),
        Memory(),
        ToolOutputLimits(bands=[Band(over=1000, action=Truncate(max_chars=200))]),
        Steps(),
    ]
    cls = handy(ScriptedModel(call("read", name="large"), text("done")), *together)
    async with run(cls) as world:
        turn = await (await world.get_agent(cls, "t")).send("hi")
        assert (turn.status, contexts) == ("completed", [1, 2])
