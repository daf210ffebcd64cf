"""Agents as tools: a model uses them, code in its tools does, and what becomes of them comes back to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import ModelRetry, RunContext, ToolOutput
from tests.cases import slow
from tests.conformance.chats import Talking, check_history, check_transcript, parts_of, text_of
from tests.conformance.errands import (
    CALLER,
    Digger,
    Giving,
    again,
    caller,
    check_sequence,
    frames,
    helper,
    kinds,
    over,
    told_end,
    told_text,
    working,
)

from sapwood import Agent, ChatAgent, Run, Turn, Unavailable, agent_tool, tool
from sapwood.errors import UsageError
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.testing import ScriptedModel, call, calls, fails, text
from sapwood.testing.script_lines import Line


class Question(BaseModel):
    """What a helper is asked."""

    about: str
    depth: int = 1


class Finding(BaseModel):
    """What a helper finds."""

    title: str
    pages: int


async def returned(agent: Any) -> dict[str, Any]:
    """Return what the model was told of each tool call, after a check of the whole conversation."""
    history = json.loads(await agent.seen_by_model())
    check_history(history)
    check_transcript(await agent.conversation.messages())
    parts = [part for message in history for part in message["parts"]]
    return {part["tool_call_id"]: part["content"] for part in parts if part["part_kind"] == "tool-return"}


def failure(told: Any) -> dict[str, Any]:
    return json.loads(told) if isinstance(told, str) else told


@pytest.mark.promise("A-100", "A-101", "A-117", "A-164", "A-169", "A-173", "A-174", "A-188", "CF-80", "CF-98")
async def test_a_model_uses_an_agent_with_a_model_a_conversation_and_tools_of_its_own() -> None:
    class Reader(ChatAgent):
        @tool
        async def read(self, page: int) -> str:
            """Read a page."""
            return f"page {page} of {self.name}"

    theirs = ScriptedModel(call("read", id="p1", page=7), text("it says so on page 7"))
    ours = ScriptedModel(call("helper", id="c1", message="look it up"), text("page 7, then"))
    async with working(cls := caller(ours, helper(theirs, base=Reader))) as (one, agent, _):
        turn = await agent.send("where?")

        assert turn.text == "page 7, then"
        assert await returned(agent) == {"c1": "it says so on page 7"}
        child = await one.world.get_agent(cls, "c", sub=[(cls.worker, "agent-tool:c1")])
        assert [text_of(message) for message in await child.conversation.messages()] == [
            "look it up",
            "it says so on page 7",
        ]
        assert "look it up" in str(theirs.asked[0])
        assert "page 7 of agent-tool:c1" in str(theirs.asked[1])
        part = parts_of((await agent.conversation.messages())[-1], "c1")
        assert (part["type"], part["state"], part["output"]) == (
            "tool-helper",
            "output-available",
            "it says so on page 7",
        )


async def test_a_model_is_told_what_an_agent_does_and_what_to_give_it() -> None:
    seen: list[Any] = []

    class Listing(caller(None)):
        def get_model(self) -> Any:
            return _listing(seen)

    tools = [agent_tool(helper(ScriptedModel()), description="Finds things.", name="find", input=Question)]
    async with working(type("Caller", (Listing,), {"tools": tools})) as (_, agent, _):
        await agent.send("go")

        (definition,) = seen
        assert (definition.name, definition.description) == ("find", "Finds things.")
        assert set(definition.parameters_json_schema["properties"]) == {"about", "depth"}


def _listing(seen: list[Any]) -> Any:
    from pydantic_ai.models.function import FunctionModel

    async def say(messages: Any, info: Any) -> AsyncIterator[str]:
        seen.extend(info.function_tools)
        yield "fine"

    return FunctionModel(stream_function=say)


async def test_an_agent_without_a_word_about_itself_cannot_be_a_tool() -> None:
    with pytest.raises(UsageError, match="description"):
        agent_tool(type("Mute", (ChatAgent,), {"__doc__": None}))


async def test_an_agent_that_cannot_be_run_cannot_be_a_tool() -> None:
    with pytest.raises(UsageError, match=r"IdleTool has no on_run\(\)\. Write `async def on_run"):
        agent_tool(type("IdleTool", (Agent,), {"__doc__": "Does nothing."}))


@pytest.mark.promise("A-174", "A-188", "CF-82", "CF-98")
async def test_input_and_output_are_checked_and_structured() -> None:
    theirs = ScriptedModel(call("final_result", id="f1", title="Bread", pages=12))
    cls = helper(theirs, output_type=Finding)
    ours = ScriptedModel(call("find", id="c1", about="bread"), text("found"))
    tools = agent_tool(cls, name="find", input=Question, output=Finding)
    async with working(caller(ours, tools)) as (_, agent, _):
        await agent.send("go")

        assert await returned(agent) == {"c1": {"title": "Bread", "pages": 12}}
        assert json.loads(text_of_last_user(theirs)) == {"about": "bread", "depth": 1}
        (run,) = await agent.all_runs()
        assert run.input == {"about": "bread", "depth": 1}
        assert run.output == {"title": "Bread", "pages": 12}


def plain(title: str, pages: int = 0) -> Finding:
    """Submit the finding."""
    return Finding(title=title.upper(), pages=pages)


async def asynchronous(title: str, pages: int = 0) -> Finding:
    """Submit the finding."""
    return plain(title, pages)


def with_context(ctx: RunContext[Any], title: str, pages: int = 0) -> Finding:
    """Submit the finding."""
    ctx.deps.log.append("context")
    return plain(title, pages)


async def asynchronous_with_context(ctx: RunContext[Any], title: str, pages: int = 0) -> Finding:
    """Submit the finding."""
    return with_context(ctx, title, pages)


async def method(self: Any, title: str, pages: int = 0) -> Finding:
    """Submit the finding."""
    self.deps.log.append(f"method of {self.name}")
    return plain(title, pages)


FUNCTIONS = [plain, asynchronous, with_context, asynchronous_with_context, method]


class Ended(Giving, Talking):
    async def last(self) -> Turn:
        """Return the last turn, once it is over."""
        return await self.turns.wait((await self.conversation.export())["turns"][-1]["id"])


class Completing(ChatAgent):
    """Notes the end of its turns."""

    async def after_turn(self, turn: Any) -> None:
        self.deps.log.append(f"{turn.status} {turn.output}")


@pytest.mark.promise("A-174", "A-202")
@pytest.mark.parametrize("is_listed", [False, *slow([True])])
@pytest.mark.parametrize("function", FUNCTIONS)
async def test_an_output_function_ends_the_turn_with_what_it_returns(function: Any, is_listed: bool) -> None:
    theirs = ScriptedModel(call("final_result", id="f1", title="bread", pages=2))
    output_type = [function] if is_listed else function
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("thanks"))
    async with working(caller(ours, helper(theirs, base=Completing, output_type=output_type))) as (_, agent, bench):
        await agent.send("go")

        found = {"title": "BREAD", "pages": 2}
        assert await returned(agent) == {"c1": found}
        assert len(theirs.asked) == 1
        assert bench.log[-1] == f"completed {found}"
        assert bench.log[:-1] == {
            with_context: ["context"],
            asynchronous_with_context: ["context"],
            method: ["method of agent-tool:c1"],
        }.get(function, [])


@pytest.mark.promise("A-202")
@pytest.mark.parametrize("output_type", [Finding, *slow([[Finding, str], plain])])
async def test_after_turn_is_called_after_structured_output(output_type: Any) -> None:
    theirs = ScriptedModel(call("final_result", id="f1", title="bread", pages=2))
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("thanks"))
    async with working(caller(ours, helper(theirs, base=Completing, output_type=output_type))) as (_, agent, bench):
        await agent.send("go")

        assert [line.split(" ")[0] for line in bench.log] == ["completed"]


async def test_an_output_function_may_send_the_model_back() -> None:
    async def strict(title: str) -> str:
        """Submit the title."""
        if not title.istitle():
            raise ModelRetry("Write it in title case.")
        return title

    theirs = ScriptedModel(
        call("final_result", id="f1", title="bread"), call("final_result", id="f2", title="Bread"), each=True
    )
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("thanks"))
    async with working(caller(ours, helper(theirs, output_type=strict))) as (_, agent, _):
        await agent.send("go")

        assert "title case" in str(theirs.asked[1])
        assert await returned(agent) == {"c1": "Bread"}


def submitting() -> Any:
    """Return a model that submits a title, and another one once it was told that the call was interrupted."""
    from pydantic_ai.models.function import DeltaToolCall, FunctionModel

    async def say(messages: Any, info: Any) -> AsyncIterator[Any]:
        title, id = ("checked", "f2") if "was interrupted" in str(messages) else ("bread", "f1")
        yield {0: DeltaToolCall("final_result", json.dumps({"title": title}), tool_call_id=id)}

    return FunctionModel(stream_function=say)


@pytest.mark.slow
async def test_an_output_function_runs_once_wherever_the_process_dies() -> None:
    async def submit(ctx: RunContext[Any], title: str) -> str:
        """Submit the title."""
        ctx.deps.log.append(title)
        return title.upper()

    nth, passed, ends = 0, True, set[str]()
    while passed:
        nth += 1
        cls = caller(submitting(), base=Ended, output_type=submit)
        async with working(cls) as (one, agent, bench):
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                await agent.send("go")
            passed = one.world.points.passed["committed"] >= before + nth
            await one.world.crash()
            agent = await again(one, cls)
            if not await agent.conversation.messages():
                continue  # what was said was not stored
            turn = await agent.last()

            assert turn.status == "completed", nth
            assert bench.log.count("bread") <= 1, nth
            assert turn.output == bench.log[-1].upper(), nth
            ends.add(turn.output)
    assert ends == {"BREAD", "CHECKED"}


def text_of_last_user(model: Any) -> str:
    return model.asked[0][-1].parts[0].content


async def test_arguments_that_do_not_fit_run_nobody_and_the_model_is_told() -> None:
    ours = ScriptedModel(call("find", id="c1", depth="deep"), text("sorry"))
    tools = agent_tool(helper(ScriptedModel(text("x"))), name="find", input=Question)
    async with working(caller(ours, tools)) as (_, agent, _):
        turn = await agent.send("go")

        assert turn.status == "completed"
        assert "arguments are invalid" in str((await returned(agent))["c1"])
        assert await agent.all_runs() == []
        parts = (await agent.conversation.messages())[-1]["parts"]
        (shown,) = [part for part in parts if part["type"] == "tool-find"]
        assert (shown["state"], shown["errorText"].split(":")[0]) == ("output-error", "The arguments are invalid")


@pytest.mark.promise("CF-98")
async def test_an_output_that_is_not_what_was_promised_is_a_failure() -> None:
    ours = ScriptedModel(call("find", id="c1", about="bread"), text("sorry"))
    tools = agent_tool(helper(ScriptedModel(text("just text"))), name="find", input=Question, output=Finding)
    async with working(caller(ours, tools)) as (_, agent, _):
        await agent.send("go")

        told = failure((await returned(agent))["c1"])
        assert (told["ok"], told["status"], told["retryable"]) == (False, "failed", False)
        assert "output of the agent is invalid" in told["error"]


@pytest.mark.promise("A-130", "A-131", "A-230", "CF-97")
async def test_a_helper_that_fails_is_a_failed_tool_call_with_the_real_error_never_an_empty_success() -> None:
    ours = ScriptedModel(call("helper", id="c1", message="help"), text("a pity"))
    cls = caller(ours, helper(ScriptedModel(fails(ValueError("the model is on strike")))))
    async with working(cls) as (one, agent, _):
        client = await one.join(CALLER)
        turn = await agent.send("go")

        assert turn.text == "a pity"
        (run,) = await agent.all_runs()
        assert run.status == "failed"
        told = failure((await returned(agent))["c1"])
        assert told == {"ok": False, "status": "failed", "error": run.error, "retryable": False}
        assert "the model is on strike" in told["error"]
        end = await told_end(client, "agent-tool:c1")
        shown = for_clients(run.error)
        assert end["event"] == {"kind": "error", "runId": "agent-tool:c1", "error": shown}
        assert all('"type":"error"' not in str(frame["event"].get("body")) for frame in frames(client))
        part = parts_of((await agent.conversation.messages())[-1], "c1")
        assert (part["state"], part["errorText"]) == ("output-error", shown)


class SilentByCode(ChatAgent):
    async def respond(self, turn: Any) -> Any:
        yield {"type": "data-weather", "data": {"sunny": True}}


class SilentByModel(ChatAgent):
    @tool
    async def look(self) -> str:
        """Look."""
        return "seen"


def silent(*before: Any, text: str = "") -> Any:
    """Return a model that says this first, and then nothing, however often it is asked."""
    from pydantic_ai.models.function import FunctionModel

    asked: list[Any] = []

    async def say(messages: Any, info: Any) -> AsyncIterator[Any]:
        asked.append(messages)
        yield before[len(asked) - 1] if len(asked) <= len(before) else text

    model: Any = FunctionModel(stream_function=say)
    model.asked = asked
    return model


def look() -> Any:
    from pydantic_ai.models.function import DeltaToolCall

    return {0: DeltaToolCall("look", "{}", tool_call_id="l1")}


SILENT = {
    "respond() without text": lambda: helper(None, base=SilentByCode),
    "an empty answer": lambda: helper(silent(), base=SilentByModel),
    "white space": lambda: helper(silent(text=" \n"), base=SilentByModel),
    "a tool call and no text": lambda: helper(silent(look()), base=SilentByModel),
    "no text, though another type is allowed": lambda: helper(silent(), base=SilentByModel, output_type=[str, Finding]),
}
NO_ANSWER = "Helper ended without an answer: the last message of the model has no text."


@pytest.mark.promise("A-131", "A-132")
@pytest.mark.parametrize("how", [*list(SILENT)[:2], *slow(list(SILENT)[2:])])
async def test_a_helper_that_says_nothing_is_a_failed_tool_call_that_names_its_class(how: str) -> None:
    ours = ScriptedModel(call("helper", id="c1", message="help"), text("a pity"))
    async with working(caller(ours, theirs := SILENT[how]())) as (one, agent, _):
        client = await one.join(CALLER)
        turn = await agent.send("go")

        assert turn.text == "a pity"
        assert failure((await returned(agent))["c1"]) == {
            "ok": False,
            "status": "failed",
            "error": NO_ANSWER,
            "retryable": False,
        }
        (run,) = await agent.all_runs()
        assert (run.status, run.error, run.reason) == ("failed", NO_ANSWER, None)
        assert await agent.hooks() == [("start", "agent-tool:c1", "queued"), ("finish", "agent-tool:c1", "failed")]
        end = await told_end(client, "agent-tool:c1")
        assert end["event"] == {"kind": "error", "runId": "agent-tool:c1", "error": NO_ANSWER}
        part = parts_of((await agent.conversation.messages())[-1], "c1")
        assert (part["state"], part["errorText"]) == ("output-error", NO_ANSWER)
        if theirs.model is not None:
            assert len(theirs.model.asked) <= 2 + theirs.max_retries


@pytest.mark.promise("A-131", "A-132")
async def test_a_helper_that_says_nothing_fails_one_level_deeper_and_in_every_stream() -> None:
    told: list[tuple[str, str | None]] = []

    class Middle(ChatAgent):
        async def on_run_finish(self, run: Run) -> None:
            told.append((run.status, run.error))

        async def after_turn(self, turn: Turn) -> None:
            told.append((f"turn {turn.status}", turn.error))

    class Bottom(SilentByCode):
        async def after_turn(self, turn: Turn) -> None:
            told.append((f"turn {turn.status}", turn.error))

    below = ScriptedModel(call("helper", id="c2", message="help"), text("nothing came of it"))
    middle = helper(below, "Middle", base=Middle, tools=[agent_tool(helper(None, base=Bottom))])
    ours = ScriptedModel(call("middle", id="c1", message="go"), text("a pity"))
    async with working(cls := caller(ours, middle)) as (one, agent, _):
        heard = asyncio.create_task(until_over(agent, "agent-tool:c1"))
        await agent.send("go")

        assert NO_ANSWER in str(below.asked[1])
        assert await returned(agent) == {"c1": "nothing came of it"}
        assert sorted(told, key=str) == [
            ("failed", NO_ANSWER),
            ("turn completed", None),
            ("turn failed", NO_ANSWER),
        ]
        inner = await one.world.get_agent(cls, "c", sub=[(middle, "agent-tool:c1")])
        (ref,) = (await inner.conversation.export())["helix"]["subSessionRefs"]
        assert (ref["status"], ref["error"]) == ("failed", NO_ANSWER)
        ends = [event.body for event in await heard if event.kind == "failed"]
        assert [end["error"] for end in ends] == [NO_ANSWER]


async def until_over(agent: Any, run: str) -> list[Any]:
    """Return all events from here on down, up to the end of this run."""
    events: list[Any] = []
    async with contextlib.aclosing(agent.subscribe()) as told:
        async for event in told:
            events.append(event)
            if event.run_id == run and event.kind == "completed":
                break
    return events


@pytest.mark.parametrize(
    ("output_type", "value"), [(int, 0), (str | None, None), *slow([(bool, False), (str | None, ""), (list[str], [])])]
)
async def test_a_falsy_value_of_an_output_type_is_an_answer(output_type: Any, value: Any) -> None:
    theirs = ScriptedModel(call("final_result", id="f1", response=value))
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("thanks"))
    async with working(caller(ours, helper(theirs, output_type=ToolOutput(output_type)))) as (_, agent, _):
        await agent.send("go")

        (run,) = await agent.all_runs()
        assert (run.status, run.output) == ("completed", value)


async def test_the_text_of_chunks_of_an_own_loop_is_an_answer() -> None:
    class Own(ChatAgent):
        async def respond(self, turn: Any) -> Any:
            yield {"type": "text-start", "id": "t"}
            yield {"type": "text-delta", "id": "t", "delta": "as chunks"}
            yield {"type": "text-end", "id": "t"}

    ours = ScriptedModel(call("helper", id="c1", message="x"), text("thanks"))
    async with working(caller(ours, helper(None, base=Own))) as (_, agent, _):
        await agent.send("go")

        assert await returned(agent) == {"c1": "as chunks"}


@pytest.mark.promise("A-102", "A-125", "A-143", "A-144", "A-145", "A-150", "A-151", "A-168", "A-232")
async def test_the_agents_a_model_asks_for_at_once_work_in_parallel_each_for_its_call() -> None:
    gate = asyncio.Event()
    theirs = ScriptedModel(text("done here", gate=gate), each=True)
    asked = calls(*(call("helper", id=f"c{at}", message=f"part {at}") for at in range(3)))
    async with working(caller(ScriptedModel(asked, text("all done")), helper(theirs))) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        for at in range(3):
            await told_text(client, f"agent-tool:c{at}", "done")  # all of them, before any of them is over
        gate.set()
        await sending

        assert await returned(agent) == {f"c{at}": "done here" for at in range(3)}
        for at in range(3):
            await told_end(client, f"agent-tool:c{at}")
            check_sequence(frames(client, f"agent-tool:c{at}"))
        starts = [frame for frame in frames(client) if frame["event"]["kind"] == "started"]
        assert [(frame["parentToolCallId"], frame["event"]["order"]) for frame in starts] == [
            ("c0", 0),
            ("c1", 1),
            ("c2", 2),
        ]


@pytest.mark.promise("A-144", "CF-85")
async def test_one_that_fails_is_not_the_failure_of_its_siblings() -> None:
    good, bad = helper(ScriptedModel(text("good"))), helper(ScriptedModel(fails(ValueError("no"))), "BadHelper")
    asked = calls(call("helper", id="c1", message="x"), call("bad_helper", id="c2", message="x"))
    async with working(caller(ScriptedModel(asked, text("half done")), good, bad)) as (_, agent, _):
        turn = await agent.send("go")

        told = await returned(agent)
        assert turn.text == "half done"
        assert told["c1"] == "good"
        assert failure(told["c2"])["ok"] is False


@pytest.mark.promise("A-151", "A-168")
async def test_agents_work_beside_tools_of_the_turn_itself() -> None:
    class Busy(caller(None)):
        @tool
        async def wait_for_helper(self) -> str:
            """Wait."""
            while (run := self.runs.get("agent-tool:c1")) is None or not run.is_over:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.001)
            return "waited"

    asked = calls(call("helper", id="c1", message="x"), call("wait_for_helper", id="w1"))
    base = caller(ScriptedModel(asked, text("both")), helper(ScriptedModel(text("helped"))), base=Busy)
    async with working(base) as (_, agent, _):
        turn = await agent.send("go")

        assert turn.text == "both"
        assert await returned(agent) == {"c1": "helped", "w1": "waited"}


class Comparing(caller(None)):
    """One whose tool runs several agents itself."""

    @tool
    async def compare(self, inputs: list[str]) -> list[dict[str, Any]]:
        """Compare."""
        runs = await asyncio.gather(*(self.run_agent(Digger, one) for one in inputs))
        return [run.output if run.ok else run.failure() for run in runs]

    @tool
    async def first_failure(self, inputs: list[str]) -> str:
        """Give all up when one fails."""

        async def one(input: str) -> None:
            if not (run := await self.run_agent(Digger, input)).ok:
                raise RuntimeError(run.error)

        try:
            async with asyncio.TaskGroup() as group:
                for input in inputs:
                    group.create_task(one(input))
        except ExceptionGroup:
            return "one failed"
        return "all done"


@pytest.mark.promise("A-114", "A-124", "A-143", "A-146", "A-147", "A-148", "A-150", "A-232", "A-257")
async def test_one_tool_call_may_run_several_agents_told_apart_and_in_a_fixed_order() -> None:
    ours = ScriptedModel(call("compare", id="c1", inputs=["a", "fail", "b"]), text("compared"))
    async with working(caller(ours, base=Comparing)) as (one, agent, _):
        client = await one.join(CALLER)
        await agent.send("go")

        first, second, third = (await returned(agent))["c1"]
        assert (first, third) == ({"did": "a"}, {"did": "b"})
        assert (second["ok"], second["status"]) == (False, "failed")
        runs = await agent.all_runs()
        assert [(run.id, run.tool_call, run.order) for run in runs] == [
            ("agent-tool:c1:0", "c1", 0),
            ("agent-tool:c1:1", "c1", 1),
            ("agent-tool:c1:2", "c1", 2),
        ]
        for run in runs:
            await told_end(client, run.id)
            check_sequence(frames(client, run.id))
            assert {frame["parentToolCallId"] for frame in frames(client, run.id)} == {"c1"}
            assert frames(client, run.id)[0]["event"]["order"] == run.order


@pytest.mark.promise("A-257", "B-17")
async def test_a_failed_sibling_cancels_the_others_where_the_code_says_so() -> None:
    ours = ScriptedModel(call("first_failure", id="c1", inputs=["wait", "fail"]), text("given up"))
    async with working(caller(ours, base=Comparing)) as (_, agent, bench):
        await agent.send("go")

        assert await returned(agent) == {"c1": "one failed"}
        stopped = await over(agent, "agent-tool:c1:0")
        assert (stopped.status, stopped.reason) == ("cancelled", "caller-cancelled")
        if "begun wait" in bench.log:
            await bench.seen("cut")


@pytest.mark.slow
async def test_a_provider_that_uses_a_tool_call_id_again_gets_another_run() -> None:
    ours = ScriptedModel(
        call("helper", id="c1", message="first"), text("one"), call("helper", id="c1", message="second"), text("two")
    )
    theirs = ScriptedModel(text("answer one"), text("answer two"))
    async with working(caller(ours, helper(theirs))) as (_, agent, _):
        await agent.send("go")
        await agent.send("again")

        first, second = await agent.all_runs()
        assert first.id == "agent-tool:c1"
        assert second.id.startswith("agent-tool:c1@")
        assert (first.input, second.input) == ("first", "second")
        assert (first.output, second.output) == ("answer one", "answer two")


async def test_an_agent_that_code_runs_in_a_turn_is_unbound_where_no_tool_call_asks_for_it() -> None:
    class Answering(caller(None)):
        async def respond(self, turn: Any) -> Any:
            run = await self.run_agent(Digger, "dig")
            yield json.dumps(run.output)

    async with working(type("Caller", (Answering,), {})) as (one, agent, _):
        client = await one.join(CALLER)
        turn = await agent.send("go")

        assert json.loads(turn.text) == {"did": "dig"}
        (run,) = await agent.all_runs()
        await told_end(client, run.id)
        assert all("parentToolCallId" not in frame for frame in frames(client))


async def test_a_child_gets_its_input_as_message_and_as_data() -> None:
    class Taking(ChatAgent):
        async def respond(self, turn: Any) -> Any:
            yield json.dumps(turn.body)

    ours = ScriptedModel(call("find", id="c1", about="bread"), text("done"))
    tools = agent_tool(helper(None, base=Taking), name="find", input=Question)
    async with working(caller(ours, tools)) as (_, agent, _):
        await agent.send("go")

        assert json.loads((await returned(agent))["c1"]) == {"input": {"about": "bread", "depth": 1}}


async def test_what_is_one_text_with_a_name_is_said_as_that_text() -> None:
    class Topic(BaseModel):
        query: str

    finder = helper(ScriptedModel(text("it floats")))
    ours = ScriptedModel(call("find", id="c1", query="wood"), text("done"))
    cls = caller(ours, agent_tool(finder, name="find", input=Topic))
    async with working(cls) as (one, agent, _):
        await agent.send("go")

        child = await one.world.get_agent(cls, "c", sub=[(finder, "agent-tool:c1")])
        assert [text_of(message) for message in await child.conversation.messages()] == ["wood", "it floats"]
        assert [run.input for run in await agent.all_runs()] == [{"query": "wood"}]


async def test_a_tool_may_have_a_time_and_something_to_show() -> None:
    gate = asyncio.Event()
    tools = agent_tool(
        helper(ScriptedModel(text("slow words", gate=gate))), timeout=30.0, display={"name": "A helper", "icon": "x"}
    )
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("too slow"))
    async with working(caller(ours, tools)) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told_text(client, "agent-tool:c1", "slow")
        await one.world.clock.advance(31)
        await sending

        assert frames(client)[0]["event"]["display"] == {"name": "A helper", "icon": "x"}
        told = failure((await returned(agent))["c1"])
        assert (told["status"], told["reason"], told["retryable"]) == ("failed", "timed-out", False)


@pytest.mark.promise("CF-86")
async def test_a_helper_whose_turn_was_dropped_ends_its_run_as_an_error() -> None:
    """The child is busy with somebody else, and its policy is to drop what comes meanwhile."""
    gate = asyncio.Event()
    theirs = helper(ScriptedModel(text("busy now", gate=gate)), concurrency="drop")

    class Disturbing(caller(None)):
        async def disturb(self) -> None:
            child: Any = await self.sub_agent(theirs, "r1")
            await child.send("talk to me")

    async with working(caller(ScriptedModel(), theirs, base=Disturbing)) as (_, agent, _):
        disturbing = asyncio.create_task(agent.disturb())
        while not theirs.model.asked:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)
        run = await agent.give("help", run_id="r1")
        gate.set()
        await disturbing

        assert run.status == "failed"
        assert "skipped" in (run.error or "")


@pytest.mark.promise("CF-85")
async def test_errors_of_other_turns_never_touch_a_run() -> None:
    theirs = helper(ScriptedModel(text("first"), fails(ValueError("the second fails"))))

    class Following(caller(None)):
        async def follow_up(self) -> str:
            child: Any = await self.sub_agent(theirs, "r1")
            return (await child.send("and now?")).status

    async with working(caller(ScriptedModel(), theirs, base=Following)) as (_, agent, _):
        first = await agent.give("help", run_id="r1")

        assert await agent.follow_up() == "failed"
        assert await agent.give("help", run_id="r1") == first
        assert (await agent.one("r1")).status == "completed"


async def test_a_person_a_helper_waits_for_may_take_any_time_and_what_it_said_is_not_said_twice() -> None:
    class Careful(ChatAgent):
        @tool(requires_approval=True)
        async def launch(self) -> str:
            """Launch."""
            return "launched"

    asks = Line(text="ready", calls=(("launch", {}, "l1"),))
    theirs = helper(ScriptedModel(asks, text("it flies")), base=Careful)
    ours = ScriptedModel(call("helper", id="c1", message="launch it"), text("good"))
    async with working(cls := caller(ours, theirs)) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await client.until(lambda frame: "tool-approval-request" in str(frame))
        child = await one.world.get_agent(cls, "c", sub=[(theirs, "agent-tool:c1")])
        await one.world.clock.advance(100_000)
        assert (await agent.one("agent-tool:c1")).status == "running"

        while not await child.questions.approve("l1"):  # noqa: ASYNC110 - the turn stores it right after it tells it
            await asyncio.sleep(0.001)
        await sending

        assert "it flies" in (await returned(agent))["c1"]
        assert (await child.conversation.messages())[-1]["parts"] == [
            {"type": "step-start"},
            {"type": "text", "text": "ready", "state": "done"},
            {
                "type": "tool-launch",
                "toolCallId": "l1",
                "state": "output-available",
                "input": {},
                "approval": {"id": "l1", "approved": True},
                "output": "launched",
            },
            {"type": "step-start"},
            {"type": "text", "text": "it flies", "state": "done"},
        ]
        await told_end(client, "agent-tool:c1")
        check_sequence(frames(client, "agent-tool:c1"))
        assert kinds(client, "agent-tool:c1") == ["started", "chunk", "finished"]


@pytest.mark.slow
@pytest.mark.promise("A-200", "A-202")
async def test_hooks_fire_for_each_agent_by_itself_and_a_childs_end_leaves_the_callers_stream_open() -> None:
    hooks: list[str] = []

    class Hooked(ChatAgent):
        async def before_turn(self, turn: Turn) -> None:
            hooks.append(f"start {type(self).__name__}")

        async def after_turn(self, turn: Turn) -> None:
            hooks.append(f"{turn.status} {type(self).__name__}")

    class HookedCaller(Hooked, caller(None)): ...

    bad = helper(ScriptedModel(fails(ValueError("no"))), "BadHelper", base=Hooked)
    good = helper(ScriptedModel(text("yes")), base=Hooked)
    ours = ScriptedModel(
        call("helper", id="c1", message="x"), call("bad_helper", id="c2", message="x"), text("the end of it")
    )
    async with working(caller(ours, good, bad, base=HookedCaller)) as (_, agent, _):
        turn = await agent.send("go")

        assert turn.text == "the end of it"
        assert hooks == [
            "start Caller",
            "start Helper",
            "completed Helper",
            "start BadHelper",
            "failed BadHelper",
            "completed Caller",
        ]


@pytest.mark.promise("A-200")
async def test_run_hooks_of_the_caller_name_the_run_its_status_and_its_class() -> None:
    told: list[tuple[str, str, str]] = []

    class Noting(caller(None)):
        async def on_run_start(self, run: Run) -> None:
            told.append(("start", run.agent.type, run.status))

        async def on_run_finish(self, run: Run) -> None:
            told.append(("finish", run.agent.type, run.status))

    ours = ScriptedModel(call("helper", id="c1", message="x"), text("thanks"))
    async with working(caller(ours, helper(ScriptedModel(text("yes"))), base=Noting)) as (_, agent, _):
        await agent.send("go")
        await over(agent, "agent-tool:c1")

        assert told == [("start", "Helper", "queued"), ("finish", "Helper", "completed")]
