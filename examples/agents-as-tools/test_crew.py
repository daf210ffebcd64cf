import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from sapwood import App, NotFound
from sapwood.testing import World, running

import crew_sources
from crew import Assistant, Planner, Researcher
from crew_script import Conversation, Reply, as_assistant

HEADINGS = ("Overview", "Affected files", "Step-by-step", "Open questions")


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World, None]:
    monkeypatch.setattr(crew_sources, "PAUSE", 0)
    async with running(App(agents=[Assistant])) as world:
        yield world


async def test_a_researcher_reasons_searches_and_names_its_sources(
    world: World,
) -> None:
    me = await world.get_agent(Assistant, "me")
    turn = await me.send("Research the actor model")

    (call,) = calls(await me.conversation.messages())
    helper = await get_researcher(world, call)
    task, summary = await helper.conversation.messages()
    assert text_of(task) == "the actor model"
    searches = [one["input"]["query"] for one in calls([summary])]
    assert len(searches) == 3
    assert len([one for one in summary["parts"] if one["type"] == "reasoning"]) == 4
    assert text_of(summary) == call["output"]
    assert "- **Drawbacks:** " in call["output"]
    assert "Sources: " in call["output"]
    assert turn.text.startswith("**The actor model.**")


async def test_several_topics_are_researched_in_parallel(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("Research Rust, Go, and Python, please.")

    tool_calls = calls(await me.conversation.messages())
    assert [call["input"]["query"] for call in tool_calls] == ["Rust", "Go", "Python"]
    for call in tool_calls:
        assert call["output"].startswith(f"### {call['input']['query']}")


async def test_more_than_two_topics_are_researched_one_by_one(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("Compare Rust, Go and Python")

    tool_calls = calls(await me.conversation.messages())
    assert [call["input"]["query"] for call in tool_calls] == ["Rust", "Go", "Python"]


async def test_compare_researches_two_topics_side_by_side(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    turn = await me.send("Compare Rust and Go")

    (call,) = calls(await me.conversation.messages())
    for number, (half, query) in enumerate((("a", "Rust"), ("b", "Go"))):
        helper = await get_researcher(world, call, number)
        summary = text_of((await helper.conversation.messages())[-1])
        assert call["output"][half] == {"query": query, "summary": summary}
        assert f"- **{query}:** " in turn.text


async def test_if_one_half_fails_the_answer_uses_the_other_and_names_the_gap(
    world: World,
) -> None:
    me = await world.get_agent(Assistant, "me")
    turn = await me.send("Compare Rust and something that fails")

    (call,) = calls(await me.conversation.messages())
    assert "summary" in call["output"]["a"]
    assert call["output"]["b"] == {
        "query": "something that fails",
        "error": "The web search does not respond.",
    }
    assert turn.status == "completed"
    assert "results for **Rust**:\n\n- **In short:** " in turn.text
    assert "only half of a comparison" in turn.text


async def test_a_planner_reads_two_files_and_starts_its_own_researcher(
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
    nested = await world.get_agent(Assistant, "me", sub=((Planner, run_of(call)), step))
    assert text_of((await nested.conversation.messages())[-1]) == research["output"]


async def test_a_plan_reports_failed_research(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("Plan something that fails")

    (call,) = calls(await me.conversation.messages())
    questions = call["output"].partition("## Open questions")[2]
    assert "The research failed: The web search does not respond." in questions


async def test_stop_cancels_the_helpers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew_sources, "PAUSE", 0.005)
    me = await world.get_agent(Assistant, "me")
    turn_task = asyncio.create_task(me.send("Compare Rust and Go"))
    runs = await running_helpers(me, helpers=2)

    assert await me.turns.cancel()

    assert (await turn_task).status == "cancelled"
    for run in runs:
        helper = await world.get_agent(Assistant, "me", sub=[(Researcher, run)])
        assert not await helper.turns.cancel()  # no turn is running there
        assert "Sources" not in text_of((await helper.conversation.messages())[-1])


async def test_clear_deletes_the_helpers(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("Compare Rust and Go")
    (call,) = calls(await me.conversation.messages())

    await me.conversation.clear()

    assert await me.conversation.messages() == []
    for number in range(2):
        with pytest.raises(NotFound):
            await (await get_researcher(world, call, number)).conversation.messages()


@pytest.mark.parametrize(
    ("prompt", "helpers"),
    [("Research Rust", 1), ("Compare Rust and Go", 2), ("Plan a sign-in", 2)],
)
async def test_a_turn_has_the_same_result_after_a_crash(
    world: World, monkeypatch: pytest.MonkeyPatch, prompt: str, helpers: int
) -> None:
    calm = await world.get_agent(Assistant, "calm")
    await calm.send(prompt)
    expected = outline(await calm.conversation.messages())
    monkeypatch.setattr(crew_sources, "PAUSE", 0.001)
    me = await world.get_agent(Assistant, "me")
    turn_task = asyncio.create_task(me.send(prompt))
    await running_helpers(me, helpers)

    await world.crash()
    await asyncio.gather(turn_task, return_exceptions=True)
    me = await world.get_agent(Assistant, "me")
    await me.send("Thanks")  # answered after the turns before it

    assert outline((await me.conversation.messages())[:2]) == expected


async def test_a_researcher_answers_follow_up_questions(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("Research Rust")
    (call,) = calls(await me.conversation.messages())
    helper = await get_researcher(world, call)

    for prompt, answer in (
        ("Which sources?", "https://example.org/"),
        ("Shorter, please", "A compiled language"),
        ("Are you sure?", "3 sources"),
        ("Who are you?", "the Researcher for **Rust**"),
        ("Thanks", "**Rust**"),
        ("What about embedded systems?", "My topic is **Rust**"),
    ):
        assert answer in (await helper.send(prompt)).text
    assert len(await me.conversation.messages()) == 2  # the assistant does not see this


async def test_a_planner_answers_follow_up_questions(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    await me.send("How can I add a dark theme?")
    (call,) = calls(await me.conversation.messages())
    planner = await world.get_agent(Assistant, "me", sub=[(Planner, run_of(call))])

    for prompt, answer in (
        ("Which files change?", "`src/page.js`"),
        ("What is the first step?", "1. Write a test"),
        ("What is unclear?", "The Researcher warns"),
        ("Show me src/app.py", "believed as it is"),
        ("Research WebSockets", "**WebSockets.**"),
        ("Hm", "I have a plan for **add a dark theme**"),
    ):
        assert answer in (await planner.send(prompt)).text


@pytest.mark.parametrize(
    ("prompt", "tool", "arguments"),
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
def test_the_script_chooses_the_helper(
    prompt: str, tool: str, arguments: dict[str, str]
) -> None:
    reply = Reply(calls=((tool, arguments),))
    assert as_assistant(Conversation([prompt], [], [])) == reply


def test_the_instructions_name_the_tools() -> None:
    instructions = str(Assistant.instructions)
    for tool, hint in (
        ("compare", "compare or contrast"),
        ("plan", "how do I implement"),
        ("research", "other questions"),
    ):
        assert f"`{tool}`" in instructions
        assert hint in instructions


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Hello", "Give me a topic"),
        ("What can you do?", "**Compare Rust and Go**"),
        ("Thanks!", "My helpers stay here"),
        ("Gravity", "I do not understand “Gravity”"),
    ],
)
def test_small_talk_is_answered(prompt: str, answer: str) -> None:
    assert answer in as_assistant(Conversation([prompt], [], [])).text


async def test_failures_are_reported(world: World) -> None:
    me = await world.get_agent(Assistant, "me")
    for prompt, answer in (
        ("Research something that fails", "The web search does not respond."),
        ("Compare what fails and what crashes", "Both Researchers failed"),
    ):
        assert answer in (await me.send(prompt)).text


def calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tool calls of a conversation."""
    parts = [part for message in messages for part in message["parts"]]
    return [part for part in parts if "toolCallId" in part]


def run_of(call: dict[str, Any], number: int | None = None) -> str:
    """Return the run of a tool call, or its run with this number."""
    id = f"agent-tool:{call['toolCallId']}"
    return id if number is None else f"{id}:{number}"


async def get_researcher(
    world: World, call: dict[str, Any], number: int | None = None
) -> Researcher:
    step = (Researcher, run_of(call, number))
    return await world.get_agent(Assistant, "me", sub=[step])


async def running_helpers(agent: Assistant, helpers: int) -> set[str]:
    """Wait until this many helpers, at any depth, stream. Return their runs."""
    runs: set[str] = set()
    async with asyncio.timeout(60):
        async for event in agent.subscribe("tree"):
            if event.kind == "chunk" and event.run_id is not None:
                runs.add(event.run_id)
            if len(runs) == helpers:
                break
    return runs


def outline(messages: list[dict[str, Any]]) -> list[Any]:
    """Return a conversation without its ids."""
    return [
        (part["type"], part.get("text"), part.get("input"), part.get("output"))
        for message in messages
        for part in message["parts"]
    ]


def text_of(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")
