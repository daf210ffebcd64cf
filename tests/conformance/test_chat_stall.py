"""A model that falls silent in the middle of an answer is cut off and asked again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conformance.chats import (
    MESSAGES,
    RECOVERING,
    RESPONSE,
    RESUMING,
    TALKER,
    Talking,
    built,
    caught_up,
    chunks,
    done,
    dones,
    idle,
    said,
    say,
    streamed,
    take,
    talker,
    talking,
    text_of,
    user,
)
from tests.conformance.served import Served, type_of
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import Turn, tool
from sapwood.testing import ScriptedModel, call, text


def silent(*before: Any, says: str = "once upon a time", times: int = 1, gate: asyncio.Event | None = None) -> Any:
    """Return a model that falls silent so many times after its first word, and then says everything."""
    return ScriptedModel(*before, *[text(says, gate=asyncio.Event()) for _ in range(times)], text(says, gate=gate))


async def stall(one: Served, model: Any, asked: int) -> None:
    """Let a model be silent for too long that was asked so many times; return when it is asked again."""
    await until(lambda: len(model.asked) == asked)
    async with asyncio.timeout(patience()):
        while len(model.asked) == asked:
            await one.world.clock.advance(61)
            await asyncio.sleep(0.01)


async def test_by_default_a_model_may_be_silent_for_ten_minutes() -> None:
    model = silent()
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "tell")
        await streamed(client, "r1", "once")

        await one.world.clock.advance(599)
        assert (model.cancelled, len(model.asked)) == (0, 1)
        await one.world.clock.advance(1)
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert text_of((await agent.conversation.messages())[-1]) == "once upon a time"
        assert (model.cancelled, len(model.asked)) == (1, 2)


@pytest.mark.promise("CF-186")
async def test_without_a_timeout_a_model_may_be_silent_for_ever() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("once upon a time", gate=gate))
    cls = talker(model, stall_timeout=None)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "tell")
        await streamed(client, "r1", "once")

        await one.world.clock.advance(24 * 3600)
        gate.set()

        assert (await done(client, "r1"))["outcome"] == "completed"
        assert len(model.asked) == 1


@pytest.mark.promise("CF-186")
async def test_silence_is_cut_off_and_the_answer_begun_again_for_everybody_under_the_same_ids() -> None:
    gate = asyncio.Event()
    model = silent(gate=gate)
    cls = talker(model, stall_timeout=60)
    async with talking(cls) as one:
        clients = [await one.join(TALKER), await one.join(TALKER)]
        await say(clients[0], "r1", user("tell", "u1"))
        for client in clients:
            await streamed(client, "r1", "once")
        (start, *_) = chunks(clients[0], "r1")

        await stall(one, model, 1)

        assert model.cancelled == 1
        for client in clients:
            await client.until(lambda frame: type_of(frame) == RESUMING)
            end = next(at for at, frame in enumerate(client.frames) if type_of(frame) == RESPONSE and frame["done"])
            assert client.frames[end]["outcome"] == "recovering"
            told = [frame for frame in client.frames[end:] if type_of(frame) in (MESSAGES, RESUMING)]
            assert [message["id"] for message in told[0]["messages"]] == ["u1"]
            assert (type_of(told[1]), told[1]["id"]) == (RESUMING, "r1")
            await take(client, "r1")
            await caught_up(client, "r1")
        gate.set()
        for client in clients:
            await client.until(lambda frame: type_of(frame) == RESPONSE and frame.get("outcome") == "completed")
            seen = client.frames[client.frames.index(client.of_type(RESUMING)[-1]) :]
            again = [json.loads(frame["body"]) for frame in seen if type_of(frame) == RESPONSE and frame["body"]]
            assert again[0] == start
            assert built(again) == client.of_type(MESSAGES)[-1]["messages"][-1]
            assert said(again) == "once upon a time"
            assert [frame["recovering"] for frame in client.of_type(RECOVERING)] == [True, False]
        agent = await one.world.get_agent(cls, "t")
        assert [text_of(message) for message in await agent.conversation.messages()] == ["tell", "once upon a time"]
        assert await agent.ends() == [("r1", "completed")]


async def test_silence_before_the_first_word_counts_too() -> None:
    model = ScriptedModel(text("never", delay=3600), text("at last"))
    cls = talker(model, stall_timeout=60)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "tell")

        await stall(one, model, 1)
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert text_of((await agent.conversation.messages())[-1]) == "at last"


@pytest.mark.slow
@pytest.mark.promise("CF-186")
async def test_one_that_stays_silent_is_given_up_with_a_text_and_the_next_turn_runs() -> None:
    model = silent(times=5)
    cls = talker(model, stall_timeout=60)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("tell", "u1"))
        for asked in range(1, 5):
            await stall(one, model, asked)
        agent = await one.world.get_agent(cls, "t")
        async with asyncio.timeout(patience()):
            while not await agent.ends():
                await one.world.clock.advance(61)

        assert await agent.ends() == [("r1", "failed")]
        assert len(model.asked) == model.cancelled == 5
        late = await one.join(TALKER)
        await take(late, "r1")
        assert (await done(late, "r1"))["body"] == "The model stopped answering."
        assert (await agent.send("again")).text == "once upon a time"


@pytest.mark.slow
async def test_what_was_finished_before_the_silence_stays_and_its_tools_are_not_called_again() -> None:
    class Careful(Talking):
        made: list[str]

        @tool
        async def make(self) -> str:
            """Make it, slowly."""
            self.made.append("it")
            return "made"

    gate = asyncio.Event()
    model = silent(call("make", id="c1"), says="it is made", gate=gate)
    cls = talker(model, base=Careful, stall_timeout=60, made=[])
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "make it")
        await streamed(client, "r1", "it")

        await stall(one, model, 2)
        await take(client, "r1")
        await caught_up(client, "r1")
        gate.set()
        await client.until(lambda frame: type_of(frame) == RESPONSE and frame.get("outcome") == "completed")

        assert cls.made == ["it"]
        agent = await one.world.get_agent(cls, "t")
        replayed = chunks(client, "r1", replay=True)
        assert [chunk["type"] for chunk in replayed].count("tool-output-available") == 1
        message = (await agent.conversation.messages())[-1]
        assert text_of(message) == "it is made"
        assert [part["type"] for part in message["parts"]].count("tool-make") == 1


async def test_a_tool_may_take_as_long_as_it_likes() -> None:
    class Slow(Talking):
        gate: asyncio.Event
        running: list[str]

        @tool
        async def work(self) -> str:
            """Work for long."""
            self.running.append("work")
            await self.gate.wait()
            return "worked"

    model = ScriptedModel(call("work", id="c1"), text("it is done"))
    cls = talker(model, base=Slow, stall_timeout=60, gate=asyncio.Event(), running=[])
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "work")
        await until(lambda: bool(cls.running))

        await one.world.clock.advance(3600)
        cls.gate.set()

        assert (await done(client, "r1"))["outcome"] == "completed"
        assert cls.running == ["work"]
        assert len(model.asked) == 2


async def test_an_own_loop_that_falls_silent_is_begun_again_and_one_that_goes_on_slowly_is_not() -> None:
    class Own(Talking):
        words: asyncio.Queue[str]
        begun: list[str]

        async def respond(self, turn: Turn) -> AsyncIterator[str]:
            self.begun.append(turn.id)
            while word := await self.words.get():
                yield word

    cls = talker(base=Own, stall_timeout=60, words=asyncio.Queue(), begun=[])
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "tell")
        for at, word in enumerate(["half ", "and ", "half"]):
            cls.words.put_nowait(word)
            await streamed(client, "r1", "half and half"[: 5 * at + 4].strip())
            await one.world.clock.advance(40)
        assert cls.begun == ["r1"]

        await one.world.clock.advance(61)
        await until(lambda: cls.begun == ["r1", "r1"])
        for word in ("all ", "of it", ""):
            cls.words.put_nowait(word)
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert text_of((await agent.conversation.messages())[-1]) == "all of it"


async def test_an_own_loop_may_be_silent_for_ever_unless_its_class_says_otherwise() -> None:
    class OwnPatient(Talking):
        word: asyncio.Event
        begun: list[str]

        async def respond(self, turn: Turn) -> AsyncIterator[str]:
            self.begun.append(turn.id)
            await self.word.wait()
            yield "at last"

    cls = talker(base=OwnPatient, word=asyncio.Event(), begun=[])
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "tell")
        await until(lambda: cls.begun == ["r1"])

        await one.world.clock.advance(24 * 3600)
        cls.word.set()

        assert (await done(client, "r1"))["outcome"] == "completed"
        assert cls.begun == ["r1"]


async def test_a_turn_can_be_cancelled_after_it_was_begun_again() -> None:
    model = silent(times=3)
    cls = talker(model, stall_timeout=60)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "tell")
        await stall(one, model, 1)

        agent = await one.world.get_agent(cls, "t")
        assert await agent.turns.cancel()
        await idle(one)

        assert await agent.ends() == [("r1", "cancelled")]
        assert len(model.asked) == model.cancelled == 2
        assert "recovering" in [frame["outcome"] for frame in dones(client, "r1")]


async def test_who_listens_by_http_is_told_that_the_answer_is_begun_again() -> None:
    model = silent()
    cls = talker(model, stall_timeout=60)
    async with talking(cls) as one:
        body = json.dumps({"messages": [user("tell", "u1")]})
        answer = asyncio.ensure_future(one.site.http(f"{TALKER}/chat", method="POST", body=body.encode()))
        await until(lambda: len(model.asked) == 1)

        await stall(one, model, 1)
        heard = (await answer).text

        assert "The model stopped responding and is asked again." in heard
        assert heard.endswith("data: [DONE]\n\n")
        await idle(one)
        agent = await one.world.get_agent(cls, "t")
        assert text_of((await agent.conversation.messages())[-1]) == "once upon a time"
