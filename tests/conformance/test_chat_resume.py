"""A client that comes in the middle, or comes back, sees exactly what one that never left saw."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import loops
from tests.conformance.chats import (
    CLEAR,
    MESSAGES,
    NONE,
    PENDING,
    RESPONSE,
    RESUMING,
    TALKER,
    Talking,
    built,
    cancel,
    caught_up,
    chunks,
    done,
    dones,
    resume,
    said,
    say,
    seqs,
    streamed,
    take,
    talker,
    talking,
    tool_result,
    user,
)
from tests.conformance.served import type_of
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import Refused, tool
from sapwood.testing import ScriptedModel, call, calls, fails, text

pytestmark = pytest.mark.core("temporal")

NOTHING_MORE = {"body": "", "done": True, "id": "r1", "type": RESPONSE, "replay": True, "continuation": True}
"""The end of a stream that was over when its client took it: it adds nothing to the last message."""
BEEP = [{"name": "beep", "description": "Beeps.", "parameters": {"type": "object", "properties": {}}}]


@pytest.mark.promise("CF-165")
async def test_a_new_client_is_offered_the_stream_first_gets_nothing_before_it_asks_and_then_all_of_it() -> None:
    gate = asyncio.Event()
    cls = talker(ScriptedModel(text("one two three", gate=gate)))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await streamed(client, "r1", "one")

        late = await one.join(TALKER)
        gate.set()
        await done(client, "r1")
        frames = [*late.frames]

        assert frames[0] == {"type": RESUMING, "id": "r1"}
        assert not [frame for frame in frames if type_of(frame) == RESPONSE]
        await take(late, "r1")
        end = await done(late, "r1")
        assert end["replay"]
        agent = await one.world.get_agent(cls, "t")
        assert late.of_type(MESSAGES)[-1]["messages"] == await agent.conversation.messages()


@pytest.mark.promise("CF-165")
async def test_replay_and_what_follows_are_the_stream_without_a_gap_or_anything_twice() -> None:
    gate = asyncio.Event()
    cls = talker(ScriptedModel(text("one two three", gate=gate)))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("hi", "u1"))
        await streamed(client, "r1", "one")

        late = await one.join(TALKER)
        await take(late, "r1")
        await caught_up(late, "r1")
        gate.set()
        end = await done(late, "r1")
        await done(client, "r1")

        assert chunks(late, "r1") == chunks(client, "r1")
        assert seqs(late, "r1") == seqs(client, "r1")
        assert said(chunks(late, "r1", replay=True)) == "one"
        assert said(chunks(late, "r1", replay=False)) == " two three"
        agent = await one.world.get_agent(cls, "t")
        assert built(chunks(late, "r1")) == (await agent.conversation.messages())[-1]
        assert (end["outcome"], end["messageIds"]) == ("completed", ["u1"])
        assert len(dones(late, "r1")) == 1


@pytest.mark.promise("CF-166")
async def test_who_asks_while_nothing_streams_is_told_so() -> None:
    cls = talker(ScriptedModel(text("hi")))
    async with talking(cls) as one:
        client = await one.join(TALKER)

        assert await resume(client, "p1") == {"type": NONE, "reason": "idle", "probeId": "p1"}

        await say(client, "r1", "hi")
        await done(client, "r1")
        assert await resume(client, "p2") == {"type": NONE, "reason": "idle", "probeId": "p2"}


@pytest.mark.promise("CF-166", "CF-167")
async def test_the_offer_on_connect_and_the_answer_to_a_request_both_come_and_each_ack_gets_one_replay() -> None:
    gate = asyncio.Event()
    cls = talker(ScriptedModel(text("one two", gate=gate)))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await streamed(client, "r1", "one")

        late = await one.join(TALKER)
        answer = await resume(late, "p1")
        await take(late, "r1")
        await caught_up(late, "r1")

        assert answer == {"type": RESUMING, "id": "r1", "probeId": "p1"}
        assert len(late.of_type(RESUMING)) == 2
        assert len([chunk for chunk in chunks(late, "r1") if chunk["type"] == "start"]) == 1
        await take(late, "r1")
        await until(lambda: len([chunk for chunk in chunks(late, "r1") if chunk["type"] == "start"]) == 2)
        gate.set()
        await done(late, "r1")
        assert len(dones(late, "r1")) == 1


@pytest.mark.promise("CF-168")
async def test_an_ack_of_another_stream_is_ignored_and_one_that_comes_late_ends_cleanly() -> None:
    gate = asyncio.Event()
    cls = talker(ScriptedModel(text("one two", gate=gate)))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await streamed(client, "r1", "one")
        late = await one.join(TALKER)

        await take(late, "other")
        gate.set()
        await done(client, "r1")
        assert dones(late) == []

        await take(late, "r1")
        assert await done(late, "r1") == NOTHING_MORE
        start = {"body": '{"type":"start"}', "done": False, "id": "r1", "type": RESPONSE}
        assert late.frames[-2] == {**start, "replay": True, "continuation": True}


@pytest.mark.promise("CF-168")
async def test_an_offer_that_is_taken_when_the_next_turn_streams_already_ends_cleanly() -> None:
    gate = asyncio.Event()
    cls = talker(ScriptedModel(fails(Refused("down")), text("one two", gate=gate)))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await done(client, "r1")
        late = await one.join(TALKER)
        assert late.frames[0] == {"type": RESUMING, "id": "r1"}

        await say(late, "r2", "hi", trigger="regenerate-message")
        await streamed(late, "r2", "one")
        await take(late, "r1")

        assert await done(late, "r1") == NOTHING_MORE
        gate.set()
        await done(late, "r2")
        assert said(chunks(late, "r2")) == "one two"


@pytest.mark.promise("CF-170")
async def test_an_error_is_shown_to_who_comes_later_after_what_was_said_until_the_next_turn() -> None:
    class Looking(Talking):
        @tool
        async def look(self) -> str:
            """Look."""
            return "a tree"

    cls = talker(ScriptedModel(call("look", id="c1"), fails(Refused("down")), text("up again")), base=Looking)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await done(client, "r1")

        for _ in range(2):
            late = await one.join(TALKER)
            assert late.frames[0] == {"type": RESUMING, "id": "r1"}
            await take(late, "r1")
            end = await done(late, "r1")
            assert (end["body"], end["error"]) == ("down", True)
            assert "replay" not in end
            assert chunks(late, "r1") == chunks(client, "r1")

        await say(client, "r2", "hi", "again")
        await done(client, "r2")
        assert not (await one.join(TALKER)).of_type(RESUMING)


@pytest.mark.promise("CF-170", "CF-184")
@pytest.mark.slow
async def test_an_error_is_shown_also_after_a_restart_and_if_nothing_was_said() -> None:
    cls = talker(ScriptedModel(fails(Refused("down"))))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await done(client, "r1")

        await one.world.crash()
        late = await one.join(TALKER)
        answer = await resume(late)
        await take(late, "r1")

        assert (answer["type"], answer["id"]) == (RESUMING, "r1")
        assert (await done(late, "r1"))["body"] == "down"


@pytest.mark.promise("CF-166", "CF-171")
async def test_who_asks_before_a_stream_begins_waits_and_is_served_when_it_does() -> None:
    cls = talker(ScriptedModel(text("hello")), concurrency="debounce", debounce=5.0)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        assert (await resume(client, "p1"))["type"] == PENDING

        late = await one.join(TALKER)
        assert late.frames[0] == {"type": PENDING, "id": "r1"}
        await one.world.clock.advance(6)
        offer = await client.until(lambda frame: type_of(frame) == RESUMING)
        await take(client, "r1")
        await done(client, "r1")

        assert offer["id"] == "r1"
        assert (await late.until(lambda frame: type_of(frame) == RESUMING))["id"] == "r1"


@pytest.mark.promise("CF-171")
async def test_who_waits_for_a_stream_that_never_begins_is_released() -> None:
    cls = talker(ScriptedModel(text("hello")), concurrency="debounce", debounce=5.0)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        assert (await resume(client, "p1"))["type"] == PENDING

        await cancel(client, "r1")

        assert (await client.until(lambda frame: type_of(frame) == NONE))["probeId"] == "p1"
        assert (await done(client, "r1"))["outcome"] == "aborted"


@pytest.mark.promise("CF-171")
async def test_a_skipped_turn_does_not_release_those_who_wait_for_the_next() -> None:
    cls = talker(ScriptedModel(text("hello")), concurrency="debounce", debounce=5.0)
    async with talking(cls) as one:
        client, other = await one.join(TALKER), await one.join(TALKER)
        await say(client, "r1", "hi")
        await resume(other, "p1")

        await say(client, "r2", "hi", "more")
        assert (await done(client, "r1"))["outcome"] == "skipped"
        assert other.of_type(NONE) == []

        await one.world.clock.advance(6)
        assert (await other.until(lambda frame: type_of(frame) == RESUMING))["id"] == "r2"


@pytest.mark.promise("CF-160")
async def test_a_clear_releases_who_waits() -> None:
    cls = talker(ScriptedModel(text("hello")), concurrency="debounce", debounce=5.0)
    async with talking(cls) as one:
        client, other = await one.join(TALKER), await one.join(TALKER)
        await say(client, "r1", "hi")
        await resume(other, "p1")

        await client.send({"type": CLEAR})

        assert (await other.until(lambda frame: type_of(frame) == NONE))["probeId"] == "p1"


@pytest.mark.promise("A-138", "CF-169")
async def test_a_stream_orphaned_by_a_restart_goes_on_and_replays_as_one() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("one two three", gate=gate))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await streamed(client, "r1", "one")

        await one.world.crash()
        late = await one.join(TALKER)
        await until(lambda: len(model.asked) == 2)
        assert (await resume(late, "p"))["id"] == "r1"
        await take(late, "r1")
        gate.set()
        await done(late, "r1")

        agent = await one.world.get_agent(cls, "t")
        assert built(chunks(late, "r1")) == (await agent.conversation.messages())[-1]
        assert said(chunks(late, "r1")) == "one two three"
        assert not {*seqs(client, "r1")[2:]} & {*seqs(late, "r1")[2:]}


@pytest.mark.promise("CF-172")
async def test_chunks_are_kept_in_order_while_a_turn_runs_and_swept_when_it_is_done() -> None:
    gate = asyncio.Event()
    cls = talker(ScriptedModel(text("one two three four five six", delay=0.04), text("more", gate=gate)))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await streamed(client, "r1", "one two three")
        late = await one.join(TALKER)
        await take(late, "r1")
        await done(late, "r1")
        await done(client, "r1")

        assert chunks(late, "r1") == chunks(client, "r1")
        assert seqs(late, "r1") == sorted(seqs(late, "r1"))
        await take(late, "r1")
        await until(lambda: len(dones(late, "r1")) == 2)
        assert dones(late, "r1")[-1]["replay"]
        gate.set()


@pytest.mark.promise("CF-173")
async def test_the_replay_of_a_continuation_says_that_it_is_one_also_after_a_restart() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(call("beep", id="c1"), text("it beeped", gate=gate))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi", clientTools=BEEP)
        await done(client, "r1")
        await tool_result(client, "c1", "beep!")
        await streamed(client, "r1-1", "it")

        late = await one.join(TALKER)
        await take(late, "r1-1")
        await caught_up(late, "r1-1")
        assert all(frame["continuation"] for frame in late.of_type(RESPONSE))

        await one.world.crash()
        later = await one.join(TALKER)
        await until(lambda: len(model.asked) == 3)
        await resume(later)
        await take(later, "r1-1")
        gate.set()
        await done(later, "r1-1")

        assert all(frame["continuation"] for frame in later.of_type(RESPONSE))
        assert chunks(later, "r1-1")[0] == {"type": "start"}
        agent = await one.world.get_agent(cls, "t")
        _, answer = await agent.conversation.messages()
        assert [part["type"] for part in answer["parts"]] == ["step-start", "tool-beep", "step-start", "text"]


@pytest.mark.promise("CF-174")
async def test_a_continuation_is_its_owners_while_the_owner_is_there_and_then_anybodys() -> None:
    gate = asyncio.Event()
    cls = talker(ScriptedModel(call("beep", id="c1"), text("it beeped", gate=gate)))
    async with talking(cls) as one:
        owner, other = await one.join(TALKER), await one.join(TALKER)
        await say(owner, "r1", "hi", clientTools=BEEP)
        await done(other, "r1")
        await tool_result(owner, "c1", "beep!")
        await streamed(other, "r1-1", "it")

        assert await resume(other, "p1") == {"type": NONE, "reason": "continuation-owned", "probeId": "p1"}
        assert (await resume(owner, "p2"))["type"] == RESUMING

        await owner.close()
        async with asyncio.timeout(patience()):
            probe = 0
            while (await resume(other, f"q{probe}"))["type"] != RESUMING:
                probe += 1
                await asyncio.sleep(0.01)
        await take(other, "r1-1")
        gate.set()
        await done(other, "r1-1")


@pytest.mark.promise("CF-172")
@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    words=st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=8),
    joins=st.lists(st.floats(0, 0.12), max_size=3),
    delay=st.sampled_from([0.0, 0.005, 0.02]),
)
def test_whenever_a_client_comes_replay_is_live_is_stored(words: list[str], joins: list[float], delay: float) -> None:
    async def play() -> None:
        whole = " ".join(words)
        cls = talker(ScriptedModel(calls(call("beep", id="c1")), text(whole, delay=delay)), base=Beeping)
        async with talking(cls) as one:
            client = await one.join(TALKER)
            await say(client, "r1", "hi")

            async def come(after: float) -> list[dict[str, Any]] | None:
                await asyncio.sleep(after)
                late = await one.join(TALKER)
                if not late.of_type(RESUMING):
                    return None
                await take(late, "r1")
                end = await done(late, "r1")
                return None if end.get("replay") else chunks(late, "r1")

            streams = await asyncio.gather(*[come(after) for after in joins])
            await done(client, "r1")
            agent = await one.world.get_agent(cls, "t")
            stored = (await agent.conversation.messages())[-1]
            assert built(chunks(client, "r1")) == stored
            for stream in streams:
                assert stream is None or built(stream) == stored

    loops.play(play())


class Beeping(Talking):
    @tool
    async def beep(self) -> str:
        """Beep."""
        await asyncio.sleep(0.02)
        return "beep"
