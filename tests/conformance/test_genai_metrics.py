"""`/metrics` has the tokens, cost, duration and outcome of what chat agents do, by class, model and tool."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.usage import RequestUsage
from tests.conformance.chats import TALKER, Talking, cancel, done, over, say, streamed, talker, talking
from tests.conformance.served import Served, served

from sapwood import App, ChatAgent, agent_tool, tool
from sapwood.chat.models.genai_metrics import GenAiMetrics
from sapwood.chat.models.request_usage import ModelRequestUsage
from sapwood.chat.turn.finish import TurnFinish
from sapwood.clock import SystemClock
from sapwood.kernel.metric_families import MetricFamilies
from sapwood.settings import Settings
from sapwood.testing import ScriptedModel, call, fails, text


class Deepest(ChatAgent):
    """Answers at the bottom."""

    model = ScriptedModel(text("deep"), each=True)


class Middle(ChatAgent):
    """Delegates."""

    model = ScriptedModel(call("deepest", message="?"), text("middle"), each=True)
    tools = (agent_tool(Deepest),)


class Handy(Talking):
    @tool
    async def hammer(self, nails: int) -> str:
        """Drive nails."""
        if nails > 10:
            raise ValueError("too many")
        return "done"


async def read(one: Served) -> dict[str, float]:
    """Return the metrics by name and labels, without the worker's."""
    body = (await one.site.http("/metrics")).text
    lines = [line for line in body.split("\n") if line and not line.startswith("#")]
    found: dict[str, float] = {}
    for line in lines:
        name, _, value = re.sub(r'worker="[^"]*",?(pool="[^"]*",?)?', "", line).rpartition(" ")
        found[name] = found.get(name, 0.0) + float(value)
    return found


def labels(**values: str) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(values.items())) + "}"


def model(**more: str) -> str:
    return labels(gen_ai_agent_name="Talker", gen_ai_request_model="scripted", **more)


def turns(outcome: str, agent: str = "Talker") -> str:
    return "sapwood_turns_total" + labels(gen_ai_agent_name=agent, outcome=outcome)


def tools(error: str) -> str:
    names = labels(gen_ai_agent_name="Talker", gen_ai_tool_name="hammer", error_type=error)
    return f"gen_ai_execute_tool_duration_seconds_count{names}"


@pytest.mark.core("workers")
async def test_a_turn_with_a_tool_counts_tokens_cost_requests_tools_and_its_outcome() -> None:
    script = ScriptedModel(call("hammer", nails=1), text("all done"))
    cls = talker(script, base=Handy)
    async with talking(cls, prices={"scripted": (1.0, 1.0)}) as one:
        client = await one.join(TALKER)
        await say(client, "t1", "go")
        await done(client, "t1")

        usage = (await (await one.world.get_agent(cls, "t")).spending.total())["scripted"]
        found = await read(one)

    for kind, tokens in (("input", usage["input_tokens"]), ("output", usage["output_tokens"])):
        names = model(gen_ai_response_model="scripted", gen_ai_token_type=kind)
        assert found[f"gen_ai_client_token_usage_sum{names}"] == tokens
        assert found[f"gen_ai_client_token_usage_count{names}"] == 2
    assert found[f"sapwood_model_cost_dollars_total{model(gen_ai_response_model='scripted')}"] == usage["cost"]
    assert found[f"gen_ai_client_operation_duration_seconds_count{model(error_type='')}"] == 2
    assert found[f"gen_ai_client_operation_time_to_first_chunk_seconds_count{model()}"] == 2
    assert found[tools("")] == 1
    assert found[turns("completed")] == 1


async def test_a_request_with_an_unknown_price_is_counted_as_such_and_costs_nothing_that_is_known() -> None:
    async with talking(talker(ScriptedModel(text("hi")))) as one:
        client = await one.join(TALKER)
        await say(client, "t1", "go")
        await done(client, "t1")

        found = await read(one)

    names = model(gen_ai_response_model="scripted")
    assert found[f"sapwood_model_requests_unpriced_total{names}"] == 1
    assert f"sapwood_model_cost_dollars_total{names}" not in found


async def test_failures_have_their_reason() -> None:
    script = ScriptedModel(call("hammer", nails=11), fails(RuntimeError("broken")))
    async with talking(talker(script, base=Handy)) as one:
        client = await one.join(TALKER)
        await say(client, "t1", "go")
        await done(client, "t1")

        found = await read(one)

    assert found[tools("ValueError")] == 1
    assert found[f"gen_ai_client_operation_duration_seconds_count{model(error_type='RuntimeError')}"] == 1
    assert found[f"gen_ai_client_operation_duration_seconds_count{model(error_type='')}"] == 1
    assert found[turns("failed")] == 1


async def test_a_cancelled_turn_and_its_request_are_counted_as_cancelled() -> None:
    cls = talker(ScriptedModel(text("once upon a time", gate=asyncio.Event())))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "t1", "go")
        await streamed(client, "t1", "once")
        await cancel(client, "t1")
        await over(await one.world.get_agent(cls, "t"))

        found = await read(one)

    assert found[turns("cancelled")] == 1
    assert found[f"gen_ai_client_operation_duration_seconds_count{model(error_type='cancelled')}"] == 1
    assert f"gen_ai_client_operation_duration_seconds_count{model(error_type='')}" not in found


async def test_agents_below_are_counted_under_their_own_class() -> None:
    script = ScriptedModel(call("middle", message="?"), text("top"), each=True)
    cls = talker(script, tools=(agent_tool(Middle),))
    async with served(App(agents=[cls])) as one:
        client = await one.join(TALKER)
        await say(client, "t1", "go")
        await done(client, "t1")

        found = await read(one)

    assert found[turns("completed")] == found[turns("completed", "Middle")] == found[turns("completed", "Deepest")] == 1


async def test_a_turn_that_is_resumed_after_a_crash_is_counted_once() -> None:
    gate = asyncio.Event()
    cls = talker(ScriptedModel(text("once upon a time", gate=gate), each=True))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "t1", "go")
        await streamed(client, "t1", "once")
        await one.world.crash()
        gate.set()
        await over(await one.world.get_agent(cls, "t"))

        found = await read(one)

    assert sum(value for name, value in found.items() if name.startswith("sapwood_turns_total")) == 1


async def test_a_turn_whose_end_is_not_stored_is_not_counted() -> None:
    cls = talker(ScriptedModel(text("hi")))
    async with talking(cls) as one:
        await one.world.get_agent(cls, "t")
        (tree,) = one.world.node.trees.values()
        (actor,) = tree.actors.values()
        tree.slices.begin(actor.database)
        actor.of(TurnFinish).count_end("completed")
        tree.slices.forget(actor.database)

        found = await read(one)

    assert turns("completed") not in found


def test_tokens_of_the_cache_are_counted_by_kind() -> None:
    families = MetricFamilies(Settings(), SystemClock())
    metrics = GenAiMetrics(Settings(), SystemClock())
    metrics.register(families)
    usage = RequestUsage(input_tokens=100, output_tokens=7, cache_read_tokens=60, cache_write_tokens=30)
    response = ModelResponse(parts=[TextPart("hi")], usage=usage, model_name="m-1")

    metrics.used("Desk", "m", ModelRequestUsage.of(response, "x:m", {"m": (1.0, 2.0)}))

    tokens: Any = families.histograms[0]
    assert {labels[-1]: one.total for labels, one in tokens.series.items()} == {
        "input": 100,
        "output": 7,
        "cache_read": 60,
        "cache_write": 30,
    }
