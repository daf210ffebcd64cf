"""What the npm clients need beyond the frames: found with them, in `tests/npm/chat.mjs`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tests.conformance.chats import (
    MESSAGES,
    PENDING,
    RESPONSE,
    RESUMING,
    TALKER,
    UPDATED,
    Talking,
    approval,
    built,
    caught_up,
    chunks,
    done,
    kinds,
    resume,
    said,
    say,
    streamed,
    take,
    talker,
    talking,
    text_of,
    tool_result,
)
from tests.conformance.served import Client, type_of

from sapwood import Refused, Turn, tool
from sapwood.testing import ScriptedModel, call, fails, text

BEEP = [{"name": "beep"}]


class Falling(Talking):
    async def respond(self, turn: Turn) -> AsyncIterator[str]:
        yield "so far"
        await asyncio.sleep(0.05)
        raise Refused("and no further")


class Careful(Talking):
    @tool(requires_approval=True)
    async def delete(self) -> str:
        """Delete it."""
        return "gone"


async def told_after(client: Client, id: str) -> Any:
    """Return what a client is told after the end of a stream."""
    end = await done(client, id)
    at = next(at for at, frame in enumerate(client.frames) if frame is end)
    await client.until(lambda _: any(type_of(frame) in (MESSAGES, UPDATED) for frame in client.frames[at:]))
    return client.frames[-1]


async def test_an_answer_that_broke_off_is_told_once_more_when_its_stream_is_over() -> None:
    cls = talker(base=Falling)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")

        told = await told_after(client, "r1")

        (_, stored) = await (await one.world.get_agent(cls, "t")).conversation.messages()
        assert told["message"] == stored
        assert stored["parts"][-1] == {"type": "text", "text": "so far", "state": "done"}


async def test_the_replay_of_an_answer_that_broke_off_makes_the_message_that_is_stored() -> None:
    cls = talker(base=Falling)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await done(client, "r1")

        later = await one.join(TALKER)
        await resume(later)
        await take(later, "r1")
        end = await done(later, "r1")

        assert end["body"] == "and no further"
        (_, stored) = await (await one.world.get_agent(cls, "t")).conversation.messages()
        assert built(chunks(later, "r1", replay=True)) == stored


async def test_of_a_turn_that_failed_before_it_said_anything_no_message_is_left() -> None:
    cls = talker(ScriptedModel(fails(Refused("out of order"))))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        told = await told_after(client, "r1")

        later = await one.join(TALKER)
        await resume(later)
        await take(later, "r1")
        end = await done(later, "r1")

        assert [text_of(message) for message in told["messages"]] == ["hi"]
        assert (end["body"], chunks(later, "r1")) == ("out of order", [])


async def test_who_stops_an_answer_too_late_is_told_all_of_it() -> None:
    cls = talker(ScriptedModel(text("once upon a time")))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await done(client, "r1")

        await client.send({"type": "cf_agent_chat_request_cancel", "id": "r1"})

        told = await client.until(lambda frame: type_of(frame) == UPDATED)
        assert text_of(told["message"]) == "once upon a time"


async def test_who_clears_a_talk_is_told_that_nothing_is_left_after_the_end_of_what_was_being_said() -> None:
    gate = asyncio.Event()
    cls = talker(ScriptedModel(text("once upon a time", gate=gate)))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await streamed(client, "r1", "once")

        await client.send({"type": "cf_agent_chat_clear"})

        assert (await told_after(client, "r1"))["messages"] == []


async def answering(client: Client, stream: str) -> None:
    """Answer as the hook does: it asks at once for what follows, and takes it."""
    assert type_of(await resume(client)) == PENDING
    await client.until(lambda frame: type_of(frame) == RESUMING and frame["id"] == stream)
    await take(client, stream)
    await caught_up(client, stream)


async def test_who_answers_gets_nothing_of_the_continuation_but_what_it_asked_for() -> None:
    gate = asyncio.Event()  # the answer is not over before it is taken
    cls = talker(ScriptedModel(call("beep", id="c1"), text("it beeped", gate=gate)))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi", clientTools=BEEP)
        await done(client, "r1")

        await tool_result(client, "c1", "beep!")
        await answering(client, "r1-1")
        gate.set()
        await done(client, "r1-1")

        first = next(frame for frame in client.of_type(RESPONSE) if frame["id"] == "r1-1")
        assert first["replay"] is True
        assert said(chunks(client, "r1-1")) == "it beeped"


async def test_what_a_client_answered_is_not_said_again_in_the_continuation() -> None:
    cls = talker(ScriptedModel(call("beep", id="c1"), text("it beeped")))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi", clientTools=BEEP)
        await done(client, "r1")

        await tool_result(client, "c1", "beep!")
        await done(client, "r1-1")

        assert not [kind for kind in kinds(client, "r1-1") if kind.startswith("tool-")]


async def test_of_a_call_that_was_approved_the_continuation_says_the_result_and_of_a_denied_one_nothing() -> None:
    for approved, wanted in ((True, ["tool-input-available", "tool-output-available"]), (False, [])):
        cls = talker(ScriptedModel(call("delete", id="c1"), text("well")), base=Careful)
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", "hi")
            await done(client, "r1")

            await approval(client, "c1", approved=approved)
            await done(client, "r1-1")

            assert [kind for kind in kinds(client, "r1-1") if kind.startswith("tool-")] == wanted


async def test_an_agent_whose_turns_end_with_a_type_of_its_own_has_clients() -> None:
    class Counting(Talking[int]):
        pass

    cls = talker(ScriptedModel(call("final_result", id="c1", response=3)), base=Counting)
    async with talking(cls) as one:
        client = await one.join(TALKER)

        await say(client, "r1", "how many?")

        assert (await done(client, "r1"))["outcome"] == "completed"
