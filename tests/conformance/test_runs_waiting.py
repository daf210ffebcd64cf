"""Subscribers learn who waits for an answer, that it no longer does, and which words of a turn are no longer valid."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.conformance.test_runs_events import Reader, is_end
from tests.conformance.worlds import Run
from tests.machine import patience

from sapwood import ChatAgent, agent_tool, tool
from sapwood.testing import ScriptedModel, World, call, text
from sapwood.types import Event


class WaitBuyer(ChatAgent):
    """Pays when a person allows it."""

    model = ScriptedModel(call("pay", euros=3, id="p1"), text("paid"), each=True)

    @tool(requires_approval=True)
    async def pay(self, euros: int) -> str:
        """Pay."""
        return f"{euros} paid"


class WaitOffice(ChatAgent):
    """Has a buyer buy."""

    model = ScriptedModel(call("buy", message="buy bread", id="b1"), text("bought"), each=True)
    tools = (agent_tool(WaitBuyer, name="buy"),)


class WaitHall(ChatAgent):
    """Has an office have it bought."""

    model = ScriptedModel(call("order", message="order bread", id="o1"), text("ordered"), each=True)
    tools = (agent_tool(WaitOffice, name="order"),)


def told(events: Sequence[Event], *kinds: str) -> list[tuple[str, int, Any]]:
    return [(one.kind, len(one.path), one.body) for one in events if one.kind in kinds]


def names_of(events: Sequence[Event]) -> list[str]:
    return [f"{one.path[-1].type} {one.kind}" for one in events if one.kind != "chunk"]


async def test_a_question_three_levels_down_is_told_as_waiting_and_its_answer_as_resumed(run: Run) -> None:
    async with asyncio.timeout(patience()), run(WaitHall) as world:
        hall = await world.get_agent(WaitHall, "h")
        reader, near = Reader(hall.subscribe()), Reader(hall.subscribe("children"))
        turn = await hall.turns.start("bread")
        waiting = await reader.until(lambda event: event.kind == "waiting")
        assert ([one.type for one in waiting.path], waiting.run_id, waiting.seq) == (
            ["WaitHall", "WaitOffice", "WaitBuyer"],
            None,
            0,
        )
        assert waiting.body == {"questions": ["p1"]}

        await world.crash()
        hall = await world.get_agent(WaitHall, "h")
        cursor = reader.events[-1].cursor
        later = Reader(hall.subscribe(after=cursor))
        again = await later.until(lambda event: event.kind == "waiting")
        assert (again.path, again.body) == (waiting.path, waiting.body)
        (question,) = await hall.questions.list()
        assert await hall.questions.approve(question)
        await later.until(lambda event: event.run_id is None and event.kind == "completed")

        assert (await hall.turns.wait(turn.id)).text == "ordered"
        assert names_of([*reader.events, *later.events]) == [
            "WaitHall started",
            "WaitOffice started",
            "WaitBuyer started",
            "WaitBuyer waiting",
            "WaitBuyer waiting",
            "WaitBuyer resumed",
            "WaitBuyer completed",
            "WaitOffice completed",
            "WaitHall completed",
        ]
        assert not told(near.events, "waiting", "resumed")
        for one in (reader, near, later):
            await one.stop()


async def test_the_second_of_two_questions_is_told_and_so_is_that_one_is_left(run: Run) -> None:
    model = ScriptedModel(call("pay", euros=3, id="p1"), call("pay", euros=4, id="p2"), text("paid"), each=True)

    class WaitTwice(WaitBuyer):
        pass

    WaitTwice.model = model
    async with asyncio.timeout(patience()), run(WaitTwice) as world:
        buyer = await world.get_agent(WaitTwice, "b")
        reader = Reader(buyer.subscribe())
        await buyer.turns.start("buy")
        for call_id in ("p1", "p2"):
            asked = {"questions": [call_id]}
            await reader.until(lambda event, asked=asked: event.kind == "waiting" and event.body == asked)
            assert await buyer.questions.approve(call_id)
        await reader.until(is_end)

        assert told(reader.events, "waiting", "resumed") == [
            ("waiting", 1, {"questions": ["p1"]}),
            ("resumed", 1, None),
            ("waiting", 1, {"questions": ["p2"]}),
            ("resumed", 1, None),
        ]
        await reader.stop()


class WaitTeller(ChatAgent):
    """Tells a story."""


def story_of(events: Sequence[Event]) -> str:
    """Return what a turn has said, as a reader knows it who forgets what is retracted."""
    words: dict[int, str] = {}
    for event in events:
        if event.kind == "retracted":
            words = {seq: word for seq, word in words.items() if seq <= event.body["after"]}
        elif event.kind == "chunk" and event.body["type"] == "text-delta":
            words[event.seq] = event.body["delta"]
    return "".join(words.values())


async def begun(world: World, gate: asyncio.Event, *, lines: int) -> tuple[Any, Reader]:
    """Have a story begun that stops after its first word as often as the model is asked, but for the last time."""
    stuck = [text("once upon a time", gate=gate) for _ in range(lines)]
    WaitTeller.model = ScriptedModel(*stuck, text("there was a tree"))
    teller = await world.get_agent(WaitTeller, "t")
    reader = Reader(teller.subscribe())
    await teller.turns.start("tell", id="t1")
    await reader.until(lambda event: event.kind == "chunk" and event.body.get("delta") == "once")
    return teller, reader


async def test_after_a_crash_a_reader_is_told_which_words_are_no_longer_valid(run: Run) -> None:
    async with asyncio.timeout(patience()), run(WaitTeller) as world:
        _, reader = await begun(world, asyncio.Event(), lines=1)
        cursor = reader.events[-1].cursor

        await world.crash()
        teller = await world.get_agent(WaitTeller, "t")
        later, fresh = Reader(teller.subscribe(after=cursor)), Reader(teller.subscribe())
        await teller.turns.wait("t1")
        await later.until(is_end)
        await fresh.until(is_end)

        (retracted,) = [one for one in later.events if one.kind == "retracted"]
        assert retracted.body["after"] < retracted.seq
        assert story_of([*reader.events, *later.events]) == story_of(fresh.events) == "there was a tree"
        seqs = [one.seq for one in [*reader.events, *later.events] if one.kind != "started"]
        assert seqs == sorted(set(seqs))
        for one in (reader, later, fresh):
            await one.stop()


async def test_words_that_a_model_does_not_finish_are_retracted_for_those_who_hear_them(run: Run) -> None:
    async with asyncio.timeout(patience()), run(WaitTeller) as world:
        teller, reader = await begun(world, asyncio.Event(), lines=1)
        while len(WaitTeller.model.asked) == 1:
            await world.clock.advance(601)
            await asyncio.sleep(0.01)
        await teller.turns.wait("t1")
        await reader.until(is_end)

        assert len(told(reader.events, "retracted")) == 1
        assert story_of(reader.events) == "there was a tree"
        (message,) = [one for one in await teller.conversation.messages() if one["role"] == "assistant"]
        assert [part["text"] for part in message["parts"] if part["type"] == "text"] == ["there was a tree"]
        await reader.stop()
