"""Watching a tree: what is stored and what happens, as one stream of events, with nothing missing and nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import apsw
import pytest
from tests.conformance.test_endings import fail_next_commit
from tests.conformance.worlds import Run
from tests.machine import patience

from sapwood import Agent, ChatAgent, agent_tool
from sapwood.errors import InvalidArguments
from sapwood.runs.dispatch.subscription import Subscription
from sapwood.runs.events import events as events_module
from sapwood.testing import ScriptedModel, World, call, text
from sapwood.timings import Timings
from sapwood.types import Event

gates: dict[str, asyncio.Event] = {}


def gate(name: str) -> asyncio.Event:
    return gates.setdefault(name, asyncio.Event())


@pytest.fixture(autouse=True)
def no_gates() -> None:
    gates.clear()


class WatchedLeaf(Agent):
    """Says one word after the other; waits wherever it is told to."""

    async def on_run(self, input: dict[str, Any]) -> AsyncGenerator[str, None]:
        for number, word in enumerate(input["words"]):
            if word.startswith("gate:"):
                await gate(word).wait()
            elif word.startswith("milestone:"):
                self.report_progress(milestone=word.removeprefix("milestone:"))
            elif word.startswith("progress:"):
                self.report_progress(number / 10, word.removeprefix("progress:"))
            elif word == "fail":
                raise RuntimeError("It went wrong.")
            else:
                yield word


class WatchedBranch(Agent):
    """Has a leaf do what it is given."""

    async def on_run(self, input: dict[str, Any]) -> str:
        run = await self.run_agent(WatchedLeaf, input, run_id=f"leaf-of-{self.name}")
        return f"branch of {run.summary}"


class WatchedRoot(Agent):
    """Gives runs."""

    async def give(self, id: str, *words: str) -> str:
        return (await self.run_agent(WatchedLeaf, {"words": list(words)}, run_id=id)).status

    async def begin(self, id: str, *words: str, nested: bool = False) -> None:
        cls = WatchedBranch if nested else WatchedLeaf
        await self.start_run(cls, {"words": list(words)}, run_id=id)

    async def over(self, id: str) -> str:
        known: Any = None  # the run has its input already
        return (await self.run_agent(WatchedLeaf, known, run_id=id)).status

    async def stop(self, id: str) -> bool:
        return self.runs.cancel(id)

    async def clear(self) -> int:
        return await self.runs.clear()

    async def have(self, id: str) -> None:
        await (await self.sub_agent(WatchedRoot, id)).begin(f"of-{id}", "hello")

    async def listeners(self) -> int:
        return len(self._actor.of(events_module.Feed).ears)

    async def runs_below(self) -> AsyncGenerator[Event, None]:
        """Yield what a calling server is sent of the runs below one of its own."""
        async for event in Subscription(self._actor, "tree", None, runs_only=True).events():
            yield event


class Reader:
    """Reads events in a task of its own, and keeps them."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        self._reading = asyncio.create_task(self._read(events))

    async def _read(self, events: AsyncGenerator[Event, None]) -> None:
        try:
            async with aclosing(events):
                async for event in events:
                    self.events.append(event)
                    self._news.set()
        finally:
            self._news.set()  # a waiting reader learns of an error at once

    async def until(self, fits: Callable[[Event], bool]) -> Event:
        async with asyncio.timeout(patience()):
            while True:
                for event in self.events:
                    if fits(event):
                        return event
                if self._reading.done():
                    self._reading.result()
                self._news.clear()
                await self._news.wait()

    async def until_over(self, *runs: str) -> None:
        for run in runs:
            await self.until(lambda event, run=run: event.run_id == run and is_end(event))

    async def stop(self) -> list[Event]:
        self._reading.cancel()
        await asyncio.wait({self._reading})
        return self.events

    def of(self, run: str | None) -> list[tuple[str, int, Any]]:
        return [(one.kind, one.seq, one.body) for one in self.events if one.run_id == run]


def is_end(event: Event) -> bool:
    return event.kind in ("completed", "failed", "cancelled")


def said(events: Sequence[Event], run: str | None) -> str:
    chunks = [one.body for one in events if one.run_id == run and one.kind == "chunk"]
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


def plain(events: Sequence[Event]) -> list[Event]:
    """Return events without what only says where to go on."""
    return [replace(event, cursor=None) for event in events]


