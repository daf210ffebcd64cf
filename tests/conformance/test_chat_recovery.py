"""A turn goes on after a crash: under the same ids, with no tool called twice, and no text lost or said twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from tests.conformance.chats import (
    MESSAGES,
    RECOVERING,
    RESPONSE,
    TALKER,
    UPDATED,
    Talking,
    approval,
    built,
    caught_up,
    chunks,
    done,
    dones,
    idle,
    open_calls,
    over,
    parts_of,
    resume,
    said,
    say,
    streamed,
    take,
    talker,
    talking,
    text_of,
    tool_result,
    user,
)
from tests.conformance.served import Served, type_of
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import Turn, Unavailable, tool
from sapwood.testing import ScriptedModel, call, calls, text
from sapwood.testing.faults import Dead

pytestmark = pytest.mark.core("temporal")


class Working(Talking):
    """One with tools that note how often they run."""

    log: list[str]
    gate: asyncio.Event

    @tool
    async def once(self) -> str:
        """Do it once."""
        self.log.append("once")
        return "done once"

    @tool(idempotent=True)
    async def again(self) -> str:
        """Do it, perhaps again."""
        self.log.append("again")
        await self.gate.wait()
        return "done again"

    @tool
    async def slow(self) -> str:
        """Do it slowly, and never again."""
        self.log.append("slow")
        await self.gate.wait()
        return "done slowly"


def working(model: Any, *, is_open: bool = False, **settings: Any) -> Any:
    gate = asyncio.Event()
    if is_open:
        gate.set()
    return talker(model, base=Working, log=[], gate=gate, **settings)


@pytest.mark.promise("CF-181")
async def test_killed_before_the_model_is_asked_the_question_is_asked_then() -> None:
    gate, asked = asyncio.Event(), asyncio.Event()

    class Thinking(Talking):
        async def before_turn(self, turn: Turn) -> None:
            asked.set()
            await gate.wait()

    model = ScriptedModel(text("hello"))
    cls = talker(model, base=Thinking)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("hi", "u1"))
        await asked.wait()

        await one.world.crash()
        gate.set()
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert [text_of(message) for message in await agent.conversation.messages()] == ["hi", "hello"]
        assert await agent.ends() == [("r1", "completed")]


@pytest.mark.promise("CF-181")
async def test_killed_in_the_middle_of_an_answer_it_is_asked_for_again_under_the_same_ids() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("once upon a time", gate=gate))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("tell", "u1"))
        await streamed(client, "r1", "once")
        id = chunks(client, "r1")[0]["messageId"]

        await one.world.crash()
        late = await one.join(TALKER)
        await until(lambda: len(model.asked) == 2)
        assert (await resume(late))["id"] == "r1"
        await take(late, "r1")
        await caught_up(late, "r1")
        gate.set()
        end = await done(late, "r1")

        assert chunks(late, "r1")[0] == {"type": "start", "messageId": id}
        assert said(chunks(late, "r1")) == "once upon a time"
        assert (end["outcome"], end["messageIds"]) == ("completed", ["u1"])
        agent = await one.world.get_agent(cls, "t")
        stored = (await agent.conversation.messages())[-1]
        assert built(chunks(late, "r1")) == stored
        assert stored["id"] == id
        assert await agent.ends() == [("r1", "completed")]


@pytest.mark.promise("CF-183")
async def test_a_tool_that_had_returned_is_not_called_again_and_one_that_had_not_is_only_if_it_may_be() -> None:
    model = ScriptedModel(calls(call("once", id="o"), call("again", id="a"), call("slow", id="s")), text("that is all"))
    cls = working(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "work")
        await until(lambda: {"once", "again", "slow"} <= {*cls.log})
        await client.until(lambda frame: "done once" in str(frame.get("body")))

        await one.world.crash()
        cls.gate.set()
        await idle(one)

        assert Counter(cls.log) == {"once": 1, "again": 2, "slow": 1}
        agent = await one.world.get_agent(cls, "t")
        _, answer = await agent.conversation.messages()
        assert parts_of(answer, "o")["output"] == "done once"
        assert parts_of(answer, "a")["output"] == "done again"
        assert parts_of(answer, "s")["state"] == "output-error"
        assert "interrupted" in parts_of(answer, "s")["errorText"]
        assert text_of(answer) == "that is all"
        assert len(model.asked) == 2


async def test_killed_in_the_second_step_the_first_is_not_repeated() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(call("once", id="o"), text("it is done", gate=gate))
    cls = working(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "work")
        await streamed(client, "r1", "it")

        await one.world.crash()
        gate.set()
        await idle(one)

        assert cls.log == ["once"]
        assert len(model.asked) == 3
        agent = await one.world.get_agent(cls, "t")
        _, answer = await agent.conversation.messages()
        assert [part["type"] for part in answer["parts"]] == ["step-start", "tool-once", "step-start", "text"]
        assert text_of(answer) == "it is done"


async def test_an_own_loop_is_begun_again() -> None:
    gate = asyncio.Event()

    class Own(Talking):
        async def respond(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
            yield "half "
            await gate.wait()
            yield "and half"

    cls = talker(base=Own)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await streamed(client, "r1", "half")

        await one.world.crash()
        gate.set()
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert text_of((await agent.conversation.messages())[-1]) == "half and half"


@pytest.mark.promise("CF-184")
async def test_recovery_is_told_replayed_to_who_connects_and_cleared_at_the_end() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("once upon a time", gate=gate))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "tell")
        await streamed(client, "r1", "once")
        assert client.of_type(RECOVERING) == []

        await one.world.crash()
        first = await one.join(TALKER)
        await until(lambda: len(model.asked) == 2)
        second = await one.join(TALKER)
        on = {"type": RECOVERING, "recovering": True, "id": "r1"}
        assert await first.until(lambda frame: type_of(frame) == RECOVERING) == on
        assert second.of_type(RECOVERING) == [on]
        await one.world.clock.advance(16 * 60)
        assert (await one.join(TALKER)).of_type(RECOVERING) == []
        gate.set()

        for late in (first, second):
            off = await late.until(lambda frame: type_of(frame) == RECOVERING and not frame["recovering"])
            assert off == {"type": RECOVERING, "recovering": False, "id": "r1"}
        await idle(one)
        assert (await one.join(TALKER)).of_type(RECOVERING) == []


async def killed_until_hopeless(one: Served, model: Any) -> None:
    """Have the process die during a turn as often as it may before the turn is given up."""
    client = await one.join(TALKER)
    await say(client, "r1", user("tell", "u1"))
    await streamed(client, "r1", "never")
    for time in range(2, 7):
        await one.world.crash()
        async with asyncio.timeout(patience()):
            while len(model.asked) < time:
                await one.world.clock.advance(400)
                await asyncio.sleep(0.01)
    await one.world.crash()


@pytest.mark.slow
@pytest.mark.promise("CF-182")
async def test_a_turn_that_kills_its_process_each_time_is_given_up_with_a_text_and_the_next_one_runs() -> None:
    model = ScriptedModel(text("never", gate=asyncio.Event()))
    cls = talker(model)
    async with talking(cls) as one:
        await killed_until_hopeless(one, model)
        await one.world.clock.advance(400)

        client = await one.join(TALKER)
        assert (await resume(client))["id"] == "r1"
        await take(client, "r1")
        end = await done(client, "r1")

        assert end["error"]
        assert "without progress" in end["body"]
        assert len(model.asked) == 6
        assert client.of_type(RECOVERING) == []
        model.lines.append(text("better"))
        await say(client, "r2", user("tell", "u1"), user("again", "u2"))
        assert (await done(client, "r2"))["outcome"] == "completed"


@pytest.mark.promise("CF-185")
@pytest.mark.slow
@pytest.mark.core
async def test_giving_up_is_finished_if_the_process_dies_in_the_middle_of_it() -> None:
    expect_deaths()
    nth, passed = 0, True
    while passed:
        nth += 1
        model = ScriptedModel(text("never", gate=asyncio.Event()))
        cls = talker(model)
        async with talking(cls) as one:
            await killed_until_hopeless(one, model)
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            await one.world.clock.advance(400)
            passed = one.world.points.passed["committed"] >= before + nth
            await one.world.crash()
            await one.world.clock.advance(400)

            client = await one.join(TALKER)
            assert (await resume(client))["id"] == "r1"
            await take(client, "r1")
            assert (await done(client, "r1"))["error"], nth
            assert len(model.asked) == 6, nth


@pytest.mark.nightly
@pytest.mark.promise("CF-182")
@pytest.mark.slow
async def test_progress_gives_a_turn_new_attempts() -> None:
    gates = [asyncio.Event() for _ in range(8)]
    lines = [
        line for number, gate in enumerate(gates) for line in (text("x", gate=gate), call("once", id=f"o{number}"))
    ]
    model = ScriptedModel(*lines, text("at last"))
    cls = working(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "work")
        for number in range(8):
            await until(lambda: len(model.asked) == 2 * number + 1)  # noqa: B023
            await one.world.crash()
            async with asyncio.timeout(patience()):
                while len(model.asked) < 2 * number + 3:
                    await one.world.clock.advance(5)
                    await asyncio.sleep(0.01)

        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert await agent.ends() == [("r1", "completed")]
        assert len(cls.log) == 8


@pytest.mark.promise("CF-185")
async def test_many_restarts_in_a_row_are_one_attempt_each_and_lose_nothing() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("once upon a time", gate=gate))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "tell")
        await streamed(client, "r1", "once")

        for _ in range(4):
            await one.world.crash()
        gate.set()
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert len(model.asked) <= 6
        assert text_of((await agent.conversation.messages())[-1]) == "once upon a time"


@pytest.mark.slow
async def test_an_ordered_restart_is_no_error_either() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("once upon a time", gate=gate))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "tell")
        await streamed(client, "r1", "once")

        await one.world.restart()
        gate.set()
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert text_of((await agent.conversation.messages())[-1]) == "once upon a time"
        assert await agent.ends() == [("r1", "completed")]


BEEP = [{"name": "beep"}]
PLAIN = [text("hello there world")]
TOOLS = [calls(call("once", id="o"), call("again", id="a")), text("all of it")]
STEPS = [call("once", id="o1"), call("once", id="o2"), text("two steps")]
WAITS = [calls(call("once", id="o"), call("beep", id="b")), text("it beeped")]


@pytest.mark.promise("CF-181")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "whole"),
    [
        pytest.param(PLAIN, "hello there world", id="plain"),
        pytest.param(TOOLS, "all of it", id="tools"),
        pytest.param(STEPS, "two steps", id="steps", marks=pytest.mark.core()),
        pytest.param(WAITS, "it beeped", id="waits", marks=pytest.mark.core()),
    ],
)
async def test_killed_at_any_commit_a_turn_ends_once_with_all_of_its_text_and_each_finished_tool_once(
    lines: list[Any], whole: str
) -> None:
    expect_deaths()
    nth, passed = 0, True
    while passed:
        nth += 1
        # The script goes by the conversation, as a model does, and not by how often it was asked.
        model = ScriptedModel(*lines)
        cls = working(follows(model), is_open=True)
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            await agent.ends()
            client = await one.join(TALKER)
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable, AssertionError, TimeoutError, OSError):
                await say(client, "r1", user("go", "u1"), clientTools=BEEP)
                await until_over(one, client, before + nth)
            passed = one.world.points.passed["committed"] >= before + nth
            seen = chunks(client, "r1")
            await one.world.crash()
            late = await idle(one)
            agent = await one.world.get_agent(cls, "t")
            transcript = await agent.conversation.messages()
            if not transcript:
                continue  # the request itself was not kept, and nobody was told that it was
            if await answer_beep(agent, late, transcript):
                await idle(one)
                transcript = await agent.conversation.messages()
            assert [message["role"] for message in transcript] == ["user", "assistant"], nth
            assert text_of(transcript[1]) == whole, nth
            tools = [part["toolCallId"] for part in transcript[1]["parts"] if "toolCallId" in part]
            assert len(tools) == len(set(tools)), nth
            texts = [part for part in transcript[1]["parts"] if part["type"] == "text"]
            assert len(texts) == 1, nth
            assert not open_calls(json.loads(await agent.seen_by_model())), nth
            told = {chunk["toolCallId"] for chunk in seen if chunk["type"] == "tool-output-available"}
            states = [parts_of(transcript[1], id)["state"] for id in tools if id.startswith("o")]
            assert states.count("output-available") <= cls.log.count("once") <= len(states), (nth, cls.log)
            for id in told - {"b"}:
                assert parts_of(transcript[1], id)["state"] == "output-available", nth
            assert [status for _, status in await agent.ends()] in ([], ["completed"]), nth
    assert nth > 3


def expect_deaths() -> None:
    """Have it be no failure that a callback of the loop was where the process died."""
    loop = asyncio.get_running_loop()
    given = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), Dead):
            return
        if given is None:
            loop.default_exception_handler(context)
        else:
            given(loop, context)

    loop.set_exception_handler(handle)


def follows(model: Any) -> Any:
    """Have a script go by how far the conversation is."""
    lines = [*model.lines]

    class Asked(list[Any]):
        def append(self, messages: Any) -> None:
            super().append(messages)
            step = sum(1 for message in messages if message.kind == "response")
            model.lines[:] = [lines[min(step, len(lines) - 1)]]

    model.asked = Asked()
    return model


async def until_over(one: Any, client: Any, passed: int) -> None:
    """Wait until the turn is over, or the process is dead; answer what it asks."""
    async with asyncio.timeout(patience()):
        while one.world.points.passed["committed"] < passed:
            ends = dones(client)
            waits = bool(ends) and "tool-beep" in str(client.of_type(MESSAGES)[-1])
            if len(ends) == (2 if waits else 1):
                await asyncio.sleep(0.05)
                return
            if waits and not client.of_type(UPDATED):
                await tool_result(client, "b", "beep!")
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.005)


async def answer_beep(agent: Any, client: Any, transcript: list[Any]) -> bool:
    parts = [part for part in transcript[-1]["parts"] if part.get("toolCallId") == "b"]
    if not parts or parts[0]["state"] != "input-available":
        return False
    await tool_result(client, "b", "beep!")
    await client.until(lambda frame: type_of(frame) == RESPONSE and frame["id"] == "r1-1" and frame["done"])
    return True


@pytest.mark.nightly
async def test_a_crash_while_an_approval_is_asked_for_asks_for_it_again() -> None:
    class Paying(Talking):
        log: list[int]

        @tool(requires_approval=True)
        async def pay(self) -> str:
            """Pay."""
            self.log.append(1)
            return "paid"

    expect_deaths()
    nth, passed = 0, True
    while passed:
        nth += 1
        model = ScriptedModel(call("pay", id="p"), text("paid it"))
        cls = talker(follows(model), base=Paying, log=[])
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            await agent.ends()
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable, OSError):
                await agent.send("pay")
            passed = one.world.points.passed["committed"] >= before + nth
            await one.world.crash()
            client = await idle(one)
            agent = await one.world.get_agent(cls, "t")
            if not await agent.conversation.messages():
                continue
            assert [one.id for one in await agent.questions.list()] == ["p"], nth
            await approval(client, "p", approved=True)
            await client.until(lambda frame: type_of(frame) == RESPONSE and frame["done"])
            assert cls.log == [1]
            assert text_of((await agent.conversation.messages())[-1]) == "paid it"


class Paying(Talking):
    """One whose model asks, looks, and asks once more."""

    log: list[str]

    @tool(requires_approval=True)
    async def pay(self) -> str:
        """Pay."""
        self.log.append("paid")
        return "paid"

    @tool
    async def look(self) -> str:
        """Look."""
        self.log.append("looked")
        return "found"


async def test_a_continuation_killed_just_before_it_waits_again_waits_and_asks_the_model_nothing() -> None:
    model = ScriptedModel(call("pay", id="p"), calls(call("look", id="l"), call("pay", id="q")), text("paid it"))
    cls = talker(follows(model), base=Paying, log=[])
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "pay")
        await done(client, "r1")
        await approval(client, "p", approved=True)
        await client.until(lambda frame: "tool-approval-request" in str(frame) and frame["id"] == "r1-1")

        await one.world.crash()
        late = await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert [one.id for one in await agent.questions.list()] == ["q"]
        assert len(model.asked) == 2
        await approval(late, "q", approved=True)
        await done(late, "r1-2")
        assert cls.log == ["paid", "looked", "paid"]
        assert text_of((await agent.conversation.messages())[-1]) == "paid it"


@pytest.mark.parametrize("output", [{"n": 3}, "all paid"])
async def test_a_continuation_killed_just_before_its_end_ends_and_asks_the_model_nothing(output: Any) -> None:
    last = text(output) if isinstance(output, str) else call("final_result", id="f", **output)
    model = ScriptedModel(call("pay", id="p"), last, text("asked once too often"))
    cls = talker(follows(model), base=Paying, log=[], output_type=str if isinstance(output, str) else Counted)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "pay")
        await done(client, "r1")
        await approval(client, "p", approved=True)
        await client.until(lambda frame: '"finish"' in str(frame.get("body")) and frame["id"] == "r1-1")

        await one.world.crash()
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        (turn,) = (await agent.conversation.export())["turns"]
        assert (turn["status"], turn["output"], len(model.asked)) == ("completed", output, 2)


class Counted(BaseModel):
    n: int


async def test_an_own_loop_killed_just_before_the_end_of_its_continuation_does_not_answer_twice() -> None:
    class Own(Talking):
        async def respond(self, turn: Turn) -> AsyncIterator[str]:
            yield "a word "

    cls = talker(base=Own)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        agent = await one.world.get_agent(cls, "t")
        await agent.send("hi")
        going_on = asyncio.create_task(agent.turns.continue_last())
        await client.until(lambda frame: '"finish"' in str(frame.get("body")) and frame.get("continuation"))

        await one.world.crash()
        with contextlib.suppress(Unavailable):
            await going_on
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert text_of((await agent.conversation.messages())[-1]) == "a word a word "
        assert (await agent.seen_by_model()).count("a word") == 2


async def test_a_turn_whose_end_was_being_told_when_the_process_died_is_told_again() -> None:
    gate, told = asyncio.Event(), list[str]()

    class Telling(Talking):
        async def after_turn(self, turn: Turn) -> None:
            told.append(turn.status)
            await gate.wait()
            await super().after_turn(turn)

    cls = talker(ScriptedModel(text("hello")), base=Telling)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        turn = await agent.send("hi")
        await until(lambda: told == ["completed"])

        await one.world.crash()
        gate.set()
        agent = await one.world.get_agent(cls, "t")

        assert await over(agent) == [(turn.id, "completed")]
        assert told == ["completed"] * 2


@pytest.mark.nightly
async def test_a_tool_that_had_returned_is_not_called_again_after_the_second_crash_either() -> None:
    model = ScriptedModel(calls(call("once", id="o"), call("again", id="a")), text("that is all"))
    cls = working(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "work")
        await client.until(lambda frame: "done once" in str(frame.get("body")))

        for runs in (2, 3):
            await one.world.crash()
            await one.world.clock.advance(10)
            await until(lambda runs=runs: cls.log.count("again") == runs)
        cls.gate.set()
        await idle(one)

        assert cls.log.count("once") == 1
        agent = await one.world.get_agent(cls, "t")
        _, answer = await agent.conversation.messages()
        assert parts_of(answer, "o")["state"] == "output-available"
        assert "interrupted" not in await agent.seen_by_model()
