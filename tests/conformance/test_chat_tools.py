"""Tools of the agent and of its clients: each is called once, and the turn goes on when all have answered."""

from __future__ import annotations

import asyncio
import json
import threading
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conformance.chats import (
    CLEAR,
    MESSAGES,
    NONE,
    PENDING,
    RESPONSE,
    RESUMING,
    TALKER,
    UPDATED,
    Talking,
    built,
    caught_up,
    check_history,
    chunks,
    done,
    dones,
    idle,
    open_calls,
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
from tests.conformance.served import type_of
from tests.conformance.worlds import Run, until

from sapwood import current_step_key, tool
from sapwood.testing import ScriptedModel, call, calls, text

BEEP = {"name": "beep", "description": "Beeps.", "parameters": {"type": "object", "properties": {}}}
HONK = {"name": "honk", "description": "Honks."}


class Handy(Talking):
    """One with tools of every kind."""

    log: list[Any]

    @tool
    async def add(self, a: int, b: int) -> int:
        """Add."""
        self.log.append((a, b))
        return a + b

    @tool(name="shout")
    def _loud(self, text: str) -> str:
        """Shout."""
        self.log.append(threading.get_ident())
        self.sql("CREATE TABLE IF NOT EXISTS shouts (text TEXT) STRICT")
        self.sql("INSERT INTO shouts VALUES (?)", text)
        return text.upper()

    @tool
    async def break_down(self) -> str:
        """Break down."""
        raise ValueError("broken")


def multiply(a: int, b: int) -> int:
    """Multiply."""
    threads.append(threading.get_ident())
    return a * b


threads: list[int] = []


def handy(model: Any, **settings: Any) -> Any:
    return talker(model, base=Handy, log=[], **settings)


async def test_tools_are_methods_and_functions_and_the_model_is_told_what_they_return(run: Run) -> None:
    model = ScriptedModel(
        calls(call("add", id="a", a=1, b=2), call("shout", id="s", text="hi"), call("multiply", id="m", a=3, b=4)),
        text("done"),
    )
    cls = handy(model, tools=[multiply])
    threads.clear()
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")

        turn = await agent.send("do it all")

        assert turn.text == "done"
        _, answer = await agent.conversation.messages()
        assert [parts_of(answer, id)["output"] for id in ("a", "s", "m")] == [3, "HI", 12]
        assert cls.log == [(1, 2), threading.get_ident()]
        assert threads
        assert threads[0] != threading.get_ident()
        check_history(json.loads(await agent.seen_by_model()))


def key_in_thread() -> str:
    """Return the key of this call."""
    return current_step_key()


async def test_each_tool_call_has_a_key_of_its_own_also_in_a_thread(run: Run) -> None:
    class Keyed(Handy):
        @tool
        async def key(self) -> str:
            """Return the key of this call."""
            first = current_step_key()
            assert first == await self.in_thread(key_in_thread)
            return first

    model = ScriptedModel(
        calls(call("key", id="a"), call("key", id="b"), call("key_in_thread", id="c")),
        text("done"),
    )
    cls = talker(model, base=Keyed, log=[], tools=[key_in_thread])
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        assert (await agent.send("go")).text == "done"
        _, answer = await agent.conversation.messages()

    keys = {parts_of(answer, id)["output"] for id in "abc"}
    assert len(keys) == 3
    assert {len(key) for key in keys} == {32}


def test_a_plain_method_may_be_a_tool_and_nobody_is_warned() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        class PlainTools(Talking):
            @tool
            def today(self) -> str:
                """Return the date."""
                return "today"

            @tool(name="shout", idempotent=True)
            def loud(self, text: str) -> str:
                """Shout."""
                return text.upper()


async def test_a_tool_that_fails_is_told_to_the_model_and_shown_as_an_error(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    cls = handy(ScriptedModel(call("break_down", id="b"), text("sorry")))
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")

        turn = await agent.send("break")

        assert (turn.status, turn.text) == ("completed", "sorry")
        _, answer = await agent.conversation.messages()
        assert parts_of(answer, "b")["state"] == "output-error"
        assert parts_of(answer, "b")["errorText"].startswith("Internal error (reference ")
        assert "broken" in await agent.seen_by_model()
    (line,) = (record for record in caplog.records if "break_down" in record.getMessage())
    assert line.exc_info is not None


async def test_a_tool_that_returns_what_does_not_fit_into_json_is_named(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def picture() -> float:
        """Take a picture."""
        return float("inf")

    cls = handy(ScriptedModel(call("picture", id="p"), text("sorry")), tools=[picture])
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")

        turn = await agent.send("say cheese")

        assert (turn.status, turn.text) == ("completed", "sorry")
        _, answer = await agent.conversation.messages()
        assert "picture ran, but its result is not a JSON value" in parts_of(answer, "p")["errorText"]
        check_history(json.loads(await agent.seen_by_model()))
    assert [record for record in caplog.records if "tool failed tool=picture" in record.getMessage()]


async def test_a_tool_that_returns_an_integer_of_more_than_64_bits_is_named(run: Run) -> None:
    async def count() -> dict[str, int]:
        """Count."""
        return {"atoms": 10**80}

    cls = handy(ScriptedModel(call("count", id="c"), text("many")), tools=[count])
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")

        assert (await agent.send("how many?")).text == "many"
        _, answer = await agent.conversation.messages()
        said = parts_of(answer, "c")["errorText"]
        assert "count ran, but its result cannot be stored: `atoms` in it is an integer of more than 64 bits." in said


async def test_a_model_that_keeps_calling_wrongly_is_stopped(run: Run) -> None:
    model = ScriptedModel(call("add", a="no number", b=2))
    cls = handy(model, max_retries=2)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")

        turn = await agent.send("add")

        assert turn.status == "failed"
        assert "max_retries" in str(turn.error)
        assert len(model.asked) == 3
        assert cls.log == []
        check_history(json.loads(await agent.seen_by_model()))


@pytest.mark.promise("CF-178")
async def test_a_client_runs_its_tool_and_the_turn_goes_on_in_the_same_message() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(call("beep", id="c1"), text("it beeped", gate=gate))
    cls = talker(model)
    async with talking(cls) as one:
        client, other = await one.join(TALKER), await one.join(TALKER)
        await say(client, "r1", user("beep", "u1"), clientTools=[BEEP])
        end = await done(client, "r1")
        assert (end["outcome"], end["messageIds"]) == ("completed", ["u1"])
        waiting = client.of_type(MESSAGES)[-1]["messages"][-1]
        assert parts_of(waiting, "c1")["state"] == "input-available"

        await tool_result(client, "c1", "beep!")
        offer = await resume(client, "p1")
        assert offer["type"] in (PENDING, RESUMING)
        await client.until(lambda frame: type_of(frame) == RESUMING)
        await take(client, "r1-1")
        await caught_up(client, "r1-1")
        gate.set()
        end = await done(client, "r1-1")
        await done(other, "r1-1")

        assert (end["outcome"], end["continuation"], end["messageIds"]) == ("completed", True, ["u1"])
        (updated,) = client.of_type(UPDATED)
        assert parts_of(updated["message"], "c1") == {
            "type": "tool-beep",
            "toolCallId": "c1",
            "state": "output-available",
            "input": {},
            "output": "beep!",
        }
        assert chunks(other, "r1-1")[0] == {"type": "start"}
        agent = await one.world.get_agent(cls, "t")
        asked, answer = await agent.conversation.messages()
        assert text_of(answer) == "it beeped"
        assert built(chunks(other, "r1-1"), updated["message"]) == answer
        assert built(chunks(client, "r1-1"), updated["message"]) == answer
        assert asked["id"] == "u1"
        assert len(dones(client)) == 2


@pytest.mark.promise("CF-164")
async def test_a_snapshot_comes_before_the_end_of_a_continuation_and_after_a_gap() -> None:
    finished: list[float] = []

    class Timed(Talking):
        def on_chunk(self, chunk: dict[str, Any]) -> None:
            if chunk["type"] == "finish":
                finished.append(asyncio.get_running_loop().time())

    cls = talker(ScriptedModel(call("beep", id="c1"), text("it beeped")), base=Timed)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "beep", clientTools=[BEEP])
        await done(client, "r1")

        await tool_result(client, "c1", "beep!")
        await done(client, "r1-1")

        assert asyncio.get_running_loop().time() - finished[0] > 0.02
        assert [type_of(frame) for frame in client.frames[-2:]] == [MESSAGES, RESPONSE]


@pytest.mark.promise("CF-175")
async def test_parallel_tools_of_a_client_continue_the_turn_once_when_all_have_answered() -> None:
    model = ScriptedModel(calls(call("beep", id="c1"), call("honk", id="c2")), text("both"))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "both", clientTools=[BEEP, HONK])
        await done(client, "r1")

        await tool_result(client, "c1", "beep!")
        await client.until(lambda frame: type_of(frame) == UPDATED)
        assert len(model.asked) == 1
        await tool_result(client, "c2", "honk!", go_on=False)
        await done(client, "r1-1")

        assert len(model.asked) == 2
        agent = await one.world.get_agent(cls, "t")
        _, answer = await agent.conversation.messages()
        assert [parts_of(answer, id)["output"] for id in ("c1", "c2")] == ["beep!", "honk!"]


@pytest.mark.promise("CF-176")
async def test_the_first_result_wins_and_later_ones_tell_nobody() -> None:
    model = ScriptedModel(calls(call("beep", id="c1"), call("honk", id="c2")), text("ok"))
    cls = talker(model)
    async with talking(cls) as one:
        client, other = await one.join(TALKER), await one.join(TALKER)
        await say(client, "r1", "go", clientTools=[BEEP, HONK])
        await done(other, "r1")

        await tool_result(client, "c1", "first")
        await other.until(lambda frame: type_of(frame) == UPDATED)
        await tool_result(other, "c1", "second")
        await tool_result(other, "c2", "x")
        await done(client, "r1-1")
        await tool_result(other, "c1", "third")
        await tool_result(other, "unknown", "fourth")
        agent = await one.world.get_agent(cls, "t")

        _, answer = await agent.conversation.messages()
        assert parts_of(answer, "c1")["output"] == "first"
        assert len(client.of_type(UPDATED)) == 2
        assert len(model.asked) == 2


@pytest.mark.promise("CF-175")
async def test_a_result_that_is_an_error_does_not_go_on_by_itself_and_the_model_hears_of_it_later() -> None:
    model = ScriptedModel(call("beep", id="c1"), text("I see"))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("go", "u1"), clientTools=[BEEP])
        await done(client, "r1")

        await tool_result(client, "c1", None, state="output-error", errorText="No speaker.")
        await client.until(lambda frame: type_of(frame) == UPDATED)
        assert await resume(client, "p1") == {"type": NONE, "reason": "idle", "probeId": "p1"}
        assert len(model.asked) == 1

        await say(client, "r2", user("go", "u1"), user("well?", "u2"))
        await done(client, "r2")
        agent = await one.world.get_agent(cls, "t")
        assert "No speaker." in await agent.seen_by_model()
        assert parts_of((await agent.conversation.messages())[1], "c1")["errorText"] == "No speaker."


