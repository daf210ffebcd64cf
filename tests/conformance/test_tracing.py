"""One trace: what one cause brings about can be seen together, across agents, time and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.conformance.runtimes import running
from tests.conformance.serving import door
from tests.machine import patience

from sapwood import After, Agent, App, ChatAgent, RemoteSubAgent, agent_tool, tool, tracing
from sapwood.admin.admin import Admin
from sapwood.testing import ScriptedModel, World, call, text
from sapwood.testing import running as running_here

pytestmark = pytest.mark.core("workers", "cluster")

EXPORTER = InMemorySpanExporter()


@pytest.fixture(autouse=True)
def spans() -> Iterator[InMemorySpanExporter]:
    """Have OpenTelemetry set up for a test, as a program would; the process has one provider for good."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
        trace.set_tracer_provider(provider)
    EXPORTER.clear()
    yield EXPORTER
    tracing.tracer = None


def named(name: str) -> list[ReadableSpan]:
    return [span for span in EXPORTER.get_finished_spans() if span.name == name]


def one(name: str) -> ReadableSpan:
    (found,) = named(name)
    return found


def trace_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


def is_below(span: ReadableSpan, above: ReadableSpan) -> bool:
    """Whether a span has another one somewhere above it."""
    by_id = {found.context.span_id: found for found in EXPORTER.get_finished_spans() if found.context is not None}
    at: ReadableSpan | None = span
    while at is not None and at.parent is not None:
        at = by_id.get(at.parent.span_id)
        if at is above:
            return True
    return False


class TracedLeaf(ChatAgent):
    """Knows one thing."""

    model = ScriptedModel(text("Water is wet."), each=True)


class TracedMiddle(ChatAgent):
    """Asks another."""

    model = ScriptedModel(call("traced_leaf", id="l1", message="water?"), text("It is wet."), each=True)
    tools = (agent_tool(TracedLeaf),)


GATE = asyncio.Event()


class TracedRoot(ChatAgent):
    model = ScriptedModel(call("ask", id="c1"), text("done"), each=True)

    @tool(idempotent=True)
    async def ask(self) -> str:
        run = await self.run_agent(TracedMiddle, "water?")
        self.schedule(After(timedelta(minutes=1)), self.remind)
        return run.summary

    async def remind(self) -> None:
        await self.sub_agent(TracedPlain, "p")


class TracedPlain(Agent):
    async def work(self) -> str:
        return tracing.text() or ""

    async def on_run(self, input: str) -> str:
        GATE.set()
        await asyncio.sleep(0 if self.fibers.current.recoveries else 30)
        return await (await self.sub_agent(TracedPlain, "below")).work()


class TracedCaller(Agent):
    async def go(self) -> str:
        with tracing.span("outer"):
            plain = await self.sub_agent(TracedPlain, "p")
            return await plain.work()

    async def begin(self) -> None:
        with tracing.span("outer"):
            await self.run_agent(TracedPlain, "x", run_id="r", on_disconnect="continue")

    async def status(self) -> str:
        run = self.runs.get("r")
        return "" if run is None else run.status

    async def output(self) -> Any:
        run = self.runs.get("r")
        return run and run.output


@pytest.mark.promise("B-2")
@pytest.mark.anyio
async def test_a_turn_its_steps_its_tools_and_the_runs_below_it_are_one_trace() -> None:
    async with running(App(agents=[TracedRoot]), slow_slices="warn") as world:
        root = await world.get_agent(TracedRoot, "r")
        assert (await root.send("go")).status == "completed"
        await world.settled()
    turn = one("invoke_agent TracedRoot")
    for name in ("execute_tool ask", "run TracedMiddle", "invoke_agent TracedMiddle", "run TracedLeaf"):
        assert is_below(one(name), turn), name
    leaf = one("invoke_agent TracedLeaf")
    assert is_below(leaf, one("run TracedLeaf"))
    assert len({trace_id(span) for span in EXPORTER.get_finished_spans()}) == 1
    steps = [span for span in named("chat") if is_below(span, leaf)]
    assert [span.attributes and span.attributes["gen_ai.response.model"] for span in steps] == ["scripted"]


@pytest.mark.core
@pytest.mark.anyio
async def test_the_record_of_a_turn_names_its_trace() -> None:
    async with running_here(App(agents=[TracedRoot]), slow_slices="warn") as world:
        root = await world.get_agent(TracedRoot, "r")
        turn = await root.send("go")
        spans = (await Admin(world.node).explain("TracedRoot:r", turn.id))["spans"]
        await world.settled()

    context = one("invoke_agent TracedRoot").context
    steps = [span["facts"]["trace"].split("-") for span in spans if span["kind"] in ("step", "tool", "run")]
    assert len(steps) == 4
    assert context is not None
    assert {trace for _, trace, _, _ in steps} == {f"{context.trace_id:032x}"}


@pytest.mark.anyio
async def test_what_a_child_notes_is_on_its_own_spans_and_never_on_its_roots() -> None:
    async with running(App(agents=[TracedRoot]), slow_slices="warn") as world:
        await (await world.get_agent(TracedRoot, "r")).send("go")
        await world.settled()
    addresses = {span.name: (span.attributes or {}).get("sapwood.address") for span in EXPORTER.get_finished_spans()}
    assert addresses["invoke_agent TracedRoot"] == "TracedRoot:r"
    assert str(addresses["invoke_agent TracedLeaf"]).startswith("TracedRoot:r/TracedMiddle:")


