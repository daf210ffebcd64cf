import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from sapwood import App, NotFound
from sapwood.testing import World, running

import crew_sources
from crew import Assistant, Planner, Researcher
from crew_script import Heard, Reply, as_assistant

HEADINGS = ("Overview", "Affected files", "Step-by-step", "Open questions")


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World, None]:
    monkeypatch.setattr(crew_sources, "PAUSE", 0)
    async with running(App(agents=[Assistant])) as world:
        yield world


async def test_a_researcher_thinks_searches_and_names_its_sources(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    turn = await me.send("Research the actor model")

    (call,) = calls(await me.conversation.messages())
    helper = await the_researcher(world, call)
    given, summary = await helper.conversation.messages()
    assert text_of(given) == "the actor model"
    searches = [one["input"]["query"] for one in calls([summary])]
    assert len(searches) == 3
    assert len([one for one in summary["parts"] if one["type"] == "reasoning"]) == 4
    assert text_of(summary) == call["output"]
    assert "- **Drawbacks:** " in call["output"]
    assert "Sources: " in call["output"]
    assert turn.text.startswith("**The actor model.**")


async def test_several_things_are_researched_at_once(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("Research Rust, Go, and Python, please.")

    found = calls(await me.conversation.messages())
    assert [call["input"]["query"] for call in found] == ["Rust", "Go", "Python"]
    for call in found:
        assert call["output"].startswith(f"### {call['input']['query']}")


async def test_more_than_two_things_are_not_compared_by_halves(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("Compare Rust, Go and Python")

    found = calls(await me.conversation.messages())
    assert [call["input"]["query"] for call in found] == ["Rust", "Go", "Python"]


async def test_two_things_are_compared_side_by_side(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    turn = await me.send("Compare Rust and Go")

    (call,) = calls(await me.conversation.messages())
    for number, (half, query) in enumerate((("a", "Rust"), ("b", "Go"))):
        helper = await the_researcher(world, call, number)
        summary = text_of((await helper.conversation.messages())[-1])
        assert call["output"][half] == {"query": query, "summary": summary}
        assert f"- **{query}:** " in turn.text


async def test_if_one_half_fails_the_other_counts_and_the_gap_is_named(
    world: World,
) -> None:
    me = await world.get_agent(Assistant, "me")
    turn = await me.send("Compare Rust and something that fails")

    (call,) = calls(await me.conversation.messages())
    assert "summary" in call["output"]["a"]
    assert call["output"]["b"] == {
        "query": "something that fails",
        "error": "The web did not answer any more.",
    }
    assert turn.status == "completed"
    assert "about **Rust**:\n\n- **In short:** " in turn.text
    assert "only half of a comparison" in turn.text


async def test_a_planner_reads_two_files_and_has_a_researcher_of_its_own(
    world: World,
) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("How do I add full-text search?")

    (call,) = calls(await me.conversation.messages())
    positions = [call["output"].index(f"## {heading}\n") for heading in HEADINGS]
    assert positions == sorted(positions)
    planner = await world.get_agent(Assistant, "me", sub=[(Planner, run_of(call))])
    *files, research = calls(await planner.conversation.messages())
    assert [one["input"]["path"] for one in files] == ["README.md", "src/store.py"]
    step = (Researcher, run_of(research))
    below = await world.get_agent(Assistant, "me", sub=((Planner, run_of(call)), step))
    assert text_of((await below.conversation.messages())[-1]) == research["output"]


async def test_a_plan_says_what_could_not_be_researched(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("Plan something that fails")

    (call,) = calls(await me.conversation.messages())
    questions = call["output"].partition("## Open questions")[2]
    assert "The research failed: The web did not answer any more." in questions


async def test_stop_stops_the_helpers_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew_sources, "PAUSE", 0.005)
    me = await world.get_agent(Assistant, "me")
    asked = asyncio.create_task(me.send("Compare Rust and Go"))
    runs = await at_work(me, helpers=2)

    assert await me.turns.cancel()

    assert (await asked).status == "cancelled"
    for run in runs:
        helper = await world.get_agent(Assistant, "me", sub=[(Researcher, run)])
        assert not await helper.turns.cancel()  # nothing goes on there
        assert "Sources" not in text_of((await helper.conversation.messages())[-1])


async def test_clear_forgets_the_helpers_too(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("Compare Rust and Go")
    (call,) = calls(await me.conversation.messages())

    await me.conversation.clear()

    assert await me.conversation.messages() == []
    for number in range(2):
        with pytest.raises(NotFound):
            await (await the_researcher(world, call, number)).conversation.messages()


@pytest.mark.parametrize(
    ("said", "helpers"),
    [("Research Rust", 1), ("Compare Rust and Go", 2), ("Plan a sign-in", 2)],
)
async def test_after_a_crash_everything_ends_as_it_would_have(
    world: World, monkeypatch: pytest.MonkeyPatch, said: str, helpers: int
) -> None:
    calm = await world.get_agent(Assistant, "calm")
    await calm.send(said)
    expected = outline(await calm.conversation.messages())
    monkeypatch.setattr(crew_sources, "PAUSE", 0.001)
    me = await world.get_agent(Assistant, "me")
    asked = asyncio.create_task(me.send(said))
    await at_work(me, helpers)

    await world.crash()
    await asyncio.gather(asked, return_exceptions=True)
    me = await world.get_agent(Assistant, "me")
    await me.send("Thanks")  # answered when all before it is over

    assert outline((await me.conversation.messages())[:2]) == expected


async def test_a_researcher_knows_what_it_was_sent_for(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("Research Rust")
    (call,) = calls(await me.conversation.messages())
    helper = await the_researcher(world, call)

    for said, heard in (
        ("Which sources?", "https://example.org/"),
        ("Shorter, please", "A compiled language"),
        ("Are you sure?", "3 sources"),
        ("Who are you?", "sent for **Rust**"),
        ("Thanks", "**Rust**"),
        ("What about embedded systems?", "I was sent for **Rust**"),
    ):
        assert heard in (await helper.send(said)).text
    assert len(await me.conversation.messages()) == 2  # all that stays between the two


async def test_a_planner_knows_its_plan(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("How can I add a dark theme?")
    (call,) = calls(await me.conversation.messages())
    planner = await world.get_agent(Assistant, "me", sub=[(Planner, run_of(call))])

    for said, heard in (
        ("Which files change?", "`src/page.js`"),
        ("What is the first step?", "1. Write a test"),
        ("What is unclear?", "The Researcher warns"),
        ("Show me src/app.py", "believed as it is"),
        ("Research WebSockets", "**WebSockets.**"),
        ("Hm", "I have a plan for **add a dark theme**"),
    ):
        assert heard in (await planner.send(said)).text


@pytest.mark.parametrize(
    ("said", "tool", "given"),
    [
        ("research quilting", "research", {"query": "quilting"}),
        ("Tell me more about trees.", "research", {"query": "trees"}),
        ("What is SQLite?", "research", {"query": "SQLite"}),
        ("compare tea with coffee", "compare", {"a": "tea", "b": "coffee"}),
        ("SQLite vs. Postgres?", "compare", {"a": "SQLite", "b": "Postgres"}),
        (
            "What is the difference between actors and threads?",
            "compare",
            {"a": "actors", "b": "threads"},
        ),
        ("Plan a rate limit", "plan", {"goal": "a rate limit"}),
        ("how do I implement login", "plan", {"goal": "implement login"}),
        ("Please add a cache", "plan", {"goal": "add a cache"}),
    ],
)
def test_the_right_helper_is_chosen(
    said: str, tool: str, given: dict[str, str]
) -> None:
    assert as_assistant(Heard([said], [], [])) == Reply(calls=((tool, given),))


def test_the_instructions_say_which_helper_is_for_what() -> None:
    told = str(Assistant.instructions)
    for tool, hint in (
        ("compare", "compare or contrast"),
        ("plan", "how do I implement"),
        ("research", "other questions"),
    ):
        assert f"`{tool}`" in told
        assert hint in told


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("Hello", "Give me something to find out"),
        ("What can you do?", "**Compare Rust and Go**"),
        ("Thanks!", "My helpers stay here"),
        ("Gravity", "“Gravity” is more than I understand"),
    ],
)
def test_small_talk_is_answered(said: str, heard: str) -> None:
    assert heard in as_assistant(Heard([said], [], [])).text


async def test_what_failed_is_told_in_words(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    for said, heard in (
        ("Research something that fails", "The web did not answer any more."),
        ("Compare what fails and what crashes", "Neither of the two"),
    ):
        assert heard in (await me.send(said)).text


def calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tool calls of a conversation."""
    parts = [part for message in messages for part in message["parts"]]
    return [part for part in parts if "toolCallId" in part]


def run_of(call: dict[str, Any], number: int | None = None) -> str:
    """Return the run that answers a tool call, or the one of this number."""
    id = f"agent-tool:{call['toolCallId']}"
    return id if number is None else f"{id}:{number}"


async def the_researcher(
    world: World, call: dict[str, Any], number: int | None = None
) -> Researcher:
    step = (Researcher, run_of(call, number))
    return await world.get_agent(Assistant, "me", sub=[step])


async def at_work(agent: Assistant, helpers: int) -> set[str]:
    """Return the runs of so many helpers, at any depth, as soon as each has spoken."""
    runs: set[str] = set()
    async with asyncio.timeout(60):
        async for event in agent.subscribe("tree"):
            if event.kind == "chunk" and event.run_id is not None:
                runs.add(event.run_id)
            if len(runs) == helpers:
                break
    return runs


def outline(messages: list[dict[str, Any]]) -> list[Any]:
    """Return a conversation without what is different each time."""
    return [
        (part["type"], part.get("text"), part.get("input"), part.get("output"))
        for message in messages
        for part in message["parts"]
    ]


def text_of(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")