@pytest.mark.promise("CF-175")
async def test_a_result_may_come_while_other_tools_still_run() -> None:
    gate = asyncio.Event()

    class Slow(Talking):
        @tool
        async def work(self) -> str:
            """Work."""
            await gate.wait()
            return "worked"

    model = ScriptedModel(calls(call("beep", id="c1"), call("work", id="w")), text("all done"))
    cls = talker(model, base=Slow)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "go", clientTools=[BEEP])
        await client.until(lambda frame: "tool-input-available" in str(frame.get("body")))

        await tool_result(client, "c1", "beep!")
        await client.call("nothing")
        gate.set()
        await done(client, "r1")
        await client.until(lambda frame: type_of(frame) == RESPONSE and frame["id"] == "r1-1" and frame["done"])

        agent = await one.world.get_agent(cls, "t")
        _, answer = await agent.conversation.messages()
        assert (parts_of(answer, "c1")["output"], parts_of(answer, "w")["output"]) == ("beep!", "worked")
        assert text_of(answer) == "all done"


async def test_a_result_that_came_early_is_not_lost_in_a_crash() -> None:
    gate = asyncio.Event()

    class Slow(Talking):
        @tool(idempotent=True)
        async def work(self) -> str:
            """Work."""
            await gate.wait()
            return "worked"

    model = ScriptedModel(calls(call("beep", id="c1"), call("work", id="w")), text("all done"))
    cls = talker(model, base=Slow)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "go", clientTools=[BEEP])
        await client.until(lambda frame: "tool-input-available" in str(frame.get("body")) and '"w"' in frame["body"])
        await tool_result(client, "c1", "beep!")
        await client.call("nothing")

        await one.world.crash()
        gate.set()
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        _, answer = await agent.conversation.messages()
        assert (parts_of(answer, "c1")["output"], text_of(answer)) == ("beep!", "all done")