@pytest.mark.promise("B-2")
@pytest.mark.anyio
async def test_what_a_schedule_brings_about_is_a_trace_of_its_own_that_names_what_wished_it() -> None:
    async with running(App(agents=[TracedRoot]), slow_slices="warn") as world:
        await (await world.get_agent(TracedRoot, "r")).send("go")
        await world.clock.advance(61)
        await world.settled()
    fired, wished = one("schedule TracedRoot.remind"), one("execute_tool ask")
    assert trace_id(fired) != trace_id(wished)
    assert [link.context.trace_id for link in fired.links] == [trace_id(wished)]
    assert wished.context is not None
    assert [link.context.span_id for link in fired.links] == [wished.context.span_id]


@pytest.mark.promise("B-2")
@pytest.mark.anyio
async def test_a_call_carries_the_trace_to_the_agent_it_calls() -> None:
    async with running(App(agents=[TracedCaller]), slow_slices="warn") as world:
        seen = await (await world.get_agent(TracedCaller, "c")).go()
    assert f"{trace_id(one('outer')):032x}" in seen


@pytest.mark.promise("B-2")
@pytest.mark.anyio
async def test_after_a_restart_a_run_goes_on_in_the_trace_it_was_given_in() -> None:
    GATE.clear()
    async with running(App(agents=[TracedCaller]), slow_slices="warn") as world:
        caller = await world.get_agent(TracedCaller, "c")
        begun = asyncio.ensure_future(caller.begin())
        await asyncio.wait_for(GATE.wait(), patience())
        await world.crash()
        await asyncio.wait({begun})
        begun.exception()
        outer = trace_id(one("outer"))
        EXPORTER.clear()
        caller = await world.get_agent(TracedCaller, "c")
        async with asyncio.timeout(patience()):
            while await caller.status() != "completed":
                await world.clock.advance(5)
        assert f"{outer:032x}" in await caller.output()
        await world.settled()
    followed = [span for span in named("run TracedPlain") if span.status.is_ok or span.links]
    assert followed
    assert all(trace_id(span) == outer for span in followed)
    assert any(link.context.trace_id == outer for span in followed for link in span.links)


class TracedFiber(Agent):
    deps: asyncio.Event
    migrations = ("CREATE TABLE seen (text TEXT NOT NULL) STRICT",)

    async def go(self) -> str:
        with tracing.span("outer"):
            self.start_fiber("work", self.work)
            return tracing.text() or ""

    async def work(self) -> None:
        self.sql("INSERT INTO seen VALUES (?)", tracing.text() or "")
        await self.deps.wait()

    async def seen(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM seen ORDER BY rowid")]


@pytest.mark.promise("B-2")
@pytest.mark.anyio
async def test_a_fiber_goes_on_in_the_trace_that_it_was_started_in_also_after_a_restart() -> None:
    gate = asyncio.Event()
    async with running(App(agents=[TracedFiber], deps=gate), slow_slices="warn") as world:
        agent = await world.get_agent(TracedFiber, "f")
        traced = (await agent.go()).split("-")[1]
        await seen_times(world, 1)
        await world.crash()
        seen = await seen_times(world, 2)
        gate.set()
        await world.settled()
    assert [one.split("-")[1] for one in seen] == [traced, traced]


async def seen_times(world: World, times: int) -> list[str]:
    """Wait until the fiber has begun so many times; return what it saw of its trace."""
    async with asyncio.timeout(patience()):
        while len(seen := await (await world.get_agent(TracedFiber, "f")).seen()) < times:
            await world.clock.advance(1)
            await asyncio.sleep(0.01)
    return seen


class TracedFar(Agent):
    expose_runs = True

    async def on_run(self, input: str) -> str:
        return tracing.text() or ""


@pytest.mark.promise("B-38")
@pytest.mark.anyio
async def test_a_run_that_another_server_does_is_part_of_the_same_trace() -> None:
    async with door(TracedFar) as site:
        where = f"http://127.0.0.1:{site.port}/agents/traced-far"

        class TracedRemote(RemoteSubAgent):
            url = where

        class TracedNear(Agent):
            async def go(self) -> str:
                with tracing.span("outer"):
                    return (await self.run_agent(TracedRemote, "go")).output

        async with running(App(agents=[TracedNear]), slow_slices="warn") as world:
            seen = await (await world.get_agent(TracedNear, "n")).go()
    outer = one("outer")
    assert f"{trace_id(outer):032x}" in seen
    assert is_below(one("invoke_agent TracedFar"), outer)
    assert all(trace_id(span) == trace_id(outer) for span in named("POST TracedFar"))


@pytest.mark.anyio
async def test_without_a_provider_nothing_is_traced_and_nothing_is_stored() -> None:
    async with running(App(agents=[TracedCaller]), slow_slices="warn") as world:
        tracing.tracer = None
        assert await (await world.get_agent(TracedCaller, "c")).go() == ""
    assert not EXPORTER.get_finished_spans()
