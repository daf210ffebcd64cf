"""What a turn says reaches every client as it is said, once, and is what is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import groupby
from typing import Any

import pytest
from pydantic_ai.models.function import FunctionModel
from tests.conformance.chats import (
    CLEAR,
    MESSAGES,
    RESPONSE,
    TALKER,
    Talking,
    built,
    chunks,
    done,
    dones,
    kinds,
    said,
    say,
    seqs,
    streamed,
    talker,
    talking,
    text_of,
    user,
)
from tests.conformance.served import type_of
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import Refused, tool
from sapwood.testing import ScriptedModel, call, fails, text


class Looking(Talking):
    @tool
    async def look(self, at: str) -> dict[str, str]:
        """Look."""
        return {"seen": at}


@pytest.mark.promise("CF-164")
async def test_a_turn_streams_start_steps_parts_and_finish_and_ends_after_its_transcript() -> None:
    cls = talker(ScriptedModel(call("look", id="c1", at="sky"), text("It is blue.")), base=Looking)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await one.world.clock.advance(60)
        before = len(client.frames)

        await say(client, "r1", user("look", "u1"))
        end = await done(client, "r1")

        # How many deltas a text comes in depends on how busy the machine is.
        assert [kind for kind, _ in groupby(kinds(client, "r1"))] == [
            "start",
            "start-step",
            "tool-input-start",
            "tool-input-delta",
            "tool-input-available",
            "tool-output-available",
            "finish-step",
            "start-step",
            "text-start",
            "text-delta",
            "text-end",
            "finish-step",
            "finish",
        ]
        assert end == {
            "body": "",
            "done": True,
            "id": "r1",
            "type": RESPONSE,
            "outcome": "completed",
            "messageIds": ["u1"],
        }
        types = [type_of(frame) for frame in client.frames[before:]]
        assert types[-2:] == [MESSAGES, RESPONSE]
        assert types.count(MESSAGES) == 1


@pytest.mark.promise("CF-157")
async def test_what_is_streamed_is_what_is_kept_under_the_same_id() -> None:
    cls = talker(ScriptedModel(call("look", id="c1", at="sky"), text("It is blue.")), base=Looking)
    async with talking(cls) as one:
        client = await one.join(TALKER)

        await say(client, "r1", "look")
        await done(client, "r1")

        agent = await one.world.get_agent(cls, "t")
        stored = (await agent.conversation.messages())[-1]
        assert built(chunks(client, "r1")) == stored
        assert client.of_type(MESSAGES)[-1]["messages"][-1] == stored
        assert seqs(client, "r1") == [*range(len(chunks(client, "r1")))]


@pytest.mark.promise("CF-156")
async def test_a_message_is_shown_to_the_others_before_it_is_answered_and_not_to_its_sender() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("slow", gate=gate))
    cls = talker(model)
    async with talking(cls) as one:
        sender, other = await one.join(TALKER), await one.join(TALKER)
        await one.world.clock.advance(60)
        seen = len(sender.of_type(MESSAGES))

        await say(sender, "r1", user("hi", "u1"))
        await streamed(other, "r1", "slow")

        assert [message["id"] for message in other.of_type(MESSAGES)[-1]["messages"]] == ["u1"]
        first = next(at for at, frame in enumerate(other.frames) if type_of(frame) == RESPONSE)
        assert any(frame.get("messages") for frame in other.frames[:first])
        assert len(sender.of_type(MESSAGES)) == seen
        gate.set()
        await done(sender, "r1")


async def test_who_speaks_just_as_the_messages_are_told_is_told_its_own_too_before_it_is_answered() -> None:
    model = ScriptedModel(text("one"), text("two"))
    cls = talker(model)
    async with talking(cls) as one:
        sender, other = await one.join(TALKER), await one.join(TALKER)
        await say(other, "r1", user("hi", "u1"))
        # Both are told what there is; what is said now was said before that was heard.
        await done(sender, "r1")
        seen = len(sender.frames)

        await say(sender, "r2", user("hi", "u1"), user("more", "u2"))
        await done(sender, "r2")

        told, *_ = [frame for frame in sender.frames[seen:] if type_of(frame) in (MESSAGES, RESPONSE)]
        assert type_of(told) == MESSAGES
        assert [message["role"] for message in told["messages"]] == ["user", "assistant", "user"]
        assert told["messages"][-1]["id"] == "u2"


async def test_who_speaks_just_as_another_clears_the_conversation_is_told_that_it_was_heard() -> None:
    model = ScriptedModel(text("one"))
    cls = talker(model)
    async with talking(cls) as one:
        sender, other = await one.join(TALKER), await one.join(TALKER)
        await one.world.clock.advance(60)
        await other.send({"type": CLEAR})
        await sender.until(lambda frame: type_of(frame) == CLEAR)

        await say(sender, "r1", user("hi", "u1"))
        await done(sender, "r1")

        assert [message["id"] for message in sender.of_type(MESSAGES)[1]["messages"]] == ["u1"]


async def test_every_client_gets_the_same_stream() -> None:
    cls = talker(ScriptedModel(text("one two three", delay=0.02)))
    async with talking(cls) as one:
        clients = [await one.join(TALKER) for _ in range(3)]

        await say(clients[0], "r1", "hi")
        for client in clients:
            await done(client, "r1")

        streams = [client.of_type(RESPONSE) for client in clients]
        assert streams[0] == streams[1] == streams[2]
        assert said(chunks(clients[0], "r1")) == "one two three"


async def test_a_failed_turn_keeps_what_was_said_and_ends_with_text_a_person_can_read() -> None:
    cls = talker(ScriptedModel(call("look", id="c1", at="sky"), fails(Refused("The provider is down."))), base=Looking)
    async with talking(cls) as one:
        client = await one.join(TALKER)

        await say(client, "r1", user("look", "u1"))
        end = await done(client, "r1")

        assert (end["body"], end["error"], end["outcome"]) == ("The provider is down.", True, "error")
        assert end["messageIds"] == ["u1"]
        assert "replay" not in end
        agent = await one.world.get_agent(cls, "t")
        assert [message["role"] for message in await agent.conversation.messages()] == ["user", "assistant"]


@pytest.mark.slow
async def test_a_storm_of_tokens_becomes_a_few_frames() -> None:
    words = " ".join(f"w{number}" for number in range(2_000))
    cls = talker(ScriptedModel(text(words)))
    async with talking(cls) as one:
        client = await one.join(TALKER)

        await say(client, "r1", "go")
        await done(client, "r1")

        assert said(chunks(client, "r1")) == words
        assert len(chunks(client, "r1")) < 200


@pytest.mark.promise("CF-155")
async def test_the_transcript_can_be_fetched_whatever_the_handler_of_requests_does() -> None:
    class Own(Talking):
        async def on_request(self, request: Any) -> Any:
            raise AssertionError("not asked")

    cls = talker(ScriptedModel(text("hello")), base=Own)
    async with talking(cls) as one:
        empty = await one.site.http(f"{TALKER}/get-messages")
        agent = await one.world.get_agent(cls, "t")
        await agent.send("hi")

        answer = await one.site.http(f"{TALKER}/get-messages")

        assert (empty.status, empty.json()) == (200, [])
        assert (answer.status, answer.json()) == (200, await agent.conversation.messages())
        assert answer.headers["content-type"].startswith("application/json")


@pytest.mark.promise("CF-158")
async def test_a_client_without_a_socket_is_answered_as_an_event_stream() -> None:
    cls = talker(ScriptedModel(text("hello there", delay=0.01)))
    async with talking(cls) as one:
        body = json.dumps({"messages": [user("hi", "u1")]}).encode()

        answer = await one.site.http(f"{TALKER}/chat", method="POST", body=body)

        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        agent = await one.world.get_agent(cls, "t")
        assert built(json.loads(line) for line in lines[:-1]) == (await agent.conversation.messages())[-1]


@pytest.mark.parametrize("body", [b"no json", b"[]", b'{"messages": "x"}', b'{"messages": [{}]}'])
async def test_an_event_stream_is_refused_to_who_sends_no_messages(body: bytes) -> None:
    cls = talker(ScriptedModel(text("hello")))
    async with talking(cls) as one:
        answer = await one.site.http(f"{TALKER}/chat", method="POST", body=body)

        assert 400 <= answer.status < 500


async def test_an_event_stream_of_a_turn_that_is_skipped_ends() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("slow", gate=gate))
    cls = talker(model, concurrency="latest")
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        first = asyncio.create_task(agent.send("one"))
        await until(lambda: len(model.asked) == 1)
        body = json.dumps({"messages": [user("two", "u2")]}).encode()
        skipped = asyncio.create_task(one.site.http(f"{TALKER}/chat", method="POST", body=body))
        async with asyncio.timeout(patience()):
            while len(await agent.conversation.messages()) < 2:  # noqa: ASYNC110 - a request on its way tells nobody
                await asyncio.sleep(0.01)

        last = asyncio.create_task(agent.send("three"))

        async with asyncio.timeout(patience()):
            assert "[DONE]" in (await skipped).text
        gate.set()
        await first
        await last


@pytest.mark.promise("CF-160")
async def test_a_clear_empties_everything_tells_the_others_and_ends_what_waits() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("said before"), text("slow answer", gate=gate))
    cls = talker(model)
    async with talking(cls) as one:
        client, other = await one.join(TALKER), await one.join(TALKER)
        await say(client, "r0", user("zero", "u0"))
        await done(client, "r0")
        await say(client, "r1", user("one", "u1"))
        await say(client, "r2", user("two", "u2"))
        await streamed(client, "r1", "slow")

        await client.send({"type": CLEAR})

        assert (await done(client, "r1"))["outcome"] == "aborted"
        assert (await done(client, "r2"))["outcome"] == "skipped"
        assert other.of_type(CLEAR) == [{"type": CLEAR}]
        assert client.of_type(CLEAR) == []
        agent = await one.world.get_agent(cls, "t")
        assert await agent.conversation.messages() == []
        assert await agent.seen_by_model() == "[]"
        assert model.cancelled == 1
        assert client.of_type(MESSAGES)[-1]["messages"] == []


@pytest.mark.promise("CF-160")
async def test_after_a_clear_nobody_is_told_of_an_old_error() -> None:
    cls = talker(ScriptedModel(fails(RuntimeError("broken"))))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await done(client, "r1")

        agent = await one.world.get_agent(cls, "t")
        await agent.conversation.clear()
        late = await one.join(TALKER)

        assert not late.of_type("cf_agent_stream_resuming")


async def test_a_client_without_protocol_is_told_nothing_of_the_chat() -> None:
    class Quiet(Talking):
        def send_protocol_frames(self, connection: Any) -> bool:
            return "quiet" not in connection.query

    cls = talker(ScriptedModel(text("hello")), base=Quiet)
    async with talking(cls) as one:
        client, quiet = await one.join(TALKER), await one.connect(f"{TALKER}?quiet=1")

        await say(client, "r1", "hi")
        await done(client, "r1")

        assert quiet.frames == []


async def test_a_request_that_comes_twice_is_answered_once() -> None:
    model = ScriptedModel(text("hello"))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)

        await say(client, "r1", user("hi", "u1"))
        await say(client, "r1", user("hi", "u1"))
        await done(client, "r1")
        await say(client, "r1", user("hi", "u1"))
        await say(client, "r2", user("hi", "u1"), user("more", "u2"))
        await done(client, "r2")

        assert len(model.asked) == 2
        assert len(dones(client, "r1")) == 1


@pytest.mark.promise("CF-163")
async def test_messages_over_the_count_are_forgotten_the_oldest_first_and_clients_see_the_same() -> None:
    model = ScriptedModel(text("ok"))
    cls = talker(model, max_messages=4)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        agent = await one.world.get_agent(cls, "t")
        for number in range(5):
            await agent.send(f"m{number}")

        texts = [text_of(message) for message in await agent.conversation.messages()]

        assert texts == ["m3", "ok", "m4", "ok"]
        await client.until(lambda frame: [text_of(message) for message in frame.get("messages", ())] == texts)
        assert [len(asked) for asked in model.asked] == [1, 3, 5, 5, 5]


@pytest.mark.slow
@pytest.mark.promise("CF-163")
async def test_a_message_too_big_for_its_row_is_kept_shortened() -> None:
    class Big(Talking):
        @tool
        async def dump(self) -> str:
            """Dump."""
            return "x" * 3_000_000

    cls = talker(ScriptedModel(call("dump", id="c1"), text("that was long")), base=Big)
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")

        await agent.send("dump it")

        _, answer = await agent.conversation.messages()
        assert len(json.dumps(answer)) < 2_000_000
        assert text_of(answer) == "that was long"
        (part,) = [part for part in answer["parts"] if part.get("toolCallId") == "c1"]
        assert part["state"] == "output-available"


COUNT = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < ?) SELECT count(*) FROM c"


@pytest.mark.slow
async def test_what_the_model_says_during_read_sql_is_stored_and_sent() -> None:
    counting, counted = asyncio.Event(), asyncio.Event()

    class Counting(Talking):
        async def count(self) -> None:
            counting.set()
            await self.read_sql(COUNT, 1_000_000)
            counted.set()

    async def speak(messages: Any, info: Any) -> AsyncIterator[str]:
        await counting.wait()
        yield "one "
        await counted.wait()
        yield "two"

    cls = talker(FunctionModel(stream_function=speak), base=Counting)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        agent = await one.world.get_agent(cls, "t")
        await say(client, "r1", "count")
        await client.until(lambda frame: type_of(frame) == RESPONSE and "start-step" in frame["body"])

        await agent.count()

        assert (await done(client, "r1"))["outcome"] == "completed"
        assert said(chunks(client, "r1")) == "one two"
        assert text_of((await agent.conversation.messages())[-1]) == "one two"