@pytest.mark.promise("CF-180")
async def test_the_tools_a_client_has_are_the_ones_it_sent_last() -> None:
    model = ScriptedModel(call("beep", id="c1"), text("ok"))
    seen: list[set[str]] = []

    class Watching(Talking):
        async def before_step(self, turn: Any, step: int) -> None:
            await super().before_step(turn, step)

    cls = talker(model, base=Watching)
    say_it = model._say

    async def watch(messages: Any, info: Any) -> AsyncIterator[Any]:
        seen.append({one.name for one in info.function_tools})
        async for part in say_it(messages, info):
            yield part

    model.stream_function = watch
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("a", "u1"), clientTools=[BEEP])
        await done(client, "r1")
        await tool_result(client, "c1", "beep!", clientTools=[HONK])
        await done(client, "r1-1")
        await say(client, "r2", user("a", "u1"), user("b", "u2"))
        await done(client, "r2")

        assert seen == [{"beep"}, {"honk"}, set()]


@pytest.mark.promise("CF-179")
async def test_who_waits_for_a_continuation_that_does_not_come_is_released_at_once() -> None:
    cls = talker(ScriptedModel(call("beep", id="c1"), text("ok")))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "a", clientTools=[BEEP])
        await done(client, "r1")

        await tool_result(client, "c1", "x", go_on=False)
        assert (await resume(client, "p1"))["type"] == NONE
        await client.send({"type": CLEAR})
        assert (await resume(client, "p2"))["type"] == NONE


