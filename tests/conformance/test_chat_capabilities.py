"""Capabilities of Pydantic AI: the hooks of a run are called once in a turn, those of models and tools each time."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability, Hooks, Instrumentation
from pydantic_ai.exceptions import SkipToolExecution
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.run import AgentRunResult
from pydantic_ai.toolsets import FunctionToolset
from tests.conformance.chats import TALKER, Talking, approval, done, idle, say, talker, talking, user
from tests.conformance.worlds import Run, until

from sapwood import Agent, ChatAgent, tool
from sapwood.errors import Unavailable
from sapwood.testing import ScriptedModel, call, text
from sapwood.testing.faults import Dead

TINT: ContextVar[str] = ContextVar("tint", default="none")


@dataclass
class Watch(AbstractCapability[Any]):
    """Notes which of its hooks are called."""

    log: list[str] = field(default_factory=list[str])
    gates: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    """Hooks that wait for an event."""
    raises: dict[str, Exception] = field(default_factory=dict[str, Exception])
    says: str = ""
    """What `before_run` enqueues for the model."""
    answers: Any = None
    """What the hooks of the end of a run make of it."""
    is_copy: bool = False

    async def _pass(self, hook: str) -> None:
        self.log.append(hook)
        if hook in self.gates:
            await self.gates[hook].wait()
        if hook in self.raises:
            raise self.raises[hook]

    def count(self, hook: str) -> int:
        return self.log.count(hook)

    async def for_run(self, ctx: RunContext[Any]) -> Watch:
        self.log.append("for_run")
        return replace(self, is_copy=True)

    async def before_run(self, ctx: RunContext[Any]) -> None:
        assert self.is_copy
        await self._pass("before_run")
        self.log.append(f"prompt {ctx.prompt}")
        TINT.set("blue")
        if self.says:
            ctx.enqueue(self.says)

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> AgentRunResult[Any]:
        await self._pass("wrap_run")
        try:
            return await handler()
        finally:
            self.log.append("unwrapped")

    async def after_run(self, ctx: RunContext[Any], *, result: AgentRunResult[Any]) -> AgentRunResult[Any]:
        await self._pass("after_run")
        return result if self.answers is None else AgentRunResult(self.answers)

    async def on_run_error(self, ctx: RunContext[Any], *, error: BaseException) -> AgentRunResult[Any]:
        await self._pass(f"on_run_error {type(error).__name__}")
        if self.answers is None:
            raise error
        return AgentRunResult(self.answers)

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        self.log.append(f"model {ctx.run_step} {TINT.get()}")
        return request_context

    async def before_tool_execute(self, ctx: RunContext[Any], *, call: Any, tool_def: Any, args: Any) -> Any:
        self.log.append(f"tool {call.tool_name} {TINT.get()}")
        return args

    async def after_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, result: Any) -> Any:
        return f"{result}, seen"


class Worker(Talking):
    ran: list[str]

    @tool
    async def work(self) -> str:
        """Work."""
        self.ran.append("work")
        return "worked"

    @tool(requires_approval=True)
    async def risk(self) -> str:
        """Risk it."""
        return "risked"


def worker(model: Any, *capabilities: Any, **settings: Any) -> Any:
    return talker(model, base=Worker, capabilities=capabilities, ran=[], **settings)


def three_steps() -> ScriptedModel:
    return ScriptedModel(call("work"), call("work"), text("done"), each=True)


ONCE = ("before_run", "after_run", "wrap_run", "for_run", "unwrapped")


@pytest.mark.core("temporal")
async def test_the_hooks_of_a_run_are_called_once_for_a_turn_and_the_others_for_each_step_and_tool(run: Run) -> None:
    watch = Watch()
    cls = worker(three_steps(), watch)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")

        turn = await agent.send("hi")

        assert (turn.status, turn.text, turn.steps) == ("completed", "done", 3)
        assert {hook: watch.count(hook) for hook in ONCE} == dict.fromkeys(ONCE, 1)
        assert watch.log == [
            "for_run",
            *("wrap_run", "before_run", "prompt hi"),
            *("model 1 blue", "tool work blue", "model 2 blue", "tool work blue", "model 3 blue"),
            *("after_run", "unwrapped"),
        ]


async def test_those_of_a_loop_have_the_same_meaning_and_come_together_with_those_of_the_class(run: Run) -> None:
    of_loop, of_class = Watch(), Watch()
    loop = PydanticAgent(three_steps(), capabilities=[of_loop])
    cls: Any = type("Talker", (Worker,), {"loop": loop, "capabilities": (of_class,), "ran": []})
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")

        turns = [await agent.send("hi"), await agent.send("again")]

        assert [turn.status for turn in turns] == ["completed", "completed"]
        for watch in (of_loop, of_class):
            assert {hook: watch.count(hook) for hook in ONCE} == dict.fromkeys(ONCE, 2)
    async with loop.iter("outside of sapwood it is as it was"):
        assert of_loop.count("before_run") == 3


async def test_a_loop_without_capabilities_is_used_as_it_is(run: Run) -> None:
    loop = PydanticAgent(ScriptedModel(text("hello")))
    cls: Any = type("Talker", (Talking,), {"loop": loop})
    async with run(cls) as world:
        assert (await (await world.get_agent(cls, "t")).send("hi")).text == "hello"


@pytest.mark.nightly
async def test_killed_at_every_commit_the_hooks_of_a_run_are_called_once() -> None:
    """Only the hook in which the process dies is called again: here none of them commits."""
    passed, nth = True, 0
    while passed:
        nth += 1
        watch = Watch(says="The weather is fine.")
        model = three_steps()
        cls = worker(model, watch)
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            sent = asyncio.ensure_future(agent.send("hi"))
            with contextlib.suppress(Unavailable, Dead):
                await sent
            passed = one.world.points.passed["committed"] >= before + nth
            await one.world.crash()
            await idle(one)

            agent = await one.world.get_agent(cls, "t")
            if not await agent.ends():
                continue  # the message was lost: its sender was not told that it is stored
            assert [status for _, status in await agent.ends()] == ["completed"], nth
            # At one commit the hook has run and its row is not stored, and likewise at the end.
            lost = [hook for hook in ("before_run", "after_run") if watch.count(hook) == 2]
            assert len(lost) <= 1, (nth, watch.log)
            assert watch.count("before_run") in (1, 2)
            assert watch.count("after_run") in (1, 2)
            seen = await agent.seen_by_model()
            assert seen.count("The weather is fine.") == 1, nth
            assert len(cls.ran) <= 2  # one that the process died in counts as interrupted
    assert nth > 5


@pytest.mark.parametrize("hook", ["before_run", "after_run"])
async def test_killed_during_a_hook_of_a_run_that_hook_is_called_again_and_the_other_once(hook: str) -> None:
    watch = Watch(gates={hook: asyncio.Event()}, answers="changed")
    cls = worker(three_steps(), watch)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("hi", "u1"))
        await until(lambda: watch.count(hook) == 1)

        await one.world.crash()
        watch.gates[hook].set()
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert await agent.ends() == [("r1", "completed")]
        assert {name: watch.count(name) for name in ("before_run", "after_run")} == {
            "before_run": 1 + (hook == "before_run"),
            "after_run": 1 + (hook == "after_run"),
        }
        assert (await agent.conversation.export())["turns"][0]["output"] == "changed"


async def test_killed_in_the_middle_of_a_turn_the_instances_are_made_anew_and_before_run_is_not_called_again() -> None:
    gate = asyncio.Event()
    watch = Watch()
    model = ScriptedModel(call("work"), text("at last it is done", gate=gate), each=True)
    cls = worker(model, watch)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("hi", "u1"))
        await until(lambda: len(model.asked) == 2)

        await one.world.crash()
        gate.set()
        await idle(one)

        assert (watch.count("before_run"), watch.count("after_run")) == (1, 1)
        assert (watch.count("for_run"), watch.count("wrap_run")) == (2, 2)
        # The tool call that had returned is not made again, and its hooks neither.
        assert (cls.ran, [entry for entry in watch.log if entry.startswith("tool")]) == (["work"], ["tool work blue"])


async def test_what_the_hooks_of_a_tool_make_of_a_result_is_what_is_remembered_of_it() -> None:
    watch = Watch()
    model = ScriptedModel(call("work"), text("done"), each=True)
    cls = worker(model, watch)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        await agent.send("hi")
        assert "worked, seen" in await agent.seen_by_model()


async def test_the_hooks_of_the_agent_see_the_arguments_that_capabilities_have_changed(run: Run) -> None:
    class Upper(AbstractCapability[Any]):
        async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
            return {"word": args["word"].upper()}

    class Echo(Talking):
        seen: list[Any]

        @tool
        async def echo(self, word: str) -> str:
            """Echo."""
            return word

        async def before_tool_call(self, tool: str, arguments: dict[str, Any]) -> None:
            self.seen.append(arguments)

    cls = talker(ScriptedModel(call("echo", word="a"), text("done")), base=Echo, seen=[], capabilities=(Upper(),))
    async with run(cls) as world:
        await (await world.get_agent(cls, "t")).send("hi")
        assert cls.seen == [{"word": "A"}]


async def test_a_capability_may_answer_in_the_place_of_a_tool(run: Run) -> None:
    class Instead(AbstractCapability[Any]):
        async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
            raise SkipToolExecution("not now")

    cls = worker(ScriptedModel(call("work"), text("done")), Instead())
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        assert (await agent.send("hi")).status == "completed"
        assert "not now" in await agent.seen_by_model()
        assert cls.ran == []


async def test_a_turn_that_waits_for_an_answer_lets_go_and_does_not_begin_again() -> None:
    watch = Watch()
    cls = worker(ScriptedModel(call("risk", id="c1"), text("done"), each=True), watch)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("hi", "u1"))
        await done(client, "r1")
        assert (watch.count("before_run"), watch.count("after_run"), watch.count("unwrapped")) == (1, 0, 1)

        await one.world.crash()
        client = await one.join(TALKER)
        await approval(client, "c1", approved=True)
        await idle(one)

        assert (watch.count("before_run"), watch.count("after_run"), watch.count("wrap_run")) == (1, 1, 2)
        assert [entry for entry in watch.log if entry.startswith("tool")] == ["tool risk none"]


async def test_before_run_refuses_a_turn(run: Run) -> None:
    watch = Watch(raises={"before_run": ValueError("not this")})
    model = three_steps()
    cls = worker(model, watch)
    async with run(cls) as world:
        turn = await (await world.get_agent(cls, "t")).send("hi")
        assert (turn.status, model.asked) == ("failed", [])
        # As in Pydantic AI, only errors of the body reach on_run_error.
        assert watch.log == ["for_run", "wrap_run", "before_run", "unwrapped"]


async def test_wrap_run_answers_in_the_place_of_the_model(run: Run) -> None:
    class Canned(AbstractCapability[Any]):
        async def wrap_run(self, ctx: Any, *, handler: Any) -> AgentRunResult[Any]:
            return AgentRunResult("We are closed.")

    model = three_steps()
    cls = worker(model, Canned())
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        turn = await agent.send("hi")
        assert (turn.status, turn.output, turn.text) == ("completed", "We are closed.", "We are closed.")
        assert model.asked == []
        assert "We are closed." in await agent.seen_by_model()


async def test_after_run_changes_the_output_and_its_error_fails_the_turn(run: Run) -> None:
    cls = worker(ScriptedModel(text("rough")), Watch(answers="smooth"))
    failing = worker(ScriptedModel(text("rough")), Watch(raises={"after_run": ValueError("no")}))
    async with run(cls) as world:
        turn = await (await world.get_agent(cls, "t")).send("hi")
        assert (turn.status, turn.text, turn.output) == ("completed", "rough", "smooth")
    async with run(failing) as world:
        turn = await (await world.get_agent(failing, "t")).send("hi")
        assert (turn.status, turn.output) == ("failed", None)


async def test_on_run_error_sees_what_failed_and_may_answer_all_the_same(run: Run) -> None:
    watch = Watch()
    cls = worker(ScriptedModel(call("work")), watch, max_steps=2)
    async with run(cls) as world:
        turn = await (await world.get_agent(cls, "t")).send("hi")
        assert turn.status == "failed"
        assert watch.log[-2:] == ["on_run_error Refused", "unwrapped"]
        assert watch.count("after_run") == 0
    saving = Watch(answers="I could not finish.")
    cls = worker(ScriptedModel(call("work")), saving, max_steps=2)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        turn = await agent.send("hi")
        assert (turn.status, turn.output) == ("completed", "I could not finish.")
        assert turn.text.endswith("I could not finish.")
        assert saving.count("after_run") == 1


async def test_a_cancelled_turn_tells_its_capabilities_and_waits_for_none_of_them() -> None:
    watch = Watch(gates={"on_run_error CancelledError": asyncio.Event()})
    model = ScriptedModel(text("for ever and ever", gate=asyncio.Event()))
    cls = worker(model, watch)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        client = await one.join(TALKER)
        await say(client, "r1", user("hi", "u1"))
        await until(lambda: bool(model.asked))

        assert await agent.turns.cancel()
        await idle(one)

        assert await agent.ends() == [("r1", "cancelled")]
        assert watch.count("on_run_error CancelledError") == 1
        assert (watch.count("unwrapped"), watch.count("after_run")) == (1, 0)


@pytest.mark.parametrize("hook", ["before_run", "after_run"])
async def test_cancelling_cuts_off_a_hook(hook: str) -> None:
    watch = Watch(gates={hook: asyncio.Event()})
    cls = worker(ScriptedModel(text("hello")), watch)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        client = await one.join(TALKER)
        await say(client, "r1", user("hi", "u1"))
        await until(lambda: watch.count(hook) == 1)

        assert await agent.turns.cancel()
        await idle(one)

        assert await agent.ends() == [("r1", "cancelled")]
        assert watch.count("unwrapped") == 1


async def test_what_a_capability_replaces_in_a_prompt_is_not_sent_in_the_next_step_either(run: Run) -> None:
    class Redact(AbstractCapability[Any]):
        """Replaces in place, in the first step only, as the guardrails of the harness do."""

        async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
            for message in request_context.messages if ctx.run_step == 1 else ():
                for part in message.parts:
                    if part.part_kind == "user-prompt":
                        part.content = part.content.replace("swordfish", "****")
            return request_context

    model = three_steps()
    cls = worker(model, Redact())
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("my word is swordfish")
        await world.crash()
        agent = await world.get_agent(cls, "t")
        await agent.send("and now?")
        assert len(model.asked) == 6 or len(model.asked) == 4
        assert all("swordfish" not in part.content for asked in model.asked for one in asked for part in prompts(one))
        assert "swordfish" not in await agent.seen_by_model()


def prompts(message: ModelMessage) -> list[Any]:
    return [part for part in message.parts if part.part_kind == "user-prompt"]


class CapableChild(ChatAgent):
    """Answers its parent."""


class CapableBoss(Agent):
    async def ask(self) -> Any:
        run = await self.run_agent(CapableChild, "hi")
        return run.output


async def test_the_turn_of_a_sub_agent_is_a_turn_like_any_other(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    monkeypatch.setattr(CapableChild, "model", ScriptedModel(text("hello")))
    monkeypatch.setattr(CapableChild, "capabilities", (watch,))
    async with run(CapableBoss) as world:
        assert await (await world.get_agent(CapableBoss, "b")).ask() == "hello"
        assert {hook: watch.count(hook) for hook in ONCE} == dict.fromkeys(ONCE, 1)


async def test_a_function_may_make_the_capability_of_a_turn(run: Run) -> None:
    watch = Watch()

    async def choose(ctx: RunContext[Any]) -> Watch:
        return watch

    cls = worker(three_steps(), choose)
    async with run(cls) as world:
        await (await world.get_agent(cls, "t")).send("hi")
        assert (watch.count("for_run"), watch.count("before_run"), watch.count("after_run")) == (1, 1, 1)


async def test_a_capability_made_by_a_function_brings_its_tools(run: Run) -> None:
    @dataclass
    class Toolbelt(Watch):
        def get_toolset(self) -> FunctionToolset[Any]:
            toolset = FunctionToolset[Any]()

            @toolset.tool_plain
            async def hammer() -> str:
                """Hit it."""
                self.log.append("hit")
                return "hit"

            return toolset

    watch = Toolbelt()
    cls = worker(ScriptedModel(call("hammer"), text("done")), lambda _: watch)
    async with run(cls) as world:
        turn = await (await world.get_agent(cls, "t")).send("hi")
        assert (turn.status, turn.text) == ("completed", "done")
        assert [watch.count(hook) for hook in ("hit", "before_run", "after_run")] == [1, 1, 1]


async def test_the_hooks_of_a_loop_that_are_given_as_functions_are_called_once(run: Run) -> None:
    log: list[str] = []
    hooks = Hooks[Any]()

    @hooks.on.before_run
    async def begin(ctx: RunContext[Any]) -> None:
        log.append("before")

    @hooks.on.after_run
    async def end(ctx: RunContext[Any], *, result: AgentRunResult[Any]) -> AgentRunResult[Any]:
        log.append("after")
        return result

    @hooks.on.before_model_request
    async def ask(ctx: RunContext[Any], request_context: Any) -> Any:
        log.append("ask")
        return request_context

    loop = PydanticAgent(three_steps(), capabilities=[hooks, Instrumentation(settings=InstrumentationSettings())])
    cls: Any = type("Talker", (Worker,), {"loop": loop, "ran": []})
    async with run(cls) as world:
        assert (await (await world.get_agent(cls, "t")).send("hi")).status == "completed"
        assert log == ["before", "ask", "ask", "ask", "after"]