def by_run(events: Sequence[Event]) -> dict[str | None, list[Event]]:
    found: dict[str | None, list[Event]] = {}
    for event in plain(events):
        found.setdefault(event.run_id, []).append(event)
    return found


async def stored(agent: Any, depth: Any = "tree", *, after: str | None = None, count: int) -> list[Event]:
    """Return what a new reader is told at once, which is so many events, and not one more."""
    found: list[Event] = []
    async with aclosing(agent.subscribe(depth, after=after)) as events:
        while len(found) < count:
            found.append(await asyncio.wait_for(anext(events), patience()))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.01)
    return found


async def root_of(world: World) -> WatchedRoot:
    return await world.get_agent(WatchedRoot, "r")


async def test_a_reader_sees_a_run_from_its_start_to_its_end(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        reader = Reader(root.subscribe())
        await root.give("one", "hello", " you")
        await reader.until_over("one")

        assert [(kind, seq) for kind, seq, _ in reader.of("one")] == [
            ("started", 0),
            *(("chunk", number) for number in range(1, 5)),
            ("completed", 5),
        ]
        assert reader.of("one")[0][2] == {"input": {"words": ["hello", " you"]}, "order": 0}
        assert reader.of("one")[-1][2] == "hello you"
        assert said(reader.events, "one") == "hello you"
        assert reader.events[0].path == (("WatchedRoot", "r"), ("WatchedLeaf", "one"))
        assert reader.events[0].parent_run_id is None
        await reader.stop()


@pytest.mark.parametrize("nested", [False, True])
async def test_a_reader_of_runs_only_sees_the_start_of_a_run_that_says_nothing(run: Run, nested: bool) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        reader = Reader(root.runs_below())
        await root.give("one")
        await reader.until_over("one")  # from now on it hears, and reads nothing

        await root.begin("two", "gate:two", nested=nested)
        await reader.until(lambda event: event.run_id == "two" and event.kind == "started")
        if nested:
            await reader.until(lambda event: event.run_id == "leaf-of-two" and event.kind == "started")

        gate("gate:two").set()
        await reader.until_over("two")
        await reader.stop()


async def test_a_reader_that_comes_later_sees_what_one_that_was_there_saw(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        live = Reader(root.subscribe())
        await root.give("one", "hello", "milestone:half", " you")
        await root.give("two", "no", "fail")
        await root.begin("three", "deep", "milestone:there", nested=True)
        await live.until_over("one", "two", "three", "leaf-of-three")
        heard = await live.stop()

        world.sleep()

        assert by_run(await stored(await root_of(world), count=len(heard))) == by_run(heard)
        await world.restart()
        assert by_run(await stored(await root_of(world), count=len(heard))) == by_run(heard)


@pytest.mark.promise("A-103", "B-21")
async def test_a_reader_chooses_how_deep_it_looks(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        readers = {depth: Reader(root.subscribe(depth)) for depth in ("self", "children", "tree")}
        await root.begin("one", "hello", nested=True)
        await readers["tree"].until_over("one", "leaf-of-one")
        await readers["children"].until_over("one")

        assert set(by_run(readers["tree"].events)) == {"one", "leaf-of-one"}
        assert set(by_run(readers["children"].events)) == {"one"}
        assert not readers["self"].events
        for depth, reader in readers.items():
            heard = await reader.stop()
            assert by_run(await stored(root, depth, count=len(heard))) == by_run(heard)


@pytest.mark.promise("B-21")
async def test_an_event_names_its_path_its_run_and_the_run_that_gave_it(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        reader = Reader(root.subscribe())
        await root.begin("one", "hello", nested=True)
        await reader.until_over("one", "leaf-of-one")

        deep = next(event for event in reader.events if event.run_id == "leaf-of-one")
        assert deep.parent_run_id == "one"
        assert [step.name for step in deep.path] == ["r", "one", "leaf-of-one"]
        assert {event.parent_run_id for event in reader.events if event.run_id == "leaf-of-one"} == {"one"}
        await reader.stop()


async def test_the_agent_that_does_a_run_can_be_watched_by_itself(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        await root.begin("one", "hello", "gate:a", " you")
        leaf = await world.get_agent(WatchedRoot, "r", sub=((WatchedLeaf, "one"),))
        reader = Reader(leaf.subscribe("self"))
        await reader.until(lambda event: event.kind == "chunk")
        gate("gate:a").set()
        await reader.until_over("one")
        live = await reader.stop()

        assert [event.kind for event in live] == ["started", "chunk", "chunk", "chunk", "chunk", "completed"]
        again = Reader(leaf.subscribe("self"))
        await again.until_over("one")
        assert plain(await again.stop()) == plain(live)


async def test_a_reader_that_comes_in_the_middle_gets_what_was_and_what_follows_each_once(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        first = Reader(root.subscribe())
        await root.begin("one", "a", "b", "gate:1", "c", "gate:2", "d", nested=True)
        await first.until(lambda event: event.kind == "chunk" and event.body.get("delta") == "b")
        second = Reader(root.subscribe())
        gate("gate:1").set()
        third = Reader(root.subscribe())
        await first.until(lambda event: event.kind == "chunk" and event.body.get("delta") == "c")
        fourth = Reader(root.subscribe())
        gate("gate:2").set()
        for reader in (first, second, third, fourth):
            await reader.until_over("one", "leaf-of-one")

        seen = [by_run(await reader.stop()) for reader in (first, second, third, fourth)]
        assert seen[0] == seen[1] == seen[2] == seen[3]
        assert [event.seq for event in seen[0]["leaf-of-one"]] == list(range(8))


@pytest.mark.slow
@pytest.mark.promise("B-21")
@pytest.mark.parametrize("ends", ["crash", "restart"])
async def test_a_reader_goes_on_behind_any_event_it_saw_also_in_another_life(ends: str, run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        live = Reader(root.subscribe())
        await root.give("zero", "old")
        await root.begin("one", "a", "milestone:m1", "b", "c", nested=True)
        await root.give("two", "x", "milestone:m2", "milestone:m3", "y", "fail")
        await live.until_over("zero", "one", "two", "leaf-of-one")
        heard = await live.stop()
        await getattr(world, ends)()

        for at, event in enumerate(heard):
            assert event.cursor is not None
            rest = await stored(await root_of(world), after=event.cursor, count=len(heard) - at - 1)
            assert by_run(rest) == by_run(heard[at + 1 :]), at


@pytest.mark.slow
async def test_a_cursor_does_not_grow_with_what_is_over(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        reader = Reader(root.subscribe())
        for number in range(30):
            await root.give(f"run-{number}", "a", "b")
        await reader.until_over("run-29")
        events = await reader.stop()

        assert all(event.cursor is not None and len(event.cursor) < 80 for event in events)


@pytest.mark.slow
async def test_while_very_much_goes_on_not_every_event_carries_the_cursor(run: Run) -> None:
    async with run(WatchedRoot, timings=Timings(event_cursor_chars=50)) as world:
        root = await world.get_agent(WatchedRoot, "r")
        for number in range(12):
            await root.begin(f"run-{number}", "a", "gate:go", "b")
        reader = Reader(root.subscribe())
        await reader.until(lambda event: event.run_id == "run-11")
        gate("gate:go").set()
        await reader.until_over(*(f"run-{number}" for number in range(12)))
        heard = await reader.stop()
        assert 0 < sum(event.cursor is None for event in heard) < len(heard)

        at = next(number for number in range(40, len(heard)) if heard[number].cursor is not None)
        rest = await stored(root, after=heard[at].cursor, count=len(heard) - at - 1)

        assert by_run(rest) == by_run(heard[at + 1 :])


async def test_a_cursor_of_another_agent_or_none_at_all_is_refused(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root, other = await world.get_agent(WatchedRoot, "r"), await world.get_agent(WatchedRoot, "other")
        reader = Reader(root.subscribe())
        await root.give("one", "a")
        cursor = (await reader.until(lambda event: event.cursor is not None)).cursor
        await reader.stop()

        for agent, after in ((other, cursor), (root, "nonsense"), (root, "bm9uc2Vuc2U")):
            with pytest.raises(InvalidArguments):
                await anext(agent.subscribe(after=after))
        with pytest.raises(InvalidArguments):
            await anext(root.subscribe("deep"))  # pyright: ignore[reportArgumentType]


async def test_a_reader_that_is_slow_misses_nothing_and_holds_up_nobody(run: Run) -> None:
    async with run(WatchedRoot, timings=Timings(event_queue=8)) as world:
        root = await world.get_agent(WatchedRoot, "r")
        await root.begin("open", "a", "gate:never")
        await root.give("over", "b")
        quick = Reader(root.subscribe())
        slow = root.subscribe()
        words = [str(number) for number in range(200)]
        await root.begin("one", "first", "gate:go", *words)
        found = [await anext(slow)]
        gate("gate:go").set()
        assert await root.over("one") == "completed"
        await quick.until_over("one")

        while not (is_end(found[-1]) and found[-1].run_id == "one"):
            found.append(await asyncio.wait_for(anext(slow), patience()))

        assert by_run(found) == by_run(await quick.stop())
        assert said(found, "one") == "".join(["first", *words])
        await slow.aclose()


async def test_whoever_stops_reading_stops_nothing_and_leaves_nothing_behind(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        readers = [Reader(root.subscribe()) for _ in range(3)]
        await root.begin("one", "a", "gate:go", "b")
        for reader in readers:
            await reader.until(lambda event: event.kind == "chunk")
        for reader in readers[:2]:
            await reader.stop()
        gate("gate:go").set()

        await readers[2].until_over("one")
        assert await root.over("one") == "completed"
        assert await root.listeners() == 1
        await readers[2].stop()
        assert await root.listeners() == 0


async def test_runs_of_sub_agents_that_are_no_runs_are_part_of_the_tree(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        reader = Reader(root.subscribe())
        await root.have("desk")
        await reader.until_over("of-desk")
        live = await reader.stop()
        world.sleep()

        assert by_run(await stored(await root_of(world), count=len(live))) == by_run(live)
        assert [step.name for step in live[0].path] == ["r", "desk", "of-desk"]
        assert not await stored(await root_of(world), "children", count=0)


async def test_a_cancelled_run_ends_visibly_for_those_who_watch(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        reader = Reader(root.subscribe())
        await root.begin("one", "a", "gate:never", nested=True)
        await reader.until(lambda event: event.run_id == "leaf-of-one" and event.kind == "chunk")
        await root.stop("one")
        await reader.until_over("one", "leaf-of-one")

        ends = {event.run_id: event for event in reader.events if is_end(event)}
        assert {run: event.kind for run, event in ends.items()} == {"one": "cancelled", "leaf-of-one": "cancelled"}
        assert ends["one"].body["status"] == "cancelled"
        heard = await reader.stop()
        assert by_run(await stored(root, count=len(heard))) == by_run(heard)


async def test_runs_that_were_cleared_are_forgotten_and_the_next_ones_are_told(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        reader = Reader(root.subscribe())
        await root.begin("one", "a", "gate:never")
        await root.give("two", "a")
        await reader.until_over("two")
        cursor = reader.events[-1].cursor
        await root.clear()
        await root.give("three", "c")
        await reader.until_over("three")

        assert set(by_run(await stored(root, count=5))) == {"three"}
        rest = Reader(root.subscribe(after=cursor))
        await rest.until_over("three")
        assert set(by_run(await rest.stop())) == {"three"}
        assert len(str(rest.events[-1].cursor)) < 80
        await reader.stop()


async def test_what_a_run_says_after_it_was_given_up_is_told_and_so_is_its_end(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        live = Reader(root.subscribe())
        await root.begin("one", "a", "gate:go", "b")
        await live.until(lambda event: event.kind == "chunk" and event.body.get("delta") == "a")
        await world.clock.advance(25 * 3600)
        await live.until(lambda event: event.kind == "interrupted")
        middle = Reader(root.subscribe())
        await middle.until(lambda event: event.kind == "interrupted")
        gate("gate:go").set()
        for reader in (live, middle):
            await reader.until_over("one")

        kinds = ["started", "chunk", "chunk", "interrupted", "chunk", "chunk", "completed"]
        assert [event.kind for event in live.events] == kinds
        assert plain(await middle.stop()) == plain(await live.stop())


class WatchedHelper(ChatAgent[str]):
    """Helps."""

    model = ScriptedModel(text("I help", gate=None), each=True)


class WatchedChat(ChatAgent[str]):
    """Talks, and has helpers."""

    model = ScriptedModel(call("helper", id="c1", message="help me"), text("done"), each=True)
    tools = (agent_tool(WatchedHelper, name="helper"),)


async def test_a_chats_own_turns_are_events_and_so_are_the_runs_in_them(run: Run) -> None:
    async with run(WatchedChat) as world:
        chat = await world.get_agent(WatchedChat, "r")
        reader = Reader(chat.subscribe())
        turn = await chat.send("go")
        await reader.until(lambda event: event.run_id is None and is_end(event))
        await reader.until_over("agent-tool:c1")

        own = [event for event in reader.events if event.run_id is None]
        assert [own[0].kind, own[-1].kind] == ["started", "completed"]
        assert [event.seq for event in own] == list(range(len(own)))
        assert own[0].body == {"turn": turn.id}
        assert own[-1].body == {"turn": turn.id, "output": "done"}
        assert said(own, None) == "done"
        assert said(reader.events, "agent-tool:c1") == "I help"
        start = next(event for event in reader.events if event.run_id == "agent-tool:c1")
        assert start.body["toolCallId"] == "c1"
        await reader.stop()
        told = [event for event in plain(reader.events) if event.run_id is not None]
        assert plain(await stored(chat, count=len(told))) == told


class WatchedTalker(ChatAgent[str]):
    """Says something when it is let."""

    async def respond(self, turn: Any) -> Any:
        for word in ("a", "b", "gate:talk", "c"):
            if word.startswith("gate:"):
                await gate(word).wait()
            else:
                yield word
                await asyncio.sleep(0.05)  # longer than what is said is gathered


async def test_a_reader_that_comes_during_a_turn_sees_it_from_its_beginning(run: Run) -> None:
    async with run(WatchedTalker) as world:
        chat = await world.get_agent(WatchedTalker, "r")
        first = Reader(chat.subscribe("self"))
        turn = asyncio.create_task(chat.send("go"))
        await first.until(lambda event: event.kind == "chunk" and event.body.get("delta") == "b")
        cursor = first.events[-2].cursor
        second = Reader(chat.subscribe("self"))
        third = Reader(chat.subscribe("self", after=cursor))
        await second.until(lambda event: event.kind == "chunk" and event.body.get("delta") == "b")
        gate("gate:talk").set()
        await turn
        for reader in (first, second, third):
            await reader.until(is_end)

        assert plain(second.events) == plain(first.events)
        last = [event.cursor for event in first.events].index(cursor)
        assert plain(third.events) == plain(first.events[last + 1 :])
        assert said(first.events, None) == "abc"
        for reader in (first, second, third):
            await reader.stop()


async def test_a_turn_that_is_cancelled_ends_visibly_for_those_who_watch(run: Run) -> None:
    async with run(WatchedTalker) as world:
        chat = await world.get_agent(WatchedTalker, "r")
        reader = Reader(chat.subscribe())
        turn = asyncio.create_task(chat.send("go"))
        await reader.until(lambda event: event.kind == "chunk" and event.body.get("delta") == "b")
        await chat.turns.cancel()
        await turn

        end = await reader.until(is_end)
        assert (end.kind, end.body["status"]) == ("cancelled", "cancelled")
        await reader.stop()


class WatchedChannels(Agent):
    """Says several things at once, each under a name of its own."""

    async def on_run(self, input: Any) -> AsyncGenerator[Any, None]:
        yield "text"
        yield {"type": "data-log", "data": "looked it up"}
        yield {"type": "data-chart", "data": [1, 2]}


class ChannelRoot(Agent):
    async def give(self) -> None:
        await self.run_agent(WatchedChannels, run_id="one")


async def test_a_stream_carries_several_named_channels_over_one_numbered_log(run: Run) -> None:
    async with run(ChannelRoot) as world:
        root = await world.get_agent(ChannelRoot, "r")
        await root.give()
        events = await stored(root, count=7)

        chunks = [event for event in events if event.kind == "chunk"]
        assert [chunk.seq for chunk in chunks] == list(range(1, len(chunks) + 1))
        channels = {chunk.body["type"]: chunk.body["data"] for chunk in chunks if "data" in chunk.body}
        assert channels == {"data-log": "looked it up", "data-chart": [1, 2]}


told_hooks: list[tuple[str, str, str]] = []


class HookedHelper(ChatAgent[Any]):
    """Tells what its hooks are told."""

    model = ScriptedModel(text("helped"), each=True)

    async def before_turn(self, turn: Any) -> None:
        told_hooks.append((type(self).__name__, "start", turn.id))

    async def after_turn(self, turn: Any) -> None:
        told_hooks.append((type(self).__name__, turn.status, turn.id))


@dataclass
class Pages:
    pages: int


class HookedFinishing(HookedHelper):
    """Ends with a value, by a tool that ends it."""

    model = ScriptedModel(call("final_result", id="f1", pages=2), each=True)
    output_type = Pages


class HookedFailing(HookedHelper):
    """Fails."""

    async def respond(self, turn: Any) -> Any:
        raise RuntimeError("It went wrong.")
        yield ""


class HookedChat(HookedHelper):
    """Has helpers that end each in its way."""

    model = ScriptedModel(
        call("helper", id="c1", message="a"),
        call("finishing", id="c2", message="b"),
        call("failing", id="c3", message="c"),
        text("all done"),
        each=True,
    )
    tools = (
        agent_tool(HookedHelper, name="helper"),
        agent_tool(HookedFinishing, name="finishing"),
        agent_tool(HookedFailing, name="failing"),
    )


@pytest.mark.slow
async def test_the_end_of_a_child_is_its_own_whichever_way_it_ends_and_the_parents_stream_goes_on(run: Run) -> None:
    told_hooks.clear()
    async with run(HookedChat) as world:
        chat = await world.get_agent(HookedChat, "r")
        reader = Reader(chat.subscribe())
        turn = await chat.send("go")
        await reader.until(lambda event: event.run_id is None and is_end(event))

        assert told_hooks == [
            ("HookedChat", "start", turn.id),
            ("HookedHelper", "start", "agent-tool:c1"),
            ("HookedHelper", "completed", "agent-tool:c1"),
            ("HookedFinishing", "start", "agent-tool:c2"),
            ("HookedFinishing", "completed", "agent-tool:c2"),
            ("HookedFailing", "start", "agent-tool:c3"),
            ("HookedFailing", "failed", "agent-tool:c3"),
            ("HookedChat", "completed", turn.id),
        ]
        ends = [(event.run_id, event.kind) for event in reader.events if is_end(event)]
        assert ends == [
            ("agent-tool:c1", "completed"),
            ("agent-tool:c2", "completed"),
            ("agent-tool:c3", "failed"),
            (None, "completed"),
        ]
        assert said(reader.events, None) == "all done"
        await reader.stop()


async def test_what_could_not_be_kept_is_told_to_nobody(run: Run) -> None:
    async with run(WatchedRoot) as world:
        root = await world.get_agent(WatchedRoot, "r")
        reader = Reader(root.subscribe())
        await root.begin("one", "a", "gate:go", "b")
        await reader.until(lambda event: event.kind == "chunk" and event.body.get("delta") == "a")
        (tree,) = world.node.trees.values()
        (leaf,) = [actor for actor in tree.actors.values() if actor.address.name == "one"]

        fail_next_commit(leaf.database, apsw.LockedError("locked"))  # a broken disk restarts the whole tree
        gate("gate:go").set()
        await world.settled()
        await world.clock.advance(60)
        await reader.until_over("one")

        assert leaf.dropped is not None
        heard = await reader.stop()
        assert plain(await stored(root, count=len(heard))) == plain(heard)
        assert said(heard, "one") == "aab"  # it was called again


class OpenedHelper(ChatAgent[str]):
    """Helps, and then helps more."""

    model = ScriptedModel(text("I help"), text("more help"), each=True)


class OpenedChat(ChatAgent[str]):
    """Has a helper."""

    model = ScriptedModel(call("helper", id="c1", message="the question"), text("done"), each=True)
    tools = (agent_tool(OpenedHelper, name="helper"),)


async def test_a_turn_in_a_run_that_was_opened_is_seen_by_those_who_watch_the_tree_as_its_own(run: Run) -> None:
    async with run(OpenedChat) as world:
        chat = await world.get_agent(OpenedChat, "r")
        await chat.send("go")
        reader = Reader(chat.subscribe())
        await reader.until_over("agent-tool:c1")
        helper = await world.get_agent(OpenedChat, "r", sub=((OpenedHelper, "agent-tool:c1"),))
        await helper.send("and now?")
        end = await reader.until(lambda event: event.run_id is None and event.kind == "completed")

        own = [event for event in reader.events if event.run_id is None]
        assert {event.path[-1].name for event in own} == {"agent-tool:c1"}
        assert end.body["output"] == "more help"
        assert said(own, None) == "more help"
        await reader.stop()