async def test_a_user_who_says_something_else_instead_closes_the_call() -> None:
    model = ScriptedModel(calls(call("beep", id="c1"), call("honk", id="c2")), text("never mind"))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("a", "u1"), clientTools=[BEEP, HONK])
        await done(client, "r1")
        await tool_result(client, "c1", "beep!")
        await client.until(lambda frame: type_of(frame) == UPDATED)

        await say(client, "r2", user("a", "u1"), user("forget it", "u2"))
        await done(client, "r2")

        agent = await one.world.get_agent(cls, "t")
        history = json.loads(await agent.seen_by_model())
        assert not open_calls(history)
        returned = {
            p["tool_call_id"]: p["content"] for m in history for p in m["parts"] if p["part_kind"] == "tool-return"
        }
        assert returned["c1"] == "beep!"
        assert "The question was not answered" in returned["c2"]
        answer = (await agent.conversation.messages())[1]
        assert parts_of(answer, "c1")["state"] == "output-available"
        assert parts_of(answer, "c2")["state"] == "output-error"
        assert "The question was not answered" in parts_of(answer, "c2")["errorText"]
        await tool_result(client, "c2", "too late")
        await resume(client, "sync")
        assert parts_of((await agent.conversation.messages())[1], "c2")["state"] == "output-error"


@pytest.mark.promise("CF-178")
async def test_a_continuation_can_call_tools_again() -> None:
    model = ScriptedModel(call("beep", id="c1"), call("beep", id="c2"), text("twice"))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "a", clientTools=[BEEP])
        await done(client, "r1")
        await tool_result(client, "c1", 1)
        await done(client, "r1-1")
        await tool_result(client, "c2", 2)
        await done(client, "r1-2")

        agent = await one.world.get_agent(cls, "t")
        assert len(await agent.conversation.messages()) == 2
        assert said(chunks(client, "r1-2")) == "twice"
        await streamed(client, "r1-2", "twice")
        await until(lambda: len(model.asked) == 3)
