"""What is said while a turn runs follows the policy of its class, and every request has exactly one end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import loops
from tests.conformance.chats import (
    MESSAGES,
    RESUMING,
    TALKER,
    Talking,
    cancel,
    done,
    dones,
    idle,
    say,
    streamed,
    take,
    talker,
    talking,
    text_of,
    user,
)
from tests.conformance.served import Client, Served
from tests.conformance.worlds import Run, until

from sapwood import tool
from sapwood.testing import ScriptedModel, call, calls, text

ONE, TWO, THREE = user("one", "u1"), user("two", "u2"), user("three", "u3")


async def busy(one: Served, model: Any) -> Client:
    """Have a first turn run, and two more things said meanwhile."""
    client = await one.join(TALKER)
    await one.world.clock.advance(60)
    await say(client, "r1", ONE)
    await streamed(client, "r1", "first")
    await say(client, "r2", ONE, TWO)
    await say(client, "r3", ONE, TWO, THREE)
    return client


async def outcomes(client: Client) -> list[str]:
    found = [(await done(client, id))["outcome"] for id in ("r1", "r2", "r3")]
    assert len(dones(client)) == 3
    return found


async def texts(one: Served, cls: Any) -> list[str]:
    agent = await one.world.get_agent(cls, "t")
    return [text_of(message) for message in await agent.conversation.messages()]


def asked(model: Any) -> list[list[str]]:
    """Return what the user had said, each time the model was asked."""
    return [
        [part.content for message in messages for part in message.parts if part.part_kind == "user-prompt"]
        for messages in model.asked
    ]


@pytest.mark.promise("B-20", "CF-161")
async def test_queue_answers_one_after_the_other() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first answer", gate=gate), text("second"), text("third"))
    cls = talker(model)
    async with talking(cls) as one:
        client = await busy(one, model)
        gate.set()

        assert await outcomes(client) == ["completed"] * 3
        assert await texts(one, cls) == ["one", "first answer", "two", "second", "three", "third"]
        assert asked(model) == [["one"], ["one", "two"], ["one", "two", "three"]]


async def test_what_waits_for_its_turn_is_shown_to_everybody_and_is_in_every_transcript() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first answer", gate=gate), text("second"), text("third", gate=gate))
    cls = talker(model)
    async with talking(cls) as one:
        other = await one.join(TALKER)
        client = await busy(one, model)

        await other.until(lambda frame: [m["id"] for m in frame.get("messages", ())] == ["u1", "u2", "u3"])
        assert [m["id"] for m in (await one.site.http(f"{TALKER}/get-messages")).json()] == ["u1", "u2", "u3"]
        gate.set()
        await done(client, "r1")

        for frame in client.of_type(MESSAGES)[1:]:
            assert {"u1", "u2", "u3"} <= {message["id"] for message in frame["messages"]}
        await done(client, "r3")


@pytest.mark.promise("CF-161")
async def test_latest_has_one_turn_for_the_last_and_keeps_what_was_said_before_it() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first answer", gate=gate), text("last"))
    cls = talker(model, concurrency="latest")
    async with talking(cls) as one:
        client = await busy(one, model)
        gate.set()

        assert await outcomes(client) == ["completed", "skipped", "completed"]
        assert await texts(one, cls) == ["one", "first answer", "two", "three", "last"]
        assert asked(model) == [["one"], ["one", "two", "three"]]


@pytest.mark.promise("B-20", "CF-161")
async def test_merge_answers_everything_that_waited_as_if_it_was_said_at_once() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first answer", gate=gate), text("both"))
    cls = talker(model, concurrency="merge")
    async with talking(cls) as one:
        client = await busy(one, model)
        gate.set()

        assert await outcomes(client) == ["completed", "skipped", "completed"]
        assert await texts(one, cls) == ["one", "first answer", "two", "three", "both"]
        assert asked(model) == [["one"], ["one", "two\n\nthree"]]


@pytest.mark.promise("B-20", "CF-161")
async def test_drop_ignores_what_is_said_meanwhile_and_gives_the_sender_the_transcript_back() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first answer", gate=gate))
    cls = talker(model, concurrency="drop")
    async with talking(cls) as one:
        other = await one.join(TALKER)
        client = await busy(one, model)
        await done(client, "r3")
        assert [m["id"] for m in client.of_type(MESSAGES)[-1]["messages"]] == ["u1"]
        gate.set()

        assert await outcomes(client) == ["completed", "skipped", "skipped"]
        assert await texts(one, cls) == ["one", "first answer"]
        await done(other, "r1")
        assert [frame["id"] for frame in dones(other)] == ["r1"]
        assert dones(client, "r2")[0]["messageIds"] == ["u1", "u2"]


@pytest.mark.promise("B-20")
async def test_interrupt_ends_what_runs_and_answers_what_was_said_then() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first answer", gate=gate), text("now this"))
    cls = talker(model, concurrency="interrupt")
    async with talking(cls) as one:
        client = await busy(one, model)

        assert await outcomes(client) in (
            ["aborted", "skipped", "completed"],
            ["aborted", "aborted", "completed"],
        )
        found = await texts(one, cls)
        assert (found[:2], found[-2:]) == (["one", "first"], ["three", "now this"])
        assert "two" in found
        assert model.cancelled >= 1


@pytest.mark.promise("CF-161")
async def test_debounce_waits_for_silence_and_answers_everything_at_once() -> None:
    model = ScriptedModel(text("all of it"))
    cls = talker(model, concurrency="debounce", debounce=2.0)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", ONE)
        await asyncio.sleep(0.05)
        await one.world.clock.advance(1.5)
        await say(client, "r2", ONE, TWO)
        await done(client, "r1")
        await one.world.clock.advance(1.5)
        assert model.asked == []

        await one.world.clock.advance(1)
        await done(client, "r2")

        assert [frame["outcome"] for frame in dones(client)] == ["skipped", "completed"]
        assert await texts(one, cls) == ["one", "two", "all of it"]


async def test_debounce_waits_for_silence_also_when_a_turn_ends_meanwhile() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first answer", gate=gate), text("all of it"))
    cls = talker(model, concurrency="debounce", debounce=2.0)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", ONE)
        await client.call("nothing")
        await one.world.clock.advance(2)
        await streamed(client, "r1", "first")
        await say(client, "r2", ONE, TWO)
        await client.call("nothing")
        await one.world.clock.advance(1)
        gate.set()
        await done(client, "r1")
        await one.world.clock.advance(0.5)
        await say(client, "r3", ONE, TWO, THREE)
        await done(client, "r2")
        await one.world.clock.advance(1.5)
        assert len(model.asked) == 1

        await one.world.clock.advance(1)
        await done(client, "r3")

        assert [frame["outcome"] for frame in dones(client)] == ["completed", "skipped", "completed"]
        assert await texts(one, cls) == ["one", "first answer", "two", "three", "all of it"]


async def test_a_debounced_turn_begins_also_if_the_process_dies_before() -> None:
    model = ScriptedModel(text("all of it"))
    cls = talker(model, concurrency="debounce", debounce=2.0)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", ONE)
        await client.send({"type": "cf_agent_stream_resume_request", "probeId": "p"})
        await client.until(lambda frame: frame.get("probeId") == "p")

        await one.world.crash()
        await one.world.clock.advance(5)
        await idle(one)

        assert await texts(one, cls) == ["one", "all of it"]


@pytest.mark.promise("CF-161")
async def test_a_question_that_is_asked_again_always_waits_for_its_turn() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first answer", gate=gate), text("again"))
    cls = talker(model, concurrency="drop")
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", ONE)
        await streamed(client, "r1", "first")

        await say(client, "r2", ONE, trigger="regenerate-message")
        gate.set()

        assert (await done(client, "r2"))["outcome"] == "completed"
        assert await texts(one, cls) == ["one", "again"]


async def test_a_question_that_is_asked_again_is_not_skipped_for_what_is_said_after_it() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first answer", gate=gate), text("again"), text("second"))
    cls = talker(model, concurrency="latest")
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", ONE)
        await streamed(client, "r1", "first")

        await say(client, "r2", ONE, trigger="regenerate-message")
        await say(client, "r3", ONE, TWO)
        gate.set()

        assert await outcomes(client) == ["completed"] * 3
        assert await texts(one, cls) == ["one", "again", "two", "second"]


@pytest.mark.parametrize("policy", ["queue", "interrupt"])
async def test_what_is_changed_during_a_turn_is_what_the_next_one_answers(policy: str) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first answer", gate=gate), text("better"))
    cls = talker(model, concurrency=policy)
    async with talking(cls) as one:
        client, other = await one.join(TALKER), await one.join(TALKER)
        await say(client, "r1", ONE)
        await streamed(client, "r1", "first")

        await say(client, "r2", user("changed", "u1"))
        shown = await other.until(lambda frame: "changed" in str(frame.get("messages")))
        gate.set()

        assert (await done(client, "r2"))["outcome"] == "completed"
        assert await texts(one, cls) == ["changed", "better"]
        assert asked(model) == [["one"], ["changed"]]
        assert [text_of(message) for message in shown["messages"]] == ["changed"]


@pytest.mark.slow
@pytest.mark.parametrize("part", [{"type": "file"}, {"type": "nonsense"}, {"type": "tool-x", "state": "no"}])
async def test_what_no_model_could_be_told_is_refused_and_holds_up_nobody(part: dict[str, Any]) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first answer", gate=gate), text("second"))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", ONE)
        await streamed(client, "r1", "first")

        await say(client, "bad", ONE, {"id": "bad", "role": "user", "parts": [part]})
        await say(client, "r2", ONE, TWO)
        gate.set()

        refused = await done(client, "bad")
        assert (refused["outcome"], refused["error"]) == ("error", True)
        assert (await done(client, "r2"))["outcome"] == "completed"
        assert await texts(one, cls) == ["one", "first answer", "two", "second"]


async def test_python_is_told_of_turns_that_are_skipped(run: Run) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first answer", gate=gate), text("last"))
    cls = talker(model, concurrency="latest")
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        first = asyncio.create_task(agent.send("one"))
        await until(lambda: len(model.asked) == 1)
        second = asyncio.create_task(agent.send("two"))
        await asyncio.sleep(0.02)
        third = asyncio.create_task(agent.send("three"))

        assert (await second).status == "skipped"
        gate.set()
        assert [(await first).status, (await third).status] == ["completed", "completed"]


async def test_turns_that_wait_are_answered_after_a_crash_in_their_order() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("first answer", gate=gate), text("first answer"), text("second"), text("third"))
    cls = talker(model)
    async with talking(cls) as one:
        other = await one.join(TALKER)
        await busy(one, model)
        await other.until(lambda frame: len(frame.get("messages", ())) == 3)

        await one.world.crash()
        await idle(one)

        assert await texts(one, cls) == ["one", "first answer", "two", "second", "three", "third"]


ACTS = st.lists(st.sampled_from(["say", "say", "cancel", "crash", "open", "join"]), min_size=1, max_size=8)


@pytest.mark.slow
@pytest.mark.promise("CF-161")
@pytest.mark.parametrize("policy", ["queue", "latest", "merge", "drop", "debounce", "interrupt"])
@settings(max_examples=6, deadline=None)
@given(acts=ACTS)
def test_whatever_happens_every_request_has_one_end_and_nothing_is_said_twice(policy: str, acts: list[str]) -> None:
    async def play() -> None:
        gate = asyncio.Event()
        model = ScriptedModel(text("an answer", gate=gate))
        cls = talker(model, concurrency=policy, debounce=0.5)
        async with talking(cls) as one:
            client = await one.join(TALKER)
            messages: list[dict[str, Any]] = []
            ids: list[str] = []
            seen: list[Any] = []
            for at, act in enumerate(acts):
                if act == "say":
                    messages.append(user(f"m{at}", f"u{at}"))
                    ids.append(f"r{at}")
                    await say(client, f"r{at}", *messages)
                elif act == "cancel" and ids:
                    await cancel(client, ids[-1])
                elif act == "crash":
                    seen += dones(client)
                    await one.world.crash()
                    client = await one.join(TALKER)
                elif act == "open":
                    gate.set()
                elif act == "join":
                    client_two = await one.join(TALKER)
                    for offer in client_two.of_type(RESUMING):
                        await take(client_two, offer["id"])
                await asyncio.sleep(0.01)
            gate.set()
            await one.world.clock.advance(2)
            watcher = await idle(one)
            ends = [frame["id"] for frame in seen + dones(client) if not frame.get("replay")]
            assert len(ends) == len(set(ends))
            agent = await one.world.get_agent(cls, "t")
            transcript = await agent.conversation.messages()
            assert all(
                text_of(message) in ("an answer", "an", "") for message in transcript if message["role"] != "user"
            )
            assert watcher.of_type(MESSAGES)[-1]["messages"] == transcript

    loops.play(play())


class Paying(Talking):
    """One whose first turn waits for a person, after something else was said."""

    gate: asyncio.Event

    @tool(requires_approval=True)
    async def pay(self) -> str:
        """Pay."""
        return "paid"

    @tool
    async def count(self) -> str:
        """Count slowly."""
        await self.gate.wait()
        return "counted"


async def waiting(one: Served, cls: Any) -> tuple[Any, Client]:
    """Have a turn that waits for a person, and something that was said before it did."""
    client = await one.join(TALKER)
    agent = await one.world.get_agent(cls, "t")
    await say(client, "r1", ONE)
    await client.until(lambda frame: "tool-input-available" in str(frame.get("body")))
    await say(client, "r2", ONE, TWO)
    await client.call("anything")  # what a client sends is taken in order: the agent knows of r2 now
    cls.gate.set()
    await done(client, "r1")
    assert [approval.tool for approval in await agent.questions.list()] == ["pay"]
    return agent, client


def paying() -> Any:
    model = ScriptedModel(calls(call("pay", id="p"), call("count", id="c")), text("well"))
    return talker(model, base=Paying, gate=asyncio.Event())


async def test_what_was_said_before_a_person_was_asked_waits_for_the_answer() -> None:
    cls = paying()
    async with talking(cls) as one:
        agent, client = await waiting(one, cls)

        await agent.questions.approve("p")

        assert (await done(client, "r2"))["outcome"] == "completed"
        assert await agent.ends() == [("r1", "completed"), ("r2", "completed")]


async def test_what_is_said_instead_of_an_answer_lets_everything_go_on_that_waits() -> None:
    cls = paying()
    async with talking(cls) as one:
        agent, client = await waiting(one, cls)

        await say(client, "r3", ONE, TWO, THREE)

        assert [(await done(client, id))["outcome"] for id in ("r2", "r3")] == ["completed", "completed"]
        assert await agent.questions.list() == []
        assert [message["id"] for message in await agent.conversation.messages() if message["role"] == "user"] == [
            "u1",
            "u2",
            "u3",
        ]


async def test_cancelling_a_turn_that_waits_for_a_person_lets_the_next_begin() -> None:
    cls = paying()
    async with talking(cls) as one:
        agent, client = await waiting(one, cls)

        await cancel(client, "r1")

        assert (await done(client, "r2"))["outcome"] == "completed"
        assert await agent.questions.list() == []
