"""A cancelled turn stops at once, keeps what was said, and the model knows that nobody listens any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conformance.chats import (
    CLEAR,
    MESSAGES,
    TALKER,
    UPDATED,
    Talking,
    cancel,
    chunks,
    done,
    dones,
    idle,
    open_calls,
    over,
    parts_of,
    said,
    say,
    streamed,
    talker,
    talking,
    text_of,
    tool_result,
    user,
)
from tests.conformance.served import type_of
from tests.conformance.worlds import Run, until

from sapwood import TimedOut, Turn, deadline, tool
from sapwood.testing import ScriptedModel, call, calls, text

pytestmark = pytest.mark.core("temporal")

BEEP = [{"name": "beep"}]


class Working(Talking):
    """One whose tool takes its time, and notes how it ends."""

    log: list[str]
    gate: asyncio.Event

    @tool
    async def work(self, part: int = 0) -> str:
        """Work."""
        self.log.append(f"began {part}")
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.log.append(f"cancelled {part}")
            raise
        self.log.append(f"did {part}")
        return "worked"

    @tool
    async def quick(self) -> str:
        """Do it at once."""
        self.log.append("quick")
        return "quickly"


def working(model: Any, **settings: Any) -> Any:
    return talker(model, base=Working, log=[], gate=asyncio.Event(), **settings)


@pytest.mark.promise("CF-159")
async def test_a_turn_cancelled_in_the_middle_stops_the_model_and_keeps_what_was_said() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("once upon a time", gate=gate), text("yes"))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("tell", "u1"))
        await streamed(client, "r1", "once")

        await cancel(client, "r1")
        end = await done(client, "r1")

        assert (end["outcome"], end["messageIds"]) == ("aborted", ["u1"])
        assert model.cancelled == 1
        gate.set()
        await asyncio.sleep(0.05)
        assert said(chunks(client, "r1")) == "once"
        assert type_of(client.frames[-1]) == UPDATED
        agent = await one.world.get_agent(cls, "t")
        stored = (await agent.conversation.messages())[-1]
        assert (text_of(stored), stored["parts"][-1]["state"]) == ("once", "done")
        await agent.send("go on?")
        assert [part.content for part in model.asked[1][1].parts] == ["once"]


@pytest.mark.promise("B-15")
async def test_a_turn_cancelled_before_the_model_is_asked_never_asks_it() -> None:
    gate, began = asyncio.Event(), asyncio.Event()

    class Thinking(Talking):
        async def before_turn(self, turn: Turn) -> None:
            began.set()
            await gate.wait()

    model = ScriptedModel(text("never"))
    cls = talker(model, base=Thinking)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await began.wait()

        await cancel(client, "r1")
        await asyncio.sleep(0.02)
        gate.set()

        assert (await done(client, "r1"))["outcome"] == "aborted"
        assert model.asked == []
        agent = await one.world.get_agent(cls, "t")
        assert [message["role"] for message in await agent.conversation.messages()] == ["user"]


async def test_a_cancel_in_the_same_moment_as_the_request_never_asks_the_model() -> None:
    model = ScriptedModel(text("once upon a time", delay=0.05))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)

        await say(client, "r1", "hi")
        await cancel(client, "r1")

        assert (await done(client, "r1"))["outcome"] == "aborted"
        assert len(model.asked) == model.cancelled


async def test_a_turn_cancelled_during_a_tool_cancels_the_tool_and_tells_the_model_what_became_of_each() -> None:
    model = ScriptedModel(calls(call("quick", id="q"), call("work", id="w")), text("ok"))
    cls = working(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "work")
        await until(lambda: "began 0" in cls.log)

        await cancel(client, "r1")
        await done(client, "r1")

        assert cls.log == ["quick", "began 0", "cancelled 0"]
        agent = await one.world.get_agent(cls, "t")
        answer = (await agent.conversation.messages())[-1]
        assert parts_of(answer, "q")["output"] == "quickly"
        assert parts_of(answer, "w")["state"] == "output-error"
        assert parts_of(answer, "w")["errorText"] == "It was stopped."
        history = json.loads(await agent.seen_by_model())
        assert not open_calls(history)
        returned = {part["tool_call_id"]: part["content"] for part in history[-1]["parts"]}
        assert returned["q"] == "quickly"
        assert returned["w"].startswith("The turn was stopped before this call returned. It may or may not")
        assert (await agent.send("and?")).text == "ok"


async def test_a_turn_cancelled_during_a_tool_that_was_approved_leaves_nothing_open() -> None:
    class Careful(Working):
        @tool(requires_approval=True)
        async def launch(self) -> str:
            """Launch."""
            return await self.work(7)

    model = ScriptedModel(calls(call("quick", id="q"), call("launch", id="l")), text("ok"))
    cls = talker(model, base=Careful, log=[], gate=asyncio.Event())
    async with talking(cls) as one:
        agent = await one.world.get_agent(cls, "t")
        assert (await agent.send("go")).status == "waiting"
        await agent.questions.approve("l")
        await until(lambda: "began 7" in cls.log)

        assert await agent.turns.cancel()
        await idle(one)

        assert not open_calls(json.loads(await agent.seen_by_model()))
        assert "cancelled 7" in cls.log
        assert (await agent.send("and?")).text == "ok"


async def test_a_turn_that_waits_in_the_queue_can_be_cancelled_and_is_never_run() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("slow answer", gate=gate))
    cls = talker(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("one", "u1"))
        await streamed(client, "r1", "slow")
        await say(client, "r2", user("one", "u1"), user("two", "u2"))

        await cancel(client, "r2")

        assert (await done(client, "r2"))["outcome"] == "aborted"
        gate.set()
        await done(client, "r1")
        assert len(model.asked) == 1
        assert [message["role"] for message in client.of_type(MESSAGES)[-1]["messages"]] == ["user", "assistant"]


async def test_a_turn_that_waits_for_somebody_can_be_cancelled() -> None:
    cls = talker(ScriptedModel(call("beep", id="c1"), text("fine")))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi", clientTools=BEEP)
        await done(client, "r1")

        await cancel(client, "r1")
        await client.until(
            lambda frame: (
                type_of(frame) == MESSAGES
                and frame["messages"]
                and any(part.get("state") == "output-error" for part in frame["messages"][-1]["parts"])
            )
        )

        agent = await one.world.get_agent(cls, "t")
        assert not open_calls(json.loads(await agent.seen_by_model()))
        assert (await agent.send("more")).text == "fine"


async def test_a_cancel_after_the_end_changes_nothing() -> None:
    cls = talker(ScriptedModel(text("hello")))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await done(client, "r1")
        agent = await one.world.get_agent(cls, "t")
        before = await agent.conversation.messages()

        await cancel(client, "r1")
        await cancel(client, "unknown")

        assert not await agent.turns.cancel("r1")
        assert not await agent.turns.cancel()
        assert await agent.conversation.messages() == before
        assert len(dones(client)) == 1


@pytest.mark.promise("B-15")
async def test_a_cancel_is_not_forgotten_when_the_process_dies() -> None:
    class Stubborn(Talking):
        @tool
        async def work(self) -> str:
            """Work, whatever happens."""
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    await asyncio.sleep(30)

    model = ScriptedModel(call("work", id="w"), text("never"))
    cls = talker(model, base=Stubborn)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await client.until(lambda frame: "tool-input-available" in str(frame))
        await cancel(client, "r1")
        await client.call("nothing")

        await one.world.crash()
        await idle(one)

        agent = await one.world.get_agent(cls, "t")
        assert len(model.asked) == 1
        assert not open_calls(json.loads(await agent.seen_by_model()))
        assert await agent.ends() == [("r1", "cancelled")]


@pytest.mark.slow
async def test_whoever_is_cancelled_while_waiting_for_an_answer_cancels_the_turn(run: Run) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("once upon a time", gate=gate))
    cls = talker(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        asking = asyncio.create_task(agent.send("tell"))
        await until(lambda: len(model.asked) == 1)

        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: model.cancelled == 1)

        assert [status for _, status in await over(agent)] == ["cancelled"]


@pytest.mark.promise("B-15")
async def test_a_cancel_from_outside_counts_from_the_first_moment(run: Run) -> None:
    model = ScriptedModel(text("never"))
    cls = talker(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        asking = asyncio.create_task(agent.send("tell"))

        for _ in range(2):
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.sleep(0.05)

        assert len(model.asked) == model.cancelled


async def test_a_deadline_cancels_the_turn(run: Run) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("once upon a time", gate=gate))
    cls = talker(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")

        with pytest.raises(TimedOut), deadline(0.1):
            await agent.send("tell")

        assert [status for _, status in await over(agent)] == ["cancelled"]
        assert model.cancelled == len(model.asked)


async def test_an_own_loop_is_closed_when_its_turn_is_cancelled() -> None:
    closed: list[str] = []

    class Own(Talking):
        async def respond(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
            try:
                while True:
                    yield "word "
                    await asyncio.sleep(0.01)
            finally:
                closed.append(turn.id)

    cls = talker(base=Own)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await streamed(client, "r1", "word word")

        await cancel(client, "r1")

        assert (await done(client, "r1"))["outcome"] == "aborted"
        assert closed == ["r1"]


async def test_an_own_loop_that_hangs_is_cut_off_when_its_turn_is_cancelled() -> None:
    closed: list[str] = []

    class Own(Talking):
        async def respond(self, turn: Turn) -> AsyncIterator[str | dict[str, Any]]:
            try:
                yield "word"
                await asyncio.Event().wait()
            finally:
                closed.append(turn.id)

    cls = talker(base=Own)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi")
        await streamed(client, "r1", "word")

        await cancel(client, "r1")

        assert (await done(client, "r1"))["outcome"] == "aborted"
        assert closed == ["r1"]


async def test_the_next_turn_can_be_cancelled_while_the_end_of_the_last_is_still_being_told() -> None:
    gate, slow = asyncio.Event(), asyncio.Event()

    class Telling(Talking):
        async def after_turn(self, turn: Turn) -> None:
            if turn.text == "first":
                await slow.wait()

    model = ScriptedModel(text("first"), text("second answer", gate=gate))
    cls = talker(model, base=Telling)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("a", "u1"))
        await done(client, "r1")
        await say(client, "r2", user("a", "u1"), user("b", "u2"))
        await streamed(client, "r2", "second")
        slow.set()
        await asyncio.sleep(0.02)

        await cancel(client, "r2")

        assert (await done(client, "r2"))["outcome"] == "aborted"
        assert model.cancelled == 1


@pytest.mark.parametrize("clears", [False, True])
async def test_a_continuation_cancelled_just_as_it_is_about_to_wait_again_does_not_wait(clears: bool) -> None:
    about_to = asyncio.Event()

    class Telling(Talking):
        def on_chunk(self, chunk: dict[str, Any]) -> None:
            if chunk["type"] == "tool-input-available" and chunk["toolCallId"] == "c2":
                about_to.set()

    cls = talker(ScriptedModel(call("beep", id="c1"), call("beep", id="c2"), text("fine")), base=Telling)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", "hi", clientTools=BEEP)
        await done(client, "r1")
        await tool_result(client, "c1", 1)
        await about_to.wait()

        await client.send({"type": CLEAR}) if clears else await cancel(client, "r1-1")
        await done(client, "r1-1")
        await client.call("nothing")

        agent = await one.world.get_agent(cls, "t")
        assert not open_calls(json.loads(await agent.seen_by_model()))
        assert (await agent.conversation.messages() == []) is clears
        assert (await agent.send("more")).status == "completed"


async def test_a_cancel_does_not_wait_for_a_hook_that_takes_its_time() -> None:
    for hook in ("before_turn", "before_step", "compact"):
        began, ended = asyncio.Event(), list[str]()

        async def wait(self: Any, *_: Any, began: asyncio.Event = began, ended: list[str] = ended) -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("ended")

        model = ScriptedModel(text("first"), text("never"))
        hooked = type("Hooked", (Talking,), {hook: wait} if hook != "compact" else {})
        cls = talker(model, base=hooked, compact_above=1 if hook == "compact" else None)
        async with talking(cls) as one:
            client = await one.join(TALKER)
            if hook == "compact":
                await say(client, "r0", user("a", "u0"))
                await done(client, "r0")
                cls.compact = wait
            await say(client, "r1", user("a", "u0"), user("b", "u1"))
            await began.wait()

            await cancel(client, "r1")

            assert (await done(client, "r1"))["outcome"] == "aborted", hook
            assert (ended, len(model.asked)) == (["ended"], int(hook == "compact"))


async def test_an_own_loop_cancelled_at_any_moment_ends_and_holds_up_nobody(run: Run) -> None:
    class Own(Talking):
        async def respond(self, turn: Turn) -> AsyncIterator[str]:
            await asyncio.Event().wait()
            yield "never"

    cls = talker(base=Own)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        for moments in range(0, 40, 3):
            asking = asyncio.create_task(agent.send("tell"))
            for _ in range(moments):
                await asyncio.sleep(0)

            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

        accepted = sum(1 for message in await agent.conversation.messages() if message["role"] == "user")
        assert [status for _, status in await over(agent, accepted)] == ["cancelled"] * accepted


@pytest.mark.promise("B-15")
async def test_a_cancel_from_outside_counts_at_every_moment(run: Run) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("never more", gate=gate))
    cls = talker(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        for moments in range(0, 60, 2):
            asking = asyncio.create_task(agent.send("tell"))
            for _ in range(moments):
                await asyncio.sleep(0)

            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

        accepted = sum(1 for message in await agent.conversation.messages() if message["role"] == "user")
        assert [status for _, status in await over(agent, accepted)] == ["cancelled"] * accepted
        assert len(model.asked) == model.cancelled


@pytest.mark.promise("B-15")
async def test_python_cancels_a_turn_that_waits_in_the_queue(run: Run) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("slow answer", gate=gate))
    cls = talker(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        first = asyncio.create_task(agent.send("one"))
        await until(lambda: len(model.asked) == 1)
        second = asyncio.create_task(agent.send("two"))
        await asyncio.sleep(0.02)
        queued = next(turn for turn in (await agent.conversation.export())["turns"] if turn["status"] == "queued")

        assert await agent.turns.cancel(queued["id"])

        assert (await second).status == "cancelled"
        gate.set()
        assert (await first).text == "slow answer"
        assert (len(model.asked), model.cancelled) == (1, 0)
        assert [message["role"] for message in await agent.conversation.messages()] == ["user", "assistant"]


@pytest.mark.parametrize("way", ["cancel", "answer", "say"])
async def test_what_waits_behind_a_turn_that_asks_somebody_begins_when_nobody_goes_on_with_it(way: str) -> None:
    gate = asyncio.Event()

    class Careful(Talking):
        async def before_step(self, turn: Turn, step: int) -> None:
            await gate.wait()

    model = ScriptedModel(call("beep", id="c1"), text("second"), text("third"))
    cls = talker(model, base=Careful)
    async with talking(cls) as one:
        client, other = await one.join(TALKER), await one.join(TALKER)
        await say(client, "r1", user("a", "u1"), clientTools=BEEP)
        await say(client, "r2", user("a", "u1"), user("b", "u2"))
        await other.until(lambda frame: len(frame.get("messages", ())) == 2)
        gate.set()
        await done(client, "r1")
        assert not dones(client, "r2")

        if way == "cancel":
            await cancel(client, "r1")
        elif way == "answer":
            await tool_result(client, "c1", 1, go_on=False)
        else:
            await say(client, "r3", user("a", "u1"), user("b", "u2"), user("c", "u3"))

        assert (await done(client, "r2"))["outcome"] == "completed"
        agent = await one.world.get_agent(cls, "t")
        assert not open_calls(json.loads(await agent.seen_by_model()))
        assert ("r1", "cancelled" if way == "cancel" else "completed") in await over(agent, 2)


async def test_a_turn_cancelled_after_it_was_cleared_away_leaves_nothing() -> None:
    cls = talker(ScriptedModel(text("once upon a time", gate=asyncio.Event())))
    async with talking(cls) as one:
        client = await one.join(TALKER)
        agent = await one.world.get_agent(cls, "t")
        await say(client, "r1", "tell me")
        await streamed(client, "r1", "once")

        await asyncio.gather(agent.conversation.clear(), agent.turns.cancel())
        await done(client, "r1")

        assert await agent.conversation.messages() == []
        assert await agent.seen_by_model() == "[]"
