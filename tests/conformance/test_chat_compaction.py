"""A long conversation becomes short for its model after a turn, while its clients see all of it, and nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from tests.conformance.chats import TALKER, Talking, check_history, idle, say, talker, talking, text_of, user
from tests.conformance.worlds import Run, a_while, until
from tests.machine import patience

from sapwood import Agent, ChatAgent, Turn, tool
from sapwood.errors import Unavailable
from sapwood.testing import ScriptedModel, World, call, text
from sapwood.testing.faults import Dead

LONG = "long " * 100
SUMMARY = "## Goal\nTo talk."


class Summarizer(ScriptedModel):
    """Answers as a scripted model, and is counted when it summarises."""

    def __init__(self, *lines: Any, gate: asyncio.Event | None = None, each: bool = False) -> None:
        super().__init__(*lines, each=each)
        self.gate = gate
        self.error: Exception | None = None
        self.summarised: list[list[ModelMessage]] = []

    async def _answer(self, messages: list[ModelMessage], info: Any) -> ModelResponse:
        self.summarised.append(messages)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return ModelResponse(parts=[TextPart(SUMMARY)])


class Reader(Talking):
    compact_above = 200

    @tool
    async def read(self, name: str = "small") -> str:
        """Read a text."""
        return f"start of {name} {'x' * (8000 if name == 'large' else 100)} end"


def reader(model: Any, **settings: Any) -> Any:
    return talker(model, base=Reader, **settings)


async def compacted(world: World, agent: Any) -> list[dict[str, Any]]:
    """Return what the model sees when nothing is under way any more."""
    await world.settled()
    history = json.loads(await agent.seen_by_model())
    check_history(history)
    return history


def contents(history: list[dict[str, Any]]) -> str:
    return json.dumps(history)


async def test_after_a_turn_the_old_messages_become_a_summary_and_its_sender_does_not_wait(run: Run) -> None:
    gate = asyncio.Event()
    model = Summarizer(text(LONG), gate=gate)
    cls = reader(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("one")
        turn = await agent.send("two")
        assert turn.status == "completed"
        await until(lambda: len(model.summarised) == 1)
        assert "Its 2 messages are not" not in await agent.seen_by_model()

        gate.set()
        await until_summarised(agent)

        history = await compacted(world, agent)
        assert "Its 2 messages are not" in contents(history[:1])
        assert SUMMARY.splitlines()[1] in contents(history[:1])
        assert [part["content"] for part in history[1]["parts"]] == ["two"]
        assert [text_of(one) for one in await agent.conversation.messages()] == ["one", LONG, "two", LONG]
        assert [text_of(one) for one in await agent.conversation.search("one")] == ["one"]
        asked = contents(json.loads(json.dumps([str(one) for one in model.summarised[0]])))
        assert all(heading in asked for heading in ("## Goal", "## Decisions", "## Open questions", "## Names and ids"))
        await agent.send("three")
        assert str(model.asked[-1]).count("Its 2 messages") == 1


async def until_summarised(agent: Any) -> None:
    """Return when the model sees a summary."""
    async with asyncio.timeout(patience()):
        while "Summary of the earlier" not in await agent.seen_by_model():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)


async def test_a_turn_that_begins_in_the_meantime_waits_and_can_be_cancelled(run: Run) -> None:
    gate = asyncio.Event()
    model = Summarizer(text(LONG), gate=gate)
    cls = reader(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("one")
        await agent.send("two")
        third = asyncio.ensure_future(agent.send("three"))
        await until(lambda: len(model.summarised) == 1)
        await a_while()

        await agent.turns.cancel()

        assert (await third).status == "cancelled"
        fourth = asyncio.ensure_future(agent.send("four"))
        await a_while()
        assert len(model.asked) == 2
        gate.set()
        assert (await fourth).status == "completed"
        assert len(model.asked) == 3
        assert "Summary of the earlier" in str(model.asked[-1])


@pytest.mark.slow
async def test_killed_at_every_commit_there_is_one_summary_in_the_end_and_it_is_not_paid_again() -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        model = Summarizer(text(LONG), each=True)
        cls = reader(model)
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            await agent.send("one")
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable, Dead):
                await agent.send("two")
                await one.world.settled()
            passed = one.world.points.passed["committed"] >= before + nth
            await one.world.crash()
            await idle(one)
            agent = await one.world.get_agent(cls, "t")
            if len(await agent.ends()) < 2:
                continue  # the message was lost
            history = await compacted(one.world, agent)
            assert contents(history).count("Summary of the earlier") == 1, nth
            assert [text_of(it) for it in await agent.conversation.messages()] == ["one", LONG, "two", LONG], nth
            assert len(model.summarised) <= 2, nth
            paid = len(model.summarised)
            await one.world.crash()
            await idle(one)
            assert len(model.summarised) == paid, nth
    assert nth > 5


async def test_if_the_provider_fails_the_conversation_goes_on_and_it_is_tried_after_the_next_turn(run: Run) -> None:
    model = Summarizer(text(LONG))
    model.error = ModelHTTPError(400, "scripted", {"error": "no"})
    cls = reader(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        turns = [await agent.send(word) for word in ("one", "two", "three")]
        assert [turn.status for turn in turns] == ["completed"] * 3
        await world.settled()
        failed = len(model.summarised)
        assert failed == 2  # after the second turn and the third: the third did without

        model.error = None
        assert (await agent.send("four")).status == "completed"
        await until_summarised(agent)

        assert len(model.summarised) == failed + 1


async def test_a_model_that_cannot_be_chosen_after_a_turn_fails_no_turn(run: Run) -> None:
    class Choosing(Reader):
        chosen = 0

        def get_model(self) -> Any:
            type(self).chosen += 1
            if type(self).chosen == 3:
                raise ValueError("no model at this time")
            return self.model

    cls = talker(Summarizer(text(LONG)), base=Choosing)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        assert [(await agent.send(word)).status for word in ("one", "two", "three")] == ["completed"] * 3
        await until_summarised(agent)


async def test_a_hook_that_fails_fails_no_turn(run: Run) -> None:
    class Failing(Reader):
        async def compact(self, messages: list[ModelMessage]) -> str | None:
            raise ValueError("no summary")

    cls = talker(ScriptedModel(text(LONG)), base=Failing)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        assert [(await agent.send(word)).status for word in ("one", "two", "three")] == ["completed"] * 3


async def test_a_silent_provider_is_cut_off(run: Run) -> None:
    model = Summarizer(text(LONG), gate=asyncio.Event())
    cls = reader(model, stall_timeout=20.0)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("one")
        await agent.send("two")
        third = asyncio.ensure_future(agent.send("three"))
        await until(lambda: len(model.summarised) == 1)

        while not third.done():
            await world.clock.advance(10)

        assert (await third).status == "completed"


async def test_clearing_the_conversation_ends_a_compaction(run: Run) -> None:
    gate = asyncio.Event()
    model = Summarizer(text(LONG), gate=gate)
    cls = reader(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("one")
        await agent.send("two")
        await until(lambda: len(model.summarised) == 1)

        await agent.conversation.clear()
        gate.set()

        assert (await agent.send("new")).status == "completed"
        assert "Summary" not in contents(await compacted(world, agent))


async def test_messages_taken_back_in_the_meantime_are_not_summarised() -> None:
    gate = asyncio.Event()
    model = Summarizer(text(LONG), text(LONG), text("short"), gate=gate)
    cls = reader(model)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("one", "u1"))
        await idle(one)
        agent = await one.world.get_agent(cls, "t")
        said = (await agent.conversation.messages())[:2]
        await say(client, "r2", *said, user("two", "u2"))
        await until(lambda: len(model.summarised) == 1)

        await say(client, "r3", user("another", "u1"), trigger="submit-message")
        gate.set()
        await idle(one)

        assert "another" in await agent.seen_by_model()
        check_history(json.loads(await agent.seen_by_model()))


async def test_tool_results_are_cleared_first_and_clients_still_have_them(run: Run) -> None:
    model = Summarizer(call("read", name="large", id="c1"), text("read"), text("and?"))
    cls = reader(model, compact_above=1000)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("read it")
        await agent.send("and?")

        history = await compacted(world, agent)

        assert not model.summarised
        message = (await agent.conversation.messages())[1]
        assert "[Cleared: the result of read had 8,0" in contents(history)
        assert f"message {message['id']} as the tool call c1" in contents(history)
        assert "start of large" not in contents(history)
        assert "start of large" in json.dumps(message)
        await world.crash()
        agent = await world.get_agent(cls, "t")
        assert json.loads(await agent.seen_by_model()) == history


async def test_a_pinned_message_is_never_summarised_until_it_is_unpinned(run: Run) -> None:
    model = Summarizer(text(LONG))
    cls = reader(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("the rule is blue")
        rule = (await agent.conversation.messages())[0]["id"]
        assert await agent.conversation.pin(rule)
        assert not await agent.conversation.pin("unknown")
        for number in range(4):
            await agent.send(f"message {number}")
            await world.settled()
        await world.crash()
        agent = await world.get_agent(cls, "t")
        history = contents(await compacted(world, agent))
        assert history.count("the rule is blue") == 1
        assert "message 0" not in history

        assert await agent.conversation.unpin(rule)
        assert not await agent.conversation.unpin(rule)
        await agent.send("more")
        await agent.send("and more")
        assert "the rule is blue" not in contents(await compacted(world, agent))


async def test_a_message_pinned_while_its_summary_is_written_stays(run: Run) -> None:
    gate = asyncio.Event()
    model = Summarizer(text(LONG), gate=gate)
    cls = reader(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("the rule is blue")
        await agent.send("two")
        await until(lambda: len(model.summarised) == 1)

        assert await agent.conversation.pin((await agent.conversation.messages())[0]["id"])
        gate.set()
        await agent.send("three")

        assert contents(await compacted(world, agent)).count("the rule is blue") == 1


async def test_within_a_turn_that_is_too_long_the_question_stays_and_the_turn_goes_on(run: Run) -> None:
    model = Summarizer(*(call("read", name=f"n{number}") for number in range(12)), text("done"))
    cls = reader(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")

        turn = await agent.send("read twelve of them")

        assert (turn.status, turn.text, turn.steps) == ("completed", "done", 13)
        assert model.summarised
        for asked in model.asked:
            assert str(asked).count("read twelve of them") == 1
        check_history(await compacted(world, agent))
        assert max(len(str(asked)) for asked in model.asked[4:]) < len(str(model.asked[3])) * 3
        # Of clients, nothing is taken.
        assert json.dumps(await agent.conversation.messages()).count("start of n") == 12


async def test_the_summary_is_counted_for_the_turn_that_has_ended(run: Run) -> None:
    model = Summarizer(text(LONG))
    cls = reader(model)
    async with run(cls) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("one")
        await agent.send("two")
        await until_summarised(agent)
        turns = (await agent.conversation.export())["turns"]
        assert [turn["usage"]["scripted"]["requests"] for turn in turns] == [1, 2]
        assert (await agent.spending.total())["scripted"]["requests"] == 3


class LongChild(ChatAgent):
    """Has long conversations."""

    compact_above = 200

    async def seen(self) -> str:
        return str(self.conversation.history())


class LongMiddle(Agent):
    async def talk(self, words: list[str]) -> str:
        child = await self.sub_agent(LongChild, "c")
        turns: list[Turn] = [await child.send(word) for word in words]
        return ",".join(turn.status for turn in turns)

    async def seen(self) -> str:
        return await (await self.sub_agent(LongChild, "c")).seen()

    async def delegate(self) -> str:
        return (await self.run_agent(LongChild, "work")).status


class LongRoot(Agent):
    async def talk(self, words: list[str]) -> str:
        return await (await self.sub_agent(LongMiddle, "m")).talk(words)

    async def seen(self) -> str:
        return await (await self.sub_agent(LongMiddle, "m")).seen()

    async def delegate(self) -> str:
        return await (await self.sub_agent(LongMiddle, "m")).delegate()


async def test_the_conversation_of_a_child_of_a_child_is_compacted_too(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Summarizer(text(LONG))
    monkeypatch.setattr(LongChild, "model", model)
    async with run(LongRoot) as world:
        root = await world.get_agent(LongRoot, "r")
        assert await root.talk(["one", "two"]) == "completed,completed"
        await world.crash()
        root = await world.get_agent(LongRoot, "r")
        assert await root.talk(["three"]) == "completed"
        assert "Summary of the earlier" in await root.seen()


async def test_the_conversation_of_a_run_is_not_compacted_after_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Summarizer(text(LONG * 5))
    monkeypatch.setattr(LongChild, "model", model)
    async with run(LongRoot) as world:
        assert await (await world.get_agent(LongRoot, "r")).delegate() == "completed"
        await world.settled()
        assert not model.summarised
